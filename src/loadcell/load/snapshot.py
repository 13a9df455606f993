"""How far a run is, at one moment: what the control process tells a display. Knows no terminal."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

LoadPhase = Literal["ready", "warmup", "measure", "drain"]


class Snapshot(Struct, frozen=True):
    """`elapsed_s` runs from the first request of the load (0 before it). `done` = `ok` + `failed`.

    `planned` is null when only the duration ends the run; `cap` null when nothing limits the requests in flight.
    `rate_rps` (completions) and `tokens_per_s` cover the last second; the medians the run so far, null before a first sample.
    `endpoints`: (name, health state, requests in flight). `left_s` is null when it cannot be told yet.
    `dispatched`: requests taken up; `waiting`: those in flight of whose answer nothing has come yet. `silent_s`: for how long requests have been in
    flight and not one token of any has come.
    """

    elapsed_s: float
    phase: LoadPhase
    done: int
    ok: int
    failed: int
    planned: int | None
    in_flight: int
    cap: int | None = None
    rate_rps: float = 0.0
    tokens_per_s: float = 0.0
    ttft_ms_p50: float | None = None
    tpot_ms_p50: float | None = None
    endpoints: Sequence[tuple[str, str, int]] = ()
    left_s: float | None = None
    dispatched: int = 0
    waiting: int = 0
    silent_s: float = 0.0
