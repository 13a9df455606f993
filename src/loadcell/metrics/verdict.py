"""Is the run valid? Evidence -> one result per rule -> VALID, SUSPECT or INVALID.

Each rule is one function with its threshold beside it. A rule that cannot be judged is `unknown` and weighs nothing.
"""

from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct

from loadcell.metrics.stationarity import BATCHES, MIN_CHANGE, SIGNIFICANCE
from loadcell.metrics.summary import Reason, RuleResult, VerdictWord

ACHIEVED_SHARE: Final = 0.95
LAG_FLOOR_MS: Final = 5.0
LAG_TTFT_SHARE: Final = 0.10
FAILURE_SHARE: Final = 0.01
FOREIGN_REQUESTS: Final = 1
BUSY_CPU_SHARE: Final = 0.90
DELIVERED_SHARE: Final = 0.90
CACHE_HIT_SHARE: Final = 0.05


class TrendSeen(Struct, frozen=True):
    """A trend test's outcome for one metric."""

    metric: str
    stationary: bool
    change: float
    p_value: float


class Evidence(Struct, frozen=True):
    """What the rules weigh. Null: unknown. `capped_by_user`: the user's cap was full while arrivals waited."""

    requests: int = 0
    ok: int = 0
    failed: int = 0
    open_loop: bool = False
    offered_per_s: float | None = None
    achieved_per_s: float | None = None
    capped_by_user: bool = False
    imposed_limits: tuple[str, ...] = ()
    lag_p99_ms: float | None = None
    ttft_p50_ms: float | None = None
    lost_endpoints: tuple[str, ...] = ()
    endpoints_known: bool = False
    foreign: int | None = None
    foreign_per_s: float | None = None
    purity_unknown: tuple[str, ...] = ()
    stamps: Literal["kernel", "clock"] | None = None
    cpu_share: float | None = None
    delivered_share: float | None = None
    cache_hit_rate: float | None = None
    prefix_asked: bool = False
    trends: tuple[TrendSeen, ...] = ()

    @property
    def achieved_share(self) -> float | None:
        if self.offered_per_s is None or self.achieved_per_s is None or self.offered_per_s <= 0:
            return None
        return self.achieved_per_s / self.offered_per_s


class Judgement(Struct, frozen=True):
    """The verdict with every rule's result; `reasons` are the broken rules, gravest first, `notes` the ones that could not be judged."""

    verdict: VerdictWord
    rules: list[RuleResult]
    reasons: list[Reason]
    notes: list[str]


Severity = Literal["suspect", "invalid"]


def _passed(rule: str, severity: Severity, threshold: str, observed: str) -> RuleResult:
    return RuleResult(rule=rule, severity=severity, outcome="passed", threshold=threshold, observed=observed, text="")


def _broken(rule: str, severity: Severity, threshold: str, observed: str, text: str) -> RuleResult:
    return RuleResult(rule=rule, severity=severity, outcome="broken", threshold=threshold, observed=observed, text=text)


def _unknown(rule: str, severity: Severity, threshold: str, text: str) -> RuleResult:
    return RuleResult(rule=rule, severity=severity, outcome="unknown", threshold=threshold, observed="unknown", text=text)


def nothing_ok(e: Evidence) -> RuleResult:
    """INVALID when no request was ok: there is nothing to report."""
    name, threshold, seen = "nothing_ok", "at least 1 ok request", f"{e.ok} of {e.requests} ok"
    if e.ok:
        return _passed(name, "invalid", threshold, seen)
    text = f"none of {e.requests} requests was ok" if e.requests else "no request was made"
    return _broken(name, "invalid", threshold, seen, text)


def rate_not_achieved(e: Evidence) -> RuleResult:
    """INVALID when an open loop took up less than 95 % of its offered rate and no cap of the user's explains it."""
    name, threshold = "rate_not_achieved", f"achieved / offered ≥ {ACHIEVED_SHARE:.0%}"
    if not e.open_loop:
        return _passed(name, "invalid", threshold, "closed loop: no rate is offered")
    share = e.achieved_share
    if share is None:
        return _unknown(name, "invalid", threshold, "the arrivals span too little time to compare rates")
    seen = f"{share:.1%} ({e.achieved_per_s:.4g} of {e.offered_per_s:.4g} requests/s)"
    if share >= ACHIEVED_SHARE or e.capped_by_user:
        return _passed(name, "invalid", threshold, seen)
    return _broken(
        name, "invalid", threshold, seen, "the client did not reach the offered rate: use more --workers or a lower --request-rate"
    )


