"""Prompts -> serialised requests, ahead of the moment they are due: a thread of the control process that fills a spool.

It stays a few seconds ahead and no further, so that its work is spread over the run instead of delaying its start.
"""

import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from loadcell.load.spool import SpoolWriter
from loadcell.records import Request

_AHEAD_NS: Final = 3_000_000_000
_FEWEST_AHEAD: Final = 64
_PAUSE_S: Final = 0.005
_BATCH: Final = 64


class Producer:
    """Makes requests 0, 1, … up to `count` (null: endless). With `offsets` it follows the schedule, else the tickets that are drawn.

    `published` is called with the number of requests that are ready. `elapsed_ns` tells how far the load is (0 before its start).
    """

    def __init__(
        self,
        spool: SpoolWriter,
        make: Callable[[int], Request],
        count: int | None,
        offsets: "array[int] | None",
        published: Callable[[int], None],
        elapsed_ns: Callable[[], int],
        first: int,
    ) -> None:
        self._spool, self._make, self._count, self._offsets = spool, make, count, offsets
        self._published, self._elapsed_ns = published, elapsed_ns
        self._first = first if count is None else min(first, count)
        self._stop = threading.Event()
        self._primed = threading.Event()
        self.error: Exception | None = None
        self.made = 0
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def make_all_first(self) -> None:
        """Be primed only when all `count` requests are ready."""
        if self._count is not None and self.made < self._count:
            self._primed.clear()
            self._first = self._count

    def wait_primed(self, timeout_s: float) -> bool:
        """True once enough is ready to start the load (or nothing more will be: see `error`)."""
        return self._primed.wait(timeout_s)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._produce()
        except Exception as error:  # noqa: BLE001 - a supervisor's edge: control re-raises it
            self.error = error
        finally:
            self._spool.close_tickets()
            self._primed.set()

    def _produce(self) -> None:
        issued = 0
        while not self._stop.is_set():
            goal = self._goal(issued)
            while self.made < goal:
                self._spool.add(self._make(self.made))
                self.made += 1
                if self.made % _BATCH == 0 and self._stop.is_set():
                    return
            self._spool.publish()
            self._published(self.made)
            if self._offsets is None and issued < self.made:
                issued += self._spool.issue_tickets(issued, self.made - issued)
            if self.made >= self._first and (self._offsets is not None or issued >= min(self._first, _BATCH)):
                self._primed.set()
            if self.made == self._count and (self._offsets is not None or issued == self.made):
                return
            if self.made >= self._goal(issued) and (self._offsets is not None or issued < self.made):
                self._stop.wait(_PAUSE_S)

    def _goal(self, issued: int) -> int:
        """How many to have made by now, at most a batch more than there are, so that the first ones are published soon."""
        if self._offsets is None:
            goal = issued + max(self._first, 512)
        else:
            goal = max(self._first, _FEWEST_AHEAD, bisect_right(self._offsets, self._elapsed_ns() + _AHEAD_NS))
        if self._count is not None:
            goal = min(goal, self._count)
        return min(goal, self.made + 1024)
