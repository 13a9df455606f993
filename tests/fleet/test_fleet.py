"""Fleets of real processes on this machine: simulated engines, and small scripts for what no engine should do."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from loadcell.errors import EnvironmentFailure, LoadcellError, UserError
from loadcell.fleet.events import EVENTS_FILE
from loadcell.fleet.fleet import Fleet, FleetFailure
from loadcell.fleet.inquiry import Question, endpoint_of
from loadcell.fleet.monitor import FleetEvent
from loadcell.fleet.registry import Registry
from loadcell.fleet.spec import LogPattern
from loadcell.probe import get

from .conftest import MakeFleet, command, of_marker, simulated

PYTHON = (sys.executable, "-u", "-c")


def wait_until(true: Callable[[], object], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids(fleet: Fleet) -> list[int]:
    return [one.pid for one in fleet.status() if one.pid is not None]


def test_services_are_recorded_with_their_file_and_how_they_are_asked_and_stopped(
    make_fleet: MakeFleet, registry: Registry, tmp_path: Path
) -> None:
    (tmp_path / "link.toml").symlink_to(tmp_path / "spec.toml")
    with make_fleet(simulated(health_path=""), source=tmp_path / "link.toml") as fleet:
        fleet.start()
        (entry,) = registry.entries()
    assert (entry.source, entry.stop_s, entry.health_path) == (str(tmp_path / "spec.toml"), 5.0, None)


def test_two_replicas_from_start_to_stop(make_fleet: MakeFleet, registry: Registry) -> None:
    with make_fleet(simulated(replicas=2)) as fleet:
        fleet.start()
        assert len(set(fleet.base_urls)) == 2
        assert fleet.model
        for url in fleet.base_urls:
            assert get(endpoint_of(Question(url, "chat", None, None, 1)), "/health", 5).status == 200
        ports = [str(one.port) for one in fleet.status()]
        assert fleet.health_line() == f"service health check: healthy=[{' '.join(ports)}] unhealthy=[]"
        assert [one.state for one in fleet.status()] == ["ready", "ready"]
        running = pids(fleet)
        assert len(registry.entries()) == 2
    assert not any(map(alive, running))
    assert registry.entries() == ()
    assert fleet.notes == []  # type: ignore[attr-defined]
    assert [one.state for one in fleet.status()] == ["stopped", "stopped"]
    events = [json.loads(line) for line in (fleet.folder / EVENTS_FILE).read_text().splitlines()]
    assert sorted({event["event"] for event in events}) == ["ready", "started", "stopped"]
    assert "serving" in (fleet.folder / "logs" / "replica-0.log").read_text()


def test_one_request_per_service_and_none_while_a_load_runs(make_fleet: MakeFleet, tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    with make_fleet(simulated(args={"ttft-ms": 2, "itl-ms": 1, "access-log": str(log)})) as fleet:
        fleet.start()
        with fleet.serving():
            time.sleep(2.5)
            before = log.read_text()
        fleet.stop()
        assert log.read_text() == before
    requests = [json.loads(line) for line in before.splitlines()]
    assert sum("completions" in request["path"] for request in requests) == 1


def test_an_access_log_in_its_folder(make_fleet: MakeFleet) -> None:
    with make_fleet(simulated(replicas=2, args={"ttft-ms": 2, "itl-ms": 1, "access-log": "{folder}/access.jsonl"})) as fleet:
        fleet.start()
        folders = [Path(plan.replica.folder) for plan in fleet.plans]
        assert len(set(folders)) == 2
        assert all((folder / "access.jsonl").stat().st_size > 0 for folder in folders)


def test_a_start_that_fails_stops_all_and_says_why(make_fleet: MakeFleet, registry: Registry) -> None:
    fleet = make_fleet(simulated(replicas=2, args={"ttft-ms": 2, "itl-ms": 1, "fault": ["oom_start"]}))
    began = time.monotonic()
    with pytest.raises(FleetFailure) as failure:
        fleet.start()
    assert time.monotonic() - began < 10
    assert failure.value.cause == "out_of_memory"
    assert failure.value.code == 1
    assert "out of memory" in str(failure.value).lower()
    assert "the last lines of" in str(failure.value)
    assert registry.entries() == ()
    assert pids(fleet) == []


def test_a_bad_argument_is_named(make_fleet: MakeFleet) -> None:
    with pytest.raises(FleetFailure) as failure:
        make_fleet(simulated(args={"no-such-flag": 3})).start()
    assert "no-such-flag" in str(failure.value)
    assert failure.value.code == 2


def test_a_crash_at_once_is_told_at_once(make_fleet: MakeFleet) -> None:
    script = "import sys,time; time.sleep(0.5); print('CUDA out of memory', file=sys.stderr); sys.exit(3)"
    fleet = make_fleet(command(*PYTHON, script, start_timeout=600))
    began = time.monotonic()
    with pytest.raises(FleetFailure) as failure:
        fleet.start()
    assert time.monotonic() - began < 4
    assert failure.value.code == 3
    assert failure.value.lines == ("CUDA out of memory",)


def test_parent_alive_engine_dead(make_fleet: MakeFleet) -> None:
    script = "import subprocess,sys,time; subprocess.run([sys.executable,'-c','exit(1)']); print('FATAL engine init'); time.sleep(600)"
    fleet = make_fleet(command(*PYTHON, script, start_timeout=600, pattern=(LogPattern("fatal", "FATAL engine"),)))
    began = time.monotonic()
    with pytest.raises(FleetFailure) as failure:
        fleet.start()
    assert time.monotonic() - began < 10
    assert failure.value.cause == "fatal"
    assert "FATAL engine init" in str(failure.value)


def test_a_server_that_fills_its_output_becomes_ready(make_fleet: MakeFleet) -> None:
    script = (
        "import os,sys\n"
        "sys.stdout.write('x'*99 + chr(10)); sys.stdout.write(('y'*1023 + chr(10))*1024); sys.stderr.write(('z'*1023 + chr(10))*1024)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'loadcell', 'simulate', '--ttft-ms', '1', '--itl-ms', '1', '--port', '{port}'])"
    )
    with make_fleet(command(*PYTHON, script, health_path="/health")) as fleet:
        fleet.start()
        assert fleet.base_urls
        assert (fleet.folder / "logs" / "replica-0.log").stat().st_size > 2 << 20


def test_loading_is_waited_for(make_fleet: MakeFleet) -> None:
    began = time.monotonic()
    with make_fleet(simulated(args={"ttft-ms": 2, "itl-ms": 1, "fault": ["slow_start,delay=3"]})) as fleet:
        fleet.start()
        assert time.monotonic() - began > 3


def test_no_start_limit_is_no_limit_and_a_short_one_tells_the_time(make_fleet: MakeFleet) -> None:
    slow = {"ttft-ms": 2, "itl-ms": 1, "fault": ["slow_start,delay=4"]}
    fleet = make_fleet(simulated(args=slow, start_timeout=2))
    with pytest.raises(FleetFailure) as failure:
        fleet.start()
    assert failure.value.cause == "timed_out"
    assert "not ready after 2." in str(failure.value)
    assert pids(fleet) == []
    with make_fleet(simulated(args=slow, start_timeout=0)) as unlimited:
        unlimited.start()


def test_an_engine_that_is_dead_behind_its_health(make_fleet: MakeFleet) -> None:
    with pytest.raises(FleetFailure) as failure:
        make_fleet(simulated(args={"ttft-ms": 2, "itl-ms": 1, "fault": ["hang"]}, ready_request_timeout="1s")).start()
    assert "dead behind a healthy /health" in str(failure.value)
    assert "1 s" in str(failure.value)


def test_wrong_model_and_a_key(make_fleet: MakeFleet) -> None:
    with pytest.raises(FleetFailure) as failure:
        make_fleet(command(*SIMULATE, "--served-model-name", "old", served_model_name="new", health_path="/health")).start()
    assert "wrong model: it serves old, not new" in str(failure.value)
    with pytest.raises(FleetFailure) as failure:
        make_fleet(command(*SIMULATE, "--api-key", "secret", health_path="/health")).start()
    assert "unauthorised" in str(failure.value)
    keyed = {"ttft-ms": 2, "itl-ms": 1, "api-key": "secret"}
    with make_fleet(simulated(args=keyed)) as fleet:
        fleet.start()


SIMULATE = (sys.executable, "-m", "loadcell", "simulate", "--ttft-ms", "1", "--itl-ms", "1", "--port", "{port}")


def test_a_taken_port_is_refused_with_its_holder_before_anything_starts(make_fleet: MakeFleet, registry: Registry) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        fleet = make_fleet(simulated(port=port))
        for refuse in (fleet.check, fleet.start):
            with pytest.raises(EnvironmentFailure, match=f"port {port} .* taken by process {os.getpid()}"):
                refuse()
    assert registry.entries() == ()


def test_a_model_that_is_not_there_is_refused_before_any_start(make_fleet: MakeFleet) -> None:
    from loadcell.fleet.spec import FleetSpec

    spec = FleetSpec(engine="vllm", model="/no/such/model", executable=sys.executable, port="auto", devices=(0,), devices_per_replica=1)
    with pytest.raises(UserError, match="/no/such/model"):
        make_fleet(spec).check()


def test_a_program_that_is_not_there_is_refused_before_any_start(make_fleet: MakeFleet) -> None:
    with pytest.raises(UserError, match="no-such-engine"):
        make_fleet(command("no-such-engine", "--port", "{port}")).check()


# --- while a load runs


class Seen:
    def __init__(self) -> None:
        self.events: list[FleetEvent] = []

    def __call__(self, event: FleetEvent) -> None:
        self.events.append(event)

    def of(self, kind: str) -> list[str]:
        return [event.service for event in self.events if event.event == kind]


def test_a_death_in_a_load_is_an_event_and_the_replica_is_revived_at_most_so_often(make_fleet: MakeFleet) -> None:
    with make_fleet(simulated(replicas=2, restarts=1)) as fleet:
        fleet.start()
        for round_ in (1, 2):
            seen = Seen()
            with fleet.serving(seen):
                first = pids(fleet)[0]
                os.kill(first, signal.SIGKILL)
                wait_until(lambda seen=seen: seen.of("died"), 5)
            assert seen.of("died") == ["replica-0"]
            assert "SIGKILL" in (seen.events[0].cause or "")
            assert len(fleet.base_urls) == 1
            assert f"unhealthy=[{fleet.status()[0].port}]" in fleet.health_line()
            (text,) = fleet.revive()
            if round_ == 1:
                assert "was started again, 1 of at most 1 times" in text
                assert len(fleet.base_urls) == 2
        assert "stays failed after 1 restart " in text
        assert fleet.revive() == ()
        status = fleet.status()[0]
        assert (status.state, status.restarts) == ("failed", 1)
        assert len(fleet.base_urls) == 1


def test_a_death_in_a_load_that_is_over_before_the_next_look_is_told_with_it(make_fleet: MakeFleet) -> None:
    with make_fleet(simulated()) as fleet:
        fleet.start()
        seen = Seen()
        with fleet.serving(seen):
            wait_until(lambda: fleet.status()[0].state == "serving")
            time.sleep(0.2)  # the first look is over, the next one a second away
            (main,) = pids(fleet)
            os.kill(main, signal.SIGKILL)
            wait_until(lambda: not alive(main))
        assert seen.of("died") == ["replica-0"]
        assert fleet.status()[0].state == "failed"


def test_a_lost_child_and_a_stopped_process(make_fleet: MakeFleet) -> None:
    script = (
        "import os,subprocess,sys,threading\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "threading.Thread(target=child.wait).start()\n"
        "from loadcell.cli.main import main\n"
        "main(['simulate', '--ttft-ms', '1', '--itl-ms', '1', '--port', '{port}'])\nos._exit(0)"
    )
    with make_fleet(command(*PYTHON, script, health_path="/health")) as fleet:
        fleet.start()
        (main,) = pids(fleet)
        (child,) = [pid for pid in of_marker("replica-0") if pid != main and parent(pid) == main]
        seen = Seen()
        with fleet.serving(seen):
            wait_until(lambda: fleet.status()[0].state == "serving")
            time.sleep(1.2)
            os.kill(child, signal.SIGKILL)
            wait_until(lambda: seen.of("member_lost"), 5)
        assert fleet.status()[0].state == "failed"
        assert "was started again" in fleet.revive()[0]
        (main,) = pids(fleet)
        seen = Seen()
        with fleet.serving(seen):
            os.kill(main, signal.SIGSTOP)
            wait_until(lambda: seen.of("hung"), 5)
        assert "hung" in fleet.revive()[0]
        assert pids(fleet) != [main]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# --- ways out


RUN = """
import signal, sys, time
from pathlib import Path
from loadcell.fleet.fleet import Fleet
from loadcell.fleet.registry import Registry
from loadcell.fleet.spec import FleetSpec
folder = Path(sys.argv[1])
fault = {"fault": ["slow_start,delay=60"]} if sys.argv[2] == "starting" else {}
if sys.argv[2] == "stubborn":
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    spec = FleetSpec(engine="command", command=(sys.executable, "-c", code, "{port}"), replicas=2, port="auto", stop_timeout=300)
else:
    spec = FleetSpec(engine="simulated", args={"ttft-ms": 2, "itl-ms": 1, **fault}, replicas=2, port="auto", stop_timeout=5)
