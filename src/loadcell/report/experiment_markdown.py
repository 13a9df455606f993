"""Results of an experiment -> report.md. The verdict and its reasons come first; every cell from outside is escaped."""

import re
from typing import Final

from loadcell.report import experiment_tables as tables
from loadcell.report.experiment import ExperimentResults
from loadcell.report.figures import METHOD_NOTE, MISSING, TOO_FEW_NOTE, one_line
from loadcell.report.markdown import escape, fenced, paragraph, table_lines
from loadcell.report.tables import any_marked

_HEADINGS: Final = {"running": "NOT ENDED", "interrupted": "INTERRUPTED", "stopped": "STOPPED"}
_MOST_NAMES: Final = 14
_NUMBER: Final = re.compile(r"[0-9][0-9.,]*")


def title(results: ExperimentResults) -> str:
    """`VALID`, `SUSPECT, INTERRUPTED`, …: the worst verdict, and what keeps the run from being whole."""
    words = [(results.verdict or "nothing measured").upper(), *([_HEADINGS[results.state]] if results.state in _HEADINGS else [])]
    if any(cell.state == "failed" for cell in results.cells):
        words.append("WITH FAILURES")
    return ", ".join(words)


def reasons(results: ExperimentResults) -> list[str]:
    """Why it is not better, one line per cause: cells that share one stand together, in the words of the first."""
    found = _Grouped()
    if results.cause:
        found.add("", "", f"{_HEADINGS.get(results.state, 'ENDED')}: {one_line(_joined(results.cause), 400)}")
    for name, cell in tables.labelled(results):
        if cell.state not in ("done", "not_run"):
            text = f"{cell.state.upper().replace('_', ' ')}: {one_line(cell.cause or 'cause unknown', 400)}"
            found.add(text, name, text)
        for reason in cell.reasons if cell.state in ("done", "failed") else ():  # what was cut short has a report of its own
            rule = f"{reason.severity.upper()} {reason.rule}"
            found.add(rule, name, f"{rule}: {one_line(reason.text, 400)}")
    return found.lines()


def _joined(cause: str) -> str:
    """A cause with the lines of a log below it, as one line."""
    return re.sub(r"\n\s*", "; ", re.sub(r"\n\s*\|", " |", cause))


def remarks(results: ExperimentResults) -> list[str]:
    """Notices of the run, of its cells (those that differ in their numbers alone stand together), and what was left behind."""
    found = _Grouped()
    for name, cell in tables.labelled(results):
        for notice in cell.notices:
            found.add(_NUMBER.sub("N", notice), name, one_line(notice, 400))
    left = [f"left behind: {text}" for text in results.fleet.leftovers]
    return [one_line(text, 400) for text in dict.fromkeys([*results.notices, *left])] + found.lines()


class _Grouped:
    """Texts by key, each with the cells that it is said of."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._names: dict[str, list[str]] = {}

    def add(self, key: str, name: str, text: str) -> None:
        self._texts.setdefault(key, []).append(text)
        self._names.setdefault(key, []).extend([name] if name else [])

    def lines(self) -> list[str]:
        return [self._line(key, texts) for key, texts in self._texts.items()]

    def _line(self, key: str, texts: list[str]) -> str:
        names = list(dict.fromkeys(self._names[key]))
        if not names:
            return texts[0]
        first, *others = names
        if not others:
            return f"{first}: {texts[0]}"
        shown = ", ".join(others[:_MOST_NAMES]) + (f" and {len(others) - _MOST_NAMES} more" if len(others) > _MOST_NAMES else "")
        alike = "the same" if len(set(texts)) == 1 else "alike"
        return f"{first}: {texts[0]} ({alike} in {shown})"


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
    told = remarks(results)
    if told:
        lines += ["## Notices", "", *(f"- {paragraph(remark)}" for remark in told), ""]
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
