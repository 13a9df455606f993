"""A measured load -> what a study makes of it: the objective with its standard error, figures in base units, margins to every limit. Pure.

The window is the steady state where there is one (from the moment the cap is first reached to the last dispatch), else the whole run; which one is
told. A figure that could not be measured is null and never 0; a limit on it is unknown, and then the trial is no success.
"""

import math
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from loadcell.errors import UserError
from loadcell.metrics.slo import Slo, percentile_of
from loadcell.metrics.summary import Figures, Stats, Summary
from loadcell.records import RequestRecord

if TYPE_CHECKING:
    from loadcell.metrics.summary import Window

Metric = Literal["throughput", "goodput", "request_rate"]
Per = Literal["device", "all"]
WindowName = Literal["steady", "whole"]

STREAMED: Final = frozenset({"ttft", "ttfa", "tpot", "itl", "icl", "max_stall", "scheduled_ttft"})
"""Metrics that only a streamed answer has."""
UNITS: Final = {"throughput": "tokens/s", "goodput": "requests/s", "request_rate": "requests/s"}

_LATENCIES: Final = ("ttft", "tpot", "itl", "e2e")
_STATISTICS: Final = ("mean", "p50", "p95", "p99")
_BATCH: Final = 5
_MIN_BATCHES: Final = 10
_S: Final = 1_000_000_000


class Blocks(Struct, frozen=True):
    """The window second by second: tokens delivered, requests completed, and those of them that met every limit."""

    tokens: list[float] = []
    completed: list[int] = []
    good: list[int] = []

    def of(self, metric: Metric) -> Sequence[float]:
        series: dict[Metric, Sequence[float]] = {"throughput": self.tokens, "goodput": self.good, "request_rate": self.completed}
        return series[metric]


class Score(Struct, frozen=True):
    """`objective` null: `why_null` says why. `figures`: s, tokens/s, requests/s, shares; `n`: samples behind each. `violations`: SLO text ->
    log(measured / limit), null where it could not be measured. `cut_share`: of the requests, what MSER-5 would cut; null: too few to tell.
    """

    objective: float | None
    objective_se: float | None
    figures: dict[str, float | None]
    n: dict[str, int]
    violations: dict[str, float | None]
    window: WindowName
    why_null: str | None = None
    cut_share: float | None = None

    @property
    def unknown(self) -> tuple[str, ...]:
        """Limits that could not be judged."""
        return tuple(text for text, margin in self.violations.items() if margin is None)

    @property
    def within(self) -> bool:
        return all(margin is not None and margin <= 0 for margin in self.violations.values())

    @property
    def stationary(self) -> bool | None:
        """White's rule: what would have to be cut is less than half."""
        return None if self.cut_share is None else self.cut_share <= 0.5


def score(
    summary: Summary,
    blocks: Blocks,
    slos: Sequence[Slo],
    metric: Metric,
    per: Per,
    devices: int | None,
    cut_share: float | None,
    *,
    wanted: Sequence[Slo] = (),
) -> Score:
    """`blocks`: of the window that `window_of` names. `devices`: what the services have in all; null: none of their own, and no figure per device. `wanted`: figures asked for besides the limits'."""
    name, figures = window_of(summary)
    found, n = figures_of(figures, (*slos, *wanted), devices)
    objective = finite(found[f"{metric}_per_device" if per == "device" else metric])
    why = (
        None
        if objective is not None
        else f"{metric} could not be measured: {'no limits were given' if metric == 'goodput' else 'nothing was completed'}"
    )
    error = standard_error(blocks.of(metric))
    return Score(
        objective=objective,
        objective_se=None if objective is None or error is None else error / ((devices or 1) if per == "device" else 1),
        figures=found,
        n=n,
        violations={slo.text: margin(slo, *observed(figures, slo)) for slo in slos},
        window=name,
        why_null=why,
        cut_share=cut_share,
    )


