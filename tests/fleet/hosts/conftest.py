"""Services of these tests are real processes; whatever a test leaves of them is ended, by their recorded groups."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadcell.fleet.hosts.agent_host import AgentHost
from loadcell.fleet.hosts.host import Group
from loadcell.fleet.hosts.local import LocalHost
from loadcell.fleet.registry import new_marker

from .waiting import until


class Services:
    """Starts Python programs on a host, and ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[tuple[AgentHost, Group]] = []

    def start(self, program: str, *words: str, host: AgentHost | None = None, name: str = "service", **asked: Any) -> Group:
        on = host or LocalHost()
        log = str(self.folder / f"{name}.log")
        values = {"env": {}, "cwd": None, "log": log, "marker": new_marker(name), **asked}
        group = on.start([sys.executable, "-I", "-S", "-u", "-c", program, *words], **values)
        self.started.append((on, group))
        return group

    def end(self) -> None:
        for host, group in self.started:
            host.signal(group, signal.SIGKILL)
            until(lambda host=host, group=group: not host.look(group).members)


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    made = Services(tmp_path)
    yield made
    made.end()


@pytest.fixture
def host() -> LocalHost:
    return LocalHost()
