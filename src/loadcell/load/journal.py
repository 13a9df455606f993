"""What happens in a run besides its requests, as control learns it: to the log of events, to the person who watches, into the report."""

import os
from collections.abc import Callable
from pathlib import Path

from loadcell.clock import Anchor
from loadcell.errors import EnvironmentFailure
from loadcell.load.plan import StopCode, WorkerReport
from loadcell.recordlog import encode_events
from loadcell.records import Event


class Journal:
    """`start_ns`: when the measurement began (0 before). `stop`: why the load ended, and in which words. `signal`: the first that came.

    `failed` says why events can no longer be written; the run's end tells it, nothing is raised here. Times: monotonic ns.
    """

    def __init__(self, origin: Anchor, path: Path, say: Callable[[str], None]) -> None:
        self.origin = origin
        self.start_ns = 0
        self.stop: tuple[StopCode, str | None] | None = None
        self.signal: int | None = None
        self.failed: str | None = None
        self.notices: list[str] = []
        self.dropped: dict[str, list[str]] = {}
        self.ejections: dict[str, int] = {}
        self.reports: list[WorkerReport] = []
        self.lost: list[int] = []
        self._say = say
        self._path = path
        self._fd = -1

    def open(self) -> None:
        """Raises EnvironmentFailure."""
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise EnvironmentFailure(f"cannot create {self._path}: {error.strerror}") from error

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def note(self, text: str, *, report: bool = True) -> None:
        """Tell the person who watches; `report`: the report's reader too."""
        if report:
            self.notices.append(text)
        self._say(text)

    def event(self, kind: str, at_ns: int, cause: str | None = None, endpoint: str | None = None) -> None:
        self._write(Event(at_ns=at_ns - self.origin.monotonic_ns, kind=kind, cause=cause, endpoint=endpoint))

    def of_endpoint(self, event: Event) -> None:
        """What the pool of endpoints has decided."""
        self._write(event)
        first = False
        if event.kind == "endpoint_unhealthy" and event.endpoint is not None:
            first = event.endpoint not in self.ejections
            self.ejections[event.endpoint] = self.ejections.get(event.endpoint, 0) + 1
        if event.kind != "endpoint_trial":
            self.note(f"{event.endpoint or ''} {event.kind.replace('_', ' ')}: {event.cause or ''}".strip(), report=first)

    def field_dropped(self, endpoint: str, field: str, said: str, at_ns: int) -> None:
        """An endpoint refused an optional field: told once, whoever finds out."""
        fields = self.dropped.setdefault(endpoint, [])
        if field not in fields:
            fields.append(field)
            self.event("field_dropped", at_ns, f"{field}: {said}", endpoint)
            self.note(f"{endpoint} refuses {field}: it is left out there from now on")

    def _write(self, event: Event) -> None:
        if self._fd < 0 or self.failed is not None:
            return
        line = encode_events([event])
        try:
            written = os.write(self._fd, line)
        except OSError as error:
            self.failed = f"cannot write {self._path}: {error.strerror}"
            return
        if written < len(line):
            self.failed = f"cannot write {self._path}: the disk is full"
