"""Results of an experiment -> the lines that a run prints at its end: the verdict first, the reasons, one row per cell. Plain text."""

from textwrap import wrap
from typing import Final, TextIO

from loadcell.report import experiment_tables as tables
from loadcell.report.experiment import ExperimentResults
from loadcell.report.experiment_markdown import reasons, title
from loadcell.report.tables import Row, Table
from loadcell.report.terminal import WIDTH

_COLUMNS: Final = ("scenario", "verdict", "limits", "ok", "failed", "req/s", "output tok/s", "TTFT mean", "TPOT mean", "E2E mean")
_ROOM: Final = 130


def lines(results: ExperimentResults) -> list[str]:
    """Never wider than a wide terminal."""
    found = [f"{title(results)} · {tables.headline(results)}"]
    for reason in reasons(results):
        found += wrap(reason, WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)
    return [*found, "", *_columns(tables.overview(results))]


def show(results: ExperimentResults, out: TextIO) -> None:
    out.write("\n".join(lines(results)) + "\n")
    out.flush()


def _columns(table: Table) -> list[str]:
    """Texts to the left, figures to the right."""
    keep = [table.header.index(name) for name in _COLUMNS]
    rows: list[Row] = [tuple(row[i] for i in keep) for row in (table.header, *table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(keep))]
    return [
        "  ".join(
            cell.ljust(width) if at < 3 else cell.rjust(width) for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()[:_ROOM]
        for row in rows
    ]
