"""The summary of a run: its shape. `summarize` fills it, reports render it, `summary_schema` publishes it.

Units stand in the names: `_ms`, `_s`, `_per_s`; shares are fractions of 1. What was not measured is null. docs/metrics.md has the formulas.
"""

from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from loadcell.metrics.facts import LengthError, RunIdentity, StopReason, WorkerFacts

SCHEMA: Final = "loadcell.summary/1"

VerdictWord = Literal["valid", "suspect", "invalid"]
PERCENTILES: Final[tuple[float, ...]] = (50, 75, 90, 95, 99, 99.9)


class Stats(Struct, frozen=True):
    """One metric over its samples. `std_ms` is the sample deviation (n − 1).

    `percentiles_ms` has the keys "p50" … "p99.9" and the user's own. `too_few` names those that n is too small for (p99 needs 100 samples): print
    them marked. `intervals_ms`: 95 % order-statistic interval [low, high] of a percentile, absent where n does not allow one.
    """

    n: int
    mean_ms: float | None = None
    std_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    percentiles_ms: dict[str, float | None] = {}
    too_few: list[str] = []
    intervals_ms: dict[str, tuple[float, float]] = {}


class Latencies(Struct, frozen=True):
    """Every latency metric, of `ok` requests only. `itl` is token-weighted (its n counts tokens), `icl` pools raw gaps."""

    ttft: Stats
    ttfa: Stats
    e2e: Stats
    stream_end: Stats
    tpot: Stats
    icl: Stats
    itl: Stats
    max_stall: Stats
    queue_delay: Stats
    scheduled_ttft: Stats
    scheduled_e2e: Stats
    user_latency: Stats
    connect: Stats
    retry_wait: Stats


class Counts(Struct, frozen=True):
    """Requests of the measure phase. `offered` = ok + failed + cancelled; `dropped` were due and never taken up.

    `retried`: requests with more than one attempt; `first_try_ok`: ok with one attempt; `success_rate` = ok / offered.
    """

    offered: int
    sent: int
    ok: int
    failed: int
    cancelled: int
    dropped: int
    retried: int
    first_try_ok: int
    attempts: int
    failed_attempts: int
    stale_replays: int
    malformed_events: int
    success_rate: float | None
    failure_rate: float | None
    first_try_rate: float | None
    by_outcome: dict[str, int]
    planned: int | None = None


class Rates(Struct, frozen=True):
    """Per second of the window. `target_per_s`: the rate that was asked for; `offered_per_s`: arrivals that came due;
    `achieved_per_s`: requests taken up; `attempts_per_s` counts every try, failed ones too: it is no throughput.

    Tokens count where they were delivered inside the window; those of failed requests and of failed attempts are `wasted_*`.
    `goodput_per_s` null: no limits were given. `per_device` null: the number of devices is unknown.
    """

    requests_per_s: float | None
    output_tokens_per_s: float | None
    input_tokens_per_s: float | None
    total_tokens_per_s: float | None
    offered_per_s: float | None
    achieved_per_s: float | None
    attempts_per_s: float | None
    peak_output_tokens_per_s: float | None
    completed_in_window: int
    output_tokens_in_window: int
    input_tokens_in_window: int
    wasted_output_tokens: int
    target_per_s: float | None = None
    goodput_requests: int | None = None
    goodput_per_s: float | None = None
    attainment: float | None = None


class Lengths(Struct, frozen=True):
    """A token length over the `ok` requests where it is known."""

    n: int
    total: int
    mean: float | None = None
    min: int | None = None
    max: int | None = None


class Tokens(Struct, frozen=True):
    """Asked against delivered lengths, of `ok` requests. `*_sources`: requests by where the count came from.

    `delivered_share`: delivered / asked output tokens over requests where both are known. `reasoning_share`: reasoning / output tokens, likewise.
    `first_chunk_estimated`: requests whose TPOT rests on an estimate of the tokens in the first chunk.
    """

    input_asked: Lengths
    input_delivered: Lengths
    output_asked: Lengths
    output_delivered: Lengths
    input_sources: dict[str, int]
    output_sources: dict[str, int]
    delivered_share: float | None
    reasoning_tokens: int | None
    reasoning_share: float | None
    cached_tokens: int | None
    cached_share: float | None
    first_chunk_estimated: int


class Stamps(Struct, frozen=True):
    """How output events were stamped. `coalesced` shared a read with a later event (upper bound); `clock` were not stamped by the kernel."""

    events: int
    coalesced: int
    clock: int
    coalesced_share: float | None
    clock_share: float | None
    kind: Literal["kernel", "clock"] | None = None


class Concurrency(Struct, frozen=True):
    """Requests in flight (sent, not ended), from the event times. `mean` is the time average over the window."""

    mean: float | None
    max: int | None
    cap: int | None = None


class Window(Struct, frozen=True):
    """A span of the run, in seconds since its origin. `rule` says how it was chosen."""

    start_s: float | None
    end_s: float | None
    duration_s: float | None
    rule: str


