"""Refuses a schedule that cannot be sent, before anything is sent, and spaces the points of a sweep."""

import math
from collections.abc import Iterator

from loadcell.errors import UserError
from loadcell.schedule.arrivals import MAX_ARRIVALS, offered_rate
from loadcell.schedule.spec import ScheduleSpec, is_paced, mode, paced_by_rate


def validate(spec: ScheduleSpec) -> None:
    """UserError for a schedule that cannot be sent; the text names the flag, its value, and what to do."""
    for text in _complaints(spec):
        raise UserError(text)


def parse_limit(text: str, flag: str) -> int | None:
    """The value of a limit on the command line: a whole number from 1, or the word `unlimited` (null)."""
    if text.strip().lower() == "unlimited":
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise UserError(f"{flag} {text}: must be a whole number from 1, or 'unlimited'")
    return int(text)


def load_points(lo: float, hi: float, n: int, whole: bool = False) -> tuple[float, ...]:
    """`n` evenly spaced loads from `lo` to `hi`, strictly rising; n = 1 gives `hi`.

    `whole` rounds to integers (concurrency); those that fall together are dropped, so fewer than `n` may come back, as when
    lo = hi: compare the length to say so. UserError for bounds that are not positive, or reversed, and for n < 1.
    """
    if not (0 < lo <= hi < math.inf) or n < 1:
        raise UserError(f"load points from {lo:g} to {hi:g}, {n} of them: give 0 < low <= high and at least one point")
    points = [lo + (hi - lo) * i / (n - 1) for i in range(n - 1)] + [hi]
    if whole:
        points = [float(max(1, round(p))) for p in points]
    return tuple(sorted(set(points)))


def _complaints(spec: ScheduleSpec) -> Iterator[str]:
    yield from _stop_complaints(spec)
    yield from _rate_complaints(spec)
    yield from _ramp_complaints(spec)
    yield from _shape_complaints(spec)
    yield from _size_complaints(spec)


def _stop_complaints(spec: ScheduleSpec) -> Iterator[str]:
    if spec.num_prompts is not None and spec.num_prompts < 1:
        yield f"--num-prompts {spec.num_prompts}: must be at least 1"
    if spec.duration_s is not None and not 0 < spec.duration_s < math.inf:
        yield f"--duration {spec.duration_s:g}: must be a positive number of seconds"
    if spec.num_prompts is None and spec.duration_s is None and not spec.trace_s and not spec.steps:
        yield "neither --num-prompts nor --duration is given: the run would never end; give one of them"
    if mode(spec) == "at_once" and spec.num_prompts is None:
        yield "--duration without --concurrency or --request-rate: an endless number of requests at once; give one of them or --num-prompts"


def _rate_complaints(spec: ScheduleSpec) -> Iterator[str]:
    if spec.concurrency is not None and spec.concurrency < 1:
        yield f"--concurrency {spec.concurrency}: must be at least 1; leave it out, or say 'unlimited', for no limit"
    if spec.request_rate is not None and not spec.request_rate > 0:
        yield f"--request-rate {spec.request_rate:g}: must be above 0 (requests per second), or 'inf' for no pacing"
    if not spec.burstiness > 0:
        yield f"--burstiness {spec.burstiness:g}: must be above 0 (1 is Poisson, below 1 burstier, above 1 more even)"
    if spec.arrival == "constant" and spec.burstiness not in (1.0, math.inf):
        yield f"--burstiness {spec.burstiness:g}: constant arrivals have none; use --arrival gamma"
    if spec.burst_size < 1:
        yield f"--burst-size {spec.burst_size}: must be at least 1"
    if spec.burst_size > 1 and (spec.trace_s or not is_paced(spec)):
        yield f"--burst-size {spec.burst_size}: needs a finite --request-rate, a ramp or --steps"


def _ramp_complaints(spec: ScheduleSpec) -> Iterator[str]:
    ends = {"--ramp-up-start-rps": spec.ramp_up_start_rps, "--ramp-up-end-rps": spec.ramp_up_end_rps}
    if spec.ramp_up_strategy is None:
        for flag, value in ends.items():
            if value is not None:
                yield f"{flag} {value:g}: needs --ramp-up-strategy linear or exponential"
    else:
        for flag, value in ends.items():
            if value is None:
                yield f"--ramp-up-strategy {spec.ramp_up_strategy}: needs {flag}"
            elif not 0 < value < math.inf:
                yield f"{flag} {value:g}: must be above 0 (requests per second) and finite"
        if paced_by_rate(spec):
            yield f"--request-rate {spec.request_rate:g}: the ramp sets the rate; leave it out"
    if not 0 <= spec.ramp_concurrency_s < math.inf:
        yield f"--ramp-concurrency {spec.ramp_concurrency_s:g}: must be 0 or a number of seconds"
    if spec.ramp_concurrency_s and spec.concurrency is None:
        yield f"--ramp-concurrency {spec.ramp_concurrency_s:g}: needs --concurrency"
    if spec.ramp_concurrency_s and is_paced(spec):
        yield f"--ramp-concurrency {spec.ramp_concurrency_s:g}: is for a closed loop; use --ramp-up-strategy with a rate"


def _shape_complaints(spec: ScheduleSpec) -> Iterator[str]:
    for rate, seconds in spec.steps:
        if not (0 <= rate < math.inf and 0 < seconds < math.inf):
            yield f"--steps {rate:g}:{seconds:g}: each step is a rate from 0 and a positive number of seconds"
    if spec.steps and not any(rate > 0 for rate, _ in spec.steps):
        yield "--steps: at least one step must have a rate above 0"
    shapes = {
        "--steps": bool(spec.steps),
        "--ramp-up-strategy": spec.ramp_up_strategy is not None,
        "a trace": bool(spec.trace_s),
        "--request-rate": paced_by_rate(spec),
    }
    given = [name for name, used in shapes.items() if used]
    if len(given) > 1:
        yield f"{' and '.join(given)}: each says when requests are due; give one of them"
    for row, (before, now) in enumerate(zip((0.0, *spec.trace_s), spec.trace_s, strict=False), start=1):
        if not (before <= now < math.inf):
            yield f"trace: arrival {row} at {now:g} s comes before {before:g} s; offsets must be finite, from 0, and in order"


def _size_complaints(spec: ScheduleSpec) -> Iterator[str]:
    if spec.num_prompts is not None and spec.num_prompts > MAX_ARRIVALS:
        yield f"--num-prompts {spec.num_prompts}: more than {MAX_ARRIVALS} in one run; use --duration"
    if spec.num_prompts is None and spec.duration_s is not None and is_paced(spec) and not spec.trace_s:
        expected = (offered_rate(spec) or 0.0) * spec.duration_s
        if expected > MAX_ARRIVALS:
            yield f"--duration {spec.duration_s:g}: {expected:.3g} arrivals expected, more than {MAX_ARRIVALS}; lower the rate or the duration"
