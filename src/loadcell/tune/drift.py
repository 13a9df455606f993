"""The baseline, measured again every eighth trial -> has the machine drifted meanwhile, and what would each trial have given without it. Pure.

A machine that warms up, throttles or is shared moves every trial alike; a search that goes on over it takes the drift for an effect of parameters.
Between two measurements of the baseline the drift is taken for linear in the trials; what lies within the noise of measuring is no drift.
"""

import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadcell.tune.confirm import spread
from loadcell.tune.outcome import TEACHES_DEATH, TrialResult
from loadcell.tune.parameters import Configuration

EVERY: Final = 8
DEVIATIONS: Final = 2.5
LEAST: Final = 0.05  # a smaller change is none, however exactly it was measured


class Change(Struct, frozen=True):
    """`ratio`: the baseline's last measurement / its first."""

    ratio: float | None
    significant: bool
    text: str


def baseline_of(results: Sequence[TrialResult]) -> Configuration | None:
    """The default, where it could be measured; else what was measured first. Null before anything was."""
    measured = [one for one in results if one.objective]
    default = next((one for one in measured if one.kind == "default"), None)
    first = default or next(iter(measured), None)
    return None if first is None else first.configuration


def due(results: Sequence[TrialResult]) -> bool:
    """Whether the next trial is a control: seven others have ended since the last, or since the beginning."""
    last = max((at for at, one in enumerate(results) if one.kind == "drift"), default=-1)
    return len(results) - 1 - last >= EVERY - 1 and baseline_of(results) is not None


def change(results: Sequence[TrialResult]) -> Change:
    """Of the last result, which is a control, against the first measurement of the same configuration."""
    last = results[-1]
    first = next(one for one in results if one.configuration == last.configuration and one.objective)
    if not last.objective or not first.objective:
        return Change(None, last.outcome in TEACHES_DEATH, f"the baseline, which was measured before, ended as {last.outcome}")
    ratio = last.objective / first.objective
    significant = abs(math.log(ratio)) > _least(first, last)
    what = f"the baseline gave {ratio - 1:+.1%} against trial {first.number}"
    return Change(ratio, significant, what + (": the machine has drifted" if significant else ": within the noise"))


def corrected(results: Sequence[TrialResult]) -> list[TrialResult]:
    """With the objective that each would have had on the machine as it was for the first baseline; `extra["drift"]` holds the factor taken out."""
    at_baseline = baseline_of(results)
    points: list[tuple[int, float]] = []
    first: TrialResult | None = None
    for at, one in enumerate(results):
        if one.configuration != at_baseline or not one.objective:
            continue
        if first is None or first.objective is None:
            first, moved = one, 0.0
        else:
            moved = math.log(one.objective / first.objective)
            moved = moved if abs(moved) > _least(first, one) else 0.0
        points.append((at, moved))
    if not any(moved for _, moved in points):
        return list(results)
    return [_without(one, _between(points, at)) for at, one in enumerate(results)]


def _least(first: TrialResult, last: TrialResult) -> float:
    """A change of the log that noise alone rarely makes."""
    told = [(one.objective_se or 0.0) / (one.objective or 1.0) for one in (first, last)]
    noise = max(spread([]), *told)
    return max(LEAST, DEVIATIONS * math.sqrt(2) * noise)


def _between(points: Sequence[tuple[int, float]], at: int) -> float:
    """Linear between two measurements of the baseline; as at the nearest one outside."""
    before = max((point for point in points if point[0] <= at), default=points[0])
    after = min((point for point in points if point[0] >= at), default=points[-1])
    if after[0] == before[0]:
        return before[1]
    return before[1] + (after[1] - before[1]) * (at - before[0]) / (after[0] - before[0])


def _without(result: TrialResult, moved: float) -> TrialResult:
    if not moved or not result.objective:
        return result
    factor = math.exp(moved)
    error = None if result.objective_se is None else result.objective_se / factor
    return replace(result, objective=result.objective / factor, objective_se=error, extra={**result.extra, "drift": factor})
