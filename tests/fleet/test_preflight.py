"""What is refused before anything starts: the words name key or holder, and the way out."""

from typing import Literal

import pytest

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.fleet.hosts.host import DeviceUse, Ended, PortHolder
from loadcell.fleet.preflight import (
    outgoing_port_notes,
    refuse_missing_model,
    refuse_missing_program,
    refuse_taken_devices,
    refuse_taken_ports,
)
from loadcell.fleet.registry import Claims, Entry, this_process
from loadcell.fleet.spec import HostSpec, Launch, Replica, ServicePlan
from loadcell.testing.fake_host import FakeHost

NONE = {"local": Claims(frozenset(), frozenset())}
NOBODY = {"local": frozenset[int]()}


def plan(*argv: str, port: int = 30005, devices: tuple[int, ...] = (), **how: object) -> ServicePlan:
    return ServicePlan(Replica("replica-0", 0, "local", port, devices=devices), Launch(argv or ("engine",)), **how)  # type: ignore[arg-type]


def use(index: int, *holders: tuple[int, str], used: float | None = 10.0) -> DeviceUse:
    return DeviceUse(index, "nvidia", "H200", used, 1000.0, holders)


def test_a_model_has_to_be_on_every_host() -> None:
    here, there = FakeHost("a"), FakeHost("b")
    here.paths.add("/models/m")
    with pytest.raises(UserError, match=r"fleet\.model = '/models/m'.* host b"):
        refuse_missing_model("/models/m", {"a": here, "b": there})


def test_a_program_is_looked_for_by_path_or_by_name() -> None:
    host = FakeHost()
    host.paths.add("/opt/engine")
    refuse_missing_program([plan("/opt/engine")], {"local": host})
    refuse_missing_program([plan("engine")], {"local": host})
    assert host.commands[-1][-1] == "engine"
    with pytest.raises(UserError, match="'/opt/other' is no program on host local"):
        refuse_missing_program([plan("/opt/other")], {"local": host})
    host.answers["/bin/sh"] = Ended(127, "", "")
    with pytest.raises(UserError, match=r"fleet\.executable"):
        refuse_missing_program([plan("engine")], {"local": host})


def test_a_relative_program_is_looked_for_where_it_will_run() -> None:
    host = FakeHost()
    host.paths.add("/srv/bin/engine")
    refuse_missing_program([plan("bin/engine", cwd="/srv")], {"local": host})


def test_what_comes_before_the_start_is_looked_for_too() -> None:
    host = FakeHost()
    refuse_missing_program([plan("engine", before=(Launch(("ray", "--version")),))], {"local": host})
    assert [command[-1] for command in host.commands] == ["ray", "engine"]


@pytest.mark.parametrize(
    ("holder", "text"),
    [
        (PortHolder(30005, 7, "old --serve"), r"taken by process 7 \(old --serve\): stop that"),
        (PortHolder(30005, 7, "curl", "connection"), r"process 7 \(curl\) as its end of a connection"),
        (PortHolder(30005, 0, ""), "a listener whose process cannot be seen from here"),
        (PortHolder(30005, 0, "", "connection"), "the local end of a connection whose process cannot be seen from here"),
        (PortHolder(30005, 0, "", "closing"), r"a connection that is being closed .* free within a minute"),
        (PortHolder(30005, 0, "", "time_wait"), r"closed within the last minute \(TIME_WAIT\): it is free within"),
        (PortHolder(30005, 0, "", "unknown"), "a socket that is bound and not listened on"),
        (PortHolder(30005, 0, "", "forbidden"), "cannot be listened on by this user"),
    ],
)
def test_a_taken_port_names_its_holder(holder: PortHolder, text: str) -> None:
    host = FakeHost()
    host.holders[30005] = holder
    with pytest.raises(EnvironmentFailure, match=text):
        refuse_taken_ports([plan()], {"local": host}, NONE, NOBODY)


RANGE = "/proc/sys/net/ipv4/ip_local_port_range"


def test_a_port_that_connections_get_is_told_to_be_one() -> None:
    host = FakeHost()
    host.holders[37006] = PortHolder(37006, 0, "", "time_wait")
    host.logs[RANGE] = b"32768\t60999\n"
    with pytest.raises(EnvironmentFailure, match=r"outside 32768-60999, which this machine gives to outgoing connections"):
        refuse_taken_ports([plan(port=37006)], {"local": host}, NONE, NOBODY)
    host.holders[37006] = PortHolder(37006, 5, "engine")
    with pytest.raises(EnvironmentFailure, match=r"process 5 \(engine\): stop that, or choose another fleet\.port$"):
        refuse_taken_ports([plan(port=37006)], {"local": host}, NONE, NOBODY)


