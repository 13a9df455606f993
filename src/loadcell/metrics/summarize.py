"""Facts and records -> the summary. Reads the records twice: once for the windows, once for the figures. Pure; memory grows with requests only."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from loadcell.metrics.evidence import client_figures, evidence
from loadcell.metrics.facts import RunFacts
from loadcell.metrics.figures import STEADY, WHOLE, Part, distributions, figures, share
from loadcell.metrics.measured import Aside, Measured, measure
from loadcell.metrics.notices import first_wave, notices
from loadcell.metrics.purity import SentAttempts, judge_purity
from loadcell.metrics.slo import Slo, percentile_of
from loadcell.metrics.stats import Distribution, needs_more
from loadcell.metrics.summary import (
    EndpointFigures,
    Figures,
    PerDevice,
    Prompts,
    Purity,
    SloResult,
    Steady,
    Summary,
    Warmup,
    Window,
)
from loadcell.metrics.tally import Tally
from loadcell.metrics.timeline import timeline
from loadcell.metrics.verdict import judge
from loadcell.records import Endpoint, RequestRecord

NS_PER_MS: Final = 1_000_000


def summarize(run: RunFacts, records: Iterable[RequestRecord]) -> Summary:
    """All figures of one run and its verdict.

    `records` is iterated twice: give the log itself. A one-shot iterator is read into memory first. 10 million tokens in 100,000
    requests need some 60 MB.
    """
    if isinstance(records, Iterator):
        records = list(records)
    measured = measure(run, records)
    everything = measured.tallies()
    samples = distributions(everything)
    whole = figures(_part(measured, run, everything), run, bool(measured.limits), samples)
    by_endpoint = {endpoint.name: measured.tallies(endpoint.index) for endpoint in run.endpoints}
    client = client_figures(run, measured)
    purity = [_purity(run, endpoint, measured.aside) for endpoint in run.endpoints]
    wave = first_wave(everything, run.concurrency_cap if not run.is_open_loop else None)
    judgement = judge(evidence(run, measured, whole, client, purity, samples))
    return Summary(
        verdict=judgement.verdict,
        reasons=judgement.reasons,
        notes=judgement.notes,
        run=run.run,
        whole=whole,
        steady=_steady(run, measured),
        endpoints=[_endpoint(run, endpoint, measured, whole.counts.attempts) for endpoint in run.endpoints],
        slos=[_slo_result(slo, whole, samples) for slo in run.slos],
        per_device=_per_device(run.devices, whole),
        timeline=timeline(
            measured.whole,
            measured.seconds(),
            [tally.ok_ends for tally in everything],
            [tally.failed_ends for tally in everything],
            measured.scan.in_flight(),
        ),
        client=client,
        warmup=Warmup(requests=measured.aside.warmup, ok=measured.aside.warmup_ok, failed=measured.aside.warmup_failed),
        purity=purity,
        prompts=Prompts(
            tokenizer=run.tokenizer.kind,
            exact=run.tokenizer.exact,
            reused=run.reused_prompts,
            skipped_rows=run.skipped_rows,
            skipped_why=run.skipped_why,
            blank_lines=run.blank_lines,
            capped_rows=run.capped_rows,
            off_target=run.tokenizer.off_target,
        ),
        rules=judgement.rules,
        notices=notices(run, whole, by_endpoint, wave),
        errors={outcome: texts.most_common(1)[0][0] for outcome, texts in sorted(measured.collector.errors.items())},
        partial=run.partial,
        open_loop=run.is_open_loop,
        first_wave=wave,
        stop_reason=run.stop_reason,
        stop_detail=run.stop_detail,
        stop_signal=run.stop_signal,
        strategy=run.strategy,
        healthy_at_end=None if run.healthy_at_end is None else list(run.healthy_at_end),
        lost_workers=list(run.lost_workers),
    )


def _part(measured: Measured, run: RunFacts, requests: Sequence[Tally], endpoint: int | None = None) -> Part:
    """The whole run, or one endpoint's share of it."""
    return Part(
        requests=requests,
        delivered=requests,
        window=WHOLE,
        span=measured.whole,
        flight=measured.scan.in_flight(endpoint),
        seconds=measured.seconds(endpoint),
        whole=measured.whole,
        cap=run.concurrency_cap,
    )


