"""The folder of an experiment on disk: made once, appended to, never overwritten but for the two reports that are made from the rest.

runs/<time>-<name>/
  experiment.toml  the specification as it was read, secrets taken out     spec.json  what it means, with the cells
  state.jsonl      what happened to each cell, in order                    cells/     a run's folder per cell
  raw_outputs/     the bench client's format, one file per cell            logs/, fleet_events.jsonl   the services'
  results.json, report.md
"""

from pathlib import Path
from typing import Any, Final, Self

import msgspec

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.experiment import held_folder
from loadcell.experiment.state import Entry, History, encode, history

STATE: Final = "state.jsonl"
SPEC: Final = "spec.json"
COPY: Final = "experiment.toml"
CELLS: Final = "cells"
RAW: Final = "raw_outputs"
_WHAT: Final = "an experiment"


class RunFolder:
    """Held by one process at a time. Raises EnvironmentFailure where it cannot be written, UserError where it is not what it should be."""

    def __init__(self, path: Path, *, new: bool) -> None:
        self.path = path
        self._state = held_folder.HeldFile(path / STATE, _WHAT, new=new)

    @classmethod
    def make(cls, path: Path) -> Self:
        """Take up a new, empty folder."""
        return cls(path, new=True)

    @classmethod
    def resume(cls, given: Path) -> Self:
        """Take up one that holds an experiment."""
        return cls(experiment_folder(given), new=False)

    def close(self) -> None:
        """Let go of it."""
        self._state.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, entry: Entry) -> None:
        """One line, on the disk when this returns."""
        self._state.append(encode(entry))

    def history(self) -> History:
        return read_history(self.path)

    def keep_copy(self, name: str, body: bytes) -> str:
        """`held_folder.keep_copy` here."""
        return held_folder.keep_copy(self.path, name, body)

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
    try:
        path = given if given.is_dir() or not given.exists() else given.parent
        found = (path / STATE).is_file()
    except OSError as error:
        raise UserError(f"{given}: {error.strerror}") from None
    if not found:
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
    return held_folder.in_use(path, _WHAT)
