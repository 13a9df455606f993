"""Spec + seed -> arrivals: when each request is due, as absolute offsets, computed once.

Knows nothing of clocks, workers or requests. The same spec and seed give the same offsets, whatever the number of workers.

Every paced load is one process of unit rate (gaps of mean 1: constant, exponential, or gamma) whose time is stretched by the
wanted rate, t = Λ⁻¹(u) with Λ(t) = ∫ rate. That is exact for a rate that changes over time (Çinlar 1975; a Poisson process stays one).
Gaps are never rescaled so that the last arrival falls on n / rate: a normalised total makes counts less variable than those of
the process it claims to be. Offsets are absolute, so that errors never add up.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from loadcell.schedule.spec import NS_PER_S, ScheduleSpec, arrival_kind, mode
from loadcell.seeds import stream

MAX_ARRIVALS: Final = 100_000_000


def arrivals(spec: ScheduleSpec, seed: int) -> array[int]:
    """Offsets in ns from the start of the load, ascending; 8 bytes each.

    Bounded by `num_prompts` and by `duration_s` (offsets lie below it). Constant arrivals begin at 0; random ones after their
    first gap, as vLLM's do. `at_once` gives `num_prompts` zeros. A closed loop has no arrivals: ValueError.
    """
    shape = mode(spec)
    if shape == "closed":
        raise ValueError("a closed loop has no arrival schedule")
    if shape == "at_once":
        return array("q", bytes(8 * (spec.num_prompts or 0)))
    times_s = iter(spec.trace_s) if spec.trace_s else _paced_s(spec, seed)
    return _bounded(times_s, spec)


def shard(offsets: array[int], worker: int, workers: int) -> array[int]:
    """What worker `worker` of `workers` sends: every n-th arrival. Its k-th entry has arrival index worker + k · workers."""
    return offsets[worker::workers]


def ramp_end_ns(spec: ScheduleSpec, offsets: array[int] | None) -> int | None:
    """When the load stops growing, in ns from its start; null when it is level from the start. A rate ramp lasts as long as the run."""
    if spec.ramp_up_strategy:
        if spec.duration_s is not None:
            return int(spec.duration_s * NS_PER_S)
        return offsets[-1] if offsets else 0
    return int(spec.ramp_concurrency_s * NS_PER_S) if spec.ramp_concurrency_s else None


def offered_rate(spec: ScheduleSpec) -> float | None:
    """Requests per second that the schedule asks for, in the mean over its length; null when nothing is paced."""
    if mode(spec) != "paced":
        return None
    if spec.trace_s:
        kept = _bounded(iter(spec.trace_s), spec)
        return len(kept) * NS_PER_S / kept[-1] if kept and kept[-1] else None
    if spec.steps:
        length_s = _length_s(spec)
        return _mass(spec, length_s) / length_s
    if spec.ramp_up_strategy:
        if spec.duration_s is not None:
            return _mass(spec, spec.duration_s) / spec.duration_s
        count = spec.num_prompts or 0
        return count / sum(1.0 / _ramp_rate(spec, i / max(count - 1, 1)) for i in range(count))
    return spec.request_rate


# --- the processes -------------------------------------------------------------------------------------------------------


def _paced_s(spec: ScheduleSpec, seed: int) -> Iterator[float]:
    """Endless or bounded arrival times in seconds, `burst_size` of them alike."""
    gaps = _unit_gaps(spec, seed)
    if spec.ramp_up_strategy and spec.duration_s is None:
        times = _ramp_over_requests(spec, gaps)
    elif spec.ramp_up_strategy or spec.steps:
        length_s = _length_s(spec)
        total = _mass(spec, length_s)
        times = (_inverse_mass(spec, u, length_s) for u in _masses(spec, gaps, total))
    else:
        assert spec.request_rate is not None
        scale = spec.burst_size / spec.request_rate
        # Constant times are products, not sums: i / rate to the last bit.
        times = (scale * u for u in accumulate(gaps)) if arrival_kind(spec) != "constant" else (scale * i for i in _naturals())
    if spec.burst_size == 1:
        return times
    return (t for t in times for _ in range(spec.burst_size))


def _naturals() -> Iterator[int]:
    n = 0
    while True:
        yield n
        n += 1


def _unit_gaps(spec: ScheduleSpec, seed: int) -> Iterator[float]:
    """Gaps of mean 1. Gamma: shape = burstiness, so that the coefficient of variation is 1/√burstiness. Constant: 0 first, then 1s."""
    kind = arrival_kind(spec)
    rng = stream(seed, "arrivals")
    if kind == "constant":
        yield 0.0
        while True:
            yield 1.0
    elif kind == "poisson":
        log, uniform = math.log, rng.random
        while True:
            yield -log(1.0 - uniform())
    else:
        gamma, shape, scale = rng.gammavariate, spec.burstiness, 1.0 / spec.burstiness
        while True:
            yield gamma(shape, scale)


def _ramp_over_requests(spec: ScheduleSpec, gaps: Iterator[float]) -> Iterator[float]:
    """VLLM's ramp: the rate of the gap before request i of n is that of progress i / (n − 1)."""
    count, size = spec.num_prompts or 0, spec.burst_size
    now = 0.0
    for i in range(0, count, size):
        now += size * next(gaps) / _ramp_rate(spec, i / max(count - 1, 1))
        yield now