def test_fixed_ports_among_those_of_outgoing_connections_are_warned_of() -> None:
    host = FakeHost()
    plans = [plan(port=32767), plan(port=37005), plan(port=37006), plan(port=61000), plan(port=40000, serves=False)]
    assert outgoing_port_notes(plans, {"local": host}) == []  # a machine that does not tell
    host.logs[RANGE] = b"32768\t60999\n"
    (note,) = outgoing_port_notes(plans, {"local": host, "other": FakeHost()})
    assert "37005, 37006 on local" in note
    assert "32768-60999" in note
    host.logs["/proc/sys/net/ipv4/ip_local_reserved_ports"] = b"37005,37006-37010\n"
    assert outgoing_port_notes(plans, {"local": host}) == []


def test_an_address_that_is_none_of_the_hosts() -> None:
    class Elsewhere(FakeHost):
        def bindable(self, address: str, port: int) -> bool:
            return False

    with pytest.raises(EnvironmentFailure, match=r"cannot be listened on at 127\.0\.0\.1: is that an address of this host"):
        refuse_taken_ports([plan()], {"local": Elsewhere()}, NONE, NOBODY)


def test_a_port_that_an_orphan_of_ours_holds_is_no_reason_and_a_rank_needs_none() -> None:
    host = FakeHost()
    host.holders[30005] = PortHolder(30005, 7, "engine")
    refuse_taken_ports([plan()], {"local": host}, NONE, {"local": frozenset({7})})
    refuse_taken_ports([plan(serves=False)], {"local": host}, NONE, NOBODY)


def test_what_another_fleet_has_claimed_and_not_taken_yet() -> None:
    claimed = {"local": Claims(frozenset({30005}), frozenset({1}))}
    with pytest.raises(EnvironmentFailure, match="port 30005 on local is taken by another fleet of ours"):
        refuse_taken_ports([plan()], {"local": FakeHost()}, claimed, NOBODY)
    with pytest.raises(EnvironmentFailure, match="device 1 on local is taken by another fleet of ours"):
        refuse_taken_devices([plan(devices=(0, 1))], {"local": None}, claimed)


@pytest.mark.parametrize(("made_by", "way_out"), [("up", "--skip-fleet.*`loadcell fleet down`"), ("run", "wait for that one's end")])
def test_a_port_of_a_service_of_ours_says_whose_it_is(made_by: Literal["run", "up"], way_out: str) -> None:
    server = Entry("m", "replica-1", HostSpec("local"), this_process(), made_by, "first", "folder", "now", port=30005)
    claimed = {"local": Claims(frozenset({30005}), frozenset(), {}, {30005: server})}
    host = FakeHost()
    host.holders[30005] = PortHolder(30005, 7, "engine")
    said = rf"process 7 \(engine\), in our records replica-1 of first .*{way_out}, or choose another fleet\.port"
    with pytest.raises(EnvironmentFailure, match=said):
        refuse_taken_ports([plan()], {"local": host}, claimed, NOBODY)


def test_a_device_in_use_names_its_holder() -> None:
    found = {"local": (use(0), use(1, (4242, "python train.py")), use(2, used=900.0))}
    refuse_taken_devices([plan(devices=(0,))], found, NONE)
    with pytest.raises(EnvironmentFailure, match=r"device 1 \(H200\) on local, for replica-0, is in use: process 4242 \(python train.py\)"):
        refuse_taken_devices([plan(devices=(0, 1))], found, NONE)
    with pytest.raises(EnvironmentFailure, match="900 MiB in use"):
        refuse_taken_devices([plan(devices=(2,))], found, NONE)
    refuse_taken_devices([plan(devices=(0, 1))], {"local": None}, NONE)


def test_the_port_where_ranks_meet_has_to_be_free_too() -> None:
    host = FakeHost()
    host.holders[6379] = PortHolder(6379, 9, "gcs_server")
    with pytest.raises(EnvironmentFailure, match=r"port 6379 .* process 9 \(gcs_server\).*fleet\.multi_host\.ray_port"):
        refuse_taken_ports([plan(meets=((6379, "fleet.multi_host.ray_port"),))], {"local": host}, NONE, NOBODY)
