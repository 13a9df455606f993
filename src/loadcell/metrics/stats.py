"""Samples -> order statistics, exactly. A `Distribution` is sorted values with counts, so that ten million gaps are as small as their distinct values.

Percentiles are order statistics with linear interpolation (Hyndman & Fan 1996, type 7): min ≤ p50 ≤ p99 ≤ max always.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from loadcell.metrics.summary import PERCENTILES, Stats

NS_PER_MS: Final = 1_000_000
NS_PER_US: Final = 1_000
CONFIDENCE: Final = 0.95
_BUFFER: Final = 1 << 17
_MS_DIGITS: Final = 6

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Distribution:
    """Sorted distinct values (ns) and how often each occurs."""

    def __init__(self, values: Floats, counts: Ints) -> None:
        self.values = values
        self.counts = counts
        self._upto = np.cumsum(counts)
        self.n = int(self._upto[-1]) if len(counts) else 0

    @classmethod
    def of(cls, samples: npt.ArrayLike) -> Self:
        """From plain samples."""
        values, counts = np.unique(np.asarray(samples, dtype=np.float64), return_counts=True)
        return cls(values, counts.astype(np.int64))

    @classmethod
    def merged(cls, parts: Sequence[tuple[Floats, Ints]]) -> Self:
        """From parts of sorted (values, counts)."""
        return cls(*(parts[0] if len(parts) == 1 else _combine(parts)))

    def order(self, rank: int) -> float:
        """The rank-th smallest sample, 0-based."""
        return float(self.values[np.searchsorted(self._upto, rank, side="right")])

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
        return float(np.dot(self.values, self.counts) / self.n) if self.n else None

    def std(self) -> float | None:
        """Sample deviation (n − 1); null under two samples."""
        if self.n < 2:
            return None
        centred = self.values - np.dot(self.values, self.counts) / self.n
        return math.sqrt(float(np.dot(centred * centred, self.counts)) / (self.n - 1))

    def min(self) -> float | None:
        return float(self.values[0]) if self.n else None

    def max(self) -> float | None:
        return float(self.values[-1]) if self.n else None

    def interval(self, percent: float) -> tuple[float, float] | None:
        """95 % order-statistic interval of a percentile; null where n does not allow one."""
        ranks = interval_ranks(self.n, percent)
        return None if ranks is None else (self.order(ranks[0] - 1), self.order(ranks[1] - 1))


def _combine(parts: Sequence[tuple[Floats, Ints]]) -> tuple[Floats, Ints]:
    """Parts of (values, counts) -> one, sorted and without repeats."""
    if not parts:
        return np.empty(0, np.float64), np.empty(0, np.int64)
    values = np.concatenate([values for values, _counts in parts])
    counts = np.concatenate([counts for _values, counts in parts])
    if not len(values):
        return values, counts
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    starts = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
    return values[starts], np.add.reduceat(counts, starts)


class GapPool:
    """Pools gaps between chunks, each divided over the tokens of the chunk that ends it. Exact to the nanosecond.

    Gaps are whole µs, and most are below a second: the distinct values are few, however many gaps there are. Memory: some MB.
    """

    def __init__(self) -> None:
        self._gaps = array("q")
        self._tokens: array[int] | None = None
        self._values: Floats = np.empty(0, np.float64)
        self._counts: Ints = np.empty(0, np.int64)

    def add(self, gaps_us: list[int]) -> None:
        """Gaps of one sample each."""
        self._gaps.extend(gaps_us)
        if self._tokens is not None:
            self._tokens.extend([1] * len(gaps_us))
        if len(self._gaps) >= _BUFFER:
            self._settle()

    def add_weighted(self, gaps_us: list[int], tokens: list[int]) -> None:
        """Gap i counts as tokens[i] samples of gap / tokens[i]."""
        if self._tokens is None:
            self._tokens = array("q", [1]) * len(self._gaps)
        self._gaps.extend(gaps_us)
        self._tokens.extend(tokens)
        if len(self._gaps) >= _BUFFER:
            self._settle()

    def part(self) -> tuple[Floats, Ints]:
        """(values in ns, counts) of all that was added."""
        self._settle()
        return self._values, self._counts

    def _settle(self) -> None:
        if not self._gaps:
            return
        gaps = np.frombuffer(self._gaps, dtype=np.int64)
        if self._tokens is None:
            distinct, times = np.unique(gaps, return_counts=True)
            values, counts = np.multiply(distinct, NS_PER_US, dtype=np.float64), times.astype(np.int64)
        else:
            counts = np.frombuffer(self._tokens, dtype=np.int64)
            values = np.rint(np.divide(gaps * NS_PER_US, counts, dtype=np.float64))
        self._values, self._counts = _combine([(self._values, self._counts), (values, counts)])
        self._gaps, self._tokens = array("q"), None


@lru_cache(maxsize=4096)
def interval_ranks(n: int, percent: float) -> tuple[int, int] | None:
    """1-based ranks (l, u) with P(X_l ≤ quantile ≤ X_u) ≥ 95 % for any continuous distribution of independent samples; null if there are none.

    The number of samples below the quantile is binomial(n, p) (David & Nagaraja, Order Statistics, 7.1): l is the largest rank with
    P(B < l) ≤ 2.5 %, u the smallest with P(B ≥ u) ≤ 2.5 %.
    """
    from scipy.special import bdtr  # scipy.special takes 0.2 s to import and only intervals need it

    share = percent / 100
    if n < 1 or not 0 < share < 1:
        return None
    tail = (1 - CONFIDENCE) / 2
    low = _first(lambda rank: float(bdtr(rank, n, share)) > tail, n)
    high = _first(lambda rank: float(bdtr(rank, n, share)) >= 1 - tail, n) + 1
    return (low, high) if low >= 1 and high <= n else None


def _first(holds: Callable[[int], bool], n: int) -> int:
    """The smallest k in [0, n] for which `holds(k)`, given that it stays true from there on."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


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
