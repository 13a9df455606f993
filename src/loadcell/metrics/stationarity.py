"""Did the service settle? The Mann–Kendall trend test on ten batch medians, in the order of sending.

A trend counts when it is significant *and* large: requests are not independent, and batches make them nearly so; a large n would
make any tiny drift significant. (Mann 1945; Kendall 1975; the exact null distribution counts permutations by inversions.)
"""

import itertools
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

BATCHES: Final = 10
MIN_REQUESTS: Final = 100
SIGNIFICANCE: Final = 0.001
MIN_CHANGE: Final = 0.25
"""Change over the run relative to the median, below which a trend is of no account."""


class Trend(Struct, frozen=True):
    """`p_value`: of the two-sided test; `change`: Theil–Sen slope times the number of steps, relative to the median of the batch medians."""

    p_value: float
    change: float

    @property
    def stationary(self) -> bool:
        return not (self.p_value <= SIGNIFICANCE and abs(self.change) >= MIN_CHANGE)


def trend(values: npt.NDArray[np.float64]) -> Trend | None:
    """The trend of values in the order of sending; null under a hundred of them."""
    if len(values) < MIN_REQUESTS:
        return None
    medians = [float(np.median(batch)) for batch in np.array_split(values, BATCHES)]
    centre = float(np.median(medians))
    if centre <= 0:
        return None
    pairs = [(later - earlier, gap) for (i, earlier), (j, later) in itertools.combinations(enumerate(medians), 2) if (gap := j - i)]
    score = sum((rise > 0) - (rise < 0) for rise, _gap in pairs)
    slope = float(np.median([rise / gap for rise, gap in pairs]))
    return Trend(p_value=mann_kendall_p(score, len(medians)), change=slope * (len(medians) - 1) / centre)


def mann_kendall_p(score: int, n: int) -> float:
    """P(|S| ≥ |score|) when all orders of n values are equally likely."""
    counts = _inversion_counts(n)
    pairs = n * (n - 1) // 2
    extreme = sum(count for inversions, count in enumerate(counts) if abs(pairs - 2 * inversions) >= abs(score))
    return extreme / math.factorial(n)


def _inversion_counts(n: int) -> Sequence[int]:
    """Permutations of n by their number of inversions (the Mahonian numbers)."""
    counts = [1]
    for size in range(2, n + 1):
        longer = [0] * (len(counts) + size - 1)
        for inversions, count in enumerate(counts):
            for more in range(size):
                longer[inversions + more] += count
        counts = longer
    return counts
