"""loadcell itself is killed, interrupted, or runs out of disk, in every phase of an experiment."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .laboratory import BENCH, CELLS, FLEET, Experiment, assert_clean, assert_over, assert_readable, left, until, write

pytestmark = [pytest.mark.slow, pytest.mark.faults]
DEAF = """
import asyncio, signal, sys
import loadcell.cli.main
real = signal.signal
signal.signal = lambda n, h: None
real(signal.SIGTERM, signal.SIG_IGN)
asyncio.AbstractEventLoop.add_signal_handler = lambda *a: None
sys.exit(loadcell.cli.main.main(["simulate", *sys.argv[1:]]))
"""
"""An engine that does not care for SIGTERM."""
SLOW_START = FLEET + "fault = 'slow_start,delay=30'\n"


def test_after_a_kill_the_next_start_stops_the_orphans_says_so_and_goes_on(folder: Path) -> None:
    write(folder, FLEET, BENCH, CELLS)
    run = Experiment(folder)
    run.until_loading()
    run.send(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    assert len(run.services()) == 2
    assert len(left(folder)) >= 2
    assert run.states() == {"before": "done", "long": "not_run", "after": "not_run"}
    assert run.results().state == "running"
    kept = {path: path.read_bytes() for path in (run.run / "cells" / "before").iterdir()}
    again = Experiment(folder, "--resume", "run")
    again.wait()
    assert again.well(), again.err
    print(again.err)
    assert again.err.count("is gone: stopped") == 2
    assert {path: path.read_bytes() for path in kept} == kept
    assert_over(again, {"before": "done", "long": "done", "after": "done"})
    assert again.cell("long").earlier == ["cells/long"]


def test_a_kill_while_services_start_is_noticed_too(folder: Path) -> None:
    write(folder, SLOW_START, BENCH, CELLS)
    run = Experiment(folder)
    run.until(lambda: len(left(folder)) >= 5, "the services")
    run.send(signal.SIGKILL)
    run.wait()
    again = Experiment(folder, "--resume", "run", "--set", "fleet.args.fault=[]")
    again.wait()
    assert again.well(), again.err
    print(again.err)
    assert again.err.count("is gone: stopped") == 2
    assert_over(again)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_services_start(folder: Path, number: signal.Signals) -> None:
    write(folder, SLOW_START, BENCH, CELLS)
    run = Experiment(folder)
    run.until(lambda: len(run.services()) == 2, "the services")
    run.send(number)
    asked = time.monotonic()
    code = run.wait()
    print(run.err, run.out)
    assert code == 128 + (number if number != signal.SIGHUP else signal.SIGTERM)
    assert time.monotonic() - asked < 15
    assert run.results().state == "interrupted"
    assert_over(run, {"before": "not_run", "long": "not_run", "after": "not_run"})


def test_a_signal_while_the_machine_is_looked_at(folder: Path) -> None:
    """A run that never began leaves no folder that would refuse the next one."""
    slow = folder / "slow.sh"
    slow.write_text("#!/bin/sh\nsleep 600\n")
    slow.chmod(0o755)
    (folder / "nvidia-smi").symlink_to(slow)
    write(folder, FLEET, BENCH, CELLS)
    run = Experiment(folder, env={"PATH": f"{folder}:{os.environ['PATH']}"})
    run.until((folder / "run").exists, "the folder")
    run.send(signal.SIGTERM)
    assert run.wait() == 143
    assert not (folder / "run").exists()
    until(lambda: not [line for line in left(folder) if "loadcell" in line], "the end")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_a_load(folder: Path, number: signal.Signals) -> None:
    write(folder, FLEET, BENCH, CELLS)
    run = Experiment(folder)
    run.until_loading()
    run.send(number)
    assert run.wait() == 128 + number
    print(run.err, run.out)
    assert run.results().state == "interrupted"
    assert run.cell("long").partial
    assert_over(run, {"before": "done", "long": "interrupted", "after": "not_run"})


def test_a_second_interrupt_ends_it_at_once_and_stops_the_services_all_the_same(folder: Path) -> None:
    """Answers that would take a minute, and services that do not care for SIGTERM."""
    (folder / "deaf.py").write_text(DEAF)

    fleet = FLEET.replace('engine = "simulated"', f'engine = "simulated"\nexecutable = ["{sys.executable}", "{folder}/deaf.py"]')
    fleet = fleet.replace('stop-timeout = "5s"', 'stop-timeout = "60s"')
    write(folder, fleet, BENCH, CELLS.replace("output-len = 500", "output-len = 30000"))
    run = Experiment(folder)
    run.until_loading(count=0)
    run.send(signal.SIGINT)
    run.until(lambda: b"stopping" in (run.run / "cells" / "long" / "events.jsonl").read_bytes(), "the drain")
    asked = time.monotonic()
    run.send(signal.SIGINT)
    time.sleep(1)
    run.send(signal.SIGINT)
    code = run.wait()
    took = time.monotonic() - asked
    print(run.err, run.out, took)
    assert code == 130
    assert took < 20
    assert_over(run, {"before": "done", "long": "interrupted", "after": "not_run"})


def test_a_signal_between_two_loads_while_a_service_is_started_again(folder: Path) -> None:
    fleet = FLEET + "fault = 'slow_start,delay=4'\n"
    write(folder, fleet, BENCH, CELLS)
    run = Experiment(folder)
    run.until_loading()
    os.kill(run.services()["replica-0"], signal.SIGKILL)
    run.until(lambda: any(event["event"] == "restart" for event in run.events()), "the restart")
    run.send(signal.SIGTERM)
    assert run.wait() == 143
    print(run.err, run.out)
    assert run.results().state == "interrupted"
    assert_over(run, {"before": "done", "long": "done", "after": "not_run"})


def test_a_signal_while_services_are_stopped_does_not_leave_them(folder: Path) -> None:
    fleet = FLEET.replace("itl-ms = 2", "itl-ms = 20")
    write(folder, fleet, BENCH, CELLS.split('[[scenario]]\nname = "long"')[0])
    run = Experiment(folder)
    run.until(lambda: run.run.exists() and (run.run / "state.jsonl").exists() and b'"ended"' in (run.run / "state.jsonl").read_bytes())
    run.until(lambda: "service health check" in run.err, "the health line")
    run.send(signal.SIGINT)
    code = run.wait()
    print(run.err, run.out)
    assert code in (0, 130)
    assert_over(run)


def _small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))


def test_files_that_cannot_grow(folder: Path) -> None:
    """As a quota or a full disk: the cell fails with its cause, or the experiment ends; nothing is torn, nothing stays."""
    write(folder, FLEET, BENCH, CELLS.replace("num-prompts = 24", "num-prompts = 2000").replace("output-len = 500", "output-len = 4"))
    run = Experiment(folder, before=_small_files)
    code = run.wait()
    print(run.err, run.out)
    assert code == 1
    assert run.cell("before").state == "done"
    assert run.cell("long").state == "failed"
    assert_over(run)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a small file system")
@pytest.mark.parametrize("size", ["66m", "400k"])
def test_a_disk_that_is_full(folder: Path, size: str) -> None:

    disk = folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        write(folder, FLEET, BENCH, CELLS.replace("num-prompts = 24", "num-prompts = 20000").replace("output-len = 500", "output-len = 4"))
        run = Experiment(folder, "exp.toml", "--output-dir", "disk/run")
        run.run = disk / "run"
        if size == "66m":
            run.until_loading()
            with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
                while True:
                    filler.write(b"x" * 4096)
        code = run.wait()
        print(run.err, run.out)
        assert code == 1
        if size == "400k":
            assert run.results().state == "stopped"
        (disk / "filler").unlink(missing_ok=True)
        assert_over(run)
    finally:
        until(lambda: not subprocess.run(["umount", str(disk)], capture_output=True, check=False).returncode, "umount", 20)


def test_two_experiments_at_once_choose_different_ports(folder: Path) -> None:
    one, two = folder / "one", folder / "two"
    runs = []
    for place in (one, two):
        place.mkdir()
        write(place, FLEET, BENCH, CELLS)
        runs.append(Experiment(place, env={"XDG_STATE_HOME": str(folder / "state")}))
    for run in runs:
        run.wait()
        assert run.well(), run.err
    ports = [service.port for run in runs for service in run.results().fleet.services]
    assert len(set(ports)) == 4
    for run in runs:
        run.folder = folder
        assert_over(run, {"before": "done", "long": "done", "after": "done"})


def test_two_experiments_on_the_same_ports(folder: Path) -> None:
    """The second is refused with the holder, before anything starts, and the first does not notice."""
    from .laboratory import free_port

    port = free_port()
    fleet = FLEET.replace("replicas = 2", f"replicas = 2\nport = {port}")
    write(folder, fleet, BENCH, CELLS)
    one = Experiment(folder)
    one.until_loading()
    two = Experiment(folder, "exp.toml", "--output-dir", "run2")
    assert two.wait() == 1
    print(two.err)
    assert str(port) in two.err
    assert not (folder / "run2").exists()
    # One that shares no records with it, as another user's.
    other = Experiment(folder, "exp.toml", "--output-dir", "run3", env={"XDG_STATE_HOME": str(folder / "other")})
    assert other.wait() == 1
    print(other.err)
    assert "simulate" in other.err
    assert "process " in other.err
    one.wait()
    assert set(one.states().values()) == {"done"}
    assert_clean(folder)


@pytest.mark.parametrize("how", ["2>&1 | head -1", "2>&- >&-"])
def test_whoever_reads_its_progress_may_leave(folder: Path, how: str) -> None:
    write(folder, FLEET, BENCH, CELLS.split('[[scenario]]\nname = "long"')[0])
    script = f"{sys.executable} -m loadcell run exp.toml --output-dir run {how}"
    subprocess.run(
        ["/bin/sh", "-c", script], cwd=folder, env={**os.environ, "XDG_STATE_HOME": str(folder / "state")}, timeout=90, check=False
    )
    until(lambda: not left(folder), "the end")
    found = json.loads((folder / "run" / "results.json").read_bytes())
    assert (found["state"], found["scenarios"][0]["cells"][0]["state"]) == ("complete", "done")
    assert_clean(folder)


def test_records_that_cannot_be_written_are_told_before_anything_starts(folder: Path) -> None:
    write(folder, FLEET, BENCH, CELLS)
    run = Experiment(folder, env={"XDG_STATE_HOME": "/dev/null"})
    assert run.wait() == 1
    assert run.err.count("set XDG_STATE_HOME to a folder that can") == 1
    assert "Traceback" not in run.err
    assert_clean(folder)


def test_two_experiments_on_the_same_devices(folder: Path) -> None:
    """No tool tells of devices here: our own records do. `fleet up` holds them as a run does."""
    fleet = FLEET.replace("replicas = 2", "replicas = 2\ndevices = [[0, 1], [2, 3]]\nvendor = 'nvidia'")
    write(folder, fleet, BENCH, CELLS)
    one = Experiment(folder)
    one.until_loading()
    pid = one.services()["replica-0"]
    two = Experiment(folder, "exp.toml", "--output-dir", "run2")
    assert two.wait() == 1
    assert "device 0 on local" in two.err
    assert f"replica-0 of faults (process {pid}, by loadcell {one.process.pid})" in two.err
    assert not (folder / "run2").exists()
    one.wait()
    assert set(one.states().values()) == {"done"}
    assert_clean(folder)


def test_a_kill_while_services_are_stopped_is_made_good_by_whatever_starts_next(folder: Path) -> None:
    (folder / "deaf.py").write_text(DEAF)
    fleet = FLEET.replace('engine = "simulated"', f'engine = "simulated"\nexecutable = ["{sys.executable}", "{folder}/deaf.py"]')
    write(folder, fleet.replace('stop-timeout = "5s"', 'stop-timeout = "60s"'), BENCH, CELLS.split('[[scenario]]\nname = "long"')[0])
    run = Experiment(folder)
    run.until(lambda: "service health check" in run.err, "the end of the load")
    time.sleep(1)
    run.send(signal.SIGKILL)
    run.wait()
    assert len(run.services()) == 2
    (folder / "other.toml").write_text(FLEET.replace("faults", "other"))
    for verb in ("up", "down"):
        env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        done = subprocess.run(
            [sys.executable, "-m", "loadcell", "fleet", verb, "other.toml"],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        if verb == "up":
            assert done.stderr.count("is gone: stopped") == 2
    assert_clean(folder)
    assert run.states() == {"before": "done"}
    assert_readable(run.run)
