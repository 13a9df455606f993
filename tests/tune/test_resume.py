"""A study that is killed at any event, and resumed: no trial that ended is measured again, at most the one in flight, and its answer is the same kind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from studies import CACHING, LIMIT, SPACE, Ready, dead, flat, hill

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.tune.events import Record
from loadcell.tune.fingerprint import refuse_other
from loadcell.tune.parameters import Constraint, Parameter, Place
from loadcell.tune.spec import Confirm
from loadcell.tune.stopping import Budget
from loadcell.tune.study_folder import EVENTS, JOURNAL, StudyFolder, read_record, study_folder

pytestmark = pytest.mark.slow

SMALL = {"sampler": "random", "budget": Budget(trials=9), "confirm": Confirm(candidates=1, min_rounds=3, max_rounds=3)}


PARTS = 2
"""Of the moments at which it is killed, so that a slow machine has the time for each."""


class KilledError(BaseException):
    """The process is gone at this moment."""


class Kill:
    """Names the moments at which a study may be killed, and kills it at the `at`-th."""

    def __init__(self, ready, at):
        self.moments, self.at = [], at
        for owner, names in ((ready.folder, ("append",)), (ready.book, ("ask", "further", "tell")), (ready.fake, ("measure",))):
            for name in names:
                setattr(owner, name, self._around(getattr(owner, name)))

    def _around(self, call):
        def counted(*arguments, **named):
            what = type(arguments[0]).__name__ if call.__name__ == "append" else call.__name__
            kind = getattr(arguments[0], "kind", "") if arguments else ""
            self.moment(f"before {what} {kind}")
            result = call(*arguments, **named)
            self.moment(f"after {what} {kind}")
            return result

        return counted

    def moment(self, name):
        self.moments.append(name)
        if len(self.moments) == self.at:
            raise KilledError


def moments(tmp_path, **how):
    ready = Ready(tmp_path / "whole", **(how or SMALL))
    kill = Kill(ready, None)
    ready.run()
    return kill.moments


def chosen(names):
    """The first moment of each kind, and every twentieth of all; all of them where that is asked for."""
    if os.environ.get("EVERY_MOMENT"):
        return range(1, len(names) + 1)
    firsts = {name: at for at, name in reversed(list(enumerate(names, 1)))}
    return sorted({*firsts.values(), *range(1, len(names) + 1, 20)})


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_every_moment_it_loses_at_most_the_trial_in_flight(tmp_path, part):
    every = moments(tmp_path)
    assert len(every) > 100
    events = {name.split()[1] for name in every}
    assert events >= {"Began", "Ended", "Drifted", "Searched", "Shortlisted", "Judged", "Reverted", "Settled", "Closed"}, events
    for at in chosen(every)[part::PARTS]:
        path = tmp_path / f"at-{at}"
        first = Ready(path, **SMALL)
        Kill(first, at)
        with pytest.raises(KilledError):
            first.run()
        again = Ready(path, resume=True, **SMALL)
        ended_before = set(again.record.results)
        in_flight = {one.number for one in again.record.in_flight()}
        closed = again.run()
        assert closed.state == "complete", at
        record = read_record(path)
        measured = [number for number, _, _ in (*first.fake.calls, *again.fake.calls)]
        twice = {number for number in measured if measured.count(number) > 1}
        assert twice <= in_flight, f"at {at}: {twice} were measured again"
        assert not {record.began[tag].number for tag in ended_before} & {number for number, _, _ in again.fake.calls}, at
        assert not record.in_flight(), at
        assert len(record.searching()) == 9, at
        assert sum(one.kind == "default" for one in record.results.values()) == 1, at
        numbers = [one.number for one in record.results.values()]
        assert len(set(numbers)) == len(numbers), at
        told = {one.number: one.outcome for one in again.book.results()}
        assert {one.number: one.outcome for one in record.results.values()} == told, f"at {at}: the storage knows the same"


TINY = {
    "sampler": "random",
    "budget": Budget(trials=30),
    "confirm": Confirm(max_rounds=0),
    "parameters": (Parameter("seqs", "int", Place(flag="--max-num-seqs"), ladder=(32, 64, 128), default=64), CACHING),
    "constraints": (Constraint("seqs > 32 or caching"),),
}
"""Five configurations: soon the record answers, and one in six proposals is not legal."""


@pytest.mark.slow
def test_killed_where_the_record_answers_or_a_proposal_is_rejected_it_measures_nothing_twice(tmp_path):
    every = moments(tmp_path, **TINY)
    wanted = [f"{when} {what} " for when in ("before", "after") for what in ("Answered", "Rejected")]
    assert set(wanted) <= set(every)
    for name in wanted:
        path = tmp_path / name.replace(" ", "-")
        first = Ready(path, **TINY)
        Kill(first, every.index(name) + 1)
        with pytest.raises(KilledError):
            first.run()
        again = Ready(path, resume=True, **TINY)
        closed = again.run()
        assert (closed.state, again.record.searched.reason) == ("complete", "exhausted"), name
        measured = [again.space.key(one) for _, kind, one in (*first.fake.calls, *again.fake.calls) if kind != "drift"]
        assert len(measured) == len(set(measured)) == 5, name


@pytest.mark.slow
def test_a_real_kill_in_a_trial(tmp_path):
    path = tmp_path / "s"
    code = (
        f"import sys, os, signal; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\nfrom studies import Ready\nfrom loadcell.tune.stopping import Budget\n"
        "at = lambda number: os.kill(os.getpid(), signal.SIGKILL) if number == 4 else None\n"
        f"Ready(Path({str(path)!r}), sampler='random', budget=Budget(trials=8), at=at).run()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    again = Ready(path, resume=True, sampler="random", budget=Budget(trials=8))
    assert [one.number for one in again.record.in_flight()] == [4]
    again.run()
    assert again.fake.calls[0][0] == 4
    assert len(again.record.searching()) == 8


def test_a_half_written_line_and_a_lock_that_was_left_are_no_obstacle(tmp_path):
    path = tmp_path / "s"
    first = Ready(path, **SMALL)
    Kill(first, 40)
    with pytest.raises(KilledError):
        first.run()
    with (path / EVENTS).open("ab") as file:
        file.write(b'{"event":"ended","at":"2026')
    with (path / JOURNAL).open("ab") as file:
        file.write(b'{"op_code":5,"worker')
    (path / (JOURNAL + ".lock")).symlink_to(path / JOURNAL)
    again = Ready(path, resume=True, **SMALL)
    assert again.record.unread == 1
    assert again.run().state == "complete"
    assert len(read_record(path).searching()) == 9


def test_a_search_that_a_breaker_ended_goes_on_when_the_cause_is_mended(tmp_path):
    assert Ready(tmp_path / "s", dead, **SMALL).run().state == "failed"
    again = Ready(tmp_path / "s", flat, resume=True, **SMALL)
    assert again.run().state == "complete"
    assert len(again.record.searching()) == 9


def test_a_cancelled_trial_is_measured_again_under_its_number(tmp_path):
    def asked(configuration, rng):
        return (
            {"outcome": "cancelled", "phase": "measure", "extra": {"signal": 2}} if len(first.fake.calls) == 4 else hill(configuration, rng)
        )

    first = Ready(tmp_path / "s", asked, **SMALL)
    assert first.run().state == "interrupted"
    again = Ready(tmp_path / "s", resume=True, **SMALL)
    again.run()
    assert again.fake.calls[0] == first.fake.calls[-1]
    assert [one.kind for one in again.fake.remembered] == [one.kind for one in again.record.searching()[:3]]


def test_a_complete_study_measures_nothing_more(tmp_path):
    one = Ready(tmp_path / "s", **SMALL).run()
    again = Ready(tmp_path / "s", resume=True, **SMALL)
    closed = again.run()
    assert again.fake.calls == []
    assert (closed.announced, closed.text, closed.best) == (one.announced, one.text, one.best)


def test_time_and_launches_of_earlier_sessions_count(tmp_path):
    first = Ready(tmp_path / "s", sampler="random", budget=Budget(wall_s=900), confirm=Confirm(max_rounds=0))
    Kill(first, 60)
    with pytest.raises(KilledError):
        first.run()
    again = Ready(tmp_path / "s", resume=True, sampler="random", budget=Budget(wall_s=900), confirm=Confirm(max_rounds=0))
    again.run()
    assert len(again.record.results) == 15


def test_a_storage_that_was_replaced_is_said(tmp_path):
    first = Ready(tmp_path / "s", **SMALL, at=lambda number: (_ for _ in ()).throw(KilledError()) if number == 2 else None)
    with pytest.raises(KilledError):
        first.run()
    (tmp_path / "s" / JOURNAL).unlink()
    again = Ready(tmp_path / "s", resume=True, **SMALL)
    with pytest.raises(EnvironmentFailure, match="trial 2 is not in the study's storage"):
        again.run()


def test_a_folder_is_held_by_one_process_and_must_be_a_studys(tmp_path):
    with pytest.raises(UserError, match=r"no events\.jsonl there tells of a study"):
        study_folder(tmp_path)
    Ready(tmp_path / "s", **SMALL).run()
    with pytest.raises(UserError, match="holds a study already"):
        StudyFolder.make(tmp_path / "s")


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"engine": "vllm"}, {"engine": "sglang"}, "its engine is not the same: vllm before, sglang now"),
        ({"version": "0.11"}, {"version": "0.12"}, "its version is not the same: 0.11 before, 0.12 now"),
        ({"hardware": "8 × H200"}, {"hardware": "8 × H100"}, "hardware"),
        ({"workload": "a"}, {"workload": "b"}, "its workload is not the same; figures"),
        ({"parameters": "a"}, {"parameters": "b"}, "its parameters are not the same"),
    ],
)
def test_studies_of_different_things_are_not_mixed(before, now, said):
    with pytest.raises(UserError, match=said):
        refuse_other(before, now, "--resume s")


def test_what_cannot_be_told_contradicts_nothing():
    refuse_other({"version": None, "model": "m"}, {"version": "1", "model": "m"}, "s")


def test_events_are_read_back_as_they_were_written(tmp_path):
    ready = Ready(tmp_path / "s", **SMALL)
    ready.run()
    read = Record.read((tmp_path / "s" / EVENTS).read_bytes())
    assert read.results == ready.record.results
    assert (read.closed, read.judged, read.searched, read.shortlist) == (
        ready.record.closed,
        ready.record.judged,
        ready.record.searched,
        ready.record.shortlist,
    )
    assert len(SPACE) == 3
    assert LIMIT in read.results["search/0"].violations