with Fleet(spec, folder / "run", Registry(folder / "state"), name="killed", note=lambda text: print(text, flush=True)) as fleet:
    fleet.start()
    print("READY", *(one.pid for one in fleet.status()), flush=True)
    time.sleep(600)
"""


def loadcell_process(tmp_path: Path, phase: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path), phase], stdout=subprocess.PIPE, text=True)


def recorded(registry: Registry) -> list[int]:
    return [entry.group.pid for entry in registry.entries() if entry.group is not None]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_during_the_start_leaves_no_process(tmp_path: Path, registry: Registry, number: int, code: int) -> None:
    process = loadcell_process(tmp_path, "starting")
    wait_until(lambda: len(recorded(registry)) == 2)
    running = recorded(registry)
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode in (code, -number)
    assert not any(map(alive, running))
    assert registry.entries() == ()


def test_a_second_signal_does_not_wait_for_stubborn_services(tmp_path: Path, registry: Registry) -> None:
    process = loadcell_process(tmp_path, "stubborn")
    wait_until(lambda: len(recorded(registry)) == 2)
    running = recorded(registry)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    assert process.poll() is None
    assert any(map(alive, running))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=15)
    assert not any(map(alive, running))
    assert registry.entries() == ()


def test_a_loadcell_killed_in_the_start_leaves_what_the_next_one_finds(tmp_path: Path, registry: Registry, make_fleet: MakeFleet) -> None:
    process = loadcell_process(tmp_path, "starting")
    wait_until(lambda: len(recorded(registry)) == 2)
    running = recorded(registry)
    process.kill()
    process.communicate()
    assert all(map(alive, running))
    make_fleet(simulated()).start()
    assert not any(map(alive, running))


def test_what_a_killed_loadcell_left_is_stopped_by_the_next_start_and_said(
    tmp_path: Path, registry: Registry, make_fleet: MakeFleet
) -> None:
    process = loadcell_process(tmp_path, "ready")
    assert process.stdout is not None
    words = process.stdout.readline().split()
    assert words[0] == "READY"
    left = [int(word) for word in words[1:]]
    process.kill()
    process.communicate()
    assert all(map(alive, left))
    ports = sorted(entry.port or 0 for entry in registry.entries())
    fleet = make_fleet(simulated(replicas=2, port=ports[0]) if ports[1] == ports[0] + 1 else simulated(replicas=2))
    fleet.check()
    assert all(map(alive, left))  # a check stops nothing
    fleet.start()
    assert not any(map(alive, left))
    notes = fleet.notes  # type: ignore[attr-defined]
    assert [f"process {pid}" in " ".join(notes) for pid in left] == [True, True]
    assert all("of killed, whose loadcell" in note and "stopped" in note for note in notes)
    assert len(registry.entries()) == 2


def test_decoys_live(tmp_path: Path, registry: Registry, make_fleet: MakeFleet) -> None:
    """One with a command line like a service's, one whose pid stands in a stale record."""
    import msgspec

    decoy = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", *SIMULATE[1:]])
    try:
        process = loadcell_process(tmp_path, "ready")
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        process.communicate()
        for entry in registry.entries():
            assert entry.group is not None
            real = entry.group
            registry.add(
                msgspec.structs.replace(entry, marker=entry.marker, group=msgspec.structs.replace(real, pid=decoy.pid, marker="x"))
            )
            os.killpg(real.pid, signal.SIGKILL)
        fleet = make_fleet(simulated())
        fleet.start()
        fleet.stop()
        assert decoy.poll() is None
        assert registry.entries() == ()
        assert any("the record is removed" in note for note in fleet.notes)  # type: ignore[attr-defined]
    finally:
        decoy.kill()
        decoy.wait()


def test_two_fleets_at_once_never_share_a_port(make_fleet: MakeFleet) -> None:
    fleets = [make_fleet(simulated(replicas=2), name=f"fleet-{index}") for index in range(3)]
    failures: list[BaseException] = []

    def start(fleet: Fleet) -> None:
        try:
            fleet.start()
        except LoadcellError as failure:
            failures.append(failure)

    threads = [threading.Thread(target=start, args=(fleet,)) for fleet in fleets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    ports = [one.port for fleet in fleets for one in fleet.status()]
    assert len(set(ports)) == 6


def test_a_fleet_that_is_up_keeps_its_ports_from_others(make_fleet: MakeFleet) -> None:
    with make_fleet(simulated()) as first:
        first.start()
        port = first.status()[0].port
        with pytest.raises(EnvironmentFailure, match=f"port {port}"):
            make_fleet(simulated(port=port)).check()
