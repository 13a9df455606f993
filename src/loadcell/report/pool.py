"""Samples -> the statistics of the other tools: numpy's, in ms. Exact, and small however many gaps there are.

Percentiles interpolate linearly between order statistics; the deviation is the population's (divided by n, where ours divides by n − 1).
"""

import math
from array import array
from collections.abc import Iterable

import numpy as np

from loadcell.metrics.stats import NS_PER_MS, Distribution, GapPool


class Pooled:
    """A distribution whose unit is `per_ms` to the millisecond. Null on no samples."""

    def __init__(self, distribution: Distribution, per_ms: int = 1) -> None:
        self._distribution = distribution
        self._per_ms = per_ms
        self.n = distribution.n

    def mean(self) -> float | None:
        return self._in_ms(self._distribution.mean())

    def std(self) -> float | None:
        sample = self._in_ms(self._distribution.std())
        if sample is None:
            return 0.0 if self.n == 1 else None
        return sample * math.sqrt((self.n - 1) / self.n)

    def percentile(self, percent: float) -> float | None:
        return self._in_ms(self._distribution.percentile(percent))

    def _in_ms(self, value: float | None) -> float | None:
        return None if value is None else value / self._per_ms


class TimePool:
    """One time in ms per request."""

    def __init__(self) -> None:
        self._values = array("d")

    def add(self, value_ms: float | None) -> None:
        """Null is not a sample."""
        if value_ms is not None:
            self._values.append(value_ms)

    def samples(self) -> Pooled:
        return Pooled(Distribution.of(np.frombuffer(self._values, dtype=np.float64)))


def gap_samples(gaps: GapPool) -> Pooled:
    return Pooled(Distribution.merged([gaps]), NS_PER_MS)


def statistics(name: str, samples: Pooled, percentiles: Iterable[float]) -> dict[str, float | None]:
    """`mean_ttft_ms`, `median_ttft_ms`, `std_ttft_ms`, then `p95_ttft_ms` and so on, as both formats name them."""
    return {
        f"mean_{name}_ms": samples.mean(),
        f"median_{name}_ms": samples.percentile(50),
        f"std_{name}_ms": samples.std(),
        **{f"p{_word(percent)}_{name}_ms": samples.percentile(percent) for percent in percentiles},
    }


def _word(percent: float) -> str:
    return str(int(percent)) if percent == int(percent) else str(percent)