def client_lag(e: Evidence) -> RuleResult:
    """INVALID when the client's lag p99 exceeds 5 ms and a tenth of the median TTFT."""
    limit = max(LAG_FLOOR_MS, LAG_TTFT_SHARE * (e.ttft_p50_ms or 0.0))
    name, threshold = "client_lag", f"client lag p99 ≤ {limit:.3g} ms (5 ms or 10 % of TTFT p50)"
    if e.lag_p99_ms is None:
        return _unknown(name, "invalid", threshold, "the client's lag was not measured")
    seen = f"{e.lag_p99_ms:.3g} ms"
    if e.lag_p99_ms <= limit:
        return _passed(name, "invalid", threshold, seen)
    text = (
        f"the client itself was late (p99 {seen}, at most {limit:.3g} ms): its latencies are client-limited; leave it a core of its own "
        "(taskset), and see what `loadcell doctor` says of this machine"
    )
    return _broken(name, "invalid", threshold, seen, text)


def imposed_limit(e: Evidence) -> RuleResult:
    """INVALID when a limit that the user did not set capped the load."""
    name, threshold = "imposed_limit", "no limit but the user's own"
    if not e.imposed_limits:
        return _passed(name, "invalid", threshold, "none")
    return _broken(name, "invalid", threshold, "; ".join(e.imposed_limits), "a limit that nobody asked for held the load back")


def failures(e: Evidence) -> RuleResult:
    """SUSPECT when more than 1 % of the requests failed; those cancelled by the run's end have not failed."""
    name, threshold = "failures", f"failed / requests ≤ {FAILURE_SHARE:.0%}"
    if not e.requests:
        return _unknown(name, "suspect", threshold, "no request was made")
    seen = f"{e.failed / e.requests:.2%} ({e.failed} of {e.requests})"
    if e.failed <= FAILURE_SHARE * e.requests:
        return _passed(name, "suspect", threshold, seen)
    return _broken(
        name,
        "suspect",
        threshold,
        seen,
        f"{e.failed} of {e.requests} failed, and a service that refuses work looks faster: read no latency without this",
    )


def endpoint_lost(e: Evidence) -> RuleResult:
    """SUSPECT when an endpoint was taken out of traffic, was down at the end, or restarted."""
    name, threshold = "endpoint_lost", "no endpoint lost or restarted"
    if e.lost_endpoints:
        lost = ", ".join(e.lost_endpoints)
        return _broken(name, "suspect", threshold, lost, f"{lost}: the load did not reach the same services all the time")
    if not e.endpoints_known:
        return _unknown(name, "suspect", threshold, "the endpoints' state was not recorded")
    return _passed(name, "suspect", threshold, "none")


def foreign_requests(e: Evidence) -> RuleResult:
    """SUSPECT from one generation request on that the servers counted and we did not send."""
    name, threshold = "foreign_requests", f"fewer than {FOREIGN_REQUESTS}"
    if e.foreign is not None and e.foreign >= FOREIGN_REQUESTS:
        rate = "" if e.foreign_per_s is None else f", about {e.foreign_per_s:.3g} a second"
        text = f"somebody else loaded the services during the run: {e.foreign} generation requests that are not ours{rate}"
        return _broken(name, "suspect", threshold, str(e.foreign), text)
    if e.foreign is None or e.purity_unknown:
        why = "; ".join(e.purity_unknown) or "no server counter"
        return _unknown(name, "suspect", threshold, f"purity is unknown: {why}")
    return _passed(name, "suspect", threshold, str(e.foreign))


def capped(e: Evidence) -> RuleResult:
    """SUSPECT when the user's own concurrency cap cut the offered rate below 95 %."""
    name, threshold = "capped", f"achieved / offered ≥ {ACHIEVED_SHARE:.0%} under the user's cap"
    if not e.open_loop or not e.capped_by_user:
        return _passed(name, "suspect", threshold, "the cap cut no rate")
    share = e.achieved_share
    if share is None:
        return _unknown(name, "suspect", threshold, "the arrivals span too little time to compare rates")
    if share >= ACHIEVED_SHARE:
        return _passed(name, "suspect", threshold, f"{share:.1%}")
    return _broken(name, "suspect", threshold, f"{share:.1%}", "the concurrency cap cut the offered rate: read the scheduled latencies")


