"""What the runner knows of a run and the records cannot tell. Stored beside the records, so that a report can be made again.

Every field has a default that says "unknown", so that a run which died early can still be reported.
Stamps are nanoseconds since the run's origin, as in the records.
"""

from typing import Any, Literal

from msgspec import Struct

from loadcell.metrics.slo import Slo
from loadcell.records import Endpoint

StopReason = Literal["count", "duration", "max_failures", "interrupt", "terminated", "patience", "fatal", "worker_lost", "called_off"]


class RunIdentity(Struct, frozen=True):
    """Which run this is. `created` is ISO 8601 UTC; `spec` is the redacted scenario; `client` what the generator said of itself."""

    run_id: str = ""
    name: str = ""
    created: str = ""
    label: str | None = None
    metadata: dict[str, str] = {}
    model: str | None = None
    host: dict[str, Any] = {}
    versions: dict[str, str] = {}
    spec: dict[str, Any] = {}
    client: dict[str, Any] = {}


class WorkerFacts(Struct, frozen=True):
    """One load worker, measured by itself.

    `lag_*_us`: how late its loop woke, over `polls` wake-ups. `starved_ns`: time in which a request was wanted and none was prepared.
    `cpu_share`: CPU seconds per wall second of its one thread (1.0 = a full core). `*_stamps`: reads by the origin of their stamp.
    """

    worker: int = 0
    cpu_s: float | None = None
    wall_s: float | None = None
    cpu_share: float | None = None
    polls: int = 0
    lag_p50_us: float | None = None
    lag_p99_us: float | None = None
    lag_max_us: float | None = None
    kernel_stamps: int = 0
    clock_stamps: int = 0
    starved_ns: int | None = None
    tick_us: float | None = None


class ProbeFacts(Struct, frozen=True):
    """Light GETs that the client sent to one endpoint; none of them is a generation request."""

    sent: int = 0
    failed: int = 0


class PurityFacts(Struct, frozen=True):
    """The server's counter of generation requests at two quiet scrapes.

    `sent_attempts`: attempts whose bytes left between the scrapes; `aborted_attempts`: those of them that the server may not have counted
    (cancelled, timed out, reset, refused). Both null: they are counted from the records. `settled`: at the second scrape nothing
    was running or waiting, and the counter stood still. `reset`: the counter began anew in between. `seconds`: from one scrape to the other.
    """

    before: float | None = None
    after: float | None = None
    sent_attempts: int | None = None
    aborted_attempts: int | None = None
    counter: str | None = None
    settled: bool = False
    reset: bool = False
    seconds: float | None = None


class PrefixCacheFacts(Struct, frozen=True):
    """Growth of the server's prefix-cache counters over the run, in the server's own unit (vLLM: tokens)."""

    hits: float
    queries: float


class LengthError(Struct, frozen=True):
    """Prompts whose length missed the target: how many, and by how many tokens (signed: made − asked). `mean` null: not kept."""

    n: int
    min: int
    max: int
    mean: float | None = None


class TokenizerFacts(Struct, frozen=True):
    """`kind`: server, words, or file. `exact`: prompt lengths are true token counts. `off_target` null: every prompt hit its length."""

    kind: str = "words"
    exact: bool = False
    off_target: LengthError | None = None


class RunFacts(Struct, frozen=True):
    """One run as the runner saw it.

    `window_start_ns`: first scheduled arrival of the measure phase. `window_end_ns`: end of `duration`, else of the drain; null: last event in the
    records. `load_end_ns`: when the last dispatch was allowed. `open_loop` null: true when `offered_rate` (1/s) is set.
    `cap_by_user`: the user asked for `concurrency_cap`. `imposed_limits`: limits that held the load back and that the user did not set, one text each.
    `ramp_end_ns`: end of a ramp of rate or concurrency. `ejections`: per endpoint name, how often it was taken out of traffic. `healthy_at_end` null: unknown.
    `skipped_why`: rows of the data set that were left out, by reason; `capped_rows`: rows whose output was shortened to fit the context.
    `lost_services`: of a fleet of ours, those that ended, hung or were missing, one text each.
    `prefix_asked`: the workload shares prefixes on purpose. `percentiles`: extra ones, in percent. `stop_signal`: 2 or 15 when a signal ended the run.
    """

    run: RunIdentity = RunIdentity()
    endpoints: tuple[Endpoint, ...] = ()
    window_start_ns: int | None = None
    window_end_ns: int | None = None
    load_end_ns: int | None = None
    open_loop: bool | None = None
    offered_rate: float | None = None
    unlimited: bool = False
    concurrency_cap: int | None = None
    cap_by_user: bool = True
    imposed_limits: tuple[str, ...] = ()
    ramp_end_ns: int | None = None
    num_planned: int | None = None
    duration_s: float | None = None
    stop_reason: StopReason | None = None
    stop_detail: str | None = None
    stop_signal: int | None = None
    slos: tuple[Slo, ...] = ()
    goodput_slos: tuple[Slo, ...] = ()
    percentiles: tuple[float, ...] = ()
    devices: int | None = None
    strategy: str | None = None
    healthy_at_end: tuple[str, ...] | None = None
    ejections: dict[str, int] = {}
    lost_services: tuple[str, ...] = ()
    workers: tuple[WorkerFacts, ...] = ()
    probes: dict[str, ProbeFacts] = {}
    purity: dict[str, PurityFacts] = {}
    prefix_cache: dict[str, PrefixCacheFacts] = {}
    prefix_asked: bool = False
    stamps: Literal["kernel", "clock"] | None = None
    tokenizer: TokenizerFacts = TokenizerFacts()
    notices: tuple[str, ...] = ()
    dropped_fields: dict[str, list[str]] = {}
    partial: bool = False
    lost_workers: tuple[int, ...] = ()
    reused_prompts: int = 0
    skipped_rows: int = 0
    skipped_why: dict[str, int] = {}
    blank_lines: int = 0
    capped_rows: int = 0

    @property
    def is_open_loop(self) -> bool:
        """Arrivals come by the schedule, whatever the server does."""
        return self.open_loop if self.open_loop is not None else self.offered_rate is not None
