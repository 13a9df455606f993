"""The folder of a study on disk: made once, held by one process, appended to. Every event is on the disk when `append` returns.

runs/<time>-<name>/
  study.toml     the file as it was read, secrets taken out      spec.json      what it means
  events.jsonl   all that happened (`events`)                    study.journal  the same trials as optuna keeps them
  trials/0007/   a folder per trial: logs, records, its load     best.toml, report.md …
"""

import fcntl
import os
from pathlib import Path
from typing import Final, Self

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.tune.events import Event, Record, encode

EVENTS: Final = "events.jsonl"
LOCK: Final = ".lock"
SPEC: Final = "spec.json"
COPY: Final = "study.toml"
JOURNAL: Final = "study.journal"
STUDY_MARK: Final = b'"event":"opened"'


class StudyFolder:
    """Raises EnvironmentFailure where it cannot be written, UserError where it is not what it should be."""

    def __init__(self, path: Path, lock_fd: int, events_fd: int) -> None:
        self.path = path
        self._events_fd = events_fd
        self._fds = [lock_fd, events_fd]
        body = (path / EVENTS).read_bytes()
        self._ends_whole = not body or body.endswith(b"\n")
        self.record = Record.read(body)

    @classmethod
    def make(cls, path: Path) -> Self:
        """Take up a new, empty folder."""
        return cls(path, _locked(path), _open(path / EVENTS, os.O_CREAT | os.O_EXCL))

    @classmethod
    def resume(cls, given: Path) -> Self:
        """Take up one that holds a study."""
        path = study_folder(given)
        return cls(path, _locked(path), _open(path / EVENTS, 0))

    def close(self) -> None:
        """Let go of it."""
        while self._fds:
            os.close(self._fds.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, event: Event) -> None:
        """One line, on the disk when this returns; `record` knows it. A fragment that a killed process left keeps a line of its own."""
        line = (b"" if self._ends_whole else b"\n") + encode(event) + b"\n"
        size = os.fstat(self._events_fd).st_size
        try:
            if os.write(self._events_fd, line) < len(line):
                raise OSError(28, "No space left on device")
            os.fsync(self._events_fd)
        except OSError as error:
            os.ftruncate(self._events_fd, size)
            raise EnvironmentFailure(
                f"cannot write {self.path / EVENTS}: {error.strerror}; what it held is kept: make room, then --resume {self.path}"
            ) from error
        self._ends_whole = True
        self.record.add(event)

    def keep_copy(self, name: str, body: bytes) -> str:
        """Write `body` under `name`; where that name holds something else already, under the next free number. The name that it got."""
        stem, dot, end = name.rpartition(".")
        for number in range(1, 10_000):
            path = self.path / (name if number == 1 else f"{stem}.{number}{dot}{end}")
            if path.exists():
                if path.read_bytes() == body:
                    return path.name
                continue
            try:
                path.write_bytes(body)
            except OSError as error:
                raise EnvironmentFailure(f"cannot write {path}: {error.strerror}") from error
            return path.name
        raise EnvironmentFailure(f"{self.path}: no free name for {name}")


def study_folder(given: Path) -> Path:
    """A study's folder, or a file in it, -> the folder. UserError for what is none."""
    path = given if given.is_dir() or not given.exists() else given.parent
    events = path / EVENTS
    try:
        told = events.read_bytes()
    except OSError:
        told = b""
    if STUDY_MARK not in told:
        raise UserError(f"{given}: no {EVENTS} there tells of a study; give the folder that `loadcell tune` printed")
    return path


def read_record(given: Path) -> Record:
    """What a study's folder tells, whether or not a process works on it. UserError for a folder that is none."""
    return Record.read((study_folder(given) / EVENTS).read_bytes())


def is_study(given: Path) -> bool:
    """Whether a folder (or a file in it) is a study's."""
    try:
        study_folder(given)
    except UserError:
        return False
    return True


def in_use(path: Path) -> bool:
    """Whether another process works on it now."""
    try:
        os.close(_locked(path))
    except (UserError, EnvironmentFailure):
        return True
    return False


def _open(path: Path, more: int) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | more, 0o644)
    except FileExistsError:
        raise UserError(f"{path.parent} holds a study already: use --resume {path.parent}, or choose another folder") from None
    except OSError as error:
        raise EnvironmentFailure(f"cannot open {path}: {error.strerror}") from error


def _locked(path: Path) -> int:
    """A lock of the process, which ends with it and which no child inherits; its file is opened for nothing else."""
    fd = _open(path / LOCK, os.O_CREAT)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise UserError(f"{path}: another loadcell works on this study now") from None
    return fd
