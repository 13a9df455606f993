"""Rounds of confirmation in which measurements are void: they say nothing, are made anew, and where that does not help no claim is made."""

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import pytest

from loadcell.tune.confirming import Confirmed, confirmed, reverted
from loadcell.tune.events import Event, Judged
from loadcell.tune.outcome import TrialResult
from loadcell.tune.parameters import Parameter, Place
from loadcell.tune.space import Space
from loadcell.tune.spec import Confirm

LIMIT = "ttft p95 <= 1s"
DEFAULT, BETTER = {"seqs": 8}, {"seqs": 32}


@dataclass
class Machine:
    """Ways over a gain of a factor of three. `void`: tags whose measurement is void."""

    void: Collection[str]
    results: dict[str, TrialResult] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    launches: int = 100

    def measured(self, tag, kind, configuration):
        if tag not in self.results:
            at = len(self.results)
            self.launches -= 1
            if tag in self.void or "all" in self.void:
                self.results[tag] = TrialResult(at, configuration, "invalid_measurement", "measure", kind=kind, objective=5.0)
            else:
                value = (1000.0 if configuration == DEFAULT else 3000.0) * (1 + 0.01 * (at % 3))
                self.results[tag] = TrialResult(
                    at, configuration, "ok", "measure", kind=kind, objective=value, violations={LIMIT: -1 + 0.01 * (at % 2)}
                )
        return self.results[tag]

    def known(self, tag):
        return tag in self.results

    def room(self, launches):
        return None if launches <= self.launches else "the launches are used up"

    def append(self, event):
        self.events.append(event)

    def note(self, text):
        self.notes.append(text)

    def ask(self, least=2, most=2) -> Confirmed:
        return confirmed(self, Confirm(candidates=1, min_rounds=least, max_rounds=most), (BETTER,), DEFAULT, (LIMIT,))


@pytest.mark.parametrize("tag", ["confirm/0/0", "confirm/0/1", "confirm/1/0", "confirm/1/1"])
@pytest.mark.parametrize(("least", "most"), [(2, 2), (3, 3), (3, 4)])
def test_a_round_that_was_void_twice_is_made_anew_and_the_winner_is_found(tag, least, most):
    machine = Machine({tag, f"{tag}/again"})
    found = machine.ask(least, most)
    assert found.winner == BETTER
    assert len(found.rounds) == least
    assert {f"confirm/{at}/{one}" for at in range(least + 1) for one in (0, 1)} <= machine.results.keys()
    assert len(machine.notes) == 1


def test_one_that_was_void_once_is_measured_again_and_no_round_is_lost():
    machine = Machine({"confirm/0/1"})
    assert machine.ask().winner == BETTER
    assert "confirm/0/1/again" in machine.results
    assert "confirm/2/0" not in machine.results


def test_a_machine_that_cannot_measure_makes_no_claim():
    found = Machine({"all"}).ask()
    assert (found.winner, found.decision, found.rounds) == (None, None, ())
    assert found.ended == "3 rounds could not be measured"


def test_what_is_left_undecided_is_no_answer():
    found = Machine({f"confirm/{at}/0{end}" for at in (0, 2, 3) for end in ("", "/again")}).ask()
    assert found.winner is None
    assert not found.enough
    assert len(found.rounds) == 1


WINNER = {"seqs": 32, "a": 1, "b": 1, "c": 1}
WORTH = {"a": 0.997, "b": 0.997, "c": 0.997}  # what taking each back leaves of the winner


class Flat(Machine):
    """The winner's measurements differ by next to nothing."""

    def measured(self, tag, kind, configuration):
        if tag not in self.results:
            value = 1000.0 if configuration["seqs"] == 8 else 3000.0
            value *= float(np.prod([share for name, share in WORTH.items() if configuration[name] == 0])) if configuration != PLAIN else 1
            at = len(self.results)
            self.results[tag] = TrialResult(at, configuration, "ok", "measure", kind=kind, objective=value + 0.01 * (at % 3))
        return self.results[tag]


PLAIN = {"seqs": 8, "a": 0, "b": 0, "c": 0}


@pytest.mark.parametrize(
    ("how", "left", "launches"),
    [
        ({}, {"seqs": 32, "a": 0, "b": 0, "c": 0}, 6),
        ({"tolerance": 0.005}, {"seqs": 32, "a": 0, "b": 1, "c": 1}, 5),
        ({"tolerance": 0.0}, WINNER, 4),
        ({"revert_launches": 3}, {"seqs": 32, "a": 0, "b": 1, "c": 1}, 2),
        ({"revert_launches": 0}, WINNER, 0),
    ],
)
def test_changes_that_do_not_matter_are_taken_back_as_long_as_all_together_do_not_and_the_launches_suffice(how, left, launches):
    """Each costs 0.3 %: three of them are within 1 % of the winner, one within 0.5 %; and 3,000 against 1,000 is never taken back."""
    machine = Flat(())
    asked = Confirm(candidates=1, min_rounds=2, max_rounds=2, **how)
    found = confirmed(machine, asked, (WINNER,), PLAIN, ())
    space = Space([Parameter(name, "int", Place(word=True), low=0, high=32, default=PLAIN[name]) for name in PLAIN])
    assert reverted(machine, asked, found, PLAIN, space, {"seqs": 0.9}, ()) == left
    assert sum(tag.startswith("revert/") for tag in machine.results) == launches


def test_a_change_that_the_default_does_not_know_goes_back_to_its_own_default():
    """`depth` has a say where `seqs` is large, which it is not in the default."""
    space = Space(
        [
            Parameter("seqs", "int", Place(word=True), low=0, high=32, default=8),
            Parameter("depth", "int", Place(word=True), low=0, high=9, default=3, when="seqs > 8"),
        ]
    )
    winner, default = {"seqs": 32, "depth": 9}, {"seqs": 8}
    machine, asked = Machine(()), Confirm(candidates=1, min_rounds=2, max_rounds=2)
    found = confirmed(machine, asked, (winner,), default, ())
    assert reverted(machine, asked, found, default, space, {"seqs": 0.9}, ()) == {"seqs": 32, "depth": 3}


def test_a_study_that_was_cut_off_makes_the_same_rounds_again_from_what_it_knows():
    tags = {"confirm/1/1", "confirm/1/1/again"}
    whole = Machine(tags)
    first = whole.ask(3, 3)
    again = Machine(tags, results=dict(list(whole.results.items())[:5]))
    assert again.ask(3, 3).rounds == first.rounds
    assert again.results.keys() == whole.results.keys()
    assert isinstance(again.events[-1], Judged)
