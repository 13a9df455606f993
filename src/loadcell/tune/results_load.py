"""Results of trials -> the curves of a search for the largest load, and the front of two objectives. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from loadcell.report.study import CapacityCurve, CapacityPoint, FrontPoint, StudyTrial
from loadcell.tune.outcome import TrialResult
from loadcell.tune.spec import StudySpec


def curves(
    spec: StudySpec, best: Sequence[TrialResult], default: Sequence[TrialResult], found: TrialResult | None
) -> list[CapacityCurve]:  # fmt: skip
    if spec.load.mode != "capacity":
        return []
    wanted = [("best", best[-1:] or ([found] if found is not None else [])), ("default", list(default)[-1:])]
    return [
        curve
        for label, own in wanted
        for one in own
        if (curve := _curve(label, one, spec.load.knob, one.extra.get("capacity"))) is not None
    ]


def _curve(label: str, result: TrialResult, knob: str, told: Any) -> CapacityCurve | None:
    if not isinstance(told, Mapping) or not told.get("probes"):
        return None
    low, high = told.get("interval") or (None, None)
    return CapacityCurve(
        label=label,
        trial=result.number,
        knob=knob,
        points=[_point(point) for point in sorted(told["probes"], key=lambda one: one["load"])],
        status=told.get("status"),
        load=told.get("load"),
        low=low,
        high=high,
        confirmed=told.get("confirmed"),
        text=told.get("text"),
    )


def _point(told: Mapping[str, Any]) -> CapacityPoint:
    margins = told.get("margins") or {}
    worst = max(margins, key=lambda name: margins[name], default=None)
    return CapacityPoint(
        load=told["load"],
        outcome=told["outcome"],
        margin=None if worst is None else margins[worst],
        binding=worst,
        objective=told.get("objective"),
        why=told.get("why"),
    )


def front_of(trials: Sequence[StudyTrial]) -> list[FrontPoint]:
    """Feasible trials that no other exceeds in both, by the first objective."""
    points = [
        FrontPoint(one.number, one.objective if one.corrected is None else one.corrected, one.second, one.configuration)
        for one in trials
        if one.feasible and one.objective is not None and one.second is not None
    ]
    best = [one for one in points if not any(_exceeds(other, one) for other in points)]
    return sorted(best, key=lambda one: one.objective)


def _exceeds(other: FrontPoint, one: FrontPoint) -> bool:
    return (
        other.objective >= one.objective and other.second >= one.second and (other.objective, other.second) != (one.objective, one.second)
    )
