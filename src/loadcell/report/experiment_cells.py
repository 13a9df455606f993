"""Summaries of single runs -> what an experiment's results say of them. Pure."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from loadcell.metrics.summary import Figures, Latencies, Purity, SloResult, Stats, Summary, VerdictWord
from loadcell.report.experiment import CellFigures, CellPurity, CellResult, EndpointPart, PartFigures, ScenarioResult, Spread

_WORST_LAST: Final[tuple[VerdictWord, ...]] = ("valid", "suspect", "invalid")
_SPREAD_STATISTICS: Final = ("p50", "p95", "p99")


def measured_cell(cell: CellResult, summary: Summary) -> CellResult:
    """`cell` with all that its run's summary says."""
    return replace(
        cell,
        verdict=summary.verdict,
        reasons=summary.reasons,
        notices=summary.notices,
        partial=summary.partial,
        figures=_cell_figures(summary),
        endpoints=[
            EndpointPart(one.name, one.base_url, one.share, _part(one.figures), one.healthy_at_end, one.ejections)
            for one in summary.endpoints
        ],
        slos=summary.slos,
        slos_met=all_met(summary.slos),
        purity=cell_purity(summary.purity),
    )


def _cell_figures(summary: Summary) -> CellFigures:
    whole = summary.whole
    return CellFigures(
        all=_part(whole),
        success_rate=whole.counts.success_rate,
        goodput_requests=whole.rates.goodput_requests,
        goodput_per_s=whole.rates.goodput_per_s,
        attainment=whole.rates.attainment,
        devices=summary.per_device.devices,
        output_tokens_per_s_per_device=summary.per_device.output_tokens_per_s,
        in_flight_mean=whole.concurrency.mean,
        in_flight_max=whole.concurrency.max,
        warmup_requests=summary.warmup.requests,
    )


def _part(figures: Figures) -> PartFigures:
    counts, rates, latency = figures.counts, figures.rates, figures.latency
    return PartFigures(
        requests=counts.offered,
        ok=counts.ok,
        failed=counts.failed,
        cancelled=counts.cancelled,
        retried=counts.retried,
        duration_s=figures.window.duration_s,
        requests_per_s=rates.requests_per_s,
        output_tokens_per_s=rates.output_tokens_per_s,
        total_tokens_per_s=rates.total_tokens_per_s,
        **_latencies(latency),
    )


def _latencies(latency: Latencies) -> dict[str, Stats]:
    return {"ttft": latency.ttft, "tpot": latency.tpot, "itl": latency.itl, "icl": latency.icl, "e2e": latency.e2e}


def all_met(slos: Sequence[SloResult]) -> bool | None:
    """Missed is missed; met only when each is; null where there are none, or one could not be judged and none was missed."""
    if any(slo.met is False for slo in slos):
        return False
    return True if slos and all(slo.met for slo in slos) else None


def cell_purity(endpoints: Sequence[Purity]) -> CellPurity | None:
    """Over all endpoints: one foreign request at one of them is one; a sum exists only where every part is known."""
    if not endpoints:
        return None
    foreign = [one.foreign for one in endpoints if one.foreign is not None]
    seen = sum(foreign)
    total = seen if seen or len(foreign) == len(endpoints) else None
    state = "foreign" if total else "pure" if total == 0 else "unknown"
    return CellPurity(
        state=state,  # type: ignore[arg-type]  # one of the three words
        counted=_sum([one.counted for one in endpoints]),
        sent=_sum([one.sent for one in endpoints]),
        foreign=total,
        foreign_per_s=sum(one.foreign_per_s or 0.0 for one in endpoints) or None,
        endpoints=list(endpoints),
    )


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def with_spread(scenario: ScenarioResult) -> ScenarioResult:
    """Each figure's value per repeat, with the least and the largest, over repeats that were measured to their end."""
    measured = [cell.figures for cell in scenario.cells if cell.state == "done" and cell.figures is not None]
    if len(measured) < 2:
        return scenario
    columns = {
        "requests_per_s": [one.all.requests_per_s for one in measured],
        "output_tokens_per_s": [one.all.output_tokens_per_s for one in measured],
        "goodput_per_s": [one.goodput_per_s for one in measured],
    }
    for name in ("ttft", "tpot", "e2e"):
        stats: list[Stats] = [getattr(one.all, name) for one in measured]
        columns[f"{name}_mean_ms"] = [one.mean_ms for one in stats]
        columns |= {f"{name}_{word}_ms": [one.percentiles_ms.get(word) for one in stats] for word in _SPREAD_STATISTICS}
    return replace(scenario, spread={name: spread for name, values in columns.items() if (spread := _spread(values)) is not None})


def _spread(values: list[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(values, min(known), max(known)) if known else None


def worst(verdicts: Sequence[VerdictWord | None]) -> VerdictWord | None:
    """The worst of those that are known."""
    return max((one for one in verdicts if one is not None), key=_WORST_LAST.index, default=None)
