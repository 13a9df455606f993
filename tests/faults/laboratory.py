"""One `loadcell run` with a state folder of its own, in which something goes wrong; and what must hold afterwards, whatever it was.

Its processes are told by that state folder in their environment, which services inherit: nothing else on the machine is looked at.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import psutil

from loadcell.recordlog import read_log
from loadcell.report.experiment import CellResult, ExperimentResults, results_schema

PATIENCE_S = 90
FLEET = """
name = "faults"
[fleet]
engine = "simulated"
model = "m"
replicas = 2
stop-timeout = "5s"
start-timeout = "60s"
[fleet.args]
ttft-ms = 5
itl-ms = 2
"""
BENCH = """
[bench]
num-prompts = 10
input-len = 8
output-len = 16
tokenizer = "words"
health-check-interval = 0
request-max-retries = 0
"""
LONG = "concurrency = 4\noutput-len = 500\nnum-prompts = 24\n"
"""About six seconds."""
CELLS = (
    f'[[scenario]]\nname = "before"\nconcurrency = 2\n[[scenario]]\nname = "long"\n{LONG}[[scenario]]\nname = "after"\nconcurrency = 2\n'
)


_started: list["Experiment"] = []


def until(condition: Callable[[], object], what: str = "it", patience_s: float = PATIENCE_S) -> None:
    give_up = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < give_up, f"{what} never came"
        time.sleep(0.02)


class Experiment:
    """`loadcell run` in `folder`, whose results go to `folder`/run unless `words` say otherwise. `verb`: another of its commands."""

    def __init__(
        self, folder: Path, *words: str, env: dict[str, str] | None = None, before: Callable[[], None] | None = None, verb: str = "run"
    ) -> None:
        self.folder = folder
        self.run = folder / "run"
        given = words or ("exp.toml", "--output-dir", "run")
        _started.append(self)
        self._out, self._err = (folder / f"{len(_started)}.{name}" for name in ("out", "err"))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "loadcell", verb, *given],
                cwd=folder,
                env={**os.environ, "XDG_STATE_HOME": str(folder / "state"), **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                preexec_fn=before,  # noqa: PLW1509 - no thread of ours holds a lock here
            )

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        return self.process.wait(timeout=patience_s)

    def until(self, condition: Callable[[], object], what: str = "it") -> None:
        def come() -> object:
            found = condition()
            assert found or self.process.poll() is None, f"{what} never came: {self.process.returncode}\n{self.err}"
            return found

        until(come, what)

    def until_loading(self, cell: str = "long", count: int = 1) -> None:
        """Until requests of that cell have ended."""
        log = self.run / "cells" / cell / "events.jsonl"
        self.until(lambda: log.exists() and b"measure_started" in log.read_bytes(), f"the load of {cell}")
        records = self.run / "cells" / cell

        def ended() -> bool:
            return sum(path.read_bytes().count(b"\n") for path in records.glob("records*.jsonl")) > count

        self.until(ended, f"requests of {cell}")

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def services(self) -> dict[str, int]:
        """Name -> pid of the main process, from the records."""
        found = {}
        for path in (self.folder / "state").rglob("services/*/*.json"):
            entry = json.loads(path.read_text())
            if entry["group"]:
                found[entry["service"]] = entry["group"]["pid"]
        return found

    def results(self) -> ExperimentResults:
        body = (self.run / "results.json").read_bytes()
        jsonschema.Draft202012Validator(results_schema()).validate(json.loads(body))
        return msgspec.json.decode(body, type=ExperimentResults)

    def cell(self, name: str) -> CellResult:
        return next(cell for cell in self.results().cells if cell.name == name)

    def well(self) -> bool:
        """It ended with 0, or would have, were this machine not too busy to measure on: a client that is late is no fault of what is tested."""
        code = self.wait()
        late = [reason for cell in self.results().cells for reason in cell.reasons if reason.rule == "client_lag"]
        others = [one for cell in self.results().cells for one in cell.reasons if one.severity == "invalid" and one.rule != "client_lag"]
        return code == 0 or bool(late and not others and code == 1)

    def states(self) -> dict[str, str]:
        return {cell.name: cell.state for cell in self.results().cells}

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run / "fleet_events.jsonl").read_text().splitlines()]


def left(folder: Path) -> list[str]:
    """Processes of the folder's experiments that live."""
    mark = f"XDG_STATE_HOME={folder / 'state'}"
    found = []
    for process in psutil.process_iter(["pid", "status"]):
        try:
            environment = Path(f"/proc/{process.pid}/environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if mark in environment and process.status() != psutil.STATUS_ZOMBIE:
            found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
    return found


def assert_clean(folder: Path) -> None:
    """Nothing of it runs any more, and nothing is recorded as if it did."""
    until(lambda: not left(folder), f"the end of {left(folder)}", 10)
    assert list((folder / "state").rglob("services/*/*.json")) == []


def assert_readable(run: Path) -> None:
    """Whatever was written can be read by anybody, and says the same again."""
    for path in run.glob("cells/*/records.jsonl"):
        for _ in read_log(path):
            pass
    done = subprocess.run([sys.executable, "-m", "loadcell", "report", str(run)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def assert_over(experiment: Experiment, states: dict[str, str] | None = None) -> None:
    assert "Traceback" not in experiment.err, experiment.err
    assert_clean(experiment.folder)
    if states is not None:
        assert experiment.states() == states
    assert_readable(experiment.run)


def kill_all(folder: Path) -> None:
    """For a test that failed: whatever it started, by its state folder."""
    for experiment in _started:
        if experiment.process.poll() is None:
            experiment.process.kill()
            experiment.process.wait()
    for line in left(folder):
        try:
            os.kill(int(line.split()[0]), signal.SIGKILL)
        except ProcessLookupError:
            continue


def write(folder: Path, *parts: str) -> Path:
    (folder / "exp.toml").write_text("".join(parts))
    return folder


def children(pid: int) -> Sequence[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def own_address() -> str:
    """One of this machine that is not the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
        towards.connect(("192.0.2.1", 9))
        return str(towards.getsockname()[0])
