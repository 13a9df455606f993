"""What happens to the services, a line of JSON each, appended as it happens."""

import threading
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from loadcell.clock import NS_PER_S, anchor
from loadcell.fleet.monitor import FleetEvent
from loadcell.fleet.service import Service


class EventLog:
    """Safe to add to from several threads. A disk that is full costs the line, not the fleet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def add(self, service: Service, event: str, cause: str | None = None) -> FleetEvent:
        said = FleetEvent(now_text(), service.name, service.state, event, cause)
        with self._lock:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("ab") as file:
                    file.write(msgspec.json.encode(said) + b"\n")
            except OSError:
                return said
        return said


def now_text() -> str:
    """The time of day, ISO 8601, UTC, in milliseconds."""
    return datetime.fromtimestamp(anchor().wall_ns / NS_PER_S, UTC).isoformat(timespec="milliseconds")
