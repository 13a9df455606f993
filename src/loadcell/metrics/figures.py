"""Tallies -> `Figures`: every figure of one set of requests over one window."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from loadcell.metrics.facts import RunFacts
from loadcell.metrics.stats import Distribution, stats_of
from loadcell.metrics.summary import Concurrency, Counts, Figures, Latencies, Rates, Stamps, Tokens, Window
from loadcell.metrics.tally import LengthTally, Tally
from loadcell.metrics.timeline import peak_per_s
from loadcell.metrics.windows import InFlight, Span

WHOLE: Final = 0
STEADY: Final = 1

Floats = npt.NDArray[np.float64]


class Part(Struct, frozen=True):
    """What one `Figures` is made of.

    `requests`: tallies whose requests count; `delivered`: tallies whose tokens and completions may lie in the window. `seconds`: tokens in
    each second of the whole run. `offered`: arrivals that came due, where that is known.
    """

    requests: Sequence[Tally]
    delivered: Sequence[Tally]
    window: Literal[0, 1]
    span: Span | None
    flight: InFlight
    seconds: Floats
    whole: Span | None
    cap: int | None


def column(tallies: Sequence[Tally], name: str) -> Floats:
    """One latency of every ok request, ns; NaN where it is null."""
    return np.concatenate([np.frombuffer(tally.columns[name], dtype=np.float64) for tally in tallies]) if tallies else np.empty(0)


def distributions(tallies: Sequence[Tally]) -> dict[str, Distribution]:
    """Every latency metric's samples, ns. `icl` pools raw gaps; `itl` divides them over the tokens of the chunk that ends each."""
    found = {}
    for name in Latencies.__struct_fields__:
        if name in ("icl", "itl"):
            continue
        values = column(tallies, name)
        found[name] = Distribution.of(values[~np.isnan(values)])
    found["icl"] = Distribution.merged([pool for tally in tallies for pool in (tally.gaps, tally.chunk_gaps)])
    single = all(tally.chunk_gaps.empty for tally in tallies)  # one token a chunk everywhere: the two are one
    found["itl"] = found["icl"] if single else Distribution.merged([pool for tally in tallies for pool in (tally.gaps, tally.split_gaps)])
    return found


def latencies(samples: dict[str, Distribution], percentiles: Iterable[float]) -> Latencies:
    extra = tuple(percentiles)
    return Latencies(**{name: stats_of(samples[name], extra) for name in Latencies.__struct_fields__})


def counts(tallies: Sequence[Tally], planned: int | None = None) -> Counts:
    """Requests by what became of them."""
    outcomes: Counter[str] = Counter()
    for tally in tallies:
        outcomes.update(tally.outcomes)
    offered, ok, cancelled = outcomes.total(), outcomes["ok"], outcomes["cancelled"]
    failed = offered - ok - cancelled
    first_try_ok = sum(tally.first_try_ok for tally in tallies)
    return Counts(
        offered=offered,
        sent=sum(tally.requests_sent for tally in tallies),
        ok=ok,
        failed=failed,
        cancelled=cancelled,
        dropped=sum(tally.dropped for tally in tallies),
        retried=sum(tally.retried for tally in tallies),
        first_try_ok=first_try_ok,
        attempts=sum(tally.attempts for tally in tallies),
        failed_attempts=sum(tally.failed_attempts for tally in tallies),
        stale_replays=sum(tally.stale_replays for tally in tallies),
        malformed_events=sum(tally.malformed for tally in tallies),
        success_rate=share(ok, offered),
        failure_rate=share(failed, offered),
        first_try_rate=share(first_try_ok, offered),
        by_outcome={name: count for name, count in sorted(outcomes.items()) if count},
        planned=planned,
    )


def share(part: float, of: float) -> float | None:
    """Null when there is nothing to have a share of."""
    return part / of if of else None


