"""Three machines for the session; nothing of ours may run on them when a test is over."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from .namespaces import Machine, hosts_made, missing
from .running import Experiment, until

Machines = tuple[Machine, Machine, Machine]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("hosts")
            item.add_marker(pytest.mark.timeout(300))  # a busy machine takes its time to start things on three


@pytest.fixture(scope="session")
def session_machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    why = missing()
    if why is not None:
        pytest.fail(f"no hosts: {why}", pytrace=False)
    with hosts_made(tmp_path_factory.mktemp("machines")) as made:
        yield made


@pytest.fixture
def machines(session_machines: Machines) -> Iterator[Machines]:
    """All reachable, and nothing runs on them but their sshd, before and after: no service, no waiter, no agent."""
    yield session_machines
    for machine in session_machines:
        machine.join()
    try:
        until(lambda: not any(machine.processes() for machine in session_machines), "the end of what ran there", 10.0)
    except AssertionError:
        left = {
            pid: Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")[:200] for one in session_machines for pid in one.processes()
        }
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        pytest.fail(f"left running: {left}")


@pytest.fixture
def experiment(machines: Machines, tmp_path: Path) -> Iterator[Experiment]:
    """What a user has: a folder, a state folder, and commands to run."""
    ready = Experiment(tmp_path, machines)
    yield ready
    ready.end()
