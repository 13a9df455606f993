"""A fleet over hosts of which one is cut off, and other people's ports: real engines on this machine behind hosts that can be unplugged."""

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

from loadcell.fleet.fleet import Fleet
from loadcell.fleet.hosts import open_host
from loadcell.fleet.hosts.host import HostUnreachable
from loadcell.fleet.registry import Registry
from loadcell.fleet.spec import HostSpec, MultiHostSpec

from .conftest import simulated
from .test_fleet import Seen, alive, pids, wait_until


class Plugged:
    """This machine as a host that can be unplugged."""

    def __init__(self, spec: HostSpec) -> None:
        self._host: Any = open_host(spec)
        self.name, self.address, self.cut = self._host.name, self._host.address, False
        self.on_start = lambda: None

    def __getattr__(self, name: str) -> Any:
        if self.cut and name != "close":
            raise HostUnreachable(f"host {self.name} does not answer")
        if name == "start":
            self.on_start()
        return getattr(self._host, name)


def over_two(tmp_path: Path, registry: Registry, **how: Any) -> tuple[Fleet, dict[str, Plugged], list[str]]:
    hosts: dict[str, Plugged] = {}
    notes: list[str] = []

    def opened(spec: HostSpec) -> Plugged:
        hosts[spec.name] = Plugged(spec)
        return hosts[spec.name]

    spec = simulated(replicas=2, host=(HostSpec("a"), HostSpec("b")), **how)
    return Fleet(spec, tmp_path / "run", registry, name="hosts", note=notes.append, open_host=opened), hosts, notes  # type: ignore[arg-type]


def test_a_host_that_is_cut_off_is_an_event_and_the_rest_go_on(tmp_path: Path, registry: Registry) -> None:
    fleet, hosts, _ = over_two(tmp_path, registry)
    with fleet:
        fleet.start()
        assert [one.host for one in fleet.status()] == ["a", "b"]
        before = pids(fleet)
        seen = Seen()
        with fleet.serving(seen):
            wait_until(lambda: fleet.status()[1].state == "serving")
            hosts["b"].cut = True
            wait_until(lambda: seen.of("host unreachable"), 6)
        assert [one.state for one in fleet.status()] == ["ready", "failed"]
        assert len(fleet.base_urls) == 1
        (text,) = fleet.revive()
        assert "replica-1 stays failed" in text
        assert "does not answer" in text
        assert fleet.status()[1].restarts == 0
        hosts["b"].cut = False
        (text,) = fleet.revive()
        assert "was started again" in text
        assert len(fleet.base_urls) == 2
        assert not alive(before[1])
    assert registry.entries() == ()


def test_a_host_that_is_cut_off_at_the_end_keeps_its_record_and_the_next_start_stops_it(tmp_path: Path, registry: Registry) -> None:
    fleet, hosts, notes = over_two(tmp_path, registry)
    with fleet:
        fleet.start()
        left = pids(fleet)[1]
        hosts["b"].cut = True
    assert any("replica-1: not stopped" in note for note in notes)
    assert [entry.host.name for entry in registry.entries()] == ["b"]
    assert alive(left)
    os.kill(left, signal.SIGKILL)


def test_a_port_that_is_stolen_between_choice_and_start_is_chosen_again(tmp_path: Path, registry: Registry) -> None:
    fleet, hosts, notes = over_two(tmp_path, registry)
    thieves: list[socket.socket] = []

    def steal() -> None:
        if not thieves:
            port = next(entry.port for entry in registry.entries() if entry.host.name == "a")
            thieves.append(socket.create_server(("127.0.0.1", port or 0)))

    fleet._staging.hosts()
    hosts["a"].on_start = steal  # type: ignore[method-assign]
    try:
        with fleet:
            fleet.start()
            assert len(fleet.base_urls) == 2
            assert any("somebody took its port" in note for note in notes)
    finally:
        for thief in thieves:
            thief.close()


def test_the_ranks_of_one_service_are_all_watched(tmp_path: Path, registry: Registry) -> None:
    multi = MultiHostSpec("data_parallel", devices_per_host=1, data_parallel_rpc_port=0)
    hosts = tuple(HostSpec(name, address=own_address()) for name in ("a", "b"))
    fleet = Fleet(simulated(host=hosts, multi_host=multi, vendor="none"), tmp_path / "run", registry, name="ranks")
    with fleet:
        fleet.start()
        assert [one.name for one in fleet.status()] == ["replica-0", "replica-0.rank-1"]
        seen = Seen()
        with fleet.serving(seen):
            worker = fleet.status()[1].pid
            assert worker is not None
            os.kill(worker, signal.SIGKILL)
            wait_until(lambda: seen.of("died"), 5)
        assert seen.of("died") == ["replica-0.rank-1"]
        assert fleet.base_urls == ()
        head = fleet.status()[0].pid
        (text,) = fleet.revive()
        assert "replica-0 was started again" in text
        assert fleet.status()[0].pid != head
        assert len(fleet.base_urls) == 1
    assert registry.entries() == ()


def own_address() -> str:
    found = open_host(HostSpec("local")).interface_address(None)
    return found[1] if found else "127.0.0.2"


def test_a_start_is_not_held_up_by_a_signal_in_another_thread(tmp_path: Path, registry: Registry) -> None:
    """Outside the main thread there are no signals to handle: it works all the same."""
    fleet, _, _ = over_two(tmp_path, registry)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with fleet:
                fleet.start()
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    thread = threading.Thread(target=run)
    began = time.monotonic()
    thread.start()
    thread.join(60)
    assert (failures, registry.entries()) == ([], ())
    assert time.monotonic() - began < 30
