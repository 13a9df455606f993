"""What the loads of one trial are given, and what they give: the nouns, and a load as an experiment's cell. Pure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from loadcell.experiment.matrix import Cell, flag_of, matrix
from loadcell.experiment.spec import ExperimentSpec
from loadcell.fleet.spec import seconds
from loadcell.metrics.slo import Slo
from loadcell.tune.blame import Blame, Ending
from loadcell.tune.objective import Metric, Score
from loadcell.tune.outcome import TrialResult
from loadcell.tune.placing import Placed
from loadcell.tune.spec import StudySpec

_CELL: Final = "trial"


class Setting(Struct, frozen=True):
    """What the loads of one trial are given. `wanted`: latencies that are an objective. `full`: nothing is ended on evidence."""

    spec: StudySpec
    placed: Placed
    slos: tuple[Slo, ...]
    wanted: tuple[Slo, ...]
    metric: Metric
    folder: Path
    environment: Mapping[str, str]
    full: bool
    incumbent: TrialResult | None


class Loaded(Struct, frozen=True):
    """What a trial's loads gave. `ending`: of the load that decided. `load`: concurrency or request rate. `extra`: for the record."""

    blame: Blame
    score: Score | None = None
    ending: Ending | None = None
    load: dict[str, float] = {}
    verdict: str | None = None
    notes: tuple[str, ...] = ()
    extra: dict[str, Any] = {}
    signal: int | None = None


def cell_of(spec: StudySpec, placed: Placed, load: float | None, probe: int) -> Cell:
    """The load as an experiment's cell. Its name, and so its prompts and arrivals, are the same for all configurations; each probe of a launch has its
    own, so that it meets no other's in a cache. Raises SpecError.
    """
    bench = dict(placed.bench)
    if load is not None:
        bench[spec.load.knob] = round(load) if spec.load.knob == "concurrency" else load
    given = {flag_of(name) for name in bench}
    least_s = seconds(spec.warmup.least, "warmup.least")
    if least_s and "warmup_duration" not in given:
        bench["warmup_duration"] = least_s
    elif not given & {"warmup_requests", "warmup_duration"}:
        bench["warmup_requests"] = _first_wave(bench)
    experiment = ExperimentSpec(name=_CELL, seed=spec.study.seed, fleet=placed.fleet, bench=bench, slo=spec.slo)
    (cell,) = matrix(experiment)
    return replace(cell, flags={**cell.flags, "cell": _CELL, "repeat": probe, "name": _CELL})


def _first_wave(bench: Mapping[str, Any]) -> int:
    """Requests of the warm-up where nothing is said: as many as will be in flight."""
    value = next((value for name, value in bench.items() if flag_of(name) == "concurrency"), None)
    return max(1, int(value)) if isinstance(value, int | float) else 8


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
