"""Records -> running totals and samples, one `Tally` per endpoint and side of the steady window. Grows with requests, not with tokens.

A request belongs to the endpoint of its last attempt; attempts, their tokens and their failures to their own.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from loadcell.metrics.goodput import meets
from loadcell.metrics.latency import (
    US,
    RequestLatency,
    came_at_once,
    chunk_token_counts,
    end_ns,
    gaps_us,
    hides_reasoning,
    one_token_per_chunk,
    request_latency,
    taken_up_ns,
    token_gaps,
)
from loadcell.metrics.slo import Slo
from loadcell.metrics.stats import GapPool, SplitPool
from loadcell.metrics.summary import Lengths
from loadcell.metrics.timeline import TokenBins
from loadcell.metrics.windows import Span
from loadcell.records import Attempt, RequestRecord

COLUMNS: Final = tuple(name for name in RequestLatency.__struct_fields__ if name != "first_chunk_estimated")
_NAN: Final = math.nan


class LengthTally:
    """Adds up one token length."""

    def __init__(self) -> None:
        self.n = self.total = 0
        self.min: int | None = None
        self.max: int | None = None

    def add(self, tokens: int | None) -> None:
        if tokens is None:
            return
        self.n += 1
        self.total += tokens
        self.min = tokens if self.min is None or tokens < self.min else self.min
        self.max = tokens if self.max is None or tokens > self.max else self.max

    def merge(self, other: "LengthTally") -> None:
        self.n += other.n
        self.total += other.total
        self.min = min((bound for bound in (self.min, other.min) if bound is not None), default=None)
        self.max = max((bound for bound in (self.max, other.max) if bound is not None), default=None)

    def lengths(self) -> Lengths:
        return Lengths(n=self.n, total=self.total, mean=self.total / self.n if self.n else None, min=self.min, max=self.max)


class WindowTally:
    """What fell inside one window: arrivals, requests taken up, attempts, completions, tokens."""

    def __init__(self) -> None:
        self.due = self.taken_up = self.attempts = self.completed = self.good = self.input_tokens = 0
        self.output_tokens = 0.0


class Tally:
    """One endpoint's requests on one side of the steady window."""

    def __init__(self) -> None:
        self.columns: dict[str, array[float]] = {name: array("d") for name in COLUMNS}  # NaN = null, in here only
        self.sent = array("q")
        self.gaps, self.chunk_gaps, self.split_gaps = GapPool(), GapPool(), SplitPool()
        self.outcomes: Counter[str] = Counter()
        self.windows = (WindowTally(), WindowTally())
        self.ok_ends, self.failed_ends = array("q"), array("q")
        self.requests_sent = self.dropped = self.retried = self.first_try_ok = self.good = 0
        self.attempts = self.failed_attempts = self.stale_replays = self.malformed = self.wasted_tokens = 0
        self.events = self.coalesced = self.clock_stamps = 0
        self.input_asked, self.input_delivered = LengthTally(), LengthTally()
        self.output_asked, self.output_delivered = LengthTally(), LengthTally()
        self.input_sources: Counter[str] = Counter()
        self.output_sources: Counter[str] = Counter()
        self.asked_of_known = self.delivered_of_known = 0
        self.reasoning = self.reasoning_of = self.reasoning_n = 0
        self.cached = self.cached_of = self.cached_n = 0
        self.first_chunk_estimated = self.hidden_reasoning = self.long_answers = self.single_event_answers = 0

    def add_latency(self, record: RequestRecord, attempt: Attempt, latency: RequestLatency) -> None:
        """An ok request's times and gaps."""
        for name in COLUMNS:
            value = getattr(latency, name)
            self.columns[name].append(_NAN if value is None else value)
        first = record.attempts[0].sent_ns
        self.sent.append(record.scheduled_ns if first is None else first)
        self.first_chunk_estimated += latency.first_chunk_estimated
        gaps = gaps_us(attempt)
        if not gaps:
            return
        if one_token_per_chunk(attempt):
            self.gaps.add(gaps)
            return
        self.chunk_gaps.add(gaps)
        split = token_gaps(attempt)
        if split is not None:
            self.split_gaps.add(*split)

    def add_tokens(self, record: RequestRecord, attempt: Attempt) -> None:
        """An ok request's lengths, asked and delivered."""
        self.input_asked.add(record.input_asked)
        self.input_delivered.add(attempt.input_tokens)
        self.output_asked.add(record.output_asked)
        self.output_delivered.add(attempt.output_tokens)
        self.input_sources[attempt.input_source or "unknown"] += 1
        self.output_sources[attempt.output_source or "unknown"] += 1
        output = attempt.output_tokens
        if output is not None and record.output_asked is not None:
            self.asked_of_known += record.output_asked
            self.delivered_of_known += output
        if output is not None and attempt.reasoning_tokens is not None:
            self.reasoning_n += 1
            self.reasoning += attempt.reasoning_tokens
            self.reasoning_of += output
        if attempt.cached_tokens is not None and attempt.input_tokens is not None:
            self.cached_n += 1
            self.cached += attempt.cached_tokens
            self.cached_of += attempt.input_tokens
        self.hidden_reasoning += hides_reasoning(attempt)
        if attempt.chunk_us and output is not None and output > 1:
            self.long_answers += 1
            self.single_event_answers += came_at_once(attempt)


