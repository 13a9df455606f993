"""The folder of an experiment on disk: made once, appended to, never overwritten but for the two reports that are made from the rest.

runs/<time>-<name>/
  experiment.toml  the specification as it was read, secrets taken out     spec.json  what it means, with the cells
  state.jsonl      what happened to each cell, in order                    cells/     a run's folder per cell
  raw_outputs/     the bench client's format, one file per cell            logs/, fleet_events.jsonl   the services'
  results.json, report.md
"""

import fcntl
import os
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.experiment.state import Entry, History, encode, history

STATE: Final = "state.jsonl"
LOCK: Final = ".lock"
SPEC: Final = "spec.json"
COPY: Final = "experiment.toml"
CELLS: Final = "cells"
RAW: Final = "raw_outputs"


class RunFolder:
    """Held by one process at a time. Raises EnvironmentFailure where it cannot be written, UserError where it is not what it should be."""

    def __init__(self, path: Path, lock_fd: int, state_fd: int) -> None:
        self.path = path
        self._fds = [lock_fd, state_fd]
        self._state_fd = state_fd
        self._ends_whole = True

    @classmethod
    def make(cls, path: Path) -> Self:
        """Take up a new, empty folder."""
        return cls(path, _locked(path), _open(path / STATE, os.O_CREAT | os.O_EXCL))

    @classmethod
    def resume(cls, given: Path) -> Self:
        """Take up one that holds an experiment."""
        path = experiment_folder(given)
        folder = cls(path, _locked(path), _open(path / STATE, 0))
        body = (path / STATE).read_bytes()
        folder._ends_whole = not body or body.endswith(b"\n")
        return folder

    def close(self) -> None:
        """Let go of it."""
        while self._fds:
            os.close(self._fds.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, entry: Entry) -> None:
        """One line, on the disk when this returns. A fragment that a killed process left keeps a line of its own."""
        line = (b"" if self._ends_whole else b"\n") + encode(entry) + b"\n"
        size = os.fstat(self._state_fd).st_size
        try:
            if os.write(self._state_fd, line) < len(line):
                raise OSError(28, "No space left on device")
            os.fsync(self._state_fd)
        except OSError as error:
            os.ftruncate(self._state_fd, size)
            raise EnvironmentFailure(f"cannot write {self.path / STATE}: {error.strerror}; what it held is kept") from error
        self._ends_whole = True

    def history(self) -> History:
        return read_history(self.path)

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
                with path.open("xb") as out:
                    out.write(body)
            except OSError as error:
                raise EnvironmentFailure(f"cannot write {path}: {error.strerror}") from error
            return path.name
        raise EnvironmentFailure(f"{self.path}: no free name for {name}")

    def cell_folder(self, cell: str) -> Path:
        """A new folder for a cell; `<cell>.2` and so on where it was taken up before. It exists when this returns."""
        taken = self.history().folders()
        for number in range(1, 10_000):
            path = self.path / CELLS / (cell if number == 1 else f"{cell}.{number}")
            if path.exists() or self.relative(path) in taken:
                continue
            try:
                path.mkdir(parents=True)
            except OSError as error:
                raise EnvironmentFailure(f"cannot make {path}: {error.strerror}") from error
            return path
        raise EnvironmentFailure(f"{self.path / CELLS}: no free folder for {cell}")

    def relative(self, path: Path) -> str:
        return str(path.relative_to(self.path))


def is_experiment(given: Path) -> bool:
    """Whether a folder (or a file in it) is an experiment's."""
    return ((given if given.is_dir() else given.parent) / STATE).is_file()


def experiment_folder(given: Path) -> Path:
    """UserError for what is none."""
    path = given if given.is_dir() or not given.exists() else given.parent
    if not (path / STATE).is_file():
        raise UserError(f"{given}: there is no {STATE}, so this is no experiment's folder; give the one that `loadcell run` printed")
    return path


def read_history(path: Path) -> History:
    try:
        return history((path / STATE).read_bytes().split(b"\n"))
    except OSError as error:
        raise EnvironmentFailure(f"cannot read {path / STATE}: {error.strerror}") from error


def read_plan(path: Path, name: str) -> dict[str, Any]:
    """The specification and its cells, as `name` keeps them; empty where it cannot be read."""
    try:
        found: dict[str, Any] = msgspec.json.decode((path / name).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return found


def in_use(path: Path) -> bool:
    """Whether another process holds it now."""
    try:
        os.close(_locked(path))
    except UserError:
        return True
    return False


def _open(path: Path, more: int) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | more, 0o644)
    except FileExistsError:
        raise UserError(f"{path.parent} holds an experiment already: use --resume {path.parent}, or choose another folder") from None
    except OSError as error:
        raise EnvironmentFailure(f"cannot open {path}: {error.strerror}") from error


def _locked(path: Path) -> int:
    """A lock of the process, which ends with it and which no child inherits; its file is opened for nothing else."""
    fd = _open(path / LOCK, os.O_CREAT)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise UserError(f"{path}: another loadcell works on this experiment now") from None
    return fd
