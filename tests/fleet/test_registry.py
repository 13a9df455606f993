"""The records of services: before the start, after `kill -9`, for two fleets at once."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from loadcell.errors import EnvironmentFailure
from loadcell.fleet.hosts import agent
from loadcell.fleet.hosts.host import Group
from loadcell.fleet.registry import Entry, Owner, Registry, new_marker, owner_lives, this_process
from loadcell.fleet.spec import HostSpec

GROUP = Group(pid=7, started=8, boot_id="b", marker="m", log="/l", exit_file="/e")
DEAD = Owner(pid=2**22 - 1, started=5, boot_id="another boot", machine=agent.machine())


def entry(marker: str = "m", **changed: object) -> Entry:
    made = Entry(marker, "replica-0", HostSpec(name="local"), this_process(), "run", "spec", "/runs/1", f"2026-01-01T00:00:00Z {marker}", port=30005, devices=(0, 1))  # fmt: skip
    return msgspec.structs.replace(made, **changed)


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def registry(tmp_path: Path, notes: list[str]) -> Registry:
    return Registry(tmp_path / "fleet", notes.append)


class TestRecords:
    def test_intent_then_group_then_gone(self, registry: Registry) -> None:
        registry.add(entry())
        assert registry.entries() == (entry(),)
        registry.complete("m", GROUP)
        assert registry.entries() == (entry(group=GROUP),)
        registry.remove("m")
        registry.remove("m")
        assert registry.entries() == ()

    def test_by_host_alias_whatever_it_is_called(self, registry: Registry) -> None:
        registry.add(entry(host=HostSpec(name="../gpu 1/é", ssh="gpu1")))
        (path,) = registry.folder.glob("services/*/*.json")
        assert path.parent.parent == registry.folder / "services"
        assert registry.entries()[0].host.ssh == "gpu1"

    def test_only_their_owner_reads_them(self, registry: Registry) -> None:
        registry.add(entry())
        (path,) = registry.folder.glob("services/*/*.json")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    @pytest.mark.parametrize("content", [b"", b"{", b'{"marker": 1}', b"\xff"])
    def test_an_unreadable_one_is_removed_and_said(self, registry: Registry, notes: list[str], content: bytes) -> None:
        registry.add(entry("good"))
        bad = registry.folder / "services" / "local" / "bad.json"
        bad.write_bytes(content)
        assert [found.marker for found in registry.entries()] == ["good"]
        assert not bad.exists()
        assert str(bad) in notes[0]

    def test_a_newer_version_may_say_more(self, registry: Registry) -> None:
        registry.add(entry())
        (path,) = registry.folder.glob("services/*/*.json")
        path.write_bytes(path.read_bytes().replace(b"{", b'{"colour": "red",', 1))
        assert registry.entries() == (entry(),)

    def test_a_folder_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(EnvironmentFailure, match="cannot record service replica-0"):
            Registry(tmp_path / "file").add(entry())

    def test_markers_differ_and_begin_with_the_service(self) -> None:
        made = {new_marker("replica-0.rank 1/x") for _ in range(50)}
        assert len(made) == 50
        assert all(marker.startswith("replica-0.rank-1-x-") for marker in made)


class TestOwners:
    def test_this_process_lives(self) -> None:
        assert owner_lives(this_process())

    @pytest.mark.parametrize("wrong", [{"started": 1}, {"boot_id": "x"}, {"pid": 2**22 - 1}])
    def test_another_with_its_pid_is_not_it(self, wrong: dict[str, object]) -> None:
        assert not owner_lives(msgspec.structs.replace(this_process(), **wrong))

    def test_a_killed_one_is_dead_even_as_a_zombie(self) -> None:
        with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
            owner = msgspec.convert(agent.identity(process.pid), Owner)
            assert owner_lives(owner)
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead and not yet reaped
            assert not owner_lives(owner)

    def test_another_machine_is_not_judged(self) -> None:
        assert owner_lives(msgspec.structs.replace(DEAD, machine="elsewhere"))


class TestOrphansAndClaims:
    def test_orphans_are_runs_whose_owner_is_dead(self, registry: Registry) -> None:
        registry.add(entry("mine"))
        registry.add(entry("up", made_by="up", owner=DEAD))
        registry.add(entry("orphan", owner=DEAD))
        assert [found.marker for found in registry.orphans()] == ["orphan"]

    def test_claims_of_the_living_and_of_up_by_host(self, registry: Registry) -> None:
        registry.add(entry("mine", port=1, devices=(0,)))
        registry.add(entry("up", made_by="up", owner=DEAD, port=2, devices=(1,)))
        registry.add(entry("orphan", owner=DEAD, port=3, devices=(2,)))
        registry.add(entry("elsewhere", host=HostSpec(name="b"), port=4, devices=(3,)))
        registry.add(entry("headless", port=None, devices=()))
        claims = registry.claims("local")
        assert (claims.ports, claims.devices) == (frozenset({1, 2}), frozenset({0, 1}))
        assert claims.whose[0] == f"replica-0 of spec (about to start, by loadcell {os.getpid()})"
        assert claims.whose[1] == "replica-0 of spec (about to start, by loadcell fleet up)"

    def test_sweeping_removes_what_is_gone_and_nobody_will_revive(self, registry: Registry) -> None:
        registry.add(entry("mine", group=GROUP))
        registry.add(entry("up", made_by="up", owner=DEAD, group=GROUP))
        registry.add(entry("orphan", owner=DEAD, group=GROUP))
        registry.add(entry("starting", made_by="up"))
        registry.add(entry("living", made_by="up", owner=DEAD, group=msgspec.structs.replace(GROUP, marker="living")))
        texts = registry.sweep(lambda found: found.group is None or found.group.marker != "living")
        assert sorted(found.marker for found in registry.entries()) == ["living", "mine", "starting"]
        assert len(texts) == 2
        assert "stale" in texts[0]


def take_a_port(folder: Path, number: int) -> None:
    registry = Registry(folder)
    with registry.allocating():
        taken = registry.claims("local").ports
        port = next(port for port in range(30000, 31000) if port not in taken)
        registry.add(entry(f"m{number}", port=port, owner=Owner(1, agent.identity(1)["started"], agent.boot_id())))


class TestAllocating:
    def test_fleets_that_start_at_once_choose_different_ports(self, registry: Registry) -> None:
        with ThreadPoolExecutor(4) as fleets:
            list(fleets.map(lambda number: take_a_port(registry.folder, number), range(4)))
        assert sorted(found.port or 0 for found in registry.entries()) == [30000, 30001, 30002, 30003]

    def test_it_is_given_up_with_the_name_of_the_file(self, registry: Registry) -> None:
        impatient = Registry(registry.folder, patience_s=0.0)
        with registry.allocating(), pytest.raises(EnvironmentFailure, match=r"allocating\.lock"), impatient.allocating():
            pass
        with registry.allocating():
            pass
