"""One attempt of a trial, and what it came to -> a TrialResult."""

from pathlib import Path
from typing import Any

from msgspec import Struct

from loadcell.experiment.secrets import Hider
from loadcell.fleet.events import now_text
from loadcell.tune.events import TrialKind
from loadcell.tune.loaded import Loaded
from loadcell.tune.outcome import MEASURED, TrialResult
from loadcell.tune.parameters import Configuration


class Attempt(Struct):
    """While it goes on. `folder`: its own; `began`: when; seconds of each part; `notes`: what was said of it."""

    configuration: Configuration
    number: int
    kind: TrialKind
    folder: Path
    began: str
    launch_s: float = 0.0
    measure_s: float = 0.0
    stop_s: float = 0.0
    notes: list[str] = []


def result_of(attempt: Attempt, loaded: Loaded, study: Path, hider: Hider) -> TrialResult:
    """`study`: the folder that paths are told from."""
    score, end = loaded.score, loaded.blame
    extra: dict[str, Any] = dict(loaded.extra)
    said = [*dict.fromkeys((*loaded.notes, *attempt.notes))]
    if said:
        extra["notes"] = [hider.text(text) for text in said]
    if loaded.signal is not None:
        extra["signal"] = loaded.signal
    measured = score is not None and end.outcome in MEASURED
    return TrialResult(
        number=attempt.number,
        configuration=attempt.configuration,
        outcome=end.outcome,
        phase=end.phase,
        kind=attempt.kind,
        objective=score.objective if score is not None and measured else None,
        objective_se=score.objective_se if score is not None and measured else None,
        figures=score.figures if score is not None else {},
        n=score.n if score is not None else {},
        violations=score.violations if score is not None else {},
        evidence=None if end.evidence is None else hider.text(end.evidence),
        exit_code=end.code,
        folder=str(attempt.folder.relative_to(study)),
        load=loaded.load,
        launch_s=round(attempt.launch_s, 3),
        measure_s=round(attempt.measure_s, 3),
        stop_s=round(attempt.stop_s, 3),
        started=attempt.began,
        ended=now_text(),
        verdict=loaded.verdict,
        extra=extra,
    )
