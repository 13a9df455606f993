"""Which services are ours, on disk: one file each, written before its start, so that whoever comes after a `kill -9` finds them.

Layout: FOLDER/services/<host alias>/<marker>.json and FOLDER/allocating.lock. It says who made a service; whether it still lives is the host's to tell.
"""

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, TextIO
from urllib.parse import quote

import msgspec
from msgspec import Struct

from loadcell.errors import EnvironmentFailure
from loadcell.fleet.hosts import agent
from loadcell.fleet.hosts.host import Group
from loadcell.fleet.spec import HostSpec

LOCK_S: Final = 60.0
LOCK_STEP_S: Final = 0.02


class Owner(Struct, frozen=True):
    """A loadcell process. `machine`: a state folder may be shared between machines, and another one's processes cannot be judged from here."""

    pid: int
    started: int
    boot_id: str
    machine: str = ""


class Entry(Struct, frozen=True):
    """One service of ours. `group` null: its start was intended, and perhaps done. `service`: its name in the fleet; `created`: ISO 8601.

    `source`: the specification's file, empty where there is none; `folder`: where its run, or `up`, keeps what is known of it. `stop_s` and
    `health_path` (null: it has none) are as it was started with, so that who looks at it later need not read the file again.
    """

    marker: str
    service: str
    host: HostSpec
    owner: Owner
    made_by: Literal["run", "up"]
    spec_name: str
    folder: str
    created: str
    log: str = ""
    port: int | None = None
    devices: tuple[int, ...] = ()
    group: Group | None = None
    address: str | None = None
    base_url: str | None = None
    source: str = ""
    stop_s: float = 30.0
    health_path: str | None = "/health"


class Claims(Struct, frozen=True):
    """What services of ours hold on a host or are about to take. `whose`: of each device, in words. `servers`: who has each port."""

    ports: frozenset[int]
    devices: frozenset[int]
    whose: dict[int, str] = {}
    servers: dict[int, Entry] = {}


def new_marker(service: str) -> str:
    """A value of LOADCELL_SERVICE that nobody had before; it begins with the service's name, for whoever reads `ps e`."""
    return f"{''.join(c if c.isalnum() or c in '-.' else '-' for c in service)}-{secrets.token_hex(8)}"


def this_process() -> Owner:
    return msgspec.convert(agent.identity(), Owner)


def owner_lives(owner: Owner) -> bool:
    """Whether the process that wrote an entry is there. On another machine: taken for alive."""
    if owner.machine and owner.machine != agent.machine():
        return True
    now = agent.identity(owner.pid)
    return (now["started"], now["boot_id"]) == (owner.started, owner.boot_id) and owner.started > 0


def holder(entry: Entry) -> str:
    """Which service of whom it is, in words."""
    process = f"process {entry.group.pid}" if entry.group is not None and entry.group.pid else "about to start"
    return f"{entry.service} of {entry.spec_name} ({process}, by {'loadcell fleet up' if entry.made_by == 'up' else f'loadcell {entry.owner.pid}'})"


class Registry:
    """The files below `folder`. Unreadable ones are removed and said (`note`)."""

    def __init__(self, folder: Path, note: Callable[[str], None] = lambda _: None, *, patience_s: float = LOCK_S) -> None:
        self.folder = folder
        self._services = folder / "services"
        self._note = note
        self._patience_s = patience_s

    def add(self, entry: Entry) -> None:
        """Before the start. An entry with the same marker is replaced."""
        try:
            path = self._path(entry)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = path.with_suffix(".new")
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(entry), indent=1) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError as error:
            raise EnvironmentFailure(f"cannot record service {entry.service} in {self.folder}: {error}") from error

    def complete(self, marker: str, group: Group) -> None:
        """After the start: how to find it again."""
        for path in self._paths(marker):
            entry = self._read(path)
            if entry is not None:
                self.add(msgspec.structs.replace(entry, group=group))

    def remove(self, marker: str) -> None:
        """After its end. Removing what is not there is fine."""
        for path in self._paths(marker):
            path.unlink(missing_ok=True)

    def entries(self) -> tuple[Entry, ...]:
        """All of them, oldest first."""
        found = [entry for path in self._paths("*") if (entry := self._read(path)) is not None]
        return tuple(sorted(found, key=lambda entry: (entry.created, entry.marker)))

    def orphans(self) -> tuple[Entry, ...]:
        """Those of a `run` whose process is gone. `up` means them to stay."""
        return tuple(entry for entry in self.entries() if entry.made_by == "run" and not owner_lives(entry.owner))

    def claims(self, host: str) -> Claims:
        """Of living owners, and of `up`, on the host with this alias."""
        held = [e for e in self.entries() if e.host.name == host and (e.made_by == "up" or owner_lives(e.owner))]
        return Claims(
            frozenset(entry.port for entry in held if entry.port is not None),
            frozenset(device for entry in held for device in entry.devices),
            {device: holder(entry) for entry in held for device in entry.devices},
            {entry.port: entry for entry in held if entry.port is not None},
        )

    def sweep(self, gone: Callable[[Entry], bool]) -> tuple[str, ...]:
        """Remove entries of services that are `gone` (asked of the host) and that nobody will revive; what was removed, as texts."""
        stale = [entry for entry in self.entries() if not (entry.made_by == "run" and owner_lives(entry.owner))]
        texts = []
        for entry in stale:
            if not (entry.group is None and owner_lives(entry.owner)) and gone(entry):
                self.remove(entry.marker)
                texts.append(f"record of service {entry.service} on host {entry.host.name} was stale (its processes are gone): removed")
        return tuple(texts)

    @contextmanager
    def allocating(self) -> Iterator[None]:
        """Held while ports and devices are chosen and entered, so that two fleets that start at once choose different ones."""
        path = self.folder / "allocating.lock"
        with self._opened(path) as lock:
            deadline = time.monotonic() + self._patience_s
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise EnvironmentFailure(
                            f"another loadcell has held {path} for {self._patience_s:.0f} s; see `fuser {path}`"
                        ) from None
                    time.sleep(LOCK_STEP_S)
            yield

    def _opened(self, path: Path) -> TextIO:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return path.open("a")
        except OSError as error:
            raise EnvironmentFailure(
                f"services are recorded in {self.folder}, which cannot be written ({error.strerror}): set XDG_STATE_HOME to a folder that can"
            ) from error

    def _path(self, entry: Entry) -> Path:
        return self._services / quote(entry.host.name, safe="") / f"{entry.marker}.json"

    def _paths(self, marker: str) -> list[Path]:
        return sorted(self._services.glob(f"*/{marker}.json"))

    def _read(self, path: Path) -> Entry | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=Entry)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            path.unlink(missing_ok=True)
            self._note(f"record {path} cannot be read ({error}): removed")
            return None
        except OSError as error:
            raise EnvironmentFailure(f"cannot read {path}: {error}") from error
