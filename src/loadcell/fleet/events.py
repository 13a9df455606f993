"""What happens to the services, a line of JSON each, appended as it happens."""

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from loadcell.clock import NS_PER_S, anchor
from loadcell.fleet.monitor import FleetEvent
from loadcell.fleet.service import Service

EVENTS_FILE: Final = "fleet_events.jsonl"


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


def last_event(folder: Path, service: str) -> FleetEvent | None:
    """The newest one of that service in a run's folder; null where none can be read."""
    try:
        lines = (folder / EVENTS_FILE).read_bytes().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            event = msgspec.json.decode(line, type=FleetEvent)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if event.service == service:
            return event
    return None


def now_text() -> str:
    """The time of day, ISO 8601, UTC, in milliseconds."""
    return datetime.fromtimestamp(anchor().wall_ns / NS_PER_S, UTC).isoformat(timespec="milliseconds")
