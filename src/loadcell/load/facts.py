"""What control knows of a run -> the header of its log, and the facts that its report is made of."""

import platform
import sys
from typing import Any, Final

from loadcell import __version__
from loadcell.client.sweep import DRAIN
from loadcell.clock import NS_PER_S, Anchor
from loadcell.endpoint.pool import Pool
from loadcell.load.journal import Journal
from loadcell.load.plan import StopCode, WorkerReport
from loadcell.load.prepare import Load, Target, cpus
from loadcell.load.redact import redacted
from loadcell.metrics.facts import LengthError, ProbeFacts, RunFacts, RunIdentity, StopReason, TokenizerFacts, WorkerFacts
from loadcell.recordlog import LogHeader
from loadcell.scenario import Scenario
from loadcell.schedule import mode, offered_rate, ramp_end_ns
from loadcell.workload.spec import WorkloadSpec

_MIN_UNSEEN: Final = 100
_FEW: Final = 100


def header_of(scenario: Scenario, run_id: str, origin: Anchor, target: Target) -> LogHeader:
    """The first line of the log: all that a reader needs if the run dies."""
    return LogHeader(
        run_id=run_id,
        name=scenario.name,
        created=created(origin),
        origin=origin,
        host=host_facts(),
        versions=version_facts(),
        spec=redacted(scenario),
        endpoints=target.endpoints,
        client={**_client(scenario), "stamps": "kernel" if target.kernel_stamps else "clock"},
    )


def facts_of(scenario: Scenario, run_id: str, journal: Journal, target: Target, load: Load, pool: Pool) -> RunFacts:
    """The run as it went; purity and prefix caches are told by the scrapes."""
    schedule, origin, start_ns = load.schedule, journal.origin.monotonic_ns, journal.start_ns
    report = load.workload.report()
    reason, detail = journal.stop or ("worker_lost", None)
    stopped_early = reason not in ("count", "duration")
    duration_end = start_ns + round(schedule.duration_s * NS_PER_S) if schedule.duration_s is not None and reason == "duration" else None
    miss = report.input
    ramp = ramp_end_ns(schedule, load.offsets)
    return RunFacts(
        run=RunIdentity(
            run_id=run_id,
            name=scenario.name,
            created=created(journal.origin),
            label=scenario.label,
            metadata=scenario.metadata,
            model=load.model,
            host=host_facts(),
            versions=version_facts(),
            spec=redacted(scenario),
            client=_client(scenario),
        ),
        endpoints=tuple(target.endpoints),
        window_start_ns=start_ns - origin if start_ns else None,
        window_end_ns=duration_end - origin if duration_end is not None else None,
        load_end_ns=duration_end - origin if duration_end is not None else None,
        open_loop=mode(schedule) != "closed",
        offered_rate=offered_rate(schedule),
        unlimited=schedule.concurrency is None,
        concurrency_cap=schedule.concurrency,
        ramp_end_ns=start_ns + ramp - origin if ramp is not None else None,
        num_planned=len(load.offsets) if load.offsets is not None else schedule.num_prompts,
        duration_s=schedule.duration_s,
        stop_reason=_reason(reason),
        stop_detail=detail,
        stop_signal=journal.signal,
        slos=scenario.slos,
        goodput_slos=scenario.goodput,
        devices=scenario.devices,
        strategy=scenario.endpoint.strategy,
        healthy_at_end=tuple(pool.healthy_names()),
        ejections=journal.ejections,
        workers=tuple(
            worker_facts(told, open_loop=mode(schedule) != "closed") for told in sorted(journal.reports, key=lambda told: told.worker)
        ),
        probes={name: ProbeFacts(sent=count.sent, failed=count.failed) for name, count in pool.probe_counts().items()},
        prefix_asked=_asks_for_prefixes(scenario.workload),
        stamps="kernel" if target.kernel_stamps else "clock",
        tokenizer=TokenizerFacts(
            kind=load.tokenizer.name,
            exact=load.tokenizer.exact,
            off_target=LengthError(n=miss.off_target, min=miss.least_miss or 0, mean=miss.mean_miss or 0.0, max=miss.most_miss or 0)
            if miss.off_target
            else None,
        ),
        notices=tuple(journal.notices),
        dropped_fields=journal.dropped,
        partial=stopped_early,
        lost_workers=tuple(journal.lost),
        reused_prompts=report.reused,
        skipped_rows=sum(report.skipped.values()),
        skipped_why=report.skipped,
        blank_lines=report.blank_lines,
        capped_rows=report.capped,
    )


def created(origin: Anchor) -> str:
    """ISO 8601, UTC, to the second."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(origin.wall_ns / NS_PER_S, UTC).isoformat(timespec="seconds")


def _asks_for_prefixes(workload: WorkloadSpec) -> bool:
    """Whether hits in a server's prefix cache are part of what is measured."""
    return workload.prefix_len > 0 or workload.dataset == "mooncake" or workload.same_prompts


def _reason(code: StopCode) -> StopReason:
    return code


def worker_facts(told: WorkerReport, *, open_loop: bool) -> WorkerFacts:
    """An open loop is late when a request leaves late; a closed one, whose next request waits for an answer, when its loop is, or when
    answers lie unseen (few of them prove nothing).
    """
    if open_loop and told.lag_us:
        lags = sorted(told.lag_us)
    else:
        lags = sorted(told.loop_us)
        unseen = sorted(told.unseen_us)
        if len(unseen) >= _MIN_UNSEEN and (_p99(unseen) or 0.0) > (_p99(lags) or 0.0):
            lags = unseen
    return WorkerFacts(
        worker=told.worker,
        cpu_s=told.cpu_s,
        wall_s=told.wall_s,
        cpu_share=told.cpu_s / told.wall_s if told.wall_s else None,
        polls=told.polls,
        lag_p50_us=_rank(lags, 0.5),
        lag_p99_us=_p99(lags),
        lag_max_us=float(lags[-1]) if lags else None,
        kernel_stamps=told.kernel_reads,
        clock_stamps=told.clock_reads,
        starved_ns=told.starved_ns,
        tick_us=told.tick_ns / 1000,
    )


def _p99(ordered: list[int]) -> float | None:
    """Up to a hundred samples the largest is left aside: it would be the p99 of itself, and one hiccup makes no tail."""
    return _rank(ordered[:-1] if 2 <= len(ordered) <= _FEW else ordered, 0.99)


def _rank(ordered: list[int], share: float) -> float | None:
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) if ordered else None


def host_facts() -> dict[str, Any]:
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "hostname": platform.node(),
        "cpus": cpus(),
    }


def _client(scenario: Scenario) -> dict[str, Any]:
    return {"workers": scenario.workers, "cpus": cpus(), "drain": DRAIN}


def version_facts() -> dict[str, str]:
    return {"loadcell": __version__, "python": sys.version.split()[0]}