def window_of(summary: Summary) -> tuple[WindowName, Figures]:
    """What is judged: the steady state, where the run was long enough to have one."""
    steady = summary.steady.figures
    return ("whole", summary.whole) if steady is None else ("steady", steady)


def figures_of(figures: Figures, slos: Sequence[Slo], devices: int | None) -> tuple[dict[str, float | None], dict[str, int]]:
    """Rates, latencies and shares by name (`throughput`, `ttft_p95`), and the samples behind each."""
    counts, rates = figures.counts, figures.rates
    found: dict[str, float | None] = {
        "throughput": rates.output_tokens_per_s,
        "goodput": rates.goodput_per_s,
        "request_rate": rates.requests_per_s,
        "success_rate": counts.success_rate,
        "concurrency": figures.concurrency.mean,
    }
    n = {"throughput": rates.output_tokens_in_window, "goodput": rates.completed_in_window, "request_rate": rates.completed_in_window}
    n |= {"success_rate": counts.offered, "concurrency": counts.sent}
    for metric in ("throughput", "goodput", "request_rate"):
        value = found[metric]
        found[f"{metric}_per_device"] = None if value is None or not devices else value / devices
        n[f"{metric}_per_device"] = n[metric]
    wanted = [(metric, statistic) for metric in _LATENCIES for statistic in _STATISTICS]
    wanted += [(slo.metric, slo.statistic) for slo in slos if slo.metric != "success_rate"]
    for metric, statistic in wanted:
        stats: Stats = getattr(figures.latency, metric)
        value = statistic_ms(stats, statistic)
        found[f"{metric}_{statistic}"] = None if value is None else value / 1000
        n[f"{metric}_{statistic}"] = stats.n
    return {name: finite(value) for name, value in found.items()}, n


def statistic_ms(stats: Stats, statistic: str) -> float | None:
    """A statistic by its name: mean, min, max, p95."""
    if percentile_of(statistic) is not None:
        return stats.percentiles_ms.get(statistic)
    return {"mean": stats.mean_ms, "min": stats.min_ms, "max": stats.max_ms}[statistic]


def observed(figures: Figures, slo: Slo) -> tuple[float | None, int]:
    """What stands against the limit, in its unit, and the samples behind it."""
    if slo.metric == "success_rate":
        return figures.counts.success_rate, figures.counts.offered
    stats: Stats = getattr(figures.latency, slo.metric)
    return statistic_ms(stats, slo.statistic), stats.n


def margin(slo: Slo, value: float | None, n: int) -> float | None:
    """log(measured / limit): positive where the limit is missed; of a lower limit log(limit / measured). Null: unknown.

    A share of 0 of n counts as half a request, so that it stays finite.
    """
    if value is None or not math.isfinite(value):
        return None
    if slo.metric == "success_rate":
        return math.log(slo.limit / max(value, 0.5 / max(n, 1)))
    return math.log(max(value, 1e-9) / slo.limit)


def finite(value: float | None) -> float | None:
    """Not a number is no figure."""
    return value if value is not None and math.isfinite(value) else None


def percentiles(slos: Iterable[Slo]) -> tuple[float, ...]:
    """Those that the limits ask for: the summary has to have them."""
    return tuple(sorted({percent for slo in slos if (percent := percentile_of(slo.statistic)) is not None}))