class Collector:
    """Sorts the records of the measure phase into tallies. `windows`: the whole run and the steady state."""

    def __init__(self, windows: tuple[Span | None, Span | None], limits: Sequence[Slo], open_loop: bool) -> None:
        self.tallies: dict[tuple[int, bool], Tally] = {}
        self.bins: dict[int, TokenBins] = {}
        self.errors: dict[str, Counter[str]] = {}
        self.client_limit_errors: Counter[str] = Counter()
        self._windows, self._limits, self._open_loop = windows, limits, open_loop

    def add(self, record: RequestRecord) -> None:
        """Count one request and its attempts."""
        steady_span = self._windows[1]
        attempts = record.attempts
        steady = steady_span is not None and bool(attempts) and steady_span.holds(attempts[0].sent_ns)
        tally = self._tally(attempts[-1].endpoint if attempts else -1, steady)
        tally.outcomes[record.outcome] += 1
        tally.requests_sent += any(one.sent_ns is not None for one in attempts)
        tally.dropped += not attempts
        tally.retried += len(attempts) > 1
        taken_up = taken_up_ns(record)
        for span, window in zip(self._windows, tally.windows, strict=True):
            if span is not None:
                window.due += span.holds(record.scheduled_ns)
                window.taken_up += span.holds(taken_up)
        for number, attempt in enumerate(attempts):
            self._add_attempt(record, attempt, number == len(attempts) - 1, steady)
        if record.outcome == "ok" and attempts:
            self._add_ok(tally, record, attempts[-1])
        elif record.outcome != "cancelled":
            end = end_ns(attempts[-1]) if attempts else None
            tally.failed_ends.append(record.scheduled_ns if end is None else end)
            self._add_error(record)

    def _tally(self, endpoint: int, steady: bool) -> Tally:
        key = (endpoint, steady)
        if key not in self.tallies:
            self.tallies[key] = Tally()
        return self.tallies[key]

    def _add_ok(self, tally: Tally, record: RequestRecord, attempt: Attempt) -> None:
        latency = request_latency(record, self._open_loop)
        if latency is None:
            return
        tally.add_latency(record, attempt, latency)
        tally.add_tokens(record, attempt)
        tally.first_try_ok += len(record.attempts) == 1
        good = bool(self._limits) and meets(record, attempt, latency, self._limits, self._open_loop)
        tally.good += good
        end = end_ns(attempt)
        if end is None:
            return
        tally.ok_ends.append(end)
        for span, window in zip(self._windows, tally.windows, strict=True):
            if span is not None and span.holds(end):
                window.completed += 1
                window.good += good
                window.input_tokens += attempt.input_tokens or 0

    def _add_attempt(self, record: RequestRecord, attempt: Attempt, last: bool, steady: bool) -> None:
        tally = self._tally(attempt.endpoint, steady)
        tally.attempts += 1
        tally.failed_attempts += attempt.outcome not in ("ok", "cancelled")
        tally.stale_replays += attempt.stale_replays
        tally.malformed += attempt.malformed_events
        tally.events += len(attempt.chunk_us)
        tally.coalesced += attempt.coalesced
        tally.clock_stamps += attempt.clock_stamps
        if attempt.error_code in ("EMFILE", "ENFILE"):
            self.client_limit_errors[attempt.error_code] += 1
        begun = attempt.sent_ns if attempt.sent_ns is not None else attempt.dispatched_ns
        # Cut off only by the run's end: what had arrived was delivered. Everything else that failed was wasted.
        counts = last and record.outcome in ("ok", "cancelled")
        for span, window in zip(self._windows, tally.windows, strict=True):
            if span is not None:
                window.attempts += span.holds(begun)
                if counts:
                    window.output_tokens += tokens_inside(attempt, span)
        if not counts:
            tally.wasted_tokens += delivered_tokens(attempt)
        if self._windows[0] is not None:
            if attempt.endpoint not in self.bins:
                self.bins[attempt.endpoint] = TokenBins(self._windows[0])
            self.bins[attempt.endpoint].add(attempt)

    def _add_error(self, record: RequestRecord) -> None:
        text = record.error or (record.attempts[-1].error if record.attempts else None)
        if text:
            seen = self.errors.setdefault(record.outcome, Counter())
            if text in seen or len(seen) < 100:
                seen[text] += 1


def delivered_tokens(attempt: Attempt) -> int:
    """Output tokens that arrived; their chunks where nobody counted tokens."""
    return len(attempt.chunk_us) if attempt.output_tokens is None else attempt.output_tokens


def tokens_inside(attempt: Attempt, span: Span) -> float:
    """Output tokens delivered inside the span. A chunk has its own tokens where they are known, else an even share; a whole answer falls at `done`."""
    total = delivered_tokens(attempt)
    chunks = attempt.chunk_us
    if not total:
        return 0.0
    if not chunks:
        return float(total) if span.holds(attempt.done_ns) else 0.0
    first_us, last_us = -(-span.start_ns // US), span.end_ns // US
    if first_us <= chunks[0] and sum(chunks) <= last_us:
        return float(total)
    times = list(accumulate(chunks))
    low, high = bisect_left(times, first_us), bisect_right(times, last_us)
    counts = chunk_token_counts(attempt)
    return float(sum(counts[low:high])) if counts is not None else total * max(0, high - low) / len(chunks)
