"""A study's record -> where it stands: what was spent, which result is the best so far, which are a front, why nothing succeeded. Pure."""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from loadcell.tune.events import SEARCH, Closed, Record
from loadcell.tune.outcome import MEASURED, TrialResult

SECOND: Final = "second"
"""The figure that is the second objective of a front; larger is better."""


class Spent(Struct, frozen=True):
    """Of the budget, so far. `launch_s`, `measure_s`, `lost_s`: how the time of trials went; lost to those that gave no figures."""

    elapsed_s: float = 0.0
    trials: int = 0
    launches: int = 0
    launch_s: float = 0.0
    measure_s: float = 0.0
    lost_s: float = 0.0


def spent_of(record: Record, elapsed_s: float) -> Spent:
    """Cancelled trials cost time and launches, too."""
    every = [*record.results.values(), *record.cancelled.values()]
    return Spent(
        elapsed_s=elapsed_s,
        trials=len(record.searching()),
        launches=sum(one.attempts for one in every if one.phase != "plan"),
        launch_s=sum(one.launch_s for one in every if one.outcome in MEASURED),
        measure_s=sum(one.measure_s for one in every if one.outcome in MEASURED),
        lost_s=sum(seconds_of(one) for one in every if one.outcome not in MEASURED),
    )


def incumbent(results: Sequence[TrialResult]) -> TrialResult | None:
    """The best of the search within its limits."""
    feasible = [one for one in results if one.feasible and one.objective is not None and one.kind in SEARCH]
    return max(feasible, key=lambda one: one.objective or 0.0, default=None)


def seconds_of(result: TrialResult) -> float:
    return result.launch_s + result.measure_s + result.stop_s


def front(results: Sequence[TrialResult], second: Callable[[TrialResult], float | None]) -> list[TrialResult]:
    """Feasible results of the search that no other exceeds in both objectives."""
    points = [(one, one.objective, second(one)) for one in results if one.feasible and one.kind in SEARCH]
    told = [(one, x, y) for one, x, y in points if x is not None and y is not None]
    return [one for one, x, y in told if not any(u >= x and v >= y and (u, v) != (x, y) for _, u, v in told)]


def failure_text(why: str, results: Sequence[TrialResult]) -> str:
    """The most frequent cause first, with its evidence."""
    if any(one.outcome in MEASURED for one in results):
        return why
    counts: dict[str, int] = {}
    for one in results:
        counts[one.outcome] = counts.get(one.outcome, 0) + 1
    if not counts:
        return f"no trial was made: {why}"
    most = max(counts, key=lambda name: counts[name])
    evidence = next((one.evidence for one in results if one.outcome == most and one.evidence), None)
    return f"no trial succeeded: {counts[most]} of {len(results)} ended as {most}" + (f" ({evidence})" if evidence else "") + f"; {why}"


def exit_code(closed: Closed, signal: int | None) -> int:
    """0: the study came to its answer, which may be that the default stays. 1: it has none. 130, 143: it was ended."""
    if closed.state == "interrupted" and signal is not None:
        return 128 + signal
    return 0 if closed.state == "complete" else 1
