"""What a killed loadcell left: found by its records, stopped and said; whatever is not proven ours is left alone."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from loadcell.clock import MonotonicClock
from loadcell.fleet.hosts import open_host
from loadcell.fleet.hosts.host import Host
from loadcell.fleet.orphans import stop_orphans
from loadcell.fleet.registry import Entry, Owner, Registry, new_marker, this_process
from loadcell.fleet.spec import HostSpec

LOCAL = HostSpec("local")
CLOCK = MonotonicClock()


def dead_owner() -> Owner:
    """A process of this boot that is gone."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return msgspec.structs.replace(this_process(), pid=gone.pid, started=1)


@pytest.fixture
def host() -> Host:
    return open_host(LOCAL)


@pytest.fixture
def sleeper(tmp_path: Path, host: Host) -> Iterator[Entry]:
    """A service that runs, recorded as of a loadcell that is gone."""
    marker, log = new_marker("replica-0"), str(tmp_path / "log")
    group = host.start([sys.executable, "-c", "import time; time.sleep(600)"], env={}, cwd=None, log=log, marker=marker)
    yield Entry(marker, "replica-0", LOCAL, dead_owner(), "run", "spec", str(tmp_path), "2026-01-01T00:00:00+00:00", log, group=group)
    host.signal(group, 9)


def lives(host: Host, entry: Entry) -> bool:
    assert entry.group is not None
    return bool(host.look(entry.group).members)


def test_an_orphan_is_stopped_said_and_forgotten(registry: Registry, host: Host, sleeper: Entry) -> None:
    registry.add(sleeper)
    (text,) = stop_orphans(registry, {"local": host}, CLOCK)
    assert "replica-0 of spec, whose loadcell" in text
    assert "stopped" in text
    assert not lives(host, sleeper)
    assert registry.entries() == ()


def test_one_whose_start_was_never_written_down_is_found_by_its_marker(registry: Registry, host: Host, sleeper: Entry) -> None:
    registry.add(msgspec.structs.replace(sleeper, group=None))
    (text,) = stop_orphans(registry, {"local": host}, CLOCK)
    assert "stopped" in text
    assert not lives(host, sleeper)


@pytest.mark.parametrize("change", [{"made_by": "up"}, {"owner": this_process()}])
def test_what_is_meant_to_stay_stays(registry: Registry, host: Host, sleeper: Entry, change: dict[str, object]) -> None:
    registry.add(msgspec.structs.replace(sleeper, **change))
    assert stop_orphans(registry, {"local": host}, CLOCK) == ()
    assert lives(host, sleeper)


@pytest.mark.parametrize("change", [{"started": 1}, {"boot_id": "of another boot"}])
def test_somebody_elses_process_with_a_recorded_pid_is_left_alone(
    registry: Registry, host: Host, sleeper: Entry, change: dict[str, object]
) -> None:
    assert sleeper.group is not None
    stale = msgspec.structs.replace(sleeper.group, marker="another", waiter=0, **change)
    registry.add(msgspec.structs.replace(sleeper, marker="another", group=stale))
    (text,) = stop_orphans(registry, {"local": host}, CLOCK)
    assert "the record is removed" in text
    assert lives(host, sleeper)
    assert registry.entries() == ()


def test_orphans_on_a_machine_that_is_not_of_this_fleet_are_named_and_left(registry: Registry, host: Host, sleeper: Entry) -> None:
    registry.add(msgspec.structs.replace(sleeper, host=HostSpec("far", ssh="user@far")))
    (text,) = stop_orphans(registry, {"local": host}, CLOCK)
    assert "host far" in text
    assert len(registry.entries()) == 1
