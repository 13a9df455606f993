"""Looks in, findings out: a table of what a person would want to hear of, and of what is nothing."""

import pytest

from loadcell.fleet.hosts.host import Look, Member
from loadcell.fleet.monitor import LASTING_LOOKS, Sighting, exit_text, has_ended, observe


def member(pid: int, state: str = "S", command: str = "engine") -> Member:
    return Member(pid, 7, 1, state, command)


def look(*members: Member, alive: bool = True, code: int | None = None) -> Look:
    return Look(alive, code, members, 0)


def kinds(*looks: Look | None, lasting: bool = True) -> list[list[str]]:
    """The findings of each look after the first."""
    sighting, _ = observe(Sighting(), looks[0], lasting=lasting)
    out = []
    for one in looks[1:]:
        sighting, findings = observe(sighting, one)
        out.append([finding.kind for finding in findings])
    return out


HEAD, CHILD = member(10), member(11, command="worker")


def test_nothing_new_is_no_finding() -> None:
    assert kinds(look(HEAD, CHILD), look(HEAD, CHILD), look(HEAD, CHILD)) == [[], []]


def test_a_death_is_said_once_with_its_code() -> None:
    sighting, _ = observe(Sighting(), look(HEAD))
    sighting, findings = observe(sighting, look(alive=False, code=-9))
    assert [(one.kind, one.text) for one in findings] == [("died", "killed by SIGKILL (exit code -9)")]
    assert observe(sighting, look(alive=False, code=-9))[1] == ()


def test_a_leader_whose_end_is_not_written_down_yet_is_not_missed_as_a_member() -> None:
    assert kinds(look(HEAD, CHILD), look(member(10, "?"), CHILD), look(CHILD, alive=False, code=7)) == [[], ["died"]]


def test_children_that_outlive_their_leader_do_not_keep_it_alive() -> None:
    assert kinds(look(HEAD, CHILD), look(CHILD, alive=False, code=1)) == [["died"]]


def test_it_is_empty_when_the_last_child_has_followed_its_leader() -> None:
    sighting, _ = observe(Sighting(), look(HEAD, CHILD))
    seen = []
    for one in (look(CHILD, alive=False, code=-9), None, look(member(11, "Z"), alive=False, code=-9), None):
        sighting, _ = observe(sighting, one)
        seen.append((sighting.ended, sighting.empty))
    assert seen == [(True, False), (True, False), (True, True), (True, True)]


@pytest.mark.parametrize("gone", [look(HEAD), look(HEAD, member(11, "Z"))])
def test_a_member_that_was_there_from_the_start_is_missed(gone: Look) -> None:
    assert kinds(look(HEAD, CHILD), gone, gone) == [["member_lost"], []]


def test_a_passing_child_is_not_missed() -> None:
    assert kinds(look(HEAD), look(HEAD, CHILD), look(HEAD)) == [[], []]


def test_a_child_that_stayed_is_missed() -> None:
    stayed = [look(HEAD, CHILD)] * LASTING_LOOKS
    assert kinds(look(HEAD), *stayed, look(HEAD))[-1] == ["member_lost"]


@pytest.mark.parametrize("command", ["/usr/bin/ptxas -arch sm_90", "python -m torch._inductor.compile_worker", "ninja -v", "gcc -c x.c"])
def test_a_compiler_may_go(command: str) -> None:
    assert kinds(look(HEAD, member(12, command=command)), look(HEAD)) == [[]]


def test_a_pid_that_is_somebody_elses_now_is_a_loss() -> None:
    assert kinds(look(HEAD, CHILD), look(HEAD, Member(11, 8, 10, "S", "worker"))) == [["member_lost"]]


def test_a_stopped_process_is_hung_until_it_runs_again() -> None:
    stopped = look(HEAD, member(11, "T"))
    assert kinds(look(HEAD, CHILD), stopped, stopped, look(HEAD, CHILD)) == [["hung"], [], ["resumed"]]


def test_one_look_without_an_answer_is_nothing_two_are_an_event_said_once() -> None:
    assert kinds(look(HEAD), None, look(HEAD)) == [[], []]
    assert kinds(look(HEAD), None, None, None, look(HEAD)) == [[], ["host unreachable"], [], ["host reachable"]]


def test_a_host_that_was_waited_for_is_unreachable_at_once() -> None:
    sighting, _ = observe(Sighting(), look(HEAD))
    assert [finding.kind for finding in observe(sighting, None, waited=True)[1]] == ["host unreachable"]


def test_a_member_lost_while_the_host_was_away_is_noticed() -> None:
    assert kinds(look(HEAD, CHILD), None, None, look(HEAD))[-1] == ["host reachable", "member_lost"]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "killed by SIGKILL (exit code -9)"),
        (137, "killed by SIGKILL (exit code 137)"),
        (255, "exit code 255"),
        (None, "it is gone without an exit code"),
    ],
)
def test_exit_text(code: int | None, text: str) -> None:
    assert exit_text(code) == text


def test_has_ended_goes_by_the_leader() -> None:
    assert has_ended(look(CHILD, alive=False, code=None))
    assert not has_ended(look(HEAD))
