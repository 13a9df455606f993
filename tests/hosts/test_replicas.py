"""One replica on each machine: from start to stop, and with one machine cut off in the middle."""

from .conftest import Machines
from .running import Experiment, until


def test_a_replica_on_each_host_from_start_to_stop(experiment: Experiment, machines: Machines) -> None:
    experiment.specify(
        "replicas = 3",
        "[[scenario]]\nname = 'c6'\nconcurrency = 6\nnum-prompts = 90\n[[scenario]]\nname = 'c3'\nconcurrency = 3\nnum-prompts = 30\n",
    )
    experiment.run()
    results = experiment.results()
    assert (results.state, [cell.state for cell in results.cells]) == ("complete", ["done", "done"]), experiment.err
    assert not experiment.wrong("c6") | experiment.wrong("c3")
    services = {one.name: (one.host, one.base_url) for one in results.fleet.services}
    assert [host for host, _ in services.values()] == [machine.name for machine in machines]
    for (_, url), machine in zip(services.values(), machines, strict=True):
        assert url is not None
        assert url.startswith(f"http://{machine.address}:")
    cell = experiment.cell("c6")
    assert sorted(one.base_url or "" for one in cell.endpoints) == sorted(f"{url}/v1" for _, url in services.values())
    assert [one.figures.ok for one in cell.endpoints] == [30, 30, 30]
    # The truth is the engines': what each has answered under load, the inference of readiness aside.
    for name in services:
        assert sum(line.is_generation for line in experiment.access(name)) == 30 + 10 + 1
    assert results.fleet.leftovers == []
    for name in services:
        assert "serving m on http://0.0.0.0:" in (experiment.folder / "logs" / f"{name}.log").read_text()
    assert experiment.records() == []
    assert not any(machine.processes("") for machine in machines)


def test_ctrl_c_stops_what_runs_on_every_host(experiment: Experiment, machines: Machines) -> None:
    experiment.specify("replicas = 3", "[[scenario]]\nname = 'long'\nconcurrency = 3\nduration = 60\n")
    run = experiment.begin_run()
    until(experiment.loading)
    assert all(machine.processes(f"replica-{index}-") for index, machine in enumerate(machines))
    run.terminate()
    assert experiment.finish(run) == 143
    assert not any(machine.processes("") for machine in machines)
    assert experiment.cell("long").state == "interrupted"


def test_after_a_kill_of_loadcell_itself_the_next_start_stops_what_is_left_on_every_host(
    experiment: Experiment, machines: Machines
) -> None:
    rows = "[[scenario]]\nname = 'long'\nconcurrency = 3\nduration = 60\n[[scenario]]\nname = 'short'\nconcurrency = 3\nnum-prompts = 30\n"
    experiment.specify("replicas = 3", rows)
    run = experiment.begin_run()
    until(experiment.loading)
    left = [machine.processes(f"replica-{index}-") for index, machine in enumerate(machines)]
    run.kill()
    assert experiment.finish(run) == -9
    assert [machine.processes(f"replica-{index}-") for index, machine in enumerate(machines)] == left
    experiment.again_in("next")
    experiment.run("--only", "short")
    assert experiment.err.count("is gone: stopped (process ") == 3, experiment.err
    assert experiment.cell("short").state == "done"
    assert not any(set(before) & set(machine.processes()) for before, machine in zip(left, machines, strict=True))
    assert experiment.records() == []