def busy_client(e: Evidence) -> RuleResult:
    """SUSPECT when kernel stamps were absent and a worker used more than 90 % of its core."""
    name, threshold = "busy_client", f"kernel stamps, or a CPU share ≤ {BUSY_CPU_SHARE:.0%}"
    if e.stamps == "kernel":
        return _passed(name, "suspect", threshold, "kernel stamps")
    if e.stamps is None or e.cpu_share is None:
        return _unknown(name, "suspect", threshold, "the client's CPU share or its stamps were not recorded")
    seen = f"clock stamps, CPU {e.cpu_share:.0%}"
    if e.cpu_share <= BUSY_CPU_SHARE:
        return _passed(name, "suspect", threshold, seen)
    return _broken(name, "suspect", threshold, seen, "a busy client stamped late: use more --workers")


def short_outputs(e: Evidence) -> RuleResult:
    """SUSPECT when the services delivered less than 90 % of the output tokens that were asked for."""
    name, threshold = "short_outputs", f"delivered / asked output tokens ≥ {DELIVERED_SHARE:.0%}"
    if e.delivered_share is None:
        return _unknown(name, "suspect", threshold, "asked or delivered lengths are unknown")
    seen = f"{e.delivered_share:.1%}"
    if e.delivered_share >= DELIVERED_SHARE:
        return _passed(name, "suspect", threshold, seen)
    return _broken(name, "suspect", threshold, seen, "outputs were shorter than asked: try --ignore-eos or --min-tokens")


def unasked_cache_hits(e: Evidence) -> RuleResult:
    """SUSPECT when more than 5 % of the prompt tokens hit the prefix cache and the workload shares no prefix on purpose."""
    name, threshold = "unasked_cache_hits", f"prefix-cache hit rate ≤ {CACHE_HIT_SHARE:.0%} unless asked for"
    if e.prefix_asked:
        return _passed(name, "suspect", threshold, "shared prefixes were asked for")
    if e.cache_hit_rate is None:
        return _unknown(name, "suspect", threshold, "the servers show no prefix-cache counters")
    seen = f"{e.cache_hit_rate:.1%}"
    if e.cache_hit_rate <= CACHE_HIT_SHARE:
        return _passed(name, "suspect", threshold, seen)
    text = (
        f"the prefix cache answered {seen} of the prompt tokens, which were meant to be new: it had seen them in an earlier run "
        "(give another --repeat or --seed), or the data set is smaller than the run"
    )
    return _broken(name, "suspect", threshold, seen, text)


def not_stationary(e: Evidence) -> RuleResult:
    """SUSPECT when TTFT (closed loop, or nothing streamed: E2E) or TPOT has a significant and large trend over the steady state."""
    name, threshold = (
        "not_stationary",
        f"no trend (Mann–Kendall on {BATCHES} batch medians, p ≤ {SIGNIFICANCE:g} and change ≥ {MIN_CHANGE:.0%})",
    )
    if not e.trends:
        return _unknown(name, "suspect", threshold, "no steady state of a hundred requests to look for a trend in")
    moving = [trend for trend in e.trends if not trend.stationary]
    if not moving:
        return _passed(name, "suspect", threshold, ", ".join(f"{one.metric} {one.change:+.0%}" for one in e.trends))
    seen = ", ".join(f"{one.metric} {one.change:+.0%} (p = {one.p_value:.2g})" for one in moving)
    return _broken(
        name, "suspect", threshold, seen, "latency drifted over the run: it had not settled, or the offered rate exceeds what is sustained"
    )


RULES: Final[tuple[Callable[[Evidence], RuleResult], ...]] = (
    nothing_ok,
    rate_not_achieved,
    client_lag,
    imposed_limit,
    failures,
    endpoint_lost,
    foreign_requests,
    capped,
    busy_client,
    short_outputs,
    unasked_cache_hits,
    not_stationary,
)


def judge(evidence: Evidence) -> Judgement:
    """Apply every rule."""
    results = [rule(evidence) for rule in RULES]
    broken = sorted((one for one in results if one.outcome == "broken"), key=lambda one: one.severity != "invalid")
    return Judgement(
        verdict="valid" if not broken else broken[0].severity,
        rules=results,
        reasons=[Reason(one.rule, one.severity, one.threshold, one.observed, one.text) for one in broken],
        notes=[f"{one.rule}: {one.text}" for one in results if one.outcome == "unknown"],
    )
