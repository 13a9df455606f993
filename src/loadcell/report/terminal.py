"""Summary -> the few lines that a run prints at its end: the verdict first, then the headline, at most 100 columns.

Plain text in a pipe, the same lines with colour on a terminal. rich is imported only then. Text from outside is never read as markup.
"""

from textwrap import wrap
from typing import Final, TextIO

from loadcell.metrics.summary import Summary, VerdictWord
from loadcell.report import tables
from loadcell.report.figures import MISSING, TOO_FEW_NOTE
from loadcell.report.run_tables import remarks
from loadcell.report.tables import Row, Table

WIDTH: Final = 100
_MAX_ENDPOINTS: Final = 16
_NAME: Final = 32
_COLOURS: Final[dict[VerdictWord, str]] = {"valid": "bold green", "suspect": "bold yellow", "invalid": "bold red"}


def lines(summary: Summary) -> list[str]:
    """The report as plain lines, none longer than WIDTH."""
    found = [tables.verdict_line(summary)]
    for reason in tables.reasons(summary):
        found += _wrapped(reason, "  ")
    headline = _headline(summary)
    for table in (headline, _endpoints(summary), _failures(summary), tables.slos(summary)):
        if table.rows:
            found += ["", *_columns(table.header, table.rows)]
    notes = remarks(summary)
    found += [""] if notes else []
    for note in notes:
        found += _wrapped(f"note: {note}")
    if tables.any_marked(headline):
        found += ["", TOO_FEW_NOTE]
    return [cut(line) for line in found]


def show(summary: Summary, out: TextIO) -> None:
    """Print the lines to `out`."""
    text = lines(summary)
    if not out.isatty():
        out.write("\n".join(text) + "\n")
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=out, highlight=False, soft_wrap=True)
    head, _, rest = text[0].partition(" ")
    console.print(Text.assemble((head, _COLOURS[summary.verdict]), " ", rest))
    for line in text[1:]:
        console.print(
            Text(line, style="yellow" if line.startswith("  SUSPECT") else "red" if line.startswith(("  INVALID", "  PARTIAL")) else "")
        )


def _wrapped(text: str, indent: str = "") -> list[str]:
    """A sentence is never cut: what to do stands at its end."""
    return wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "      ", break_on_hyphens=False)


def cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def _headline(summary: Summary) -> Table:
    """The headline without the figures that nobody asked for."""
    table = tables.headline(summary)
    return Table(table.title, table.header, [row for row in table.rows if row[1] != MISSING or row[0] in ("TTFT", "TPOT", "ITL", "E2E")])


def _endpoints(summary: Summary) -> Table:
    """The endpoint table without the columns that the headline covers; the busiest when there are many."""
    table = tables.endpoints(summary)
    keep = [
        table.header.index(name) for name in ("endpoint", "share", "ok", "failed", "retries", "TTFT p50", "TTFT p95", "tok/s", "at end")
    ]
    rows = [tuple(row[i] for i in keep) for row in table.rows[:_MAX_ENDPOINTS]]
    if len(table.rows) > _MAX_ENDPOINTS:
        rows.append((f"and {len(table.rows) - _MAX_ENDPOINTS} more", *[""] * (len(keep) - 1)))
    return Table(table.title, tuple(table.header[i] for i in keep), rows)


def _failures(summary: Summary) -> Table:
    table = tables.outcomes(summary)
    return Table(table.title, table.header, [row for row in table.rows if row[0] != "ok"])


def _columns(header: Row, rows: list[Row]) -> list[str]:
    """Aligned columns: the first and texts to the left, figures to the right. A long name keeps its end, where the port is."""
    rows = [(row[0] if len(row[0]) <= _NAME else "…" + row[0][1 - _NAME :], *row[1:]) for row in rows]
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    last_is_text = header[-1] in ("at end", "commonest message")

    def line(row: Row) -> str:
        cells = [cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        if last_is_text:
            cells[-1] = row[-1]
        return "  ".join(cells).rstrip()

    return [line(header), *(line(row) for row in rows)]
