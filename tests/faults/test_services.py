"""Services that die, hang or fall ill in the middle of a load: named, started again between the loads, and nothing of them is left."""

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from .laboratory import BENCH, CELLS, FLEET, Experiment, assert_over, children, free_port, own_address, write

pytestmark = [pytest.mark.slow, pytest.mark.faults]
DONE = {"before": "done", "long": "done", "after": "done"}


def test_a_replica_that_is_killed_is_told_and_started_again(folder: Path) -> None:
    write(folder, FLEET, BENCH, CELLS)
    run = Experiment(folder)
    run.until_loading()
    os.kill(run.services()["replica-1"], signal.SIGKILL)
    code = run.wait()
    results = run.results()
    print(run.err, run.out)
    assert [cell.state for cell in results.cells][::2] == ["done", "done"]
    long = run.cell("long")
    assert long.verdict in ("suspect", "invalid")
    assert any("replica-1" in reason.text and "SIGKILL" in reason.text for reason in long.reasons), long.reasons
    assert run.cell("after").figures is not None
    assert len(run.cell("after").endpoints) == 2
    assert any(event["event"] == "died" and "SIGKILL" in event["cause"] for event in run.events())
    assert {one.name: one.restarts for one in results.fleet.services} == {"replica-0": 0, "replica-1": 1}
    assert "unhealthy=[" in run.err
    assert "WARNING: 1 service(s) unhealthy" in run.err
    assert code in (0, 1)
    assert_over(run)


def test_when_all_are_killed_the_cell_ends_at_once_and_the_next_one_has_new_ones(folder: Path) -> None:
    endless = CELLS.replace("num-prompts = 24", "num-prompts = 100000")  # so many cannot all have failed when it is noticed
    write(folder, FLEET, BENCH + "patience = 600\n", endless)
    run = Experiment(folder)
    run.until_loading()
    for pid in run.services().values():
        os.kill(pid, signal.SIGKILL)
    code = run.wait()
    print(run.err, run.out)
    assert code == 1
    assert {name: state == "done" for name, state in run.states().items()} == {"before": True, "long": False, "after": True}
    long = run.cell("long")
    assert (long.state, long.figures is not None) == ("failed", True)
    assert (long.cause or "").endswith("no process of any service is left")
    assert {one.restarts for one in run.results().fleet.services} == {1}
    assert len(run.cell("after").endpoints) == 2
    assert_over(run)


def test_slow_and_failing_health_while_tokens_flow_restarts_nothing(folder: Path) -> None:
    """From the moment that it is ready its /health fails, and is slow; its tokens are as before."""
    fleet = FLEET + "fault = [['fail_health,after=1'], ['slow_health,delay=3,after=1']]\n"
    write(folder, fleet, BENCH.replace("health-check-interval = 0", "health-check-interval = 0.5"), CELLS)
    run = Experiment(folder)
    run.wait()
    assert run.well(), run.err
    assert run.states() == DONE
    assert {one.restarts for one in run.results().fleet.services} == {0}
    assert "WARNING: 2 service(s) unhealthy" in run.err
    assert all(cell.figures is not None and cell.figures.all.failed == 0 for cell in run.results().cells)
    assert_over(run)


def test_a_replica_that_is_stopped_by_a_signal_is_hung_not_dead(folder: Path) -> None:
    write(folder, FLEET, BENCH + "idle-timeout = 3\nfirst-byte-timeout = 3\n", CELLS)
    run = Experiment(folder)
    run.until_loading()
    os.kill(run.services()["replica-0"], signal.SIGSTOP)
    run.wait()
    print(run.err, run.out)
    assert any(event["event"] == "hung" for event in run.events())
    long = run.cell("long")
    assert any("hung" in reason.text for reason in long.reasons), long.reasons
    assert run.cell("after").figures is not None
    assert run.cell("after").figures.all.failed == 0
    assert {one.name: one.restarts for one in run.results().fleet.services} == {"replica-0": 1, "replica-1": 0}
    assert_over(run)


WITH_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
import loadcell.cli.main
sys.exit(loadcell.cli.main.main(["simulate", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("which", ["child", "parent"])
def test_a_child_and_a_parent_that_are_killed(folder: Path, which: str) -> None:
    """The head still answers where only a child is dead; a child lives on where only its parent is dead."""
    (folder / "engine.py").write_text(WITH_CHILD)
    fleet = FLEET.replace('engine = "simulated"', f'engine = "simulated"\nexecutable = ["{sys.executable}", "{folder}/engine.py"]')
    write(folder, fleet, BENCH, CELLS)
    run = Experiment(folder)
    run.until_loading()
    parent = run.services()["replica-0"]
    child = children(parent)[0]
    os.kill(child if which == "child" else parent, signal.SIGKILL)
    run.wait()
    print(run.err, run.out)
    wanted = "member_lost" if which == "child" else "died"
    assert wanted in [event["event"] for event in run.events()]
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert run.cell("after").state == "done"
    assert {one.name: one.restarts for one in run.results().fleet.services}["replica-0"] == 1
    assert_over(run)


def test_a_worker_rank_that_is_killed_takes_its_replica_with_it(folder: Path) -> None:
    hosts = "".join(f"[[fleet.host]]\nname = '{name}'\naddress = '{own_address()}'\n" for name in ("a", "b"))
    multi = f"[fleet.multi-host]\nkind = 'data_parallel'\ndevices-per-host = 1\ndata-parallel-rpc-port = {free_port()}\n"
    fleet = FLEET.replace("replicas = 2", "replicas = 1\nvendor = 'none'") + multi + hosts
    write(folder, fleet, BENCH, CELLS)
    run = Experiment(folder)
    run.until_loading()
    worker = next(pid for name, pid in run.services().items() if "rank-1" in name)
    os.kill(worker, signal.SIGKILL)
    run.wait()
    print(run.err, run.out)
    assert any(event["event"] == "died" and "rank-1" in event["service"] for event in run.events())
    assert any("rank-1" in reason.text for reason in run.cell("long").reasons)
    assert run.cell("after").state == "done"
    assert_over(run)