def blocks_of(records: Iterable[RequestRecord], window: "Window", limits: Sequence[Slo], open_loop: bool) -> tuple[Blocks, list[float]]:
    """The seconds that lie wholly in the window, and E2E (s) of the requests sent in it, in the order of sending."""
    from loadcell.metrics.goodput import meets, per_request_limits
    from loadcell.metrics.latency import end_ns, request_latency
    from loadcell.metrics.timeline import TokenBins
    from loadcell.metrics.windows import Span

    if window.start_s is None or window.end_s is None:
        return Blocks(), []
    start, seconds = round(window.start_s * _S), int(window.end_s - window.start_s)
    if seconds < 1:
        return Blocks(), []
    limited, bins = per_request_limits(limits), TokenBins(Span(start, start + seconds * _S, ""))
    completed, good, sent = [0] * seconds, [0] * seconds, []
    for record in records:
        if record.phase != "measure" or record.outcome not in ("ok", "cancelled") or not record.attempts:
            continue
        attempt = record.attempts[-1]
        bins.add(attempt)
        latency, end = request_latency(record, open_loop), end_ns(attempt)
        if record.outcome != "ok" or latency is None or end is None:
            continue
        if latency.e2e is not None and attempt.sent_ns is not None and attempt.sent_ns >= start:
            sent.append((attempt.sent_ns, latency.e2e / _S))
        at = (end - start) // _S
        if 0 <= at < seconds:
            completed[at] += 1
            good[at] += meets(record, attempt, latency, limited, open_loop)
    return Blocks([float(value) for value in bins.settle()], completed, good), [value for _, value in sorted(sent)]


def standard_error(seconds: Sequence[float]) -> float | None:
    """Of the mean of a correlated series: overlapping batch means with batches of √n (Meketon & Schmeiser 1984). Null under five values.

    It knows nothing of what differs from one launch to the next: that is what confirmation is for.
    """
    n = len(seconds)
    if n < 5:
        return None
    length = max(1, math.isqrt(n))
    mean = sum(seconds) / n
    upto = [0.0]
    for value in seconds:
        upto.append(upto[-1] + value)
    spread = sum(((upto[at + length] - upto[at]) / length - mean) ** 2 for at in range(n - length + 1))
    return math.sqrt(length * spread / ((n - length) * (n - length + 1)))


def cut_share(values: Sequence[float]) -> float | None:
    """MSER-5 (White 1997): how much of a series of observations has to be cut so that what is left is steady; null under fifty values."""
    batches = [sum(values[at : at + _BATCH]) / _BATCH for at in range(0, len(values) - _BATCH + 1, _BATCH)]
    count = len(batches)
    if count < _MIN_BATCHES:
        return None
    total, squares = 0.0, 0.0
    best, at = math.inf, 0
    for left in range(1, count + 1):  # from the end: sums of the last `left` batches
        value = batches[count - left]
        total, squares = total + value, squares + value * value
        if left < _BATCH:
            continue  # of a handful anything looks steady
        error = max(0.0, squares - total * total / left) / (left * left)
        if error <= best:
            best, at = error, count - left
    return at / count


def refuse_unmeasurable(
    slos: Sequence[Slo], metric: Metric, *, streamed: bool, offered: Container[str] | None = None, who: str = "", limited: bool = False
) -> None:
    """Before anything starts: a limit or an objective that could never be measured. `offered`: `ttft_mean`, `throughput`, …: all that an external
    benchmark tells. `limited`: requests have limits of their own, which goodput counts. Raises UserError.
    """
    if metric == "goodput" and not limited and not any(slo.metric != "success_rate" for slo in slos) and offered is None:
        raise UserError(
            "[objective] metric = 'goodput' counts requests within their limits, and no [[slo]] limits a request: add one, or use throughput"
        )
    if offered is not None and metric not in offered:
        raise UserError(f"[objective] metric = {metric!r}: {who} does not tell it; choose another metric, or the benchmark 'loadcell'")
    for slo in slos:
        if offered is None and not streamed and slo.metric in STREAMED:
            raise UserError(
                f"[[slo]] {slo.text!r}: answers that are not streamed have no {slo.metric}: remove stream = false, or limit e2e"
            )
        name = slo.metric if slo.metric == "success_rate" else f"{slo.metric}_{slo.statistic}"
        if offered is not None and name not in offered:
            raise UserError(
                f"[[slo]] {slo.text!r}: {who} does not tell {slo.metric} {slo.statistic}; limit what it tells, or use the benchmark 'loadcell'"
            )