def _ramp_rate(spec: ScheduleSpec, progress: float) -> float:
    start, end = spec.ramp_up_start_rps or 0.0, spec.ramp_up_end_rps or 0.0
    if spec.ramp_up_strategy == "linear":
        return start + (end - start) * progress
    return float(start * (end / start) ** progress)


def _masses(spec: ScheduleSpec, gaps: Iterator[float], total: float) -> Iterator[float]:
    """The unit process up to `total` expected arrivals."""
    size = spec.burst_size
    now = 0.0
    for gap in gaps:
        now += size * gap
        if now >= total:
            return
        yield now


def _length_s(spec: ScheduleSpec) -> float:
    """Seconds of a load whose rate changes over time: its steps, cut by the duration."""
    steps_s = sum(seconds for _, seconds in spec.steps) if spec.steps else math.inf
    return min(steps_s, math.inf if spec.duration_s is None else spec.duration_s)


def _mass(spec: ScheduleSpec, t: float) -> float:
    """Λ(t): arrivals expected in the first `t` seconds of steps or of a ramp over the duration."""
    if spec.steps:
        mass, left = 0.0, t
        for rate, seconds in spec.steps:
            mass += rate * min(seconds, left)
            left -= min(seconds, left)
        return mass
    start, end, length = spec.ramp_up_start_rps or 0.0, spec.ramp_up_end_rps or 0.0, spec.duration_s or 0.0
    if spec.ramp_up_strategy == "linear":
        return start * t + (end - start) * t * t / (2 * length)
    growth = math.log(end / start) / length
    return start * t if growth == 0 else start * math.expm1(growth * t) / growth


def _inverse_mass(spec: ScheduleSpec, u: float, length_s: float) -> float:
    """Λ⁻¹(u): when the u-th arrival is expected."""
    if spec.steps:
        return _inverse_steps(spec.steps, u)
    start, end = spec.ramp_up_start_rps or 0.0, spec.ramp_up_end_rps or 0.0
    if spec.ramp_up_strategy == "linear":
        slope = (end - start) / length_s
        # The root in the form that survives slope -> 0 (no cancellation).
        return 2 * u / (start + math.sqrt(max(start * start + 2 * slope * u, 0.0)))
    growth = math.log(end / start) / length_s
    return u / start if growth == 0 else math.log1p(growth * u / start) / growth


def _inverse_steps(steps: tuple[tuple[float, float], ...], u: float) -> float:
    begin_s = 0.0
    for rate, seconds in steps:
        if u < rate * seconds:
            return begin_s + u / rate
        u -= rate * seconds
        begin_s += seconds
    return begin_s


def _bounded(times_s: Iterator[float], spec: ScheduleSpec) -> array[int]:
    count = MAX_ARRIVALS if spec.num_prompts is None else spec.num_prompts
    offsets = array("q", (round(t * NS_PER_S) for t, _ in zip(_below(times_s, spec.duration_s), range(count), strict=False)))
    return offsets


def _below(times_s: Iterator[float], limit_s: float | None) -> Iterator[float]:
    for t in times_s:
        if limit_s is not None and t >= limit_s:
            return
        yield t