def _steady(run: RunFacts, measured: Measured) -> Steady:
    inside = measured.tallies(steady=True)
    sent = int(np.count_nonzero(measured.scan.sent >= 0))
    span = measured.steady_span
    if span is None:
        why = measured.steady if isinstance(measured.steady, str) else None
        return Steady(window=Window(None, None, None, "none"), requests=0, cut=sent, share=share(0, sent), figures=None, why_null=why)
    requests = sum(tally.outcomes.total() for tally in inside)
    part = Part(
        requests=inside,
        delivered=measured.tallies(),
        window=STEADY,
        span=span,
        flight=measured.scan.in_flight(),
        seconds=measured.seconds(),
        whole=measured.whole,
        cap=run.concurrency_cap,
    )
    return Steady(
        window=span.window(),
        requests=requests,
        cut=sent - requests,
        share=share(requests, sent),
        figures=figures(part, run, bool(measured.limits)),
    )


def _endpoint(run: RunFacts, endpoint: Endpoint, measured: Measured, all_attempts: int) -> EndpointFigures:
    part = _part(measured, run, measured.tallies(endpoint.index), endpoint.index)
    found = figures(part, run, bool(measured.limits))
    cache, probes = run.prefix_cache.get(endpoint.name), run.probes.get(endpoint.name)
    return EndpointFigures(
        name=endpoint.name,
        base_url=endpoint.base_url,
        share=share(found.counts.attempts, all_attempts),
        attempts=found.counts.attempts,
        failed_attempts=found.counts.failed_attempts,
        ejections=run.ejections.get(endpoint.name, 0),
        figures=found,
        healthy_at_end=None if run.healthy_at_end is None else endpoint.name in run.healthy_at_end,
        probes_sent=probes.sent if probes else 0,
        probes_failed=probes.failed if probes else 0,
        prefix_cache_hit_rate=share(cache.hits, cache.queries) if cache else None,
        dropped_fields=run.dropped_fields.get(endpoint.name, []),
    )


def _purity(run: RunFacts, endpoint: Endpoint, aside: Aside) -> Purity:
    ours = SentAttempts(sent=aside.sent[endpoint.index], aborted=aside.aborted[endpoint.index])
    return judge_purity(endpoint.name, run.purity.get(endpoint.name), ours)


def _slo_result(slo: Slo, whole: Figures, samples: dict[str, Distribution]) -> SloResult:
    if slo.metric == "success_rate":
        rate = whole.counts.success_rate
        met = None if rate is None else rate >= slo.limit
        return SloResult(slo.text, slo.metric, slo.statistic, slo.limit, "share", rate, met, whole.counts.offered)
    sample = samples[slo.metric]
    percent = percentile_of(slo.statistic)
    values = {"mean": sample.mean, "min": sample.min, "max": sample.max}
    value = sample.percentile(percent) if percent is not None else values[slo.statistic]()
    observed = None if value is None else round(value / NS_PER_MS, 6)
    met = None if observed is None else observed <= slo.limit
    too_few = percent is not None and needs_more(sample.n, percent)
    return SloResult(slo.text, slo.metric, slo.statistic, slo.limit, "ms", observed, met, sample.n, too_few)


def _per_device(devices: int | None, whole: Figures) -> PerDevice:
    def each(rate: float | None) -> float | None:
        return rate / devices if rate is not None and devices else None

    rates = whole.rates
    return PerDevice(
        devices=devices,
        requests_per_s=each(rates.requests_per_s),
        output_tokens_per_s=each(rates.output_tokens_per_s),
        total_tokens_per_s=each(rates.total_tokens_per_s),
    )
