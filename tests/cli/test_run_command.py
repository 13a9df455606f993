"""`loadcell run` as a user has it: a real fleet of simulated engines, started, loaded, stopped; interrupted, killed, resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from loadcell.cli.main import main

pytestmark = pytest.mark.slow

PATIENCE_S = 60
SPEC = """
name = "two"
[fleet]
engine = "simulated"
replicas = 2
cpus = "apart"
[fleet.args]
ttft-ms = 5
itl-ms = 1
[bench]
num-prompts = 20
input-len = 8
output-len = 16
tokenizer = "words"
[[scenario]]
name = "short"
concurrency = 2
[[scenario]]
name = "long"
concurrency = 4
output-len = 400
num-prompts = 40
[[slo]]
metric = "ttft"
statistic = "p50"
limit = "1us"
"""


class Command:
    """One `loadcell run` in `folder`, with a state folder of its own. Its services carry the folder's path in their log's."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "loadcell", "run", *words],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out = self.err = ""

    def wait(self) -> int:
        self.out, self.err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode

    def until(self, path: str, word: str) -> None:
        """Until the file below the folder holds the word."""
        give_up = time.monotonic() + PATIENCE_S
        while not (self.folder / path).exists() or word not in (self.folder / path).read_text(errors="replace"):
            assert time.monotonic() < give_up, f"{word} never came"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)


def services(folder: Path) -> list[psutil.Process]:
    """Engines that live and belong to the state folder's records, by the ports that those name."""
    ports = {str(json.loads(path.read_text())["port"]) for path in (folder / "state").rglob("services/*/*.json")}
    found = [one for one in psutil.process_iter(["cmdline"]) if "simulate" in (one.info["cmdline"] or [])]
    return [one for one in found if ports & set(one.info["cmdline"])]


def results(folder: Path) -> dict[str, str]:
    found = json.loads((folder / "run" / "results.json").read_bytes())
    return {cell["name"]: cell["state"] for scenario in found["scenarios"] for cell in scenario["cells"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "exp.toml").write_text(SPEC)
    return tmp_path


@pytest.mark.slow
def test_services_are_started_loaded_stopped_and_reported(folder: Path) -> None:
    run = Command(folder, "exp.toml", "--output-dir", "run", "--gate")
    run.until("run/state.jsonl", '"began"')
    started = services(folder)
    assert len(started) == 2
    assert run.wait() == 3, run.err  # the limit cannot be met
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in started)
    assert services(folder) == []
    assert results(folder) == {"short": "done", "long": "done"}
    found = json.loads((folder / "run" / "results.json").read_bytes())
    assert [len(one["name"]) for one in found["fleet"]["services"]] == [9, 9]
    assert all("-m loadcell simulate" in one["command"] for one in found["fleet"]["services"])
    assert [cell["purity"]["state"] for scenario in found["scenarios"] for cell in scenario["cells"]] == ["pure", "pure"]
    assert run.err.count("service health check: healthy=[") == 2
    assert 'starting the services; cpus = "apart": ' in run.err
    assert found["fleet"]["model"] == "tiny"
    assert "Engine simulated, model tiny." in (folder / "run" / "report.md").read_text()
    assert {path.name for path in (folder / "run" / "logs").iterdir()} >= {"replica-0.log", "replica-1.log"}
    assert {path.name for path in (folder / "run" / "raw_outputs").iterdir()} == {"simulated_short.jsonl", "simulated_long.jsonl"}
    assert "report: run/report.md" in run.err


@pytest.mark.slow
def test_ctrl_c_stops_the_services_and_a_resume_runs_what_is_left(folder: Path) -> None:
    run = Command(folder, "exp.toml", "--output-dir", "run")
    run.until("run/cells/long/events.jsonl", "measure_started")
    started = services(folder)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.err
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in started)
    assert results(folder) == {"short": "done", "long": "interrupted"}
    short = (folder / "run" / "cells" / "short" / "records.jsonl").read_bytes()
    again = Command(folder, "--resume", "run")
    assert again.wait() == 0, again.err
    assert results(folder) == {"short": "done", "long": "done"}
    assert (folder / "run" / "cells" / "short" / "records.jsonl").read_bytes() == short
    assert sorted(path.name for path in (folder / "run" / "cells").iterdir()) == ["long", "long.2", "short"]


@pytest.mark.slow
def test_after_a_kill_the_next_start_says_and_stops_what_was_left(folder: Path) -> None:
    run = Command(folder, "exp.toml", "--output-dir", "run")
    run.until("run/cells/long/events.jsonl", "measure_started")
    left = services(folder)
    assert len(left) == 2
    run.process.kill()
    run.wait()
    assert all(one.is_running() for one in left)
    again = Command(folder, "--resume", "run")
    assert again.wait() == 0, again.err
    assert again.err.count("is gone: stopped") == 2
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in left)
    assert results(folder) == {"short": "done", "long": "done"}


@pytest.mark.slow
def test_services_that_cannot_start_are_one_error_with_the_cause(folder: Path) -> None:
    run = Command(folder, "exp.toml", "--output-dir", "run", "--set", "fleet.args.no-such-flag=1")
    assert run.wait() == 1
    errors = [line for line in run.err.splitlines() if line.startswith("loadcell: error:")]
    assert len(errors) == 1
    assert "bad arguments" in errors[0]
    assert "unknown flag --no-such-flag" in errors[0]
    assert results(folder) == {"short": "not_run", "long": "not_run"}
    assert services(folder) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "SPEC: give the experiment's file, or --resume RUN"),
        (("exp.toml", "--set", "fleet.replica=3"), "did you mean replicas"),
        (("exp.toml", "--only", "nothing"), "--only nothing"),
        (("--resume", "."), "this is no experiment's folder"),
        (("--resume", ".", "--output-dir", "x"), "a run goes on in its own folder"),
        (("exp.toml", "--skip-fleet"), "give their addresses as [target] base_url"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line_before_anything_starts(
    folder: Path, words: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    assert main(["run", *words]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert len(said.splitlines()) == 1
    assert sorted(path.name for path in folder.iterdir() if path.name != "state") == ["exp.toml"]
