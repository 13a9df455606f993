"""Summary -> report.md. Every cell and line from outside is escaped, so that no name or message can break a table or become markup."""

import re

import msgspec

from loadcell.metrics.summary import Summary
from loadcell.report import run_tables, tables
from loadcell.report.figures import MISSING, TOO_FEW_NOTE, one_line
from loadcell.report.tables import Table

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_BLOCK_START = re.compile(r"^(\d*)([-+.)=])(?=[\s=-]|$)")
_ACTIVE = re.compile(r"[\\`*{}\[\]|#~$!&<>]|(?<![^\W_])_|_(?![^\W_])")


def escape(text: str) -> str:
    """Literal text for CommonMark and GitHub tables: markup is escaped, line ends and control characters become spaces."""
    return _ACTIVE.sub(lambda found: _ENTITIES.get(found[0], "\\" + found[0]), one_line(text, limit=2000))


def paragraph(text: str) -> str:
    """As `escape`, for text that begins a line: it starts no list, rule or heading either."""
    return _BLOCK_START.sub(r"\1\\\2", escape(text))


def render(summary: Summary) -> str:
    """The whole report. The verdict and its reasons come first."""
    return "\n".join([*_top(summary), *_body(summary), *_remake(summary)]) + "\n"


def _top(summary: Summary) -> list[str]:
    verdict, _, facts = tables.verdict_line(summary).partition(" · ")
    why = [f"- {paragraph(reason)}" for reason in tables.reasons(summary)]
    name = escape(summary.run.name) or "bench"
    return [f"# {verdict}: {name}", "", paragraph(facts), "", *(why or ["- Every rule that could be judged was kept."]), ""]


def _body(summary: Summary) -> list[str]:
    shown = [
        tables.headline(summary),
        tables.outcomes(summary),
        tables.endpoints(summary),
        tables.slos(summary),
        tables.steady(summary),
        tables.lengths(summary),
        run_tables.load(summary),
        run_tables.scheduled(summary),
        run_tables.intervals(summary),
        run_tables.client(summary),
        run_tables.purity(summary),
        run_tables.rules(summary),
    ]
    lines = [line for table in shown if table.rows for line in table_lines(table)]
    remarks = run_tables.remarks(summary)
    if remarks:
        lines += ["## Notices", "", *(f"- {paragraph(remark)}" for remark in remarks), ""]
    return lines + table_lines(run_tables.environment(summary))


def table_lines(table: Table, *, too_few_note: bool = True) -> list[str]:
    """A heading, the table and its notes."""
    lines = [f"## {table.title}", "", _row(table.header), "|" + " --- |" * len(table.header), *(_row(row) for row in table.rows), ""]
    notes = [*table.notes, *([TOO_FEW_NOTE] if too_few_note and tables.any_marked(table) else [])]
    for note in notes:
        lines += [paragraph(note), ""]
    return lines


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"


def _remake(summary: Summary) -> list[str]:
    """How to make this report, and this run, again."""
    spec = msgspec.json.format(msgspec.json.encode(summary.run.spec), indent=2).decode()
    lines = [
        "## Again",
        "",
        "`loadcell report` on this folder makes `summary.json` and this file again from `records.jsonl`; the records are never changed.",
        "",
    ]
    if not summary.run.spec:
        return [*lines, f"The scenario of the run: {MISSING}", ""]
    return [*lines, "The scenario of the run, secrets left out:", "", *fenced(spec, "json")]


def fenced(text: str, language: str = "") -> list[str]:
    """Text as it stands, in a fence longer than any run of backticks in it."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return [f"{fence}{language}", text, fence, ""]
