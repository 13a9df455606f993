"""Spec + seed -> arrivals: when each request is due, as absolute offsets, computed once.

Knows nothing of clocks, workers or requests. The same spec and seed give the same offsets, whatever the number of workers.
"""

from typing import Literal

from msgspec import Struct

Arrival = Literal["constant", "poisson", "gamma"]


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
