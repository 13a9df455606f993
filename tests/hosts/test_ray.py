"""A Ray cluster over the three machines, started and stopped by us, around a simulated engine. Ray itself is real: `make test-hosts` installs it."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from loadcell.fleet.hosts.ssh import over_ssh

from .conftest import Machines
from .namespaces import Machine
from .running import Experiment, until

RANKS = ["replica-0", "replica-0.rank-1", "replica-0.rank-2"]
PORT = 6379


@pytest.fixture
def ray() -> Path:
    path = Path(os.environ.get("LOADCELL_RAY", ""))
    if not path.is_file():
        pytest.skip("LOADCELL_RAY names no ray: `make test-hosts` installs one where a package index is reached")
    return path


def nodes(ray: Path, machine: Machine, head: Machine) -> int:
    """Of the cluster, as Ray counts them."""
    asked = over_ssh(machine.spec, [str(ray), "status", "--address", f"{head.address}:{PORT}"])
    told = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60).stdout
    return told.partition("Pending:")[0].count("node_")


def fleet(ray: Path) -> str:
    return f"vendor = 'none'\n[fleet.multi-host]\nkind = 'ray'\ndevices-per-host = 1\npipeline-parallel-size = 3\nray-port = {PORT}\nray-executable = '{ray}'"


def test_a_cluster_is_started_before_the_engine_and_ends_with_it(experiment: Experiment, machines: Machines, ray: Path) -> None:
    experiment.specify(fleet(ray), "[[scenario]]\nname = 'load'\nconcurrency = 4\nduration = 10\n")
    run = experiment.begin_run()
    until(experiment.loading, "the load")
    assert nodes(ray, machines[1], machines[0]) == 3
    assert experiment.finish(run) in (0, 1)
    results = experiment.results()
    assert [(one.name, one.host) for one in results.fleet.services] == [
        (name, machine.name) for name, machine in zip(RANKS, machines, strict=True)
    ]
    assert experiment.cell("load").state == "done", experiment.err
    assert not experiment.wrong("load")
    assert results.fleet.leftovers == []
    assert experiment.records() == []


def test_a_node_that_is_lost_is_noticed_and_the_service_is_started_again(experiment: Experiment, machines: Machines, ray: Path) -> None:
    rows = (
        "[[scenario]]\nname = 'first'\nconcurrency = 4\nduration = 20\n[[scenario]]\nname = 'second'\nconcurrency = 4\nnum-prompts = 40\n"
    )
    experiment.specify(fleet(ray), rows)
    run = experiment.begin_run()
    until(experiment.loading, "the load")
    (raylet,) = (pid for pid in machines[2].processes(RANKS[2]) if "/raylet/raylet " in _command(pid))
    os.kill(raylet, signal.SIGKILL)
    until(lambda: experiment.seen("died", RANKS[2]) or experiment.seen("member_lost", RANKS[2]), "the event", 20.0)
    assert experiment.finish(run) in (0, 1)
    assert [one["service"] for one in experiment.seen("restart")] == RANKS
    assert experiment.cell("first").verdict in ("suspect", "invalid")
    assert experiment.cell("second").state == "done"
    assert not experiment.wrong("second")


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):  # ended meanwhile
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""
