"""What happens to the services of a trial while they are loaded, as the fleet tells it from threads of its own -> who died, who was stopped."""

from loadcell.clock import NS_PER_S, Clock
from loadcell.fleet.monitor import FATAL, FleetEvent
from loadcell.tune.blame import Death


class Happenings:
    """`add` is called by one thread at a time; the rest by any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: list[FleetEvent] = []
        self._stopped_ns: int | None = None

    def add(self, event: FleetEvent) -> bool:
        """Whether it is the end of a service."""
        self._events.append(event)
        if event.event in ("hung", "resumed"):
            self._stopped_ns = self._clock.now_ns() if event.event == "hung" else None
        return event.event in FATAL

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(f"{event.service} {event.event}: {event.cause or ''}".rstrip(": ") for event in self._events)

    def death(self) -> Death | None:
        """The first service that is gone."""
        gone = next((event for event in self._events if event.event in FATAL), None)
        if gone is None:
            return None
        text = f"{gone.service} {gone.cause or gone.event}"
        return Death(text, gone.event, code=code_in(text))

    def stopped(self) -> str | None:
        """A service that a signal has stopped (SIGSTOP)."""
        found = next((event for event in self._events if event.event == "hung"), None)
        return None if found is None else f"{found.service} {found.cause}"

    def stopped_s(self) -> float:
        """For how long it has been; 0: it runs."""
        return 0.0 if self._stopped_ns is None else (self._clock.now_ns() - self._stopped_ns) / NS_PER_S


def code_in(text: str) -> int | None:
    _, found, rest = text.partition("exit code ")
    digits = rest.split(")")[0].split(";")[0].split()[0] if found and rest else ""
    try:
        return int(digits)
    except ValueError:
        return None
