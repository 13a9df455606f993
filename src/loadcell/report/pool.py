"""Samples -> the statistics of the other tools: numpy's, in ms. Exact, and small however many gaps there are.

Percentiles interpolate linearly between order statistics; the deviation is the population's (divided by n, where ours divides by n − 1).
"""

import math
from array import array
from collections.abc import Iterable

import numpy as np

from loadcell.metrics.stats import NS_PER_MS, Distribution, GapPool


class TimePool:
    """One time in ms per request."""

    def __init__(self) -> None:
        self._values = array("d")

    def add(self, value_ms: float | None) -> None:
        """Null is not a sample."""
        if value_ms is not None:
            self._values.append(value_ms)

    def samples(self) -> Distribution:
        return Distribution.of(np.frombuffer(self._values, dtype=np.float64))


def gap_samples(gaps: GapPool) -> Distribution:
    """The pooled gaps in ms."""
    values, counts = gaps.part()
    return Distribution(values / NS_PER_MS, counts)


def population_std(samples: Distribution) -> float | None:
    mean = samples.mean()
    return None if mean is None else math.sqrt(float(np.dot((samples.values - mean) ** 2, samples.counts)) / samples.n)


def statistics(name: str, samples: Distribution, percentiles: Iterable[float]) -> dict[str, float | None]:
    """`mean_ttft_ms`, `median_ttft_ms`, `std_ttft_ms`, then `p95_ttft_ms` and so on, as both formats name them."""
    return {
        f"mean_{name}_ms": samples.mean(),
        f"median_{name}_ms": samples.percentile(50),
        f"std_{name}_ms": population_std(samples),
        **{f"p{_word(percent)}_{name}_ms": samples.percentile(percent) for percent in percentiles},
    }


def _word(percent: float) -> str:
    return str(int(percent)) if percent == int(percent) else str(percent)
