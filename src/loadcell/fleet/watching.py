"""While a load runs: the threads that look at process states once a second, one per host, and tell what is new.

One per host, so that a host that is cut off delays the news of no other. Each look is the host's cheapest one; nobody is asked anything.
The last look comes after the load: what ended it is told with it, however short it was.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from loadcell.clock import NS_PER_S, Clock
from loadcell.errors import EnvironmentFailure
from loadcell.fleet.monitor import Finding
from loadcell.fleet.service import Service

PERIOD_NS: Final = NS_PER_S
_LEAVE_S: Final = 5.0


class Watching:
    """`tell` is called from the threads, by one at a time."""

    def __init__(self, services: Sequence[Service], tell: Callable[[Service, Finding], None], clock: Clock) -> None:
        by_host: dict[str, list[Service]] = defaultdict(list)
        for service in services:
            by_host[service.plan.replica.host].append(service)
        self._tell, self._clock = tell, clock
        self._telling = threading.Lock()
        self._over, self._left = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=(group,), name=f"watch-{host}", daemon=True) for host, group in by_host.items()
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """A thread that waits for a host that is cut off is left to its deadline: it tells nothing any more."""
        self._over.set()
        for thread in self._threads:
            thread.join(_LEAVE_S)
        self._left.set()

    def _watch(self, services: Sequence[Service]) -> None:
        first, last = True, False
        while not last:
            last = self._over.is_set()
            began_ns = self._clock.now_ns()
            for service in services:
                self._look(service, first)
            first = False
            left_ns = began_ns + PERIOD_NS - self._clock.now_ns()
            self._over.wait(max(0, left_ns) / NS_PER_S)

    def _look(self, service: Service, first: bool) -> None:
        try:
            findings = service.watch(lasting=first)
        except EnvironmentFailure:
            return  # the next look tells more
        with self._telling:
            for finding in findings:
                if not self._left.is_set():
                    self._tell(service, finding)
