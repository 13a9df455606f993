"""Records -> spans of time: the whole run, the steady state, and how many requests were in flight at every moment.

Stamps are ns since the origin. Only requests of the measure phase enter.
"""

from array import array
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from loadcell.metrics.facts import RunFacts
from loadcell.metrics.latency import end_ns, taken_up_ns
from loadcell.metrics.summary import Window
from loadcell.records import RequestRecord

NS_PER_S: Final = 1_000_000_000
STEADY_MIN_REQUESTS: Final = 30
STEADY_MIN_S: Final = 5.0
_NEVER: Final = -1

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Span(Struct, frozen=True):
    """[start, end] in ns since the origin, and the rule that chose it."""

    start_ns: int
    end_ns: int
    rule: str

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / NS_PER_S

    def holds(self, stamp_ns: int | None) -> bool:
        """The stamp lies inside, bounds included."""
        return stamp_ns is not None and self.start_ns <= stamp_ns <= self.end_ns

    def window(self) -> Window:
        return Window(start_s=self.start_ns / NS_PER_S, end_s=self.end_ns / NS_PER_S, duration_s=self.seconds, rule=self.rule)


class Scan:
    """The stamps that windows and concurrency need, 8 bytes each. One row per request, one per attempt that was sent."""

    def __init__(self, records: Iterable[RequestRecord]) -> None:
        scheduled, taken_up, sent, reachable = array("q"), array("q"), array("q"), array("b")
        starts, ends, endpoints = array("q"), array("q"), array("i")
        last = _NEVER
        for record in records:
            if record.phase != "measure":
                continue
            scheduled.append(record.scheduled_ns)
            up = taken_up_ns(record)
            taken_up.append(_NEVER if up is None else up)
            reachable.append(record.outcome != "no_endpoint")
            first = record.attempts[0].sent_ns if record.attempts else None
            sent.append(_NEVER if first is None else first)
            for attempt in record.attempts:
                end = end_ns(attempt)
                if end is not None:
                    last = max(last, end)
                    if attempt.sent_ns is not None:
                        starts.append(attempt.sent_ns)
                        ends.append(max(end, attempt.sent_ns))
                        endpoints.append(attempt.endpoint)
        self.scheduled: Ints = np.frombuffer(scheduled, dtype=np.int64)
        self.taken_up: Ints = np.frombuffer(taken_up, dtype=np.int64)
        self.sent: Ints = np.frombuffer(sent, dtype=np.int64)
        self.reachable = np.frombuffer(reachable, dtype=np.int8).astype(bool)
        self.attempt_start: Ints = np.frombuffer(starts, dtype=np.int64)
        self.attempt_end: Ints = np.frombuffer(ends, dtype=np.int64)
        self.attempt_endpoint = np.frombuffer(endpoints, dtype=np.int32)
        self.last_end_ns: int | None = None if last == _NEVER else last

    @property
    def last_dispatch_ns(self) -> int | None:
        """When the last request was taken up."""
        return int(self.taken_up.max()) if len(self.taken_up) and self.taken_up.max() != _NEVER else None

    def in_flight(self, endpoint: int | None = None) -> "InFlight":
        """Of all endpoints, or of one."""
        if endpoint is None:
            return InFlight(self.attempt_start, self.attempt_end)
        mine = self.attempt_endpoint == endpoint
        return InFlight(self.attempt_start[mine], self.attempt_end[mine])


