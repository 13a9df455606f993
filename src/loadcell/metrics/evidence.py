"""The measured run -> what the verdict weighs, and the client's figures of itself."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from loadcell.metrics.facts import RunFacts
from loadcell.metrics.figures import column, share
from loadcell.metrics.measured import Measured
from loadcell.metrics.stationarity import trend
from loadcell.metrics.stats import Distribution, stats_of
from loadcell.metrics.summary import Client, Figures, Purity
from loadcell.metrics.verdict import Evidence, TrendSeen
from loadcell.metrics.windows import NS_PER_S, offered_and_achieved

NS_PER_MS: Final = 1_000_000
LAG_MIN_SAMPLES: Final = 100
STARVED_SHARE: Final = 0.05
"""Share of the window in which a worker wanted a request and none was prepared, above which that is a limit of ours."""


def client_figures(run: RunFacts, measured: Measured) -> Client:
    """The generator as it measured itself, and how late it took arrivals up."""
    lags = [worker.lag_p99_us for worker in run.workers if worker.lag_p99_us is not None]
    shares = [
        share_of_core for worker in run.workers if (share_of_core := _cpu_share(worker.cpu_share, worker.cpu_s, worker.wall_s)) is not None
    ]
    scan = measured.scan
    taken = scan.taken_up >= 0
    lag = (scan.taken_up - scan.scheduled)[taken] if run.is_open_loop else np.empty(0, np.int64)
    return Client(
        workers=list(run.workers),
        lag_p99_ms=max(lags) / 1000 if lags else None,
        cpu_share_max=max(shares) if shares else None,
        stamps=run.stamps,
        dispatch_lag=stats_of(Distribution.of(lag), run.percentiles),
    )


def _cpu_share(given: float | None, cpu_s: float | None, wall_s: float | None) -> float | None:
    return given if given is not None or cpu_s is None or not wall_s else cpu_s / wall_s


def evidence(
    run: RunFacts, measured: Measured, whole: Figures, client: Client, purity: Sequence[Purity], samples: dict[str, Distribution]
) -> Evidence:
    """Gather what the rules of the verdict weigh."""
    peak, cap = whole.concurrency.max, run.concurrency_cap
    cap_full = cap is not None and peak is not None and peak >= cap
    rates = offered_and_achieved(measured.scan) if run.is_open_loop else None
    lag = client.lag_p99_ms
    if lag is None and not cap_full and client.dispatch_lag.n >= LAG_MIN_SAMPLES:
        lag = client.dispatch_lag.percentiles_ms["p99"]
    known = [one.foreign for one in purity if one.foreign is not None]
    ttft = samples["ttft"].percentile(50)
    return Evidence(
        requests=whole.counts.offered,
        ok=whole.counts.ok,
        failed=whole.counts.failed,
        open_loop=run.is_open_loop,
        offered_per_s=rates.offered_per_s if rates else None,
        achieved_per_s=rates.achieved_per_s if rates else None,
        capped_by_user=cap_full and run.cap_by_user,
        imposed_limits=_imposed_limits(run, measured, whole, cap_full),
        lag_p99_ms=lag,
        ttft_p50_ms=None if ttft is None else ttft / NS_PER_MS,
        lost_endpoints=_lost_endpoints(run),
        endpoints_known=run.healthy_at_end is not None,
        foreign=sum(known) if known else None,
        foreign_per_s=sum(one.foreign_per_s or 0.0 for one in purity) or None,
        purity_unknown=tuple(f"{one.endpoint}: {one.why}" for one in purity if one.state == "unknown"),
        stamps=whole.stamps.kind,
        cpu_share=client.cpu_share_max,
        delivered_share=whole.tokens.delivered_share,
        cache_hit_rate=share(sum(one.hits for one in run.prefix_cache.values()), sum(one.queries for one in run.prefix_cache.values())),
        prefix_asked=run.prefix_asked,
        trends=_trends(run, measured),
    )


def _imposed_limits(run: RunFacts, measured: Measured, whole: Figures, cap_full: bool) -> tuple[str, ...]:
    found = list(run.imposed_limits)
    if cap_full and not run.cap_by_user:
        found.append(f"a concurrency cap of {run.concurrency_cap} that was not asked for")
    if ports := whole.counts.by_outcome.get("no_local_port"):
        found.append(f"no local port was left for {ports} requests")
    found.extend(f"{code} in {count} attempts" for code, count in sorted(measured.collector.client_limit_errors.items()))
    if measured.whole is not None:
        waited = max((worker.starved_ns or 0 for worker in run.workers), default=0) / NS_PER_S
        if waited > STARVED_SHARE * measured.whole.seconds:
            found.append(f"requests were prepared too slowly: a worker waited {waited:.3g} s for them")
    return tuple(found)


def _lost_endpoints(run: RunFacts) -> tuple[str, ...]:
    found = list(run.lost_services)
    for endpoint in run.endpoints:
        purity = run.purity.get(endpoint.name)
        if times := run.ejections.get(endpoint.name):
            found.append(f"{endpoint.name} ejected {times}×")
        elif run.healthy_at_end is not None and endpoint.name not in run.healthy_at_end:
            found.append(f"{endpoint.name} down at the end")
        if purity is not None and purity.reset:
            found.append(f"{endpoint.name} restarted")
    return tuple(found)


def _trends(run: RunFacts, measured: Measured) -> tuple[TrendSeen, ...]:
    """Trends in the steady state; none without one: the latencies of a burst grow by construction.

    Open loop: TTFT, where a queue that never drains shows. Closed loop: E2E, its first wave left out; TTFT falls there for a while with nothing
    wrong, as requests that started together drift apart. TPOT in both.
    """
    tallies = measured.tallies(steady=True)
    if not tallies:
        return ()
    sent = np.concatenate([np.frombuffer(tally.sent, dtype=np.int64) for tally in tallies])
    skip = 0 if run.is_open_loop or run.concurrency_cap is None else run.concurrency_cap
    order = np.argsort(sent, kind="stable")[skip:]
    streamed = bool(np.any(~np.isnan(column(tallies, "ttft"))))
    found: list[TrendSeen] = []
    for metric in ("ttft" if run.is_open_loop and streamed else "e2e", "tpot"):
        values = column(tallies, metric)[order]
        seen = trend(values[~np.isnan(values)])
        if seen is not None:
            found.append(TrendSeen(metric=metric, stationary=seen.stationary, change=seen.change, p_value=seen.p_value))
    return tuple(found)
