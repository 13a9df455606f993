# ruff: noqa: ARG002 - implementations of a protocol that need less than it offers
"""What a worker may send next, and when: a closed loop's tickets, or its share of a schedule; and the slots that a cap leaves free."""

import heapq
from typing import Final, Protocol

from loadcell.load.spool import Slots, SpoolReader
from loadcell.schedule import ScheduleSpec, cap_at

STARVED_RETRY_NS: Final = 500_000
SHARED_RETRY_NS: Final = 500_000


class SlotSet(Protocol):
    """Free places under a cap on requests in flight."""

    def take(self, now_ns: int) -> int | None:
        """Occupy a place; since when it was free. Null: none is."""
        ...

    def give(self, at_ns: int) -> None:
        """A request that held a place ended at `at_ns`."""
        ...

    def next_ns(self, now_ns: int) -> int | None:
        """When a place could next become free without a request ending; null: not before one ends."""
        ...


class LocalSlots:
    """This worker's own share of a cap: every n-th slot. Under a ramp each becomes free at its own time."""

    def __init__(self, spec: ScheduleSpec, worker: int, workers: int, start_ns: int) -> None:
        count = spec.concurrency or 0
        self._free = [start_ns + _opens_at(spec, slot) for slot in range(worker, count, workers)]
        heapq.heapify(self._free)

    def take(self, now_ns: int) -> int | None:
        if not self._free or self._free[0] > now_ns:
            return None
        return heapq.heappop(self._free)

    def give(self, at_ns: int) -> None:
        heapq.heappush(self._free, at_ns)

    def next_ns(self, now_ns: int) -> int | None:
        return self._free[0] if self._free else None


class SharedSlots:
    """A cap that several workers of an open loop share: whoever has something due takes the next free place."""

    def __init__(self, slots: Slots, start_ns: int) -> None:
        self._slots = slots
        self._last_free_ns = start_ns

    def take(self, now_ns: int) -> int | None:
        return self._last_free_ns if self._slots.take() else None

    def give(self, at_ns: int) -> None:
        self._last_free_ns = at_ns
        self._slots.give()

    def next_ns(self, now_ns: int) -> int | None:
        return now_ns + SHARED_RETRY_NS  # another worker may give one back


class NoCap:
    """Always room."""

    def take(self, now_ns: int) -> int | None:
        return 0

    def give(self, at_ns: int) -> None:
        return None

    def next_ns(self, now_ns: int) -> int | None:
        return now_ns


def _opens_at(spec: ScheduleSpec, slot: int) -> int:
    """When the cap first exceeds `slot`, ns after the start (bisection of a monotone function)."""
    low, high = 0, round(spec.ramp_concurrency_s * 1e9) + 1
    if cap_at(spec, 0) > slot:
        return 0
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if cap_at(spec, middle) > slot else (middle + 1, high)
    return low


class Arrivals(Protocol):
    """The requests of one phase in one worker. `open_loop`: they are due by the clock, whatever the server does."""

    open_loop: bool
    starved_since_ns: int | None
    starved_ns: int

    def due_ns(self, now_ns: int) -> int | None:
        """When the next one may be taken; null: there is none any more."""
        ...

    def take(self, now_ns: int, free_since_ns: int) -> tuple[int, int] | None:
        """(arrival index, scheduled ns) of one that is due, given a slot that was free since then. Null: not now."""
        ...


class ClosedArrivals:
    """A freed slot asks for the next ticket. All workers draw from one pipe."""

    open_loop = False

    def __init__(self, spool: SpoolReader) -> None:
        self._spool = spool
        self._exhausted = False
        self._next_try_ns = 0
        self.starved_since_ns: int | None = None
        self.starved_ns = 0

    def due_ns(self, now_ns: int) -> int | None:
        return None if self._exhausted else max(now_ns, self._next_try_ns)

    def take(self, now_ns: int, free_since_ns: int) -> tuple[int, int] | None:
        ticket = self._spool.ticket()
        if ticket is None:
            self._exhausted = True
            return None
        if ticket < 0:
            self.starved_since_ns = self.starved_since_ns or now_ns
            self._next_try_ns = now_ns + STARVED_RETRY_NS
            return None
        if self.starved_since_ns is not None:
            self.starved_ns += now_ns - self.starved_since_ns
            self.starved_since_ns = None
        return ticket, free_since_ns


class ScheduledArrivals:
    """Every n-th arrival of a schedule. `produced` tells how many requests control has prepared."""

    open_loop = True

    def __init__(self, offsets: "memoryview[int]", worker: int, workers: int, start_ns: int, produced: "Produced") -> None:
        self._offsets = offsets
        self._next = worker
        self._workers = workers
        self._start_ns = start_ns
        self._produced = produced
        self._not_before_ns = 0
        self.starved_since_ns: int | None = None
        self.starved_ns = 0

    def due_ns(self, now_ns: int) -> int | None:
        if self._next >= len(self._offsets):
            return None
        return max(self._start_ns + self._offsets[self._next], self._not_before_ns)

    def take(self, now_ns: int, free_since_ns: int) -> tuple[int, int] | None:
        index = self._next
        if index >= self._produced():
            self.starved_since_ns = self.starved_since_ns or now_ns
            self._not_before_ns = now_ns + STARVED_RETRY_NS
            return None
        if self.starved_since_ns is not None:
            self.starved_ns += now_ns - self.starved_since_ns
            self.starved_since_ns = None
        self._next += self._workers
        return index, self._start_ns + self._offsets[index]

    def skip(self) -> tuple[int, int] | None:
        """The next one, taken whether it can be sent or not: (arrival index, scheduled ns)."""
        if self._next >= len(self._offsets):
            return None
        index = self._next
        self._next += self._workers
        return index, self._start_ns + self._offsets[index]


class Produced(Protocol):
    """How many requests are prepared so far."""

    def __call__(self) -> int: ...
