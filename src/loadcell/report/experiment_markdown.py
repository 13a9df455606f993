"""Results of an experiment -> report.md. The verdict and its reasons come first; every cell from outside is escaped."""

from typing import Final

from loadcell.report import experiment_tables as tables
from loadcell.report.experiment import ExperimentResults
from loadcell.report.figures import METHOD_NOTE, MISSING, TOO_FEW_NOTE, one_line
from loadcell.report.markdown import escape, fenced, paragraph, table_lines
from loadcell.report.tables import any_marked

_HEADINGS: Final = {"running": "NOT ENDED", "interrupted": "INTERRUPTED", "stopped": "STOPPED"}
_MOST_REASONS: Final = 12


def title(results: ExperimentResults) -> str:
    """`VALID`, `SUSPECT, INTERRUPTED`, …: the worst verdict, and what keeps the run from being whole."""
    words = [(results.verdict or "nothing measured").upper(), *([_HEADINGS[results.state]] if results.state in _HEADINGS else [])]
    if any(cell.state == "failed" for cell in results.cells):
        words.append("WITH FAILURES")
    return ", ".join(words)


def reasons(results: ExperimentResults) -> list[str]:
    """Why it is not better, one line per cause: cells that share one stand together."""
    found: dict[str, list[str]] = {}
    if results.cause:
        found[f"{_HEADINGS.get(results.state, 'ENDED')}: {one_line(results.cause, 400)}"] = []
    for name, cell in tables.labelled(results):
        if cell.state not in ("done", "not_run"):
            found.setdefault(f"{cell.state.upper().replace('_', ' ')}: {one_line(cell.cause or 'cause unknown', 400)}", []).append(name)
        for reason in cell.reasons:
            found.setdefault(f"{reason.severity.upper()} {reason.rule}: {one_line(reason.text)}", []).append(name)
    return [f"{_named(names)}{text}" for text, names in found.items()]


def _named(names: list[str]) -> str:
    if not names:
        return ""
    unique = list(dict.fromkeys(names))
    shown = ", ".join(unique[:_MOST_REASONS])
    more = f" and {len(unique) - _MOST_REASONS} more" if len(unique) > _MOST_REASONS else ""
    return f"{shown}{more}: "


def render(results: ExperimentResults) -> str:
    """The whole report."""
    lines = [f"# {title(results)}: {escape(results.name)}", "", paragraph(tables.headline(results)), ""]
    lines += [f"- {paragraph(reason)}" for reason in reasons(results)] or ["- Every rule that could be judged was kept."]
    shown = [
        tables.overview(results),
        *(tables.latency(results, heading, name) for heading, name in tables.LATENCIES),
        tables.endpoints(results),
        tables.limits(results),
        tables.purity(results),
        tables.repeats(results),
        tables.not_whole(results),
        tables.services(results),
        tables.events(results),
    ]
    marked = any(any_marked(table) for table in shown)
    lines += ["", *(line for table in shown if table.rows for line in table_lines(table, too_few_note=False))]
    lines += [METHOD_NOTE + (f" {TOO_FEW_NOTE}" if marked else ""), ""]
    remarks = [*results.notices, *(f"{name}: {notice}" for name, cell in tables.labelled(results) for notice in cell.notices)]
    remarks += [f"left behind: {text}" for text in results.fleet.leftovers]
    if remarks:
        lines += ["## Notices", "", *(f"- {paragraph(one_line(remark, 400))}" for remark in dict.fromkeys(remarks)), ""]
    return "\n".join([*lines, *table_lines(tables.environment(results)), *_commands(results), *_files(results)]) + "\n"


def _commands(results: ExperimentResults) -> list[str]:
    commands = [one.command for one in results.fleet.services if one.command]
    return ["## How the services were started", "", *fenced("\n\n".join(commands), "sh")] if commands else []


def _files(results: ExperimentResults) -> list[str]:
    """Where the rest stands, and how to go on."""
    folders = [(name, cell.folder) for name, cell in tables.labelled(results) if cell.folder]
    lines = ["## Files", ""]
    if folders:
        first = folders[0][1]
        lines += [
            f"Each cell's folder holds its records and a report of its own, with steady state, client and rules: `{first}/report.md`, …"
        ]
        lines += ["`raw_outputs/` holds the same requests as the multi-service bench client writes them.", ""]
        lines += ["`loadcell report` on this folder makes `results.json` and this file again; the records are never changed.", ""]
    if results.state != "complete" and folders:
        lines += [
            f"`loadcell run --resume` goes on with it; what was measured to its end is kept. Run: {escape(results.run_id) or MISSING}.",
            "",
        ]
    return lines if folders else []
