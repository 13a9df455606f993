"""`loadcell fleet` as a user types it: up leaves services running, down stops exactly those."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SPEC = """
[fleet]
engine = "simulated"
replicas = 2
port = "auto"
stop_timeout = "5s"

[fleet.args]
ttft-ms = 2
itl-ms = 1
"""


class User:
    """Types commands in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec = folder / "fleet.toml"
        self.spec.write_text(SPEC)
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}

    def fleet(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.words(*words), check=False, capture_output=True, text=True, env=self.environment, cwd=self.folder, timeout=60
        )

    @contextmanager
    def loading(self, spec: str, end: signal.Signals) -> "Iterator[subprocess.Popen[str]]":
        """A run of it into the folder `run`, from its first load on; ended by that signal."""
        words = [sys.executable, "-m", "loadcell", "run", spec, "--output-dir", "run"]
        run = subprocess.Popen(words, env=self.environment, cwd=self.folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        state = self.folder / "run" / "state.jsonl"
        try:
            while not (state.exists() and '"began"' in state.read_text()):
                assert run.poll() is None
                time.sleep(0.05)
            yield run
        finally:
            run.send_signal(end)
            run.communicate()

    @staticmethod
    def words(*words: str) -> list[str]:
        return [sys.executable, "-m", "loadcell", "fleet", *words]


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    made = User(tmp_path)
    yield made
    made.fleet("down", "fleet.toml")


def pids(table: str) -> list[int]:
    return [int(found) for found in re.findall(r"http://\S+\s+(\d+)", table)]


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_up_status_logs_down(user: User) -> None:
    up = user.fleet("up", "fleet.toml")
    assert up.returncode == 0, up.stderr
    running = pids(up.stdout)
    assert len(running) == 2
    assert "loadcell bench --model" in up.stderr
    assert all(map(alive, running))

    status = user.fleet("status", "fleet.toml")
    assert status.returncode == 0
    assert pids(status.stdout) == running
    assert status.stdout.count("ready") == 2

    again = user.fleet("up", "fleet.toml")
    assert again.returncode == 1
    assert "are up already" in again.stderr

    logs = user.fleet("logs", "fleet.toml", "replica-1", "--lines", "5")
    assert logs.stdout.startswith("loadcell simulate: serving")
    both = user.fleet("logs", "fleet.toml")
    assert both.stdout.count("==> replica-") == 2
    wrong = user.fleet("logs", "fleet.toml", "replica-9")
    assert (wrong.returncode, "there are: replica-0, replica-1" in wrong.stderr) == (1, True)

    down = user.fleet("down", "fleet.toml")
    assert down.returncode == 0
    assert down.stdout.count("stopped (process") == 2
    assert not any(map(alive, running))
    gone = user.fleet("status", "fleet.toml")
    assert (gone.returncode, "no services" in gone.stdout) == (1, True)


def test_status_tells_who_has_died_and_down_forgets_it(user: User) -> None:
    running = pids(user.fleet("up", "fleet.toml").stdout)
    os.kill(running[0], signal.SIGKILL)
    while alive(running[0]):
        time.sleep(0.01)
    status = user.fleet("status", "fleet.toml")
    assert status.returncode == 1
    assert "ended (killed by SIGKILL" in status.stdout
    down = user.fleet("down", "fleet.toml")
    assert down.returncode == 0
    assert "its processes are gone too" in down.stdout


def test_what_is_up_is_known_by_its_record_whatever_its_file_says_by_now(user: User) -> None:
    running = pids(user.fleet("up", "fleet.toml").stdout)
    user.spec.write_text("[nothing of it]")
    assert user.fleet("status", "fleet.toml").returncode == 0
    user.spec.unlink()
    assert user.fleet("down", "fleet.toml").returncode == 0
    assert not any(map(alive, running))


def test_following_a_log_ends_with_its_service(user: User) -> None:
    user.fleet("up", "fleet.toml", "--set", "fleet.replicas=1")
    follower = subprocess.Popen(
        user.words("logs", "fleet.toml", "--follow"), stdout=subprocess.PIPE, text=True, env=user.environment, cwd=user.folder
    )
    assert follower.stdout is not None
    assert "serving" in follower.stdout.readline()
    user.fleet("down", "fleet.toml")
    assert follower.wait(10) == 0
    follower.stdout.close()


def test_a_start_that_fails_is_one_error_with_its_cause_and_leaves_nothing(user: User) -> None:
    up = user.fleet("up", "fleet.toml", "--set", 'fleet.args.fault=["oom_start"]')
    assert up.returncode == 1
    assert "did not start: out of memory" in up.stderr
    assert "Traceback" not in up.stderr
    assert "no services" in user.fleet("status", "fleet.toml").stdout


def test_an_interrupted_up_leaves_nothing(user: User) -> None:
    words = user.words("up", "fleet.toml", "--set", 'fleet.args.fault=["slow_start,delay=60"]')
    process = subprocess.Popen(words, env=user.environment, cwd=user.folder, stderr=subprocess.PIPE, text=True)
    records = user.folder / "state" / "loadcell" / "fleet" / "services" / "local"
    while not (records.exists() and sum('"group": {' in one.read_text() for one in records.glob("*.json")) == 2):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert list(records.glob("*.json")) == []


def test_wrong_use_is_told(user: User) -> None:
    (user.folder / "empty.toml").write_text('[target]\nbase_url = ["http://127.0.0.1:1"]\n[[scenario]]\nnum_prompts = 1\n')
    for words, text in (
        (("up", "empty.toml"), "has no [fleet]"),
        (("up", "missing.toml"), "missing.toml"),
        (("status", "missing.toml"), "missing.toml"),
        (("logs", "missing.toml"), "missing.toml"),
        (("down", "missing.toml"), "missing.toml"),
        (("begin", "fleet.toml"), "begin"),
    ):
        said = user.fleet(*words)
        assert said.returncode == 2, said.stderr
        assert text in said.stderr
        assert len(said.stderr.strip().splitlines()) == 1


LOAD = '[bench]\ntokenizer = "words"\ninput-len = 8\noutput-len = 400\nnum-prompts = 100000\nconcurrency = 2\n'


@pytest.mark.slow
def test_services_of_a_run_are_shown_as_its_own_and_stopped_by_nobody_else_before_it_is_gone(user: User) -> None:
    (user.folder / "exp.toml").write_text(SPEC + LOAD)
    with user.loading("exp.toml", signal.SIGKILL) as run:
        status = user.fleet("status", "exp.toml")
        assert status.returncode == 0, status.stdout
        running = pids(status.stdout)
        assert len(running) == 2
        assert status.stdout.count(f"run {run.pid} ") == 2
        assert f"run {run.pid}: a run of loadcell in {user.folder}/run, under way" in status.stdout
        logs = user.fleet("logs", "exp.toml", "replica-1")
        assert logs.stdout.startswith("loadcell simulate: serving")

        down = user.fleet("down", "exp.toml")
        assert down.returncode == 1
        assert down.stdout == ""
        (line,) = down.stderr.splitlines()
        assert "replica-0, replica-1 of exp.toml: not stopped" in line
        assert f"`kill {run.pid}`" in line
        assert all(map(alive, running))
        assert user.fleet("status", "fleet.toml").stdout.startswith("no services")  # another file's
    assert f"run {run.pid}: a run of loadcell in {user.folder}/run, gone" in user.fleet("status", "exp.toml").stdout
    down = user.fleet("down", "exp.toml")
    assert (down.returncode, down.stdout.count("stopped (process")) == (0, 2)
    assert not any(map(alive, running))


@pytest.mark.slow
def test_down_stops_its_own_beside_those_of_a_run(user: User) -> None:
    (user.folder / "fleet.toml").write_text(SPEC + LOAD)
    with user.loading("fleet.toml", signal.SIGTERM):
        up = user.fleet("up", "fleet.toml")
        assert up.returncode == 0, up.stderr
        status = user.fleet("status", "fleet.toml")
        assert (status.returncode, len(pids(status.stdout))) == (0, 4)
        down = user.fleet("down", "fleet.toml")
        assert down.returncode == 1
        assert down.stdout.count("stopped (process") == 2
        assert not any(map(alive, pids(up.stdout)))
        assert len(pids(user.fleet("status", "fleet.toml").stdout)) == 2
