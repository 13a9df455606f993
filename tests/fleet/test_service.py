"""One service's life: moved through its table over a fake host, and a few real processes on this machine."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadcell.clock import MonotonicClock
from loadcell.fleet.hosts import open_host
from loadcell.fleet.hosts.host import Group, Host, PortHolder
from loadcell.fleet.inquiry import Question
from loadcell.fleet.interrupts import Flag
from loadcell.fleet.readiness import Limits, NotReadyError
from loadcell.fleet.service import Service, Terms
from loadcell.fleet.spec import Cause, HostSpec, Launch, Replica, ServicePlan
from loadcell.fleet.starting import start_replica
from loadcell.testing.fake_clock import FakeClock
from loadcell.testing.fake_host import FakeHost, FakeProcesses
from loadcell.testing.replies import chat_stream, json_reply, plain
from loadcell.testing.scripted_server import ScriptedServer, by_path

NEVER = Flag()
ROUTES = {
    "/health": [(0.0, plain(b"ok"))],
    "/v1/models": [(0.0, json_reply({"data": [{"id": "m"}]}))],
    "/v1/chat/completions": chat_stream("a"),
}


class Words:
    best: tuple[Cause, str] | None = None

    def feed(self, line: str) -> None:
        if "OOM" in line:
            self.best = ("out_of_memory", line)


def terms(port: int, **how: object) -> Terms:
    asked = Question(f"http://127.0.0.1:{port}", "chat", "/health", "m", 10.0)
    given = {"limits": Limits(60, 0), "stop_s": 5.0, "log_cap": 0, "cpus": None, "question": asked, "new_causes": Words} | how
    return Terms(**given)  # type: ignore[arg-type]


def plan(port: int, *argv: str, rank: int = 0, **how: object) -> ServicePlan:
    name = "replica-0" + (f".rank-{rank}" if rank else "")
    return ServicePlan(Replica(name, 0, "local", port, rank=rank), Launch(argv or ("engine",)), base_url=f"http://127.0.0.1:{port}", **how)  # type: ignore[arg-type]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(by_path(ROUTES)) as made:
        yield made


@pytest.mark.parametrize(
    ("launch", "made"),
    [
        (Launch(("engine", "--log", "/r/replica-0/access.log")), {"/r/replica-0"}),
        (Launch(("engine",), {"LOG": "/r/replica-0"}), {"/r/replica-0"}),
        (Launch(("engine",), files=(("a/b.json", "{}"),)), {"/r/replica-0"}),
        (Launch(("engine", "--log", "/r/other")), set()),
    ],
)
def test_its_folder_is_there_before_the_start_where_anything_is_to_be_in_it(launch: Launch, made: set[str]) -> None:
    host = FakeHost()
    seen: list[set[str]] = []
    host.on_start = lambda _: seen.append(set(host.paths))
    of = ServicePlan(Replica("replica-0", 0, "local", 1, folder="/r/replica-0"), launch, base_url="http://127.0.0.1:1")
    Service(of, host, terms(1), "log", "marker", MonotonicClock()).launch(lambda _: None, lambda: True)
    assert seen == [made]
    assert list(host.files) == [f"/r/replica-0/{path}" for path, _ in launch.files]


def serving(host: FakeHost, port: int) -> None:
    """Each group that is started holds the port."""

    def hold(processes: FakeProcesses) -> None:
        host.holders[port] = PortHolder(port, processes.group.pid, "engine")

    host.on_start = hold


def started(host: FakeHost, server: ScriptedServer, **how: object) -> Service:
    serving(host, server.port)
    service = Service(plan(server.port), host, terms(server.port, **how), "log", "marker", MonotonicClock())
    start_replica([service], lambda *_: None, NEVER, MonotonicClock())
    return service


def test_from_defined_to_ready_to_stopped(server: ScriptedServer) -> None:
    host, groups = FakeHost(), list[Group]()
    serving(host, server.port)
    service = Service(plan(server.port), host, terms(server.port), "log", "marker", MonotonicClock())
    assert service.state == "defined"
    start_replica([service], lambda _, group: groups.append(group), NEVER, MonotonicClock())
    assert (service.state, service.model) == ("ready", "m")
    assert [group.marker for group in groups] == ["marker"]
    assert service.stop(NEVER) == ()
    assert service.state == "stopped"
    assert host.groups[0].signals == [signal.SIGTERM, signal.SIGCONT]


def test_files_and_commands_come_before_the_start_and_after_the_end(server: ScriptedServer) -> None:
    host = FakeHost()
    serving(host, server.port)
    made = ServicePlan(
        Replica("replica-0", 0, "local", server.port, folder="/f"),
        Launch(("engine",), files=(("conf/a.json", "{}"),)),
        base_url=server.root_url,
        before=(Launch(("ray", "start")),),
        after=(Launch(("ray", "stop")),),
    )
    service = Service(made, host, terms(server.port), "log", "marker", MonotonicClock())
    start_replica([service], lambda *_: None, NEVER, MonotonicClock())
    assert host.files == {"/f/conf/a.json": "{}"}
    assert host.commands == [("ray", "start")]
    service.stop(NEVER)
    assert host.commands == [("ray", "start"), ("ray", "stop")]


def test_the_ranks_of_a_replica_are_ready_together_and_fail_together(server: ScriptedServer) -> None:
    host = FakeHost()
    serving(host, server.port)
    head = Service(plan(server.port), host, terms(server.port), "log", "a", MonotonicClock())
    worker = Service(plan(0, rank=1, serves=False), host, terms(server.port), "log1", "b", MonotonicClock())
    host.on_start = lambda one: (
        serving(host, server.port)
        if one.group.marker == "b"
        else host.holders.update({server.port: PortHolder(server.port, one.group.pid, "engine")})
    )
    start_replica([head, worker], lambda *_: None, NEVER, MonotonicClock())
    assert (head.state, worker.state) == ("ready", "ready")

    host = FakeHost()
    head = Service(plan(server.port), host, terms(server.port), "log", "a", MonotonicClock())
    worker = Service(plan(0, rank=1, serves=False), host, terms(server.port), "log1", "b", MonotonicClock())
    host.on_start = lambda one: one.end(4) if one.group.marker == "b" else None
    with pytest.raises(NotReadyError) as failure:
        start_replica([head, worker], lambda *_: None, NEVER, MonotonicClock())
    assert (failure.value.code, worker.state, head.state) == (4, "failed", "loading")


def test_a_start_that_is_given_up() -> None:
    host, abort = FakeHost(), Flag()
    abort.set()
    service = Service(plan(1), host, terms(1), "log", "marker", FakeClock())
    with pytest.raises(NotReadyError) as failure:
        start_replica([service], lambda *_: None, abort, FakeClock())
    assert (failure.value.cause, service.state) == ("aborted", "failed")
    service.stop(NEVER)
    assert host.groups[0].members == []


def test_one_that_loads_and_takes_no_sigterm_is_not_waited_for_as_one_that_serves() -> None:
    host, clock = FakeHost(), FakeClock()
    host.on_start = lambda one: setattr(one, "obeys", {signal.SIGKILL})
    service = Service(plan(1), host, terms(1, stop_s=600.0), "log", "marker", clock)
    service.launch(lambda _: None, lambda: False)
    assert not service.step()
    began_ns = clock.now_ns()
    service.stop(NEVER)
    assert host.groups[0].signals == [signal.SIGTERM, signal.SIGCONT, signal.SIGKILL]
    assert 4e9 < clock.now_ns() - began_ns < 10e9


def test_a_death_while_serving_names_its_cause(server: ScriptedServer) -> None:
    host = FakeHost()
    service = started(host, server)
    service.move("load_began")
    service.watch(lasting=True)
    host.say("log", "CUDA OOM")
    host.groups[0].end(-9)
    assert [finding.kind for finding in service.watch()] == ["died"]
    assert (service.state, service.cause) == ("failed", "died: killed by SIGKILL (exit code -9); CUDA OOM")
    assert service.watch() == ()
    service.clear(NEVER)
    service.again()
    assert (service.state, service.restarts) == ("defined", 1)


def test_what_is_left_of_a_dead_one_is_killed(server: ScriptedServer) -> None:
    host = FakeHost()
    service = started(host, server)
    host.groups[0].add_child(55)
    host.groups[0].end(1)
    service.watch()
    service.stop(NEVER)
    assert (service.state, host.groups[0].members) == ("stopped", [])


def test_one_that_obeys_no_terminate_is_killed_after_its_time(server: ScriptedServer) -> None:
    host = FakeHost()
    service = started(host, server)
    host.groups[0].obeys = {signal.SIGKILL}
    clock = FakeClock()
    service._clock = clock
    service.stop(NEVER)
    assert clock.now_ns() >= 5e9
    assert host.groups[0].signals[-1] == signal.SIGKILL


def test_a_hurry_waits_for_nothing(server: ScriptedServer) -> None:
    host, hurry = FakeHost(), Flag()
    hurry.set()
    service = started(host, server)
    host.groups[0].obeys = {signal.SIGKILL}
    service._clock = FakeClock()
    service.stop(hurry)
    assert service._clock.now_ns() < 1e9
    assert service.state == "stopped"


def test_what_cannot_be_killed_and_a_port_that_stays_are_told(server: ScriptedServer) -> None:
    host = FakeHost()
    service = started(host, server)
    host.groups[0].obeys = set()
    service._clock = FakeClock()
    texts = service.stop(NEVER)
    assert service.state == "failed"
    assert texts[0].startswith("replica-0: process 1000 (engine) is still there")
    assert texts[1] == f"replica-0: port {server.port} is held by process 1000 (engine)"


def test_a_host_that_is_cut_off_is_told_and_no_wait_without_end(server: ScriptedServer) -> None:
    host = FakeHost()
    service = started(host, server)
    host.cut = True
    (text,) = service.stop(NEVER)
    assert "cannot be reached" in text
    assert service.state == "failed"


def test_a_log_beyond_its_cap_is_cut_while_it_serves(server: ScriptedServer) -> None:
    host = FakeHost()
    service = started(host, server, log_cap=1000)
    service.watch()
    assert host.capped == []
    host.say("log", "x" * 800)
    service.watch()
    service.watch()
    assert host.capped == ["log"]


# --- on this machine


def free_port() -> int:
    return open_host(HostSpec("local")).free_ports("127.0.0.1", 1)[0]


def real(tmp_path: Path, code: str, port: int | None = None, **how: object) -> tuple[Service, Host]:
    host, port = open_host(HostSpec("local")), port or free_port()
    argv = (sys.executable, "-u", "-c", code)
    return Service(
        plan(port, *argv), host, terms(port, **how), str(tmp_path / "logs" / "a.log"), f"test-{tmp_path.name}", MonotonicClock()
    ), host


def test_a_real_crash_is_told_within_two_seconds(tmp_path: Path) -> None:
    service, _ = real(tmp_path, "import sys; print('CUDA OOM', file=sys.stderr); sys.exit(3)", limits=Limits(600, 600))
    began = MonotonicClock.now_ns()
    with pytest.raises(NotReadyError) as failure:
        start_replica([service], lambda *_: None, NEVER, MonotonicClock())
    assert MonotonicClock.now_ns() - began < 2e9
    assert (failure.value.code, failure.value.cause, failure.value.lines) == (3, "out_of_memory", ("CUDA OOM",))
    service.stop(NEVER)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    host = open_host(HostSpec("local"))
    service = Service(plan(1, "/nowhere/engine"), host, terms(1), str(tmp_path / "a.log"), f"test-{tmp_path.name}", MonotonicClock())
    with pytest.raises(NotReadyError) as failure:
        start_replica([service], lambda *_: None, NEVER, MonotonicClock())
    assert failure.value.code == 127
    assert "/nowhere/engine" in "".join(failure.value.lines)


def test_children_and_grandchildren_are_gone_after_the_stop(tmp_path: Path) -> None:
    code = (
        "import os,signal,subprocess,sys,time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable,'-c','import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'])\n"
        "subprocess.Popen([sys.executable,'-c','import os,time; os.setsid(); time.sleep(600)'])\n"
        "time.sleep(600)"
    )
    service, host = real(tmp_path, code, stop_s=0.5)
    service.launch(lambda _: None, lambda: False)
    assert service.group is not None
    while len(host.look(service.group).members) < 3:
        assert not service.step()
    service.stop(NEVER)
    assert host.look(service.group).members == ()
    assert service.state == "stopped"


def test_a_stale_server_is_refused_though_it_answers_well(tmp_path: Path, server: ScriptedServer) -> None:
    service, _ = real(tmp_path, "import time; time.sleep(600)", server.port)
    with pytest.raises(NotReadyError) as failure:
        start_replica([service], lambda *_: None, NEVER, MonotonicClock())
    assert failure.value.cause == "port_taken"
    assert server.requests == []
    service.stop(NEVER)


def test_a_stopped_process_is_seen_and_still_stopped(tmp_path: Path) -> None:
    service, host = real(tmp_path, "import time; time.sleep(600)")
    service.launch(lambda _: None, lambda: False)
    service.move("inference_ok")
    assert service.group is not None
    service.watch(lasting=True)
    host.signal(service.group, signal.SIGSTOP)
    while not service.hung:
        service.watch()
    service.stop(NEVER)
    assert host.look(service.group).members == ()


def test_a_child_that_its_parent_does_not_notice_is_seen(tmp_path: Path) -> None:
    service, host = real(tmp_path, "import subprocess,sys,time; subprocess.Popen([sys.executable, '-c', '']); time.sleep(600)")
    service.launch(lambda _: None, lambda: False)
    assert service.group is not None
    while not host.look(service.group).defunct:
        assert not service.step()
    assert len(host.look(service.group).members) == 1
    service.stop(NEVER)
