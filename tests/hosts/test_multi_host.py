"""One service over the three machines: the head on the first, a headless rank on each of the others."""

import os
import signal

from .conftest import Machines
from .running import Experiment, until

RANKS = ["replica-0", "replica-0.rank-1", "replica-0.rank-2"]
FLEET = 'vendor = "none"\n[fleet.multi-host]\nkind = "data_parallel"\ndevices-per-host = 1\ndata-parallel-rpc-port = 0'
TWO = "[[scenario]]\nname = 'first'\nconcurrency = 4\nduration = {seconds}\n[[scenario]]\nname = 'second'\nconcurrency = 4\nnum-prompts = 40\n"


def test_from_start_to_stop(experiment: Experiment, machines: Machines) -> None:
    experiment.specify(FLEET, TWO.format(seconds=2))
    experiment.run()
    results = experiment.results()
    assert [(one.name, one.host, one.base_url is not None) for one in results.fleet.services] == [
        (name, machine.name, name == "replica-0") for name, machine in zip(RANKS, machines, strict=True)
    ], experiment.err
    assert [cell.state for cell in results.cells] == ["done", "done"]
    assert not experiment.wrong("first") | experiment.wrong("second")
    assert [one.base_url for one in experiment.cell("second").endpoints] == [f"{results.fleet.services[0].base_url}/v1"]
    head, one, two = ((experiment.folder / "logs" / f"{name}.log").read_text() for name in RANKS)
    assert f"waiting for 2 remote ranks at {machines[0].address}:" in head
    assert "headless, 1 ranks from 1, joined" in one
    assert "headless, 1 ranks from 2, joined" in two
    assert experiment.records() == []


def test_a_rank_killed_under_load_is_noticed_though_the_head_answers(experiment: Experiment, machines: Machines) -> None:
    experiment.specify(FLEET, TWO.format(seconds=6))
    run = experiment.begin_run()
    until(experiment.loading)
    (rank,) = machines[1].processes("replica-0.rank-1")
    before = len(experiment.access("replica-0"))
    os.kill(rank, signal.SIGKILL)
    until(lambda: experiment.seen("died", "replica-0.rank-1"), "the event", 5.0)
    until(lambda: len(experiment.access("replica-0")) > before + 40, "more answers of the head")
    assert run.poll() is None
    assert experiment.finish(run) in (0, 1)

    (event,) = experiment.seen("died", "replica-0.rank-1")
    assert event["state"] == "failed"
    assert "SIGKILL" in event["cause"]
    assert [one["service"] for one in experiment.seen("restart")] == RANKS
    first, second = experiment.cell("first"), experiment.cell("second")
    assert (first.state, second.state) == ("done", "done")
    assert first.verdict in ("suspect", "invalid")
    assert any("replica-0.rank-1 died" in reason.observed for reason in first.reasons), first.reasons
    assert first.figures is not None
    assert first.figures.success_rate == 1.0
    assert not experiment.wrong("second")
    assert all(one.restarts == 1 for one in experiment.results().fleet.services)
    assert "replica-0 was started again" in experiment.err
    report = (experiment.folder / "report.md").read_text()
    assert "replica-0.rank-1" in report


def test_a_rank_that_is_stopped_by_a_signal_is_named_as_hung(experiment: Experiment, machines: Machines) -> None:
    experiment.specify(FLEET, TWO.format(seconds=5))
    run = experiment.begin_run()
    until(experiment.loading)
    (rank,) = machines[2].processes("replica-0.rank-2")
    os.kill(rank, signal.SIGSTOP)
    until(lambda: experiment.seen("hung", "replica-0.rank-2"), "the event", 5.0)
    assert experiment.finish(run) in (0, 1)
    assert len(experiment.seen("restart")) == 3
    assert experiment.cell("first").verdict in ("suspect", "invalid")
    assert not experiment.wrong("second")


def test_up_and_down_by_hand(experiment: Experiment, machines: Machines) -> None:
    experiment.specify(FLEET, TWO.format(seconds=2))
    assert experiment.fleet("up") == 0, experiment.err
    assert [len(machine.processes("replica-0")) for machine in machines] == [1, 1, 1]
    assert experiment.fleet("status") == 0, experiment.out
    assert all(name in experiment.out for name in RANKS)
    assert experiment.fleet("logs", RANKS[2]) == 0
    assert "headless, 1 ranks from 2" in experiment.out
    assert experiment.fleet("down") == 0, experiment.out
    assert not any(machine.processes("") for machine in machines)
