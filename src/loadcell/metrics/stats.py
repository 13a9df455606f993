"""Samples -> order statistics, exactly. A `Distribution` is sorted values with counts, so that ten million gaps are as small as their distinct values.

Percentiles are order statistics with linear interpolation (Hyndman & Fan 1996, type 7): min ≤ p50 ≤ p99 ≤ max always.
"""

import math
from array import array
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from loadcell.metrics.summary import PERCENTILES, Stats

NS_PER_MS: Final = 1_000_000
NS_PER_US: Final = 1_000
CONFIDENCE: Final = 0.95
_BUFFER: Final = 1 << 17
_UINT32_MAX: Final = (1 << 32) - 1
_MS_DIGITS: Final = 6

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Values = npt.NDArray[Any]


class Distribution:
    """Sorted values (ns), and how often each occurs; once each when `counts` is null."""

    def __init__(self, values: Floats, counts: Values | None = None) -> None:
        self.values = values
        self.counts = counts
        self._upto = None if counts is None else np.cumsum(counts, dtype=np.int64)
        self.n = len(values) if self._upto is None else int(self._upto[-1]) if len(self._upto) else 0

    @classmethod
    def of(cls, samples: npt.ArrayLike) -> Self:
        """From plain samples."""
        return cls(np.sort(np.asarray(samples, dtype=np.float64)))

    @classmethod
    def merged(cls, pools: Iterable["Counted"]) -> Self:
        """From pools of gaps, one after the other: apart they hold most values once each."""
        filled = [pool for pool in pools if len(pool.settled()[0])]
        unit_ns = min((pool.unit_ns for pool in filled), default=1)
        values: Values = np.empty(0, np.uint32)
        counts: Values = np.empty(0, np.uint32)
        for pool in filled:
            more_values, more_counts = pool.settled()
            if pool.unit_ns != unit_ns:
                more_values = more_values * np.int64(pool.unit_ns // unit_ns)
            values, counts = _merge(values, counts, more_values, more_counts)
        return cls(values * float(unit_ns), counts)

    def order(self, rank: int) -> float:
        """The rank-th smallest sample, 0-based."""
        return float(self.values[rank if self._upto is None else np.searchsorted(self._upto, rank, side="right")])

    def percentile(self, percent: float) -> float | None:
        """At `percent` (0 to 100), linear between neighbours; null without samples."""
        if not self.n:
            return None
        position = (self.n - 1) * percent / 100
        rank = min(math.floor(position), self.n - 1)
        low = self.order(rank)
        high = self.order(min(rank + 1, self.n - 1))
        return min(high, low + (high - low) * (position - rank))

    def mean(self) -> float | None:
        return float(np.average(self.values, weights=self.counts)) if self.n else None

    def std(self) -> float | None:
        """Sample deviation (n − 1); null under two samples."""
        if self.n < 2:
            return None
        centred = self.values - np.average(self.values, weights=self.counts)
        np.square(centred, out=centred)
        total = centred.sum() if self.counts is None else np.dot(centred, self.counts)
        return math.sqrt(float(total) / (self.n - 1))

    def min(self) -> float | None:
        return float(self.values[0]) if self.n else None

    def max(self) -> float | None:
        return float(self.values[-1]) if self.n else None

    def interval(self, percent: float) -> tuple[float, float] | None:
        """95 % order-statistic interval of a percentile; null where n does not allow one."""
        ranks = interval_ranks(self.n, percent)
        return None if ranks is None else (self.order(ranks[0] - 1), self.order(ranks[1] - 1))


def _merge(values: Values, counts: Values, more_values: Values, more_counts: Values) -> tuple[Values, Values]:
    """Add sorted (values, counts) to sorted (values, counts)."""
    if not len(values) or not len(more_values):
        return (more_values, more_counts) if len(more_values) else (values, counts)
    merged_values, merged_counts = _gather(np.concatenate([values, more_values]), np.concatenate([counts, more_counts]))
    return _narrow(merged_values), _narrow(merged_counts)


def _gather(values: Values, counts: Values) -> tuple[Values, Values]:
    """Any (values, counts), sorted and without repeats."""
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    starts = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
    return values[starts], np.add.reduceat(counts, starts, dtype=np.int64)


def _narrow(values: Values) -> Values:
    """Half the bytes where they fit: nearly always."""
    return values.astype(np.uint32) if len(values) and values.max() <= _UINT32_MAX else values


class Counted:
    """Whole numbers of `unit_ns`, as sorted distinct values and how often each occurs. Exact, and small where values repeat."""

    def __init__(self, unit_ns: int) -> None:
        self.unit_ns = unit_ns
        self._values: Values = np.empty(0, np.uint32)
        self._counts: Values = np.empty(0, np.uint32)

    def settled(self) -> tuple[Values, Values]:
        """(values in `unit_ns`, counts) of all that was added."""
        return self._values, self._counts

    @property
    def empty(self) -> bool:
        return not len(self.settled()[0])

    def _count(self, values: Values, counts: Values) -> None:
        self._values, self._counts = _merge(self._values, self._counts, _narrow(values), _narrow(counts))


class GapPool(Counted):
    """Pools raw gaps between chunks. They are whole µs, most below a second: the distinct ones are few, however many gaps there are."""

    def __init__(self) -> None:
        super().__init__(unit_ns=NS_PER_US)
        self._gaps = array("q")

    def add(self, gaps_us: list[int]) -> None:
        """Gaps in µs, one sample each."""
        self._gaps.fromlist(gaps_us)
        if len(self._gaps) >= _BUFFER:
            self.settled()

    def settled(self) -> tuple[Values, Values]:
        if self._gaps:
            self._count(*np.unique(np.frombuffer(self._gaps, dtype=np.int64), return_counts=True))
            self._gaps = array("q")
        return super().settled()


class SplitPool(Counted):
    """Pools gaps divided over the tokens of the chunk that ends each; to the nanosecond."""

    def __init__(self) -> None:
        super().__init__(unit_ns=1)
        self._gaps, self._tokens = array("q"), array("q")

    def add(self, gaps_us: list[int], tokens: list[int]) -> None:
        """Gap i counts as tokens[i] samples of gap / tokens[i]."""
        self._gaps.fromlist(gaps_us)
        self._tokens.fromlist(tokens)
        if len(self._gaps) >= _BUFFER:
            self.settled()

    def settled(self) -> tuple[Values, Values]:
        if self._gaps:
            gaps, tokens = np.frombuffer(self._gaps, dtype=np.int64), np.frombuffer(self._tokens, dtype=np.int64)
            self._count(*_gather((gaps * NS_PER_US + tokens // 2) // tokens, tokens))
            self._gaps, self._tokens = array("q"), array("q")
        return super().settled()


@lru_cache(maxsize=4096)
def interval_ranks(n: int, percent: float) -> tuple[int, int] | None:
    """1-based ranks (l, u) with P(X_l ≤ quantile ≤ X_u) ≥ 95 % for any continuous distribution of independent samples; null if there are none.

    The number of samples below the quantile is binomial(n, p) (David & Nagaraja, Order Statistics, 7.1): l is the largest rank with
    P(B < l) ≤ 2.5 %, u the smallest with P(B ≥ u) ≤ 2.5 %.
    """
    share = percent / 100
    if n < 1 or not 0 < share < 1:
        return None
    tail = (1 - CONFIDENCE) / 2
    first, cumulative = _binomial(n, share)
    low = first + int(np.searchsorted(cumulative, tail, side="right"))
    high = first + int(np.searchsorted(cumulative, 1 - tail)) + 1
    return (low, high) if low >= 1 and high <= n else None


def _binomial(n: int, share: float) -> tuple[int, Floats]:
    """(k, P(B ≤ k), P(B ≤ k + 1), …) of binomial(n, share), as far as they are neither 0 nor 1: ten deviations and some on both sides.

    By the ratio of neighbouring probabilities, (n − k) p / ((k + 1) (1 − p)); scipy has this, and takes as long to import as the rest of a report.
    """
    reach = 10 * math.sqrt(n * share * (1 - share)) + 40
    first, last = max(0, math.floor(n * share - reach)), min(n, math.ceil(n * share + reach))
    below = np.arange(first, last, dtype=np.float64)
    steps = np.log((n - below) / (below + 1)) + math.log(share / (1 - share))
    logs = np.concatenate(([0.0], np.cumsum(steps)))
    cumulative = np.cumsum(np.exp(logs - logs.max()))
    return first, cumulative / cumulative[-1]


def percentile_name(percent: float) -> str:
    """99.0 -> "p99", 99.9 -> "p99.9"."""
    return f"p{percent:g}"


def needs_more(n: int, percent: float) -> bool:
    """A percentile needs one expected sample beyond it: p90 ten, p99 a hundred, p99.9 a thousand."""
    share = percent / 100
    return n * min(share, 1 - share) < 1 - 1e-9


def _ms(ns: float | None) -> float | None:
    return None if ns is None else round(ns / NS_PER_MS, _MS_DIGITS)


def stats_of(distribution: Distribution, extra: Iterable[float] = ()) -> Stats:
    """Everything that a report prints of one metric. `extra`: more percentiles, in percent."""
    wanted = sorted({*PERCENTILES, *extra})
    intervals: dict[str, tuple[float, float]] = {}
    for percent in wanted:
        bounds = distribution.interval(percent)
        if bounds is not None:
            intervals[percentile_name(percent)] = (round(bounds[0] / NS_PER_MS, _MS_DIGITS), round(bounds[1] / NS_PER_MS, _MS_DIGITS))
    return Stats(
        n=distribution.n,
        mean_ms=_ms(distribution.mean()),
        std_ms=_ms(distribution.std()),
        min_ms=_ms(distribution.min()),
        max_ms=_ms(distribution.max()),
        percentiles_ms={percentile_name(percent): _ms(distribution.percentile(percent)) for percent in wanted},
        too_few=[percentile_name(percent) for percent in wanted if needs_more(distribution.n, percent)],
        intervals_ms=intervals,
    )
