"""The only place that reads a clock. Everything else takes nanoseconds as numbers.

Durations come from CLOCK_MONOTONIC alone; the wall clock labels a run once, in an `Anchor`.
"""

import time
from typing import Protocol

from msgspec import Struct

NS_PER_S = 1_000_000_000


class Clock(Protocol):
    def now_ns(self) -> int:
        """Nanoseconds of a monotonic clock."""
        ...

    def sleep_until(self, deadline_ns: int) -> None:
        """Return at or after `deadline_ns`; at once when it has passed. Absolute, so that errors never add up."""
        ...


class MonotonicClock:
    """CLOCK_MONOTONIC of this host."""

    now_ns = staticmethod(time.monotonic_ns)

    @staticmethod
    def sleep_until(deadline_ns: int) -> None:
        left_ns = deadline_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / NS_PER_S)


class Anchor(Struct, frozen=True):
    """One moment on both clocks: lets a reader label monotonic stamps with the time of day."""

    monotonic_ns: int
    wall_ns: int


def anchor() -> Anchor:
    """Read both clocks back to back."""
    return Anchor(monotonic_ns=time.monotonic_ns(), wall_ns=time.time_ns())


def realtime_offset_ns() -> int:
    """CLOCK_REALTIME − CLOCK_MONOTONIC in ns, from the tightest of five samples.

    Kernel receive stamps are CLOCK_REALTIME; subtract this to place them on the monotonic clock.
    """
    best_width, best_offset = 1 << 62, 0
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if after - before < best_width:
            best_width, best_offset = after - before, wall - (before + after) // 2
    return best_offset
