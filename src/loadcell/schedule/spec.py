"""What a schedule is: the frozen spec, its mode, its cap, and its one line for the report."""

import math
from typing import Final, Literal

from msgspec import Struct

Arrival = Literal["constant", "poisson", "gamma"]
Mode = Literal["closed", "paced", "at_once"]

NS_PER_S: Final = 1_000_000_000
UNLIMITED: Final = (1 << 31) - 1


class ScheduleSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """When requests are sent.

    `request_rate` null or inf = not paced: a closed loop when `concurrency` is set, else everything at once (`burst`).
    `request_rate` with `concurrency` = open loop under a cap. `trace_s`: arrival offsets in seconds (open loop).
    `steps`: (rate in 1/s, seconds) pairs, one after another. `burst_size`: requests that arrive together, `request_rate`
    still being requests per second. `ramp_concurrency_s`: seconds over which a closed loop's cap grows from 1 to `concurrency`.
    """

    concurrency: int | None = None
    request_rate: float | None = None
    arrival: Arrival = "poisson"
    burstiness: float = 1.0
    ramp_up_strategy: Literal["linear", "exponential"] | None = None
    ramp_up_start_rps: float | None = None
    ramp_up_end_rps: float | None = None
    ramp_concurrency_s: float = 0.0
    steps: tuple[tuple[float, float], ...] = ()
    burst_size: int = 1
    trace_s: tuple[float, ...] = ()
    num_prompts: int | None = 1000
    duration_s: float | None = None


def mode(spec: ScheduleSpec) -> Mode:
    """`paced`: offsets say when. `closed`: a freed slot says when. `at_once`: everything is due at 0."""
    if spec.trace_s or spec.steps or spec.ramp_up_strategy or paced_by_rate(spec):
        return "paced"
    return "at_once" if spec.concurrency is None else "closed"


def lasts_its_duration(spec: ScheduleSpec, arrivals: int) -> bool:
    """Whether the duration ended the arrivals, so that the quiet after the last of them is part of the load. A trace, steps, and a count
    that is reached end by themselves.
    """
    if spec.duration_s is None or spec.trace_s or spec.steps:
        return False
    return spec.num_prompts is None or arrivals < spec.num_prompts


def is_paced(spec: ScheduleSpec) -> bool:
    """Whether arrivals follow a rate or a trace, whatever the server does."""
    return mode(spec) == "paced"


def arrival_kind(spec: ScheduleSpec) -> Arrival:
    """A burstiness other than 1 makes a gamma process of a Poisson one, as in vLLM; an infinite one a constant process."""
    if spec.arrival == "constant" or math.isinf(spec.burstiness):
        return "constant"
    return "poisson" if spec.burstiness == 1.0 else "gamma"


def cap_at(spec: ScheduleSpec, elapsed_ns: int) -> int:
    """Requests that may be in flight `elapsed_ns` after the start; `UNLIMITED` without a cap.

    Under `ramp_concurrency_s` the cap grows linearly from 1 to `concurrency`.
    """
    cap = UNLIMITED if spec.concurrency is None else spec.concurrency
    ramp_ns = int(spec.ramp_concurrency_s * NS_PER_S)
    if spec.concurrency is None or elapsed_ns >= ramp_ns:
        return cap
    return min(cap, 1 + (cap - 1) * max(elapsed_ns, 0) // ramp_ns)


def describe(spec: ScheduleSpec) -> str:
    """One line for the report: what kind of load, and under which cap ("unlimited" when there is none)."""
    cap = f"concurrency {'unlimited' if spec.concurrency is None else spec.concurrency}"
    shape = mode(spec)
    if shape == "closed":
        ramp = f" (growing from 1 over {spec.ramp_concurrency_s:g} s)" if spec.ramp_concurrency_s else ""
        return f"closed loop, {cap}{ramp}"
    if shape == "at_once":
        return f"all at once, {cap}"
    return f"open loop, {_describe_rate(spec)}, {cap}"


def _describe_rate(spec: ScheduleSpec) -> str:
    if spec.trace_s:
        return f"trace of {len(spec.trace_s)} arrivals"
    kind = {"constant": "constant", "poisson": "Poisson", "gamma": f"gamma (burstiness {spec.burstiness:g})"}[arrival_kind(spec)]
    burst = f" in bursts of {spec.burst_size}" if spec.burst_size > 1 else ""
    if spec.steps:
        return f"{kind} in {len(spec.steps)} steps ({', '.join(f'{rate:g}/s for {seconds:g} s' for rate, seconds in spec.steps)}){burst}"
    if spec.ramp_up_strategy:
        return f"{kind}, {spec.ramp_up_strategy} ramp from {spec.ramp_up_start_rps:g}/s to {spec.ramp_up_end_rps:g}/s{burst}"
    return f"{kind} at {spec.request_rate:g}/s{burst}"


def paced_by_rate(spec: ScheduleSpec) -> bool:
    """Whether a finite `request_rate` is given (inf is not paced)."""
    return spec.request_rate is not None and math.isfinite(spec.request_rate)