class InFlight:
    """The true number of requests in flight as a step function of time, from when each was sent and ended."""

    def __init__(self, starts: Ints, ends: Ints) -> None:
        times = np.concatenate([starts, ends])
        steps = np.concatenate([np.ones(len(starts), np.int64), np.full(len(ends), -1, np.int64)])
        # An end frees its slot before a start at the same moment takes it; a request of no duration still counts.
        order = np.lexsort((np.concatenate([np.ones(len(starts), np.int8), (ends == starts).astype(np.int8) * 2]), times))
        self._times: Ints = times[order]
        self._level: Ints = np.cumsum(steps[order])
        area = self._level[:-1] * np.diff(self._times) if len(times) else np.empty(0, np.int64)
        self._area: Floats = np.concatenate([[0.0], np.cumsum(area, dtype=np.float64)])

    def peak(self, span: Span) -> int | None:
        """The largest number inside the span; null without any request."""
        if not len(self._times):
            return None
        first = np.searchsorted(self._times, span.start_ns, side="right")
        last = np.searchsorted(self._times, span.end_ns, side="right")
        entering = int(self._level[first - 1]) if first else 0
        return max(entering, int(self._level[first:last].max(initial=0)))

    def first_reached_ns(self, level: int) -> int | None:
        """When `level` was first reached."""
        where = np.flatnonzero(self._level >= level)
        return int(self._times[where[0]]) if len(where) else None

    def mean(self, span: Span) -> float | None:
        """The time average over the span."""
        if not len(self._times) or span.end_ns <= span.start_ns:
            return None
        return float(self.means(np.array([span.start_ns, span.end_ns]))[0])

    def means(self, edges_ns: Ints) -> Floats:
        """The time average between each pair of neighbouring edges."""
        if not len(self._times):
            return np.zeros(len(edges_ns) - 1)
        return np.diff(np.interp(edges_ns, self._times, self._area)) / np.diff(edges_ns)


def whole_run(facts: RunFacts, scan: Scan) -> Span | None:
    """First scheduled arrival to the end of `duration`, else to the end of the drain; null when nothing was due."""
    start = facts.window_start_ns
    if start is None:
        start = int(scan.scheduled.min()) if len(scan.scheduled) else None
    end = facts.window_end_ns if facts.window_end_ns is not None else scan.last_end_ns
    if start is None or end is None or end <= start:
        return None
    if facts.duration_s is not None and facts.stop_reason == "duration":
        return Span(start, end, "first scheduled arrival to the end of the duration")
    return Span(start, end, "first scheduled arrival to the end of the last request")


def steady_state(facts: RunFacts, scan: Scan, in_flight: InFlight) -> Span | str:
    """From the moment the cap is first reached (open loop: the end of the ramp) to the last dispatch; a text says why there is none."""
    whole = whole_run(facts, scan)
    last = scan.last_dispatch_ns
    if whole is None or last is None:
        return "nothing was sent"
    if facts.is_open_loop:
        start = max(whole.start_ns, facts.ramp_end_ns or whole.start_ns)
        rule = "end of the ramp to the last dispatch" if facts.ramp_end_ns is not None else "first scheduled arrival to the last dispatch"
    elif facts.concurrency_cap is None:
        return "neither a rate nor a concurrency cap"
    else:
        reached = in_flight.first_reached_ns(facts.concurrency_cap)
        if reached is None:
            return f"the cap of {facts.concurrency_cap} was never reached"
        start, rule = max(whole.start_ns, reached), "the cap first reached to the last dispatch"
    end = min(last, whole.end_ns)
    if end - start < STEADY_MIN_S * NS_PER_S:
        return f"shorter than {STEADY_MIN_S:g} s: {max(0, end - start) / NS_PER_S:.3f} s from {rule}"
    requests = int(np.count_nonzero((scan.sent >= start) & (scan.sent <= end)))
    if requests < STEADY_MIN_REQUESTS:
        return f"fewer than {STEADY_MIN_REQUESTS} requests: {requests} sent"
    return Span(start, end, rule)


class OfferedAndAchieved(Struct, frozen=True):
    """Open loop: requests per second as the schedule had them and as they were taken up, each over its own span from the first arrival."""

    offered_per_s: float
    achieved_per_s: float

    @property
    def ratio(self) -> float:
        return self.achieved_per_s / self.offered_per_s


RATE_MIN_SPAN_S: Final = 0.5


def offered_and_achieved(scan: Scan) -> OfferedAndAchieved | None:
    """Null where the arrivals span less than half a second. Arrivals that no endpoint could take are left out: not the client's doing."""
    due = scan.scheduled[scan.reachable]
    up = scan.taken_up[scan.reachable]
    up = up[up != _NEVER]
    if len(due) < 2 or (due.max() - due.min()) / NS_PER_S < RATE_MIN_SPAN_S:
        return None
    first = int(due.min())
    offered = len(due) * NS_PER_S / (int(due.max()) - first)
    taken_span = int(up.max()) - first if len(up) else 0
    # Requests that were never taken up lower the count; late ones stretch the span.
    span = max(taken_span, int(due.max()) - first)
    return OfferedAndAchieved(offered_per_s=offered, achieved_per_s=len(up) * NS_PER_S / span)
