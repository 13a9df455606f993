"""Services that are started, waited for, watched and stopped: ours to the last child, nobody else's, and never waited for in vain."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from .laboratory import Experiment, assert_clean, assert_over, free_port, kill_all, left, until

pytestmark = [pytest.mark.slow, pytest.mark.faults]
ENGINE = str(Path(__file__).with_name("fake_engine.py"))
BENCH = "[bench]\nnum-prompts = 8\nconcurrency = 2\ninput-len = 8\noutput-len = 4\ntokenizer = 'words'\nhealth-check-interval = 0\nrequest-max-retries = 0\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    kill_all(tmp_path)


def spec(folder: Path, *words: str, fleet: str = "", rest: str = "[[scenario]]\nname = 'one'\n", bench: str = BENCH) -> None:
    argv = [sys.executable, ENGINE, "--port", "{port}", *words]
    (folder / "exp.toml").write_text(
        f"name = 'field'\n[fleet]\nengine = 'command'\nmodel = 'm'\ncommand = {json.dumps(argv)}\nstop-timeout = 2\n{fleet}\n{bench}\n{rest}"
    )


def ran(folder: Path, *words: str, code: int | None = 0, **how: str) -> Experiment:
    spec(folder, *words, **how)
    run = Experiment(folder)
    ended = run.wait()
    assert code is None or ended == code or (code == 0 and run.well()), run.err
    assert "Traceback" not in run.err
    return run


def error_of(run: Experiment) -> str:
    """The one error, with what follows it."""
    assert run.err.count("loadcell: error:") == 1, run.err
    return run.err[run.err.index("loadcell: error:") :]


# --- children


@pytest.mark.parametrize("words", [("--children", "2"), ("--strays", "2"), ("--children", "1", "--strays", "1", "--deaf")])
@pytest.mark.parametrize("killed", [False, True])
def test_no_child_holds_a_device_after_the_end(folder: Path, words: tuple[str, ...], killed: bool) -> None:
    """In the same session; or in one of their own with an empty environment; or deaf to SIGTERM. Also where the parent was killed before."""
    spec(folder, *words, bench=BENCH.replace("num-prompts = 8", "num-prompts = 40"), fleet="restarts = 0")
    before = sleepers()
    run = Experiment(folder)
    run.until(lambda: (run.run / "state.jsonl").exists() and b'"began"' in (run.run / "state.jsonl").read_bytes())
    assert len(sleepers() - before) >= 2
    if killed:
        os.kill(run.services()["replica-0"], signal.SIGKILL)
    run.wait()
    assert sleepers() <= before
    assert_over(run)


def sleepers() -> set[int]:
    found = set()
    for process in psutil.process_iter(["cmdline", "status"]):
        if "time.sleep(600)" in " ".join(process.info["cmdline"] or ()) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.add(process.pid)
    return found


# --- strangers


def test_who_only_looks_like_a_service_lives(folder: Path) -> None:
    """The same words, the same port in them, the same working folder, even the same name of the variable: none is ours."""
    decoys = [
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", ENGINE, "--port", "30000", "loadcell", "simulate"]),
        subprocess.Popen(["sleep", "300"], env={**os.environ, "LOADCELL_SERVICE": "replica-0-0000000000000000"}, cwd=folder),
    ]
    try:
        ran(folder)
        assert [decoy.poll() for decoy in decoys] == [None, None]
    finally:
        for decoy in decoys:
            decoy.kill()
            decoy.wait()


@pytest.mark.parametrize("damage", ["pid", "boot", "torn", "empty", "start"])
def test_a_stale_record_harms_nobody(folder: Path, damage: str) -> None:
    """A record of a killed run whose pid is somebody else's by now, or of before a reboot, or half-written."""
    spec(folder, bench=BENCH.replace("num-prompts = 8", "num-prompts = 400"))
    run = Experiment(folder)
    run.until(lambda: (run.run / "state.jsonl").exists() and b'"began"' in (run.run / "state.jsonl").read_bytes())
    run.send(signal.SIGKILL)
    run.wait()
    (record,) = (folder / "state").rglob("services/*/*.json")
    kill_all(folder)
    decoy = subprocess.Popen(["sleep", "300"])
    try:
        entry = json.loads(record.read_text())
        own = Path(f"/proc/{decoy.pid}/stat").read_text().rpartition(")")[2].split()
        entry["group"]["pid"] = decoy.pid
        if damage == "boot":
            entry["group"] |= {"boot_id": "00000000-0000-0000-0000-000000000000", "started": int(own[19])}
        text = json.dumps(entry)
        record.write_text({"torn": text[: len(text) // 2], "empty": ""}.get(damage, text))
        if damage == "start":
            entry["group"]["waiter"] = decoy.pid
            record.write_text(json.dumps(entry))
        again = Experiment(folder, "--resume", "run")
        assert again.well(), again.err
        assert decoy.poll() is None
        assert "removed" in again.err
        assert not record.exists()
    finally:
        decoy.kill()
        decoy.wait()
    assert_over(again)


def test_the_tools_own_group_lives(folder: Path) -> None:
    """Under a wrapper in one group: stopping services is no signal to either."""
    spec(folder)
    wrapper = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m loadcell run exp.toml --output-dir run; echo ended with $?"],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        capture_output=True,
        text=True,
        timeout=90,
        start_new_session=True,
        check=False,
    )
    assert "ended with 0" in wrapper.stdout, wrapper.stderr
    assert_clean(folder)


def test_ctrl_c_of_a_terminal_reaches_the_tool_alone(folder: Path) -> None:
    """The whole foreground group gets it, as from a keyboard: services drain under the tool's hand."""
    spec(folder, "--tokens-every", "0.02", bench=BENCH.replace("num-prompts = 8", "num-prompts = 400"))
    run = Experiment(folder, before=os.setsid)
    run.until_loading("one")
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait() == 130
    (cell,) = run.results().cells
    assert cell.figures is not None
    assert (cell.state, cell.figures.all.failed) == ("interrupted", 0)
    assert_over(run)


# --- ports


@pytest.mark.parametrize("answers", ["same model", "old model"])
def test_a_stale_server_is_never_measured(folder: Path, answers: str) -> None:
    port = free_port()
    stale = subprocess.Popen([sys.executable, ENGINE, "--port", str(port), "--model", "m" if answers == "same model" else "old"])
    try:
        until(lambda: _listens(port), "the stale server")
        run = ran(folder, "--say", "OSError: [Errno 98] Address already in use", "--exit", "1", fleet=f"port = {port}", code=1)
        told = error_of(run)
        assert str(stale.pid) in told
        assert str(port) in told
        assert stale.poll() is None
    finally:
        stale.kill()
        stale.wait()
    assert not run.run.exists()
    assert_clean(folder)


def test_a_server_that_fails_to_bind_is_not_taken_for_the_one_that_comes_up_meanwhile(folder: Path) -> None:
    """The port is free at the check, and somebody else's when the service is there."""
    port = free_port()
    spec(folder, "--progress", "1.5", fleet=f"port = {port}")
    run = Experiment(folder)
    run.until(run.services, "the service")
    stale = subprocess.Popen([sys.executable, ENGINE, "--port", str(port)])
    try:
        assert run.wait() == 1
        told = error_of(run)
        assert str(port) in told or "Address already in use" in told
        assert stale.poll() is None
    finally:
        stale.kill()
        stale.wait()
    assert_over(run, {"one": "not_run"})


def test_a_port_stolen_before_the_start_is_no_matter_where_ports_are_free_to_choose(folder: Path) -> None:
    """Whoever takes the first port that was chosen: the services are started again on others."""
    spec(folder, "--progress", "2", fleet="replicas = 2")
    run = Experiment(folder)
    run.until(lambda: len(run.services()) == 2, "the services")
    port = next(json.loads(path.read_text())["port"] for path in (folder / "state").rglob("services/*/*.json"))
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", port))
        thief.listen()
        assert run.well(), run.err
    assert "took its port meanwhile" in run.err
    assert port not in [service.port for service in run.results().fleet.services]
    assert_over(run, {"one": "done"})


def test_a_port_that_is_the_local_end_of_a_connection_is_refused(folder: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as client:
            port = client.getsockname()[1]
            run = ran(folder, fleet=f"port = {port}", code=1)
            told = error_of(run)
            assert str(port) in told
            assert str(os.getpid()) in told
            assert "connection" in told


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# --- the wait


@pytest.mark.parametrize("limit", ["0", "'2h'", "60"])
def test_a_long_start_is_waited_for(folder: Path, limit: str) -> None:
    run = ran(folder, "--progress", "4", fleet=f"start-timeout = {limit}")
    assert_over(run, {"one": "done"})


def test_a_start_limit_that_is_too_short_tells_the_time_and_leaves_nothing(folder: Path) -> None:
    run = ran(folder, "--progress", "40", "--children", "1", fleet="start-timeout = '2s'", code=1)
    told = error_of(run)
    assert "not ready after 2." in told
    assert "start_timeout = 2 s" in told
    assert "loading weights" in told
    assert_over(run, {"one": "not_run"})


@pytest.mark.parametrize(
    ("said", "code", "cause"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", 3, "out of memory"),
        ("ImportError: libfoo.so.1: cannot open shared object file", 3, "exit code 3"),
        ("", 3, "exit code 3"),
        ("", 0, "exit code 0"),
        ("error: unrecognized arguments: --tensor-paralel-size 2", 2, "bad arguments"),
    ],
)
def test_an_end_in_the_start_is_told_at_once_with_code_and_last_lines(folder: Path, said: str, code: int, cause: str) -> None:
    began = time.monotonic()
    run = ran(folder, "--say", said, "--exit", str(code), fleet="start-timeout = '600s'", code=1)
    assert time.monotonic() - began < 25
    told = error_of(run)
    assert cause in told
    assert f"exit code {code}" in told
    assert said in told
    started, failed = (next(line for line in run.events() if line["event"] == word) for word in ("started", "start failed"))
    assert _seconds(failed["time"]) - _seconds(started["time"]) < 4
    assert_over(run, {"one": "not_run"})


def _seconds(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def test_a_parent_that_lives_and_an_engine_that_is_dead(folder: Path) -> None:
    """A pattern of one's own ends the wait in seconds."""
    pattern = "[[fleet.pattern]]\ncause = 'fatal'\npattern = '^FATAL engine init'\n"
    began = time.monotonic()
    run = ran(folder, "--say", "FATAL engine init", "--dead-child", fleet=pattern, code=1)
    assert time.monotonic() - began < 30
    assert "FATAL engine init" in error_of(run)
    assert_over(run, {"one": "not_run"})


def test_loading_is_not_ready_and_nothing_is_measured_before(folder: Path) -> None:
    log = folder / "requests.jsonl"
    run = ran(folder, "--progress", "1", "--loading", "4", "--log", str(log))
    asked = [json.loads(line) for line in log.read_text().splitlines()]
    begun = min(one["time"] for one in asked)
    posts = [one["time"] - begun for one in asked if one["method"] == "POST"]
    assert min(posts) > 2.5
    assert len(posts) == 1 + 8
    assert_over(run, {"one": "done"})


def test_a_slow_health_is_a_health(folder: Path) -> None:
    assert_over(ran(folder, "--slow-health", "1.2"), {"one": "done"})


def test_a_cell_of_which_nothing_was_ok_has_failed(folder: Path) -> None:
    run = ran(folder, "--dies-at", "2", fleet="restarts = 0", code=1)
    (cell,) = run.results().cells
    assert cell.state == "failed"
    assert cell.verdict == "invalid"
    assert "none of 8 requests was ok" in (cell.cause or "")
    assert (cell.cause or "").startswith("replica-0 died: killed by SIGKILL")
    assert_over(run)


# --- logs


def test_a_server_that_writes_much_is_never_blocked(folder: Path) -> None:
    bench = BENCH.replace("num-prompts = 8", "num-prompts = 300")
    run = ran(folder, "--flood", "1048576", "--per-request", "1024", bench=bench)
    assert_over(run, {"one": "done"})
    assert (run.run / "logs" / "replica-0.log").stat().st_size > 2_300_000


def test_a_log_is_bounded_and_its_newest_lines_are_kept(folder: Path) -> None:
    """10 MiB a second, a cap of 8 MiB: what lies on the disk stays within it, and says that something is missing."""
    bench = BENCH.replace("num-prompts = 8", "num-prompts = 150")
    run = ran(folder, "--rate", "10", "--tokens-every", "0.02", bench=bench, fleet="log-cap = '8MiB'", code=None)
    logs = list((run.run / "logs").iterdir())
    size = sum(path.stat().st_blocks * 512 for path in logs)
    whole = (run.run / "logs" / "replica-0.log").read_bytes()
    assert size < 40 << 20, [(path.name, path.stat().st_size) for path in logs]
    assert len(whole) < 30 << 20
    newest = int(whole.splitlines()[-1].split()[0])
    assert newest * 128 > size
    said = b"".join(path.read_bytes() for path in logs)
    assert any(word in said for word in (b"cut", b"left out", b"truncated", b"missing"))
    assert_over(run)


# --- a crash


def test_one_crash_costs_one_scenario(folder: Path) -> None:
    once = folder / "once"
    once.touch()
    rows = "".join(f"[[scenario]]\nname = 's{number}'\n" for number in range(1, 6))
    run = ran(folder, "--dies-at", "12", "--dies-once", str(once), rest=rows, code=None)
    states = run.states()
    cells = {cell.name: cell for cell in run.results().cells}
    assert [states[f"s{number}"] for number in (1, 3, 4, 5)] == ["done"] * 4
    assert all(cells[f"s{number}"].figures.all.failed == 0 for number in (1, 3, 4, 5))  # type: ignore[union-attr]
    second = cells["s2"]
    assert second.verdict in ("suspect", "invalid")
    told = json.dumps([reason.text for reason in second.reasons]) + (second.cause or "")
    assert "SIGKILL" in told
    assert "illegal memory access" in told
    assert run.results().fleet.services[0].restarts == 1
    assert_over(run)


def test_a_service_that_dies_again_and_again_is_given_up_and_the_rest_is_recorded(folder: Path) -> None:
    rows = "".join(f"[[scenario]]\nname = 's{number}'\n" for number in range(1, 6))
    run = ran(folder, "--dies-at", "4", rest=rows, fleet="restarts = 1", code=1)
    states = run.states()
    assert states["s5"] == "failed"
    cells = {cell.name: cell for cell in run.results().cells}
    assert "no service is ready" in (cells["s5"].cause or "")
    assert "stays failed after 1 restart " in run.err
    assert_over(run)
    assert left(folder) == []
