"""Summary -> tables of plain text about the run itself: load, client, purity, rules, environment. As tables.py."""

from typing import Any

from loadcell.metrics.summary import Summary
from loadcell.report.figures import MISSING, count, ms, number, one_line, rate, seconds, share, us
from loadcell.report.tables import HEADLINE_PERCENTILES, Row, Table, latency_row


def load(summary: Summary) -> Table:
    """What was offered against what was achieved."""
    whole = summary.whole
    rates, counts, inflight = whole.rates, whole.counts, whole.concurrency
    rows: list[Row] = [
        ("Loop", "open (arrivals by schedule)" if summary.open_loop else "closed (a slot frees the next)"),
        ("Rate asked for", rate(rates.target_per_s, "req/s")),
        ("Offered", rate(rates.offered_per_s, "req/s")),
        ("Achieved", rate(rates.achieved_per_s, "req/s")),
        ("Attempts (failed ones too; no throughput)", rate(rates.attempts_per_s, "/s")),
        ("In flight: mean, max, cap", f"{number(inflight.mean)}, {count(inflight.max)}, {_cap(inflight.cap)}"),
        ("Requests: sent, never sent, cancelled", f"{count(counts.sent)}, {count(counts.dropped)}, {count(counts.cancelled)}"),
        (
            "Attempts: all, failed, replays of a stale connection",
            f"{count(counts.attempts)}, {count(counts.failed_attempts)}, {count(counts.stale_replays)}",
        ),
        ("Retried requests", count(counts.retried)),
        ("Succeeded at the first try", f"{count(counts.first_try_ok)} ({share(counts.first_try_rate)})"),
        (
            "Warm-up (in no figure): requests, ok, failed",
            f"{count(summary.warmup.requests)}, {count(summary.warmup.ok)}, {count(summary.warmup.failed)}",
        ),
    ]
    return Table("Load", ("", "value"), rows)


def _cap(cap: int | None) -> str:
    return "unlimited" if cap is None else count(cap)


def scheduled(summary: Summary) -> Table:
    """Latency from the send beside latency from the schedule and as the user saw it: coordinated omission is shown."""
    latency = summary.whole.latency
    rows = [
        latency_row("Queue delay (sent − scheduled)", latency.queue_delay),
        latency_row("TTFT from the send", latency.ttft),
        *([latency_row("TTFT from the schedule", latency.scheduled_ttft)] if summary.open_loop else []),
        latency_row("First answer (reasoning excluded)", latency.ttfa),
        latency_row("E2E from the send", latency.e2e),
        *([latency_row("E2E from the schedule", latency.scheduled_e2e)] if summary.open_loop else []),
        latency_row("As the user saw it (retries included)", latency.user_latency),
        latency_row("End of stream", latency.stream_end),
        latency_row("Gap between chunks (ICL)", latency.icl),
        latency_row("Longest stall of a request", latency.max_stall),
        latency_row("Connect", latency.connect),
        latency_row("Waited between attempts", latency.retry_wait),
    ]
    return Table("Latency in full (whole run)", ("figure", "mean", *HEADLINE_PERCENTILES, "n"), rows)


def intervals(summary: Summary) -> Table:
    """How sure each percentile is, of independent samples: order-statistic intervals, where n allows one."""
    latency = summary.whole.latency
    rows: list[Row] = []
    for name, stats in (("TTFT", latency.ttft), ("TPOT", latency.tpot), ("E2E", latency.e2e)):
        found = [stats.intervals_ms.get(wanted) for wanted in HEADLINE_PERCENTILES]
        if any(found):
            rows.append((name, *(MISSING if bounds is None else f"{ms(bounds[0])} … {ms(bounds[1])}" for bounds in found), count(stats.n)))
    return Table("95 % intervals of the percentiles", ("figure", *HEADLINE_PERCENTILES, "n"), rows)


def client(summary: Summary) -> Table:
    """The load generator, measured by itself."""
    rows: list[Row] = [
        (
            str(worker.worker),
            share(worker.cpu_share),
            us(worker.lag_p50_us),
            us(worker.lag_p99_us),
            us(worker.lag_max_us),
            us(worker.tick_us),
            count(worker.kernel_stamps),
            count(worker.clock_stamps),
        )
        for worker in summary.client.workers
    ]
    stamps = summary.whole.stamps
    lag = summary.client.dispatch_lag
    notes = [
        f"Stamps by the {stamps.kind or MISSING}; of {count(stamps.events)} output events {share(stamps.clock_share)} fell back to the clock.",
        f"{share(stamps.coalesced_share)} of them shared a read with a later one: their stamp is an upper bound.",
        f"Dispatch lag: p50 {ms(lag.percentiles_ms.get('p50'))}, p99 {ms(lag.percentiles_ms.get('p99'))} (n {count(lag.n)}).",
    ]
    header = ("worker", "CPU of a core", "loop lag p50", "p99", "max", "tick", "kernel stamps", "clock stamps")
    return Table("Client, measured by itself", header, rows, notes)


def purity(summary: Summary) -> Table:
    """What the servers counted against what was sent, and our own light GETs, which are not generation."""
    probes = {one.name: (one.probes_sent, one.probes_failed) for one in summary.endpoints}
    rows: list[Row] = [
        (
            one.endpoint,
            one.state,
            count(one.counted),
            count(one.sent),
            count(one.foreign) + (f" ({rate(one.foreign_per_s)})" if one.foreign_per_s else ""),
            count(one.tolerance),
            " / ".join(count(n) for n in probes.get(one.endpoint, ())) or MISSING,
            one_line(one.why or one.counter or "") or MISSING,
        )
        for one in summary.purity
    ]
    header = ("endpoint", "state", "server counted", "we sent", "foreign", "tolerance", "probes sent / failed", "counter, or why unknown")
    return Table("Purity and probes", header, rows)


def rules(summary: Summary) -> Table:
    """Every rule of the verdict with its threshold."""
    rows: list[Row] = [
        (rule.rule, rule.severity, rule.outcome, one_line(rule.threshold) or MISSING, one_line(rule.observed) or MISSING)
        for rule in summary.rules
    ]
    return Table("Rules of the verdict", ("rule", "weight", "outcome", "threshold", "observed"), rows)


def environment(summary: Summary) -> Table:
    run = summary.run
    rows: list[Row] = [
        ("Run", one_line(run.run_id) or MISSING),
        ("Created", one_line(run.created) or MISSING),
        ("Model", one_line(run.model or "") or MISSING),
        ("Label", one_line(run.label or "") or MISSING),
        ("Ended by", summary.stop_reason or MISSING),
        ("Window", f"{seconds(summary.whole.window.duration_s)} ({one_line(summary.whole.window.rule)})"),
        ("Receive stamps", summary.client.stamps or MISSING),
        *_pairs("host", run.host),
        *_pairs("version", run.versions),
        *_pairs("client", run.client),
        *_pairs("metadata", run.metadata),
    ]
    return Table("Environment", ("", "value"), rows)


def _pairs(kind: str, facts: dict[str, Any]) -> list[Row]:
    return [(f"{kind}: {one_line(str(key))}", one_line(str(value)) if value is not None else MISSING) for key, value in facts.items()]


def remarks(summary: Summary) -> list[str]:
    """Notices of the run and rules that could not be judged; not what `tables.reasons` says of a partial run already."""
    said = {summary.stop_detail, "the run is partial"}
    return [one_line(notice, 400) for notice in (*summary.notices, *summary.notes) if notice not in said]
