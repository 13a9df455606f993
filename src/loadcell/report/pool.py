"""Pools of samples and their order statistics. Exact, without keeping every gap: a ten-million-token run costs a few MB.

Percentiles interpolate linearly between order statistics (numpy's default, as the other tools use);
the standard deviation is the population's. Everything is null on an empty pool.
"""

from array import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

US_PER_MS = 1000
_COUNTED_US = 1 << 20  # gaps below about a second are counted per µs; the few longer ones are kept one by one
_BUFFER = 1 << 16


class TimePool:
    """One time in ms per request."""

    def __init__(self) -> None:
        self._values = array("d")

    def add(self, value_ms: float | None) -> None:
        """Null is not a sample."""
        if value_ms is not None:
            self._values.append(value_ms)

    @property
    def n(self) -> int:
        return len(self._values)

    def mean(self) -> float | None:
        return float(np.mean(self._array())) if self.n else None

    def std(self) -> float | None:
        return float(np.std(self._array())) if self.n else None

    def percentiles(self, asked: Iterable[float]) -> list[float | None]:
        """The value in ms at each percentile (0 to 100)."""
        wanted = list(asked)
        if not self.n or not wanted:
            return [None] * len(wanted)
        return [float(value) for value in np.percentile(self._array(), wanted)]

    def _array(self) -> npt.NDArray[np.float64]:
        return np.frombuffer(self._values, dtype=np.float64)


class GapPool:
    """Every gap between chunks, pooled as counts per µs; figures in ms."""

    def __init__(self) -> None:
        self._buffer = array("q")
        self._counts = np.zeros(_COUNTED_US, dtype=np.int64)
        self._long = array("q")

    def add(self, gaps_us: list[int]) -> None:
        self._buffer.extend(gaps_us)
        if len(self._buffer) >= _BUFFER:
            self._flush()

    @property
    def n(self) -> int:
        self._flush()
        return int(self._counts.sum()) + len(self._long)

    def mean(self) -> float | None:
        values, counts = self._table()
        total = int(counts.sum())
        return float(np.dot(values, counts)) / total / US_PER_MS if total else None

    def std(self) -> float | None:
        values, counts = self._table()
        total = int(counts.sum())
        if not total:
            return None
        off = values - float(np.dot(values, counts)) / total
        return float(np.sqrt(np.dot(off * off, counts) / total)) / US_PER_MS

    def percentiles(self, asked: Iterable[float]) -> list[float | None]:
        """The value in ms at each percentile (0 to 100)."""
        wanted = np.array(list(asked), dtype=np.float64)
        values, counts = self._table()
        upto = np.cumsum(counts)
        if not len(upto) or not len(wanted):
            return [None] * len(wanted)
        rank = wanted / 100 * (int(upto[-1]) - 1)
        low = np.floor(rank).astype(np.int64)
        high = np.ceil(rank).astype(np.int64)
        at_low = values[np.searchsorted(upto, low, side="right")]
        at_high = values[np.searchsorted(upto, high, side="right")]
        return [float(value) / US_PER_MS for value in at_low + (at_high - at_low) * (rank - low)]

    def _table(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(distinct gaps in µs, ascending; how often each occurred)."""
        self._flush()
        short = np.flatnonzero(self._counts)
        long, long_counts = np.unique(np.frombuffer(self._long, dtype=np.int64), return_counts=True)
        return np.concatenate([short, long]), np.concatenate([self._counts[short], long_counts])

    def _flush(self) -> None:
        if not self._buffer:
            return
        gaps = np.array(self._buffer, dtype=np.int64)
        self._buffer = array("q")
        short = gaps[(gaps >= 0) & (gaps < _COUNTED_US)]
        self._counts += np.bincount(short, minlength=_COUNTED_US)
        self._long.extend(gaps[(gaps < 0) | (gaps >= _COUNTED_US)].tolist())
