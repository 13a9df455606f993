"""A clock that moves only when told to: a test of a thirty-second timeout takes microseconds."""

from loadcell.clock import NS_PER_S


class FakeClock:
    """`loadcell.clock.Clock` without waiting. `sleeps` lists the deadlines that were slept until."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns
        self.sleeps: list[int] = []

    def now_ns(self) -> int:
        return self._now_ns

    def sleep_until(self, deadline_ns: int) -> None:
        """Move to `deadline_ns` at once; a deadline that has passed moves nothing, as with a real clock."""
        self.sleeps.append(deadline_ns)
        self._now_ns = max(self._now_ns, deadline_ns)

    def advance(self, seconds: float) -> int:
        """Move on by `seconds`; returns the new time in ns."""
        self._now_ns += round(seconds * NS_PER_S)
        return self._now_ns
