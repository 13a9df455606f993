"""Arrival times of tokens -> tokens per second over the run, in whole seconds since its window began. Counts tokens, not chunks."""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt

from loadcell.metrics.latency import chunk_token_counts
from loadcell.metrics.summary import Timeline
from loadcell.metrics.windows import NS_PER_S, InFlight, Span
from loadcell.records import Attempt

MAX_BINS: Final = 600
_BUFFER: Final = 1 << 16
_US_PER_S: Final = 1_000_000

Floats = npt.NDArray[np.float64]


class TokenBins:
    """Tokens in each second of a window."""

    def __init__(self, span: Span) -> None:
        self._start_us = span.start_ns // 1000
        self.seconds: Floats = np.zeros(seconds_in(span))
        self._times, self._tokens = array("q"), array("d")

    def add(self, attempt: Attempt) -> None:
        """Every token of an attempt, wasted ones too. Chunks of unknown size have an even share."""
        chunks = attempt.chunk_us
        if chunks:
            self._times.fromlist(list(accumulate(chunks)))
            counts = chunk_token_counts(attempt)
            share = 1.0 if attempt.output_tokens is None else attempt.output_tokens / len(chunks)
            if counts is None:
                self._tokens += array("d", (share,)) * len(chunks)
            else:
                self._tokens.fromlist([*counts])
        elif attempt.output_tokens and attempt.done_ns is not None:
            self._times.append(attempt.done_ns // 1000)
            self._tokens.append(attempt.output_tokens)
        if len(self._times) >= _BUFFER:
            self.settle()

    def settle(self) -> Floats:
        """Tokens per second of all that was added."""
        if self._times:
            bins = (np.frombuffer(self._times, dtype=np.int64) - self._start_us) // _US_PER_S
            inside = (bins >= 0) & (bins < len(self.seconds))
            weights = np.frombuffer(self._tokens, dtype=np.float64)
            self.seconds += np.bincount(bins[inside], weights=weights[inside], minlength=len(self.seconds))
            self._times, self._tokens = array("q"), array("d")
        return self.seconds


def seconds_in(span: Span) -> int:
    """Whole seconds that cover the span."""
    return max(1, -(-(span.end_ns - span.start_ns) // NS_PER_S))


def peak_per_s(seconds: Floats, span: Span, window: Span) -> float | None:
    """Tokens in the busiest second; of a window inside the span, in the seconds that lie wholly in it."""
    first = -(-(window.start_ns - span.start_ns) // NS_PER_S)
    last = len(seconds) if window.end_ns >= span.end_ns else (window.end_ns - span.start_ns) // NS_PER_S
    return float(seconds[first:last].max()) if last > first else None


def timeline(
    span: Span | None, seconds: Floats, ok_ends: Iterable[Sequence[int]], failed_ends: Iterable[Sequence[int]], flight: InFlight
) -> Timeline:
    """At most 600 bins of whole seconds."""
    if span is None:
        return Timeline(bin_s=1.0, output_tokens=[], ok=[], failed=[], in_flight_mean=[])
    width = -(-len(seconds) // MAX_BINS)
    bins = -(-len(seconds) // width)
    tokens = np.zeros(bins * width)
    tokens[: len(seconds)] = seconds
    edges = span.start_ns + np.arange(bins + 1, dtype=np.int64) * width * NS_PER_S
    edges[-1] = max(span.end_ns, edges[-2] + 1)
    return Timeline(
        bin_s=float(width),
        output_tokens=[round(float(value), 3) for value in tokens.reshape(bins, width).sum(axis=1)],
        ok=_per_bin(ok_ends, span, width, bins),
        failed=_per_bin(failed_ends, span, width, bins),
        in_flight_mean=[round(float(value), 6) for value in flight.means(edges)],
    )


def _per_bin(stamps: Iterable[Sequence[int]], span: Span, width: int, bins: int) -> list[int]:
    counts = np.zeros(bins, dtype=np.int64)
    for group in stamps:
        moments = np.asarray(group, dtype=np.int64)
        inside = moments[(moments >= span.start_ns) & (moments <= span.end_ns)]
        counts += np.bincount(np.minimum((inside - span.start_ns) // (width * NS_PER_S), bins - 1), minlength=bins)
    return [int(count) for count in counts]
