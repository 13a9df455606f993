"""What happened in a study, as lines of `events.jsonl` -> all that is known of it. Pure; `study_folder` appends and syncs them.

The file is only appended to, one line per event, each on the disk before the next step. So whatever kills a study, its file says which trials
ended, with their whole results, and which one was in flight. A line that cannot be read is left where it is and counted.
"""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec
from msgspec import Struct

from loadcell.tune.confirm import Decision
from loadcell.tune.outcome import TrialResult
from loadcell.tune.parameters import Configuration

TrialKind = Literal["default", "known", "fill", "search", "drift", "confirm", "revert"]
SEARCH: Final[frozenset[TrialKind]] = frozenset({"default", "known", "fill", "search"})
"""Kinds that the sampler asked for, or that every search begins with. With `drift` they count as trials of the budget."""

StudyState = Literal["complete", "failed", "stopped", "interrupted"]
Announced = Literal["winner", "default_fails", "no_reliable_improvement", "not_confirmed", "front", "none"]


class FromOptix(Struct, frozen=True):
    """The study's file is optix's: how it was read."""

    engine: str = "vllm"
    benchmark: str | None = None
    backup: bool = False
    load_breakpoint: bool = False


class Opened(Struct, frozen=True, tag="opened", tag_field="event"):
    """The study began, or was resumed. `source`: its file; `spec`: the copy in this folder; `sets` hold no secrets. `by`: this folder, in a
    storage that several machines share.
    """

    at: str
    name: str
    source: str
    spec: str
    by: str
    sets: tuple[str, ...] = ()
    env_file: str | None = None
    sampler: str = "model"
    optix: FromOptix | None = None
    fingerprint: dict[str, str | None] = {}
    resumed: bool = False


class Began(Struct, frozen=True, tag="began", tag_field="event"):
    """A trial is about to be measured. `tag` says what for, and is measured once: `search/7`, `drift/16`, `confirm/0/2` (round, candidate),
    `revert/max_num_seqs/0`, `final/0/1`. `gain`: the improvement that the sampler expected.
    """

    at: str
    number: int
    kind: TrialKind
    tag: str
    configuration: Configuration
    gain: float | None = None


class Ended(Struct, frozen=True, tag="ended", tag_field="event"):
    """It ended. `elapsed_s`: of the study, over all its sessions."""

    at: str
    tag: str
    result: TrialResult
    elapsed_s: float


class Answered(Struct, frozen=True, tag="answered", tag_field="event"):
    """The sampler proposed what trial `same_as` had measured: answered from the record."""

    at: str
    number: int
    same_as: int


class Rejected(Struct, frozen=True, tag="rejected", tag_field="event"):
    """The sampler proposed what is not legal and cannot be repaired."""

    at: str
    number: int


class Drifted(Struct, frozen=True, tag="drift", tag_field="event"):
    """The baseline was measured again in trial `number`. `ratio`: to its first measurement; null where it could not be measured."""

    at: str
    number: int
    ratio: float | None
    significant: bool
    text: str


class Searched(Struct, frozen=True, tag="searched", tag_field="event"):
    """The search ended, for this reason of `stopping.REASONS`."""

    at: str
    reason: str
    text: str
    failed: bool


class Shortlisted(Struct, frozen=True, tag="shortlisted", tag_field="event"):
    """What is confirmed against the default: the candidates 1, 2, 3."""

    at: str
    candidates: tuple[Configuration, ...]


class Judged(Struct, frozen=True, tag="judged", tag_field="event"):
    """After `rounds` rounds of confirmation. `ended`: why there is no further one; null: there is."""

    at: str
    rounds: int
    decision: Decision
    ended: str | None = None


class Reverted(Struct, frozen=True, tag="reverted", tag_field="event"):
    """The winner with one parameter put back to its default was measured. `configuration`: that one."""

    at: str
    parameter: str
    accepted: bool
    configuration: Configuration


class Settled(Struct, frozen=True, tag="settled", tag_field="event"):
    """The winner without the changes that do not matter was measured in rounds with the default, too. Its decision is about that configuration."""

    at: str
    configuration: Configuration
    rounds: int
    decision: Decision
    ended: str


class Closed(Struct, frozen=True, tag="closed", tag_field="event"):
    """The study's session ended, in whatever way it could still tell. `best`: the configuration to use."""

    at: str
    state: StudyState
    announced: Announced
    text: str
    best: Configuration | None = None


Event = Opened | Began | Ended | Answered | Rejected | Drifted | Searched | Shortlisted | Judged | Reverted | Settled | Closed
encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


class Record:
    """All that the events tell. `add` keeps it up to date as a study goes on, so that a resumed one knows the same as one that was never cut off."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.opened: list[Opened] = []
        self.began: dict[str, Began] = {}
        self.results: dict[str, TrialResult] = {}
        """By tag, in the order in which they ended. A cancelled trial has none: it is measured again."""
        self.cancelled: dict[str, TrialResult] = {}
        self.answered: list[Answered] = []
        self.rejected = 0
        self.drifts: list[Drifted] = []
        self.searched: Searched | None = None
        self.shortlist: tuple[Configuration, ...] | None = None
        self.judged: Judged | None = None
        self.reverted: list[Reverted] = []
        self.settled: Settled | None = None
        self.closed: Closed | None = None
        self.elapsed_s = 0.0
        self.failed_at = 0
        """Results of the search up to here were of a session that a circuit breaker ended: they trip none again."""
        self.unread = 0
        for event in events:
            self.add(event)

    @classmethod
    def read(cls, body: bytes) -> "Record":
        """Of a file's content. Lines that cannot be read are counted in `unread`."""
        record = cls()
        for line in body.split(b"\n"):
            if not line.strip():
                continue
            try:
                record.add(_decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError):
                record.unread += 1
        return record

    def add(self, event: Event) -> None:
        match event:
            case Opened():
                self.opened.append(event)
                self.closed = None
                if self.searched is not None and (self.searched.failed or self.shortlist is None):
                    # What was broken may be mended, and the budget be larger: the search is asked anew whether it ends.
                    self.failed_at = len(self.searching()) if self.searched.failed else self.failed_at
                    self.searched = None
            case Began():
                self.began[event.tag] = event
            case Ended():
                self.elapsed_s = max(self.elapsed_s, event.elapsed_s)
                kept = self.cancelled if event.result.outcome == "cancelled" else self.results
                kept[event.tag] = event.result
            case Answered():
                self.answered.append(event)
            case Rejected():
                self.rejected += 1
            case Drifted():
                self.drifts.append(event)
            case Searched():
                self.searched = event
            case Shortlisted():
                self.shortlist = event.candidates
            case Judged():
                self.judged = event
            case Reverted():
                self.reverted.append(event)
            case Settled():
                self.settled = event
            case Closed():
                self.closed = event

    def in_flight(self) -> list[Began]:
        """Trials that began and did not end, in their order."""
        return [began for tag, began in self.began.items() if tag not in self.results]

    def searching(self) -> list[TrialResult]:
        """Results of the search, its controls of drift included, in order."""
        return [result for result in self.results.values() if result.kind in SEARCH or result.kind == "drift"]

    def gains(self) -> list[float | None]:
        """What the sampler expected of each trial that it asked for and that ended."""
        return [began.gain for tag, began in self.began.items() if began.kind == "search" and tag in self.results]

    def numbers(self) -> dict[int, Began]:
        """By number, all that began."""
        return {began.number: began for began in self.began.values()}
