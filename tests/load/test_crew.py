"""Workers as processes: what control hears when one dies, and that none is left."""

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from loadcell.load.crew import Crew

from .running import until


@pytest.fixture
def crew() -> Iterator[Crew]:
    made = Crew(2, [])
    yield made
    made.dismiss()


def heard(crew: Crew, count: int) -> list[tuple[int, object]]:
    found: list[tuple[int, object]] = []
    until(lambda: found.extend(crew.messages(0.05)) or len(found) >= count)
    return found


def test_a_dead_worker_is_told_once_with_how_it_ended(crew):
    os.kill(crew._processes[1].pid, signal.SIGKILL)
    assert heard(crew, 1) == [(1, None)]
    assert crew.exit_text(1) == "killed by signal 9"
    assert list(crew.messages(0.0)) == []
    assert crew.lost == [1]


def test_signals_of_the_terminal_are_not_the_workers_business(crew):
    for process in crew._processes:
        os.kill(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGTERM)
    assert list(crew.messages(0.2)) == []
    assert [process.poll() for process in crew._processes] == [None, None]


def test_dismissed_workers_are_gone_though_they_never_got_a_plan():
    crew = Crew(2, [])
    pids = [process.pid for process in crew._processes]
    crew.dismiss()
    assert not any(psutil.pid_exists(pid) for pid in pids)
