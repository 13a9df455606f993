"""What happened to an experiment's cells, as lines of `state.jsonl` -> which are finished, which were cut short. Pure.

The file is only ever appended to, one line per event, each on the disk before the next step. A line that cannot be read (the one that was being
written when the process was killed) is left where it is and told.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct

from loadcell.report.experiment import CellState

EndState = Literal["done", "failed", "interrupted"]


class Opened(Struct, frozen=True, tag="opened", tag_field="event"):
    """The experiment began, or was resumed. `source`: the specification's path; `spec`: the copy in this folder.

    `sets` hold no secrets. `cells`: names of those that are asked for.
    """

    at: str
    name: str
    seed: int | None
    source: str
    spec: str
    sets: list[str] = []
    env_file: str | None = None
    skip_fleet: bool = False
    cells: list[str] = []
    resumed: bool = False


class Began(Struct, frozen=True, tag="began", tag_field="event"):
    """A cell was taken up. `folder`: relative."""

    at: str
    cell: str
    hash: str
    folder: str


class Ended(Struct, frozen=True, tag="ended", tag_field="event"):
    """It ended. `health`: the services, asked after it."""

    at: str
    cell: str
    hash: str
    folder: str
    state: EndState
    cause: str | None = None
    raw_output: str | None = None
    health: str | None = None


class Closed(Struct, frozen=True, tag="closed", tag_field="event"):
    """The experiment ended, in whatever way it could still tell."""

    at: str
    state: str
    cause: str | None = None


Entry = Opened | Began | Ended | Closed
encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode


class Attempt(Struct, frozen=True):
    """One time that a cell was taken up. `ended` null: cut off."""

    began: Began
    ended: Ended | None = None

    @property
    def state(self) -> CellState:
        return self.ended.state if self.ended is not None else "cut_off"


class History(Struct, frozen=True):
    """`attempts`: by cell name, in their order. `remarks`: what could not be read."""

    opened: list[Opened]
    attempts: dict[str, list[Attempt]]
    closed: Closed | None
    remarks: list[str]

    def folders(self) -> set[str]:
        return {one.began.folder for attempts in self.attempts.values() for one in attempts}


def history(lines: Iterable[bytes]) -> History:
    """All that the lines tell."""
    opened: list[Opened] = []
    attempts: dict[str, list[Attempt]] = {}
    closed: Closed | None = None
    unread = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            entry = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            unread += 1
            continue
        if isinstance(entry, Opened):
            opened.append(entry)
            closed = None
        elif isinstance(entry, Began):
            attempts.setdefault(entry.cell, []).append(Attempt(entry))
        elif isinstance(entry, Ended):
            _end(attempts.setdefault(entry.cell, []), entry)
        else:
            closed = entry
    remarks = [f"state.jsonl: {unread} half-written line(s) were left out"] if unread else []
    return History(opened, attempts, closed, remarks)


def _end(attempts: list[Attempt], entry: Ended) -> None:
    for position, one in enumerate(attempts):
        if one.began.folder == entry.folder and one.ended is None:
            attempts[position] = Attempt(one.began, entry)
            return
    attempts.append(Attempt(Began(entry.at, entry.cell, entry.hash, entry.folder), entry))
