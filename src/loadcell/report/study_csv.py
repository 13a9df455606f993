"""The trials of a study -> one row each, for a spreadsheet. Pure. What was not measured is an empty cell."""

import csv
import io
from collections.abc import Iterable
from typing import Final

from loadcell.report.figures import one_line
from loadcell.report.study import StudyResults, StudyTrial

_FIXED: Final = (
    "number",
    "kind",
    "tag",
    "outcome",
    "phase",
    "feasible",
    "objective",
    "objective_se",
    "corrected",
    "second",
    "fitness",
    "verdict",
    "attempts",
    "launch_s",
    "measure_s",
    "stop_s",
    "started",
    "ended",
    "exit_code",
    "folder",
)
_EVIDENCE: Final = 1000
_FORMULA: Final = ("=", "+", "-", "@")


def render(results: StudyResults) -> str:
    """Columns: those of a trial, then `parameter.NAME`, `load.NAME`, `figure.NAME` (s, tokens/s, requests/s), `margin.LIMIT`, and the evidence."""
    parameters = [one.name for one in results.parameters]
    loads = _names(trial.load for trial in results.trials)
    figures = _names(trial.figures for trial in results.trials)
    limits = [one.text for one in results.limits]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            *_FIXED,
            *(f"parameter.{name}" for name in parameters),
            *(f"load.{name}" for name in loads),
            *(f"figure.{name}" for name in figures),
            *(f"margin.{text}" for text in limits),
            "evidence",
        ]
    )
    for trial in results.trials:
        writer.writerow(
            [
                *(_cell(getattr(trial, name)) for name in _FIXED),
                *(_cell(trial.configuration.get(name)) for name in parameters),
                *(_cell(trial.load.get(name)) for name in loads),
                *(_cell(trial.figures.get(name)) for name in figures),
                *(_cell(trial.margins.get(text)) for text in limits),
                _evidence(trial),
            ]
        )
    return out.getvalue()


def _names(tables: Iterable[dict[str, float] | dict[str, float | None]]) -> list[str]:
    return list(dict.fromkeys(name for table in tables for name in table))


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.9g}" if isinstance(value, float) else _text(str(value))


def _evidence(trial: StudyTrial) -> str:
    return _text(one_line(trial.evidence or "", _EVIDENCE))


def _text(text: str) -> str:
    """A spreadsheet runs what begins like a formula: texts come from logs, too."""
    return f"'{text}" if text.startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