def _rates(part: Part, facts: RunFacts, limited: bool) -> Rates:
    windows = [tally.windows[part.window] for tally in part.delivered]
    seconds = part.span.seconds if part.span is not None else 0.0
    completed = sum(window.completed for window in windows)
    output = round(sum(window.output_tokens for window in windows))
    inputs = sum(window.input_tokens for window in windows)
    good = sum(tally.good for tally in part.requests)
    offered = sum(tally.outcomes.total() for tally in part.requests)
    # Over the whole run every arrival counts as offered, so that goodput ≤ throughput ≤ offered holds whatever the window's edges.
    due = offered if part.window == WHOLE else sum(window.due for window in windows)
    peak = peak_per_s(part.seconds, part.whole, part.span) if part.span is not None and part.whole is not None else None
    return Rates(
        requests_per_s=share(completed, seconds),
        output_tokens_per_s=share(output, seconds),
        input_tokens_per_s=share(inputs, seconds),
        total_tokens_per_s=share(output + inputs, seconds),
        offered_per_s=share(due, seconds),
        achieved_per_s=share(sum(window.taken_up for window in windows), seconds),
        attempts_per_s=share(sum(window.attempts for window in windows), seconds),
        peak_output_tokens_per_s=peak,
        completed_in_window=completed,
        output_tokens_in_window=output,
        input_tokens_in_window=inputs,
        wasted_output_tokens=sum(tally.wasted_tokens for tally in part.requests),
        target_per_s=facts.offered_rate,
        goodput_requests=good if limited else None,
        goodput_per_s=share(sum(window.good for window in windows), seconds) if limited else None,
        attainment=share(good, offered) if limited else None,
    )


def _merged(lengths: Iterable[LengthTally]) -> LengthTally:
    total = LengthTally()
    for one in lengths:
        total.merge(one)
    return total


def _sources(counters: Iterable[Counter[str]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return dict(sorted(total.items()))


def tokens(tallies: Sequence[Tally]) -> Tokens:
    """Asked against delivered lengths, and where the counts came from."""
    reasoning_n, cached_n = sum(tally.reasoning_n for tally in tallies), sum(tally.cached_n for tally in tallies)
    reasoning, cached = sum(tally.reasoning for tally in tallies), sum(tally.cached for tally in tallies)
    return Tokens(
        input_asked=_merged(tally.input_asked for tally in tallies).lengths(),
        input_delivered=_merged(tally.input_delivered for tally in tallies).lengths(),
        output_asked=_merged(tally.output_asked for tally in tallies).lengths(),
        output_delivered=_merged(tally.output_delivered for tally in tallies).lengths(),
        input_sources=_sources(tally.input_sources for tally in tallies),
        output_sources=_sources(tally.output_sources for tally in tallies),
        delivered_share=share(sum(tally.delivered_of_known for tally in tallies), sum(tally.asked_of_known for tally in tallies)),
        reasoning_tokens=reasoning if reasoning_n else None,
        reasoning_share=share(reasoning, sum(tally.reasoning_of for tally in tallies)) if reasoning_n else None,
        cached_tokens=cached if cached_n else None,
        cached_share=share(cached, sum(tally.cached_of for tally in tallies)) if cached_n else None,
        first_chunk_estimated=sum(tally.first_chunk_estimated for tally in tallies),
    )


def stamps(tallies: Sequence[Tally], kind: Literal["kernel", "clock"] | None) -> Stamps:
    """How the output events were stamped; `kind` is derived from the counts where the runner did not say."""
    events = sum(tally.events for tally in tallies)
    clock = sum(tally.clock_stamps for tally in tallies)
    coalesced = sum(tally.coalesced for tally in tallies)
    if kind is None and events:
        kind = "kernel" if clock < events / 2 else "clock"
    return Stamps(
        events=events,
        coalesced=coalesced,
        clock=clock,
        coalesced_share=share(coalesced, events),
        clock_share=share(clock, events),
        kind=kind,
    )


def figures(part: Part, facts: RunFacts, limited: bool, samples: dict[str, Distribution] | None = None) -> Figures:
    """All of them. `limited`: limits were given, so goodput has a meaning. `samples`: the distributions, when they are at hand."""
    span = part.span
    planned = facts.num_planned if part.window == WHOLE and part.requests is part.delivered else None
    return Figures(
        window=span.window() if span is not None else Window(start_s=None, end_s=None, duration_s=None, rule="nothing was due"),
        counts=counts(part.requests, planned),
        rates=_rates(part, facts, limited),
        latency=latencies(samples if samples is not None else distributions(part.requests), facts.percentiles),
        tokens=tokens(part.requests),
        stamps=stamps(part.requests, facts.stamps),
        concurrency=Concurrency(
            mean=part.flight.mean(span) if span is not None else None,
            max=part.flight.peak(span) if span is not None else None,
            cap=part.cap,
        ),
    )
