"""The largest load within the limits, in few probes: (load, margins) so far -> the load to probe next, or the answer. Pure: ask and tell.

A margin is log(measured / limit), positive where the limit is missed; the worst of all limits counts. It grows with the load, apart from noise:
so the probes are made monotone (isotonic regression, Barlow et al. 1972), joined by a shape-preserving cubic (PCHIP, Fritsch & Carlson 1980) over
the log of the load, and its root is probed next. Guarded by bisection, as in Brent (1973): a curve with a cliff has no useful root. What is answered
was measured within its limits at that load, once to find it and once more to confirm it, where the probes sufficed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

Status = Literal["found", "bound_reached", "cliff", "none"]
Why = Literal["first", "bracket", "root", "confirm"]

CLIFF: Final = math.log(2.0)
"""Between two neighbouring loads the margin jumps by more than a factor of two: it has no value in between that could be relied on."""
_DEAD: Final = 2.0
_STEP: Final = (math.log(1.3), math.log(8.0))
_OVERSHOOT: Final = 1.2
_GUARD: Final = 0.15


class Range(Struct, frozen=True):
    """`low`..`high`: no load outside is ever asked. `start`: where the limit was for the best configuration so far. `probes`: in all, the confirming
    one among them. `tolerance`: a bracket this narrow (relative) is not divided further. `backoff`: the margin that is aimed at, below the limit.
    """

    low: float
    high: float
    integer: bool = True
    start: float | None = None
    probes: int = 6
    tolerance: float = 0.05
    backoff: float = 0.04


class Probe(Struct, frozen=True):
    """One load as it was measured. `margins`: SLO text -> log(measured / limit). `died`: the service did not survive it. `served`: of an open loop,
    the rate that was served where that was less than was offered: nothing above it can be sustained.
    """

    load: float
    margins: Mapping[str, float] = {}
    died: bool = False
    served: float | None = None
    why: Why = "bracket"

    @property
    def worst(self) -> float:
        """Of a load without limits: within them."""
        return _DEAD if self.died else min(_DEAD, max(self.margins.values(), default=-_DEAD))

    @property
    def binding(self) -> str | None:
        """The limit that comes first."""
        return max(self.margins, key=lambda name: self.margins[name], default=None)


class Ask(Struct, frozen=True):
    """Probe this load next."""

    load: float
    why: Why


class Capacity(Struct, frozen=True):
    """`load` null: the lowest load misses a limit already. `interval`: the largest load within the limits, the smallest beyond them; null: none was seen.

    `bound_reached`: the highest load is within the limits, so that the limit was not found. `cliff`: somewhere in the interval it drops off.
    """

    status: Status
    load: float | None
    interval: tuple[float | None, float | None]
    confirmed: bool
    text: str
    binding: str | None = None


def advance(limits: Range, probes: Sequence[Probe]) -> Ask | Capacity:
    """What to do after these probes, in the order in which they were made."""
    if not probes:
        return Ask(_rounded(limits, limits.start if limits.start is not None else math.sqrt(limits.low * limits.high)), "first")
    left = limits.probes - len(probes)
    loads, worst = monotone(probes)
    good = [load for load, margin in zip(loads, worst, strict=True) if margin <= 0]
    bad = [load for load, margin in zip(loads, worst, strict=True) if margin > 0]
    low, high = (good[-1] if good else None), (bad[0] if bad else None)
    last = probes[-1]
    if last.why == "confirm" and last.worst <= 0:
        return _answer(limits, probes, last.load, low, high, confirmed=True)
    if left <= 0:
        return _answer(limits, probes, _measured_good(probes, low), low, high, confirmed=False)
    if low is None:
        assert high is not None
        if high <= limits.low:
            return _answer(limits, probes, None, None, high, confirmed=True)
        return Ask(limits.low if left == 1 else _down(limits, loads, worst), "bracket")
    if high is None:
        if low >= limits.high:
            return _answer(limits, probes, limits.high, low, None, confirmed=True)
        return Ask(low, "confirm") if left == 1 else Ask(_up(limits, loads, worst), "bracket")
    if left == 1 or _narrow(limits, low, high) or last.why == "confirm":
        return Ask(_backed_off(limits, loads, worst, low, high, probes), "confirm")
    return Ask(_between(limits, loads, worst, low, high, min((one.served for one in probes if one.served), default=math.inf)), "root")


def monotone(probes: Sequence[Probe]) -> tuple[list[float], list[float]]:
    """Loads, ascending, and their worst margins, pooled where they are not: adjacent violators, weighted by how often each was probed."""
    by_load: dict[float, list[float]] = {}
    for probe in probes:
        by_load.setdefault(probe.load, []).append(probe.worst)
    pools: list[tuple[float, int, int]] = []  # mean, weight, loads in it
    for load in sorted(by_load):
        margins = by_load[load]
        pools.append((sum(margins) / len(margins), len(margins), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (one, weight, count), (other, more, many) = pools[-2:]
            pools[-2:] = [((one * weight + other * more) / (weight + more), weight + more, count + many)]
    return sorted(by_load), [mean for mean, _, count in pools for _ in range(count)]


def root(loads: Sequence[float], worst: Sequence[float], low: float, high: float, at: float = 0.0) -> float:
    """The load between `low` and `high` at which the margin is `at`; the nearer end where it is reached nowhere between."""
    from scipy.interpolate import PchipInterpolator
    from scipy.optimize import brentq

    curve = PchipInterpolator([math.log(load) for load in loads], worst)
    left, right = math.log(low), math.log(high)
    if curve(left) >= at:
        return low
    if curve(right) <= at:
        return high
    return math.exp(float(brentq(lambda x: float(curve(x)) - at, left, right)))


def _down(limits: Range, loads: Sequence[float], worst: Sequence[float]) -> float:
    step = -_step(loads, worst, loads[0], worst[0])
    load = _rounded(limits, loads[0] * math.exp(step))
    if limits.integer:
        load = min(load, loads[0] - 1)
    return limits.low if load <= limits.low * math.exp(_STEP[0]) else load


def _up(limits: Range, loads: Sequence[float], worst: Sequence[float]) -> float:
    step = _step(loads, worst, loads[-1], worst[-1])
    load = _rounded(limits, loads[-1] * math.exp(step))
    if limits.integer:
        load = max(load, loads[-1] + 1)
    return limits.high if load >= limits.high / math.exp(_STEP[0]) else load


def _step(loads: Sequence[float], worst: Sequence[float], load: float, margin: float) -> float:
    """How far, in log load, the limit should be, and a little beyond: by the slope that was seen, or as if latency grew as the load does."""
    return min(max(abs(margin) / _slope(loads, worst, load) * _OVERSHOOT, _STEP[0]), _STEP[1])


def _slope(loads: Sequence[float], worst: Sequence[float], load: float) -> float:
    """Of the margin over log load, at this load and the one before it; noise makes no extremes of it."""
    if len(loads) < 2:
        return 1.0
    at = min(max(loads.index(load), 1), len(loads) - 1)
    rise = (worst[at] - worst[at - 1]) / math.log(loads[at] / loads[at - 1])
    return min(max(rise, 0.2), 5.0)


def _between(limits: Range, loads: Sequence[float], worst: Sequence[float], low: float, high: float, served: float) -> float:
    if low < served < high:
        # Of a queue the latency grows as 1 / (1 - load / served): its inverse is a line that ends there (M/M/1).
        room = math.exp(-worst[loads.index(low)])
        load = low + (served - low) * (room - 1) / room
        high = served
    elif _is_cliff(loads, worst, low, high):
        load = math.sqrt(low * high)
    else:
        load = root(loads, worst, low, high, -limits.backoff / 2)
    gap = math.log(high / low)
    load = low * math.exp(min(max(math.log(load / low), _GUARD * gap), (1 - _GUARD) * gap))
    load = _rounded(limits, load)
    return min(max(load, low + 1), high - 1) if limits.integer else load


def _backed_off(limits: Range, loads: Sequence[float], worst: Sequence[float], low: float, high: float, probes: Sequence[Probe]) -> float:
    """Where the margin is a little below the limit; after a confirmation that failed, below that load too."""
    refused = [probe.load for probe in probes if probe.why == "confirm" and probe.worst > 0]
    if _is_cliff(loads, worst, low, high):
        load = low
    elif worst[0] > -limits.backoff:  # nothing was probed where it would be: go on along the slope that was seen
        load = loads[0] * math.exp(-(worst[0] + limits.backoff) / _slope(loads, worst, loads[0]))
    else:
        load = root(loads, worst, loads[0], high, -limits.backoff)
    if refused:
        load = min(load, min(refused) * math.exp(-limits.backoff))
    load = max(limits.low, load)
    return max(limits.low, float(math.floor(load + 1e-9))) if limits.integer else load


def _narrow(limits: Range, low: float, high: float) -> bool:
    return high / low <= 1 + limits.tolerance or (limits.integer and high - low <= 1)


def _is_cliff(loads: Sequence[float], worst: Sequence[float], low: float, high: float) -> bool:
    return worst[loads.index(high)] - worst[loads.index(low)] > CLIFF


def _rounded(limits: Range, load: float) -> float:
    inside = min(max(load, limits.low), limits.high)
    return min(max(float(round(inside)), math.ceil(limits.low)), math.floor(limits.high)) if limits.integer else inside


def _measured_good(probes: Sequence[Probe], low: float | None) -> float | None:
    """The largest load of which every probe was within its limits, and none below it was not."""
    good = [probe.load for probe in probes if probe.worst <= 0 and low is not None and probe.load <= low]
    bad = {probe.load for probe in probes if probe.worst > 0}
    return max((load for load in good if load not in bad), default=None)


def _answer(
    limits: Range, probes: Sequence[Probe], load: float | None, low: float | None, high: float | None, *, confirmed: bool
) -> Capacity:
    loads, worst = monotone(probes)
    binding = next((probe.binding for probe in probes if probe.load == (high if high is not None else low)), None)
    if load is None:
        least = min(loads)
        status: Status = "none"
        text = f"a limit is missed at a load of {least:g} already" + (
            ", the lowest" if least <= limits.low else "; lower ones were not tried"
        )
    elif high is None and load >= limits.high:
        status, text = "bound_reached", f"bound reached, limit not found: {load:g} is within the limits"
    elif high is None or low is None:
        status, text = "found", f"{load:g} is within the limits; the first load beyond them was not found in {len(probes)} probes"
    elif _is_cliff(loads, worst, low, high) and high / low > 1 + limits.tolerance / 5:
        status, text = "cliff", f"{load:g} is within the limits, and somewhere between {low:g} and {high:g} they are missed by far"
    else:
        status, text = "found", f"{load:g} is within the limits, {high:g} is not"
    return Capacity(status, load, (low, high), confirmed, text if confirmed else f"{text} (not confirmed by a second probe)", binding)