class Figures(Struct, frozen=True):
    """Every figure of one set of requests over one window."""

    window: Window
    counts: Counts
    rates: Rates
    latency: Latencies
    tokens: Tokens
    stamps: Stamps
    concurrency: Concurrency


class Steady(Struct, frozen=True):
    """The steady state. `figures` null: `why_null` says why. `share`: requests sent inside the window / all sent; `cut`: those outside."""

    window: Window
    requests: int
    cut: int
    share: float | None
    figures: Figures | None = None
    why_null: str | None = None


class EndpointFigures(Struct, frozen=True):
    """One endpoint. `share`: its part of all attempts. A request belongs to the endpoint of its last attempt; attempts to their own."""

    name: str
    base_url: str
    share: float | None
    attempts: int
    failed_attempts: int
    ejections: int
    figures: Figures
    healthy_at_end: bool | None = None
    probes_sent: int = 0
    probes_failed: int = 0
    prefix_cache_hit_rate: float | None = None
    dropped_fields: list[str] = []


class Purity(Struct, frozen=True):
    """Generation requests that the server counted against those that we sent. `foreign` null: unknown, `why` says why.

    `foreign_per_s`: over the time between the two scrapes; null where none was foreign, or that time is unknown.
    """

    endpoint: str
    state: Literal["pure", "foreign", "unknown"]
    counter: str | None = None
    counted: int | None = None
    sent: int | None = None
    tolerance: int | None = None
    foreign: int | None = None
    why: str | None = None
    foreign_per_s: float | None = None


class SloResult(Struct, frozen=True):
    """One limit against what was observed. `unit` is "ms" or "share"; `met` null: it could not be judged. `too_few`: n is small for this statistic."""

    text: str
    metric: str
    statistic: str
    limit: float
    unit: Literal["ms", "share"]
    observed: float | None
    met: bool | None
    n: int
    too_few: bool = False


class PerDevice(Struct, frozen=True):
    """Throughput divided by the number of devices; null where that is unknown."""

    devices: int | None
    requests_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None


class Timeline(Struct, frozen=True):
    """The window cut into bins of `bin_s` seconds (at most 600). `output_tokens` counts tokens of every request, wasted ones too."""

    bin_s: float
    output_tokens: list[float]
    ok: list[int]
    failed: list[int]
    in_flight_mean: list[float]


class Client(Struct, frozen=True):
    """The generator, measured by itself. `lag_p99_ms`: the worst worker's. `dispatch_lag` = dispatched − scheduled, open loop only."""

    workers: list[WorkerFacts]
    lag_p99_ms: float | None
    cpu_share_max: float | None
    stamps: Literal["kernel", "clock"] | None
    dispatch_lag: Stats


class Warmup(Struct, frozen=True):
    """Requests of the warm-up phase: counted here and nowhere else."""

    requests: int = 0
    ok: int = 0
    failed: int = 0


class FirstWave(Struct, frozen=True):
    """The first requests against all later ones: medians of TTFT (of E2E where nothing streamed)."""

    requests: int
    median_ms: float
    later_median_ms: float
    ratio: float
    outlier: bool


class RuleResult(Struct, frozen=True):
    """One rule of the verdict. `outcome` "unknown": it could not be judged and weighs nothing."""

    rule: str
    severity: Literal["suspect", "invalid"]
    outcome: Literal["passed", "broken", "unknown"]
    threshold: str
    observed: str
    text: str


class Reason(Struct, frozen=True):
    """A rule that was broken."""

    rule: str
    severity: Literal["suspect", "invalid"]
    threshold: str
    observed: str
    text: str


class Prompts(Struct, frozen=True):
    """How prompts were made. `reused`: prompts sent more than once because the data set was too small; `skipped_rows`: left out,
    `skipped_why` says for which reasons. `blank_lines` of the file held nothing; `capped_rows`: outputs shortened to fit the context.
    """

    tokenizer: str
    exact: bool
    reused: int
    skipped_rows: int
    skipped_why: dict[str, int] = {}
    blank_lines: int = 0
    capped_rows: int = 0
    off_target: LengthError | None = None


class Summary(Struct, frozen=True):
    """A run in figures. `whole` is the headline; `notes` are rules that could not be judged; `errors` maps an outcome to its commonest message."""

    verdict: VerdictWord
    reasons: list[Reason]
    notes: list[str]
    run: RunIdentity
    whole: Figures
    steady: Steady
    endpoints: list[EndpointFigures]
    slos: list[SloResult]
    per_device: PerDevice
    timeline: Timeline
    client: Client
    warmup: Warmup
    purity: list[Purity]
    prompts: Prompts
    rules: list[RuleResult]
    notices: list[str]
    errors: dict[str, str]
    partial: bool
    open_loop: bool
    first_wave: FirstWave | None = None
    stop_reason: StopReason | None = None
    stop_detail: str | None = None
    stop_signal: int | None = None
    strategy: str | None = None
    healthy_at_end: list[str] | None = None
    lost_workers: list[int] = []
    schema: str = SCHEMA


def summary_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of `summary.json`."""
    schema = msgspec.json.schema(Summary)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "loadcell run summary", **schema}
