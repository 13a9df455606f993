"""The folder of a study on disk: made once, held by one process, appended to. Every event is on the disk when `append` returns.

runs/<time>-<name>/
  study.toml     the file as it was read, secrets taken out      spec.json      what it means
  events.jsonl   all that happened (`events`)                    study.journal  the same trials as optuna keeps them
  trials/0007/   a folder per trial: logs, records, its load     best.toml, report.md …
"""

from pathlib import Path
from typing import Final, Self

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.experiment import held_folder
from loadcell.tune.events import Event, Record, encode

EVENTS: Final = "events.jsonl"
SPEC: Final = "spec.json"
COPY: Final = "study.toml"
JOURNAL: Final = "study.journal"
_WHAT: Final = "a study"
STUDY_MARK: Final = b'"event":"opened"'


class StudyFolder:
    """Raises EnvironmentFailure where it cannot be written, UserError where it is not what it should be."""

    def __init__(self, path: Path, *, new: bool) -> None:
        self.path = path
        self._events = held_folder.HeldFile(path / EVENTS, _WHAT, new=new, advice=f": make room, then --resume {path}")
        self.record = Record.read(self._events.body)

    @classmethod
    def make(cls, path: Path) -> Self:
        """Take up a new, empty folder."""
        return cls(path, new=True)

    @classmethod
    def resume(cls, given: Path) -> Self:
        """Take up one that holds a study."""
        return cls(study_folder(given, "--resume "), new=False)

    def close(self) -> None:
        """Let go of it."""
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, event: Event) -> None:
        """One line, on the disk when this returns; `record` knows it."""
        self._events.append(encode(event))
        self.record.add(event)

    def keep_copy(self, name: str, body: bytes) -> str:
        """`held_folder.keep_copy` here."""
        return held_folder.keep_copy(self.path, name, body)


def study_folder(given: Path, flag: str = "") -> Path:
    """A study's folder, or a file in it, -> the folder. UserError for what is none; `flag` names who gave it."""
    path = given if given.is_dir() or not given.exists() else given.parent
    events = path / EVENTS
    try:
        told = events.read_bytes()
    except OSError:
        told = b""
    if STUDY_MARK not in told:
        raise UserError(f"{flag}{given}: no {EVENTS} there tells of a study; give the folder that `loadcell tune` printed")
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
    """Whether another process works on it now, or may: a folder that cannot be written is not ours to judge."""
    try:
        return held_folder.in_use(path, _WHAT)
    except EnvironmentFailure:
        return True
