"""A machine whose cable is pulled in the middle of a run: the run ends with the others, and nothing stays behind for good."""

from .conftest import Machines
from .running import BENCH, Experiment, until
from .test_multi_host import FLEET

IMPATIENT = BENCH + "connect-timeout = 2\nidle-timeout = 3\nfirst-byte-timeout = 3\nhealth-timeout = 1\nhealth-max-failures = 2\n"
TWO = "[[scenario]]\nname = 'first'\nconcurrency = 6\nduration = 12\n[[scenario]]\nname = 'second'\nconcurrency = 6\nnum-prompts = 60\n"


def test_the_run_ends_with_the_others_and_the_next_start_stops_the_orphan(experiment: Experiment, machines: Machines) -> None:
    experiment.specify("replicas = 3", TWO, bench=IMPATIENT)
    run = experiment.begin_run()
    until(experiment.loading)
    (orphan,) = machines[2].processes("replica-2")
    machines[2].cut()
    until(lambda: experiment.seen("host unreachable"), "the event", 12.0)
    assert experiment.finish(run) in (0, 1), experiment.err

    assert {one["service"] for one in experiment.seen("host unreachable")} == {"replica-2"}
    results = experiment.results()
    first, second = experiment.cell("first"), experiment.cell("second")
    assert (results.state, first.state, second.state) == ("complete", "done", "done")
    assert any("replica-2 host unreachable" in reason.observed for reason in first.reasons), first.reasons
    assert first.figures is not None
    assert first.figures.all.ok > 100
    assert second.figures is not None
    assert (second.figures.all.ok, second.figures.all.failed, len(second.endpoints)) == (60, 0, 2)
    assert any("replica-2 stays failed" in text and "host three" in text for text in results.notices), results.notices
    assert any(text.startswith("replica-2: not stopped, its host cannot be reached") for text in results.fleet.leftovers), (
        results.fleet.leftovers
    )
    assert not machines[0].processes("") + machines[1].processes("")
    assert machines[2].processes("replica-2") == [orphan]
    assert [path.parent.name for path in experiment.records()] == ["three"]

    machines[2].join()
    experiment.again_in("next")
    experiment.run("--only", "second")
    assert "replica-2 of hosts" in experiment.err
    assert "is gone: stopped (process " in experiment.err
    assert experiment.cell("second").figures.all.ok == 60  # type: ignore[union-attr]
    assert len(experiment.cell("second").endpoints) == 3
    assert experiment.records() == []
    assert orphan not in machines[2].processes()


def test_a_machine_that_comes_back_during_the_run_is_used_again(experiment: Experiment, machines: Machines) -> None:
    experiment.specify("replicas = 3", TWO, bench=IMPATIENT)
    run = experiment.begin_run()
    until(experiment.loading)
    (lost,) = machines[2].processes("replica-2")
    machines[2].cut()
    until(lambda: experiment.seen("host unreachable"), "the event", 12.0)
    machines[2].join()
    assert experiment.finish(run) in (0, 1), experiment.err
    assert len(experiment.cell("second").endpoints) == 3
    assert not experiment.wrong("second")
    assert [one["service"] for one in experiment.seen("restart")] == ["replica-2"]
    assert experiment.results().fleet.leftovers == []
    assert experiment.records() == []
    assert lost not in machines[2].processes()


def test_a_machine_that_is_not_there_at_the_start_is_refused_by_its_name(experiment: Experiment, machines: Machines) -> None:
    experiment.specify("replicas = 3", TWO, bench=IMPATIENT)
    machines[1].cut()
    assert experiment.run() == 1
    assert "host two cannot be reached" in experiment.err
    assert not any(machine.processes("") for machine in machines)
    assert experiment.records() == []


def test_a_rank_whose_machine_is_cut_off_takes_its_service_with_it(experiment: Experiment, machines: Machines) -> None:
    """Nothing can be started again without that machine: what is left of the matrix fails with the reason, and ends in time."""
    experiment.specify(FLEET, TWO, bench=IMPATIENT)
    run = experiment.begin_run()
    until(experiment.loading)
    machines[2].cut()
    until(lambda: experiment.seen("host unreachable", "replica-0.rank-2"), "the event", 12.0)
    assert experiment.finish(run) == 1, experiment.err
    first, second = experiment.cell("first"), experiment.cell("second")
    assert (first.state, second.state) == ("done", "failed")
    assert first.verdict in ("suspect", "invalid")
    assert first.figures is not None
    assert first.figures.success_rate == 1.0
    assert "replica-0.rank-2" in (second.cause or ""), second.cause
    assert any(text.startswith("replica-0.rank-2: not stopped") for text in experiment.results().fleet.leftovers)
    assert not machines[0].processes("") + machines[1].processes("")

    machines[2].join()
    experiment.again_in("next")
    experiment.run("--only", "second")
    assert experiment.cell("second").state == "done", experiment.err
    assert experiment.records() == []
