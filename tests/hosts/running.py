"""`loadcell` as a user runs it, against the three machines."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadcell.report.experiment import CellResult, ExperimentResults
from loadcell.sim.accesslog import AccessLine, read_access_log

from .namespaces import Machine

PATIENCE_S = 90.0
BENCH = """
[bench]
tokenizer = "words"
input-len = 16
output-len = 16
request-max-retries = 1
health-check-interval = 1
"""


def until(condition: Callable[[], Any], what: str = "it", patience_s: float = PATIENCE_S) -> Any:
    give_up = time.monotonic() + patience_s
    pause = threading.Event()
    while not (found := condition()):
        assert time.monotonic() < give_up, f"{what} never came"
        pause.wait(0.05)
    return found


class Experiment:
    """`folder`: the run's. `log_folder`: for access logs of engines, seen from every machine."""

    def __init__(self, tmp_path: Path, machines: Sequence[Machine]) -> None:
        self.machines = machines
        self.folder = tmp_path / "run"
        self.log_folder = tmp_path / "access"
        self.log_folder.mkdir()
        self._file = tmp_path / "experiment.toml"
        self._environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
        self._running: list[subprocess.Popen[str]] = []
        self.out = self.err = ""

    def specify(self, fleet: str, scenarios: str, *, args: str = "ttft-ms = 5\nitl-ms = 2", bench: str = BENCH, top: str = "") -> None:
        """`fleet`: lines of [fleet]; the machines are added, and an access log."""
        hosts = "\n".join(machine.toml() for machine in self.machines)
        self._file.write_text(
            f"name = 'hosts'\n{top}\n[fleet]\nengine = 'simulated'\nmodel = 'm'\nport = 'auto'\nstart-timeout = '100s'\nstop-timeout = '5s'\n{fleet}\n"
            f"[fleet.args]\n{args}\naccess-log = '{self.log_folder}/{{name}}.jsonl'\n{hosts}\n{bench}\n{scenarios}\n"
        )

    def begin(self, *words: str) -> "subprocess.Popen[str]":
        """`loadcell WORDS SPEC`, on its way."""
        command = [sys.executable, "-m", "loadcell", *words]
        self._running.append(
            subprocess.Popen(
                command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
            )
        )
        return self._running[-1]

    def begin_run(self, *words: str) -> "subprocess.Popen[str]":
        return self.begin("run", str(self._file), "--output-dir", str(self.folder), *words)

    def finish(self, process: "subprocess.Popen[str]") -> int:
        self.out, self.err = process.communicate(timeout=PATIENCE_S)
        return process.returncode

    def run(self, *words: str) -> int:
        return self.finish(self.begin_run(*words))

    def fleet(self, action: str, *words: str) -> int:
        return self.finish(self.begin("fleet", action, str(self._file), *words))

    def again_in(self, name: str) -> None:
        """The next run goes into another folder."""
        self.folder = self.folder.parent / name

    def end(self) -> None:
        """Commands that a failed test left: ended as a user would, so that they stop their services."""
        for machine in self.machines:
            machine.join()
        for process in self._running:
            if process.poll() is None:
                process.terminate()
                try:
                    process.communicate(timeout=30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
        if self.records():
            for action in ("up", "down"):  # a start stops orphans
                self.fleet(action)

    def results(self) -> ExperimentResults:
        return msgspec.json.decode((self.folder / "results.json").read_bytes(), type=ExperimentResults)

    def cell(self, name: str) -> CellResult:
        return next(cell for cell in self.results().cells if cell.name == name)

    def events(self) -> list[dict[str, Any]]:
        """So far, in the order in which they happened."""
        path = self.folder / "fleet_events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def seen(self, event: str, service: str | None = None) -> list[dict[str, Any]]:
        return [one for one in self.events() if one["event"] == event and service in (None, one["service"])]

    def loading(self, requests: int = 30) -> bool:
        """Whether the engines have answered so many requests in all: they write that down at once."""
        return sum(path.read_bytes().count(b"/completions") for path in self.log_folder.glob("*.jsonl")) >= requests

    def wrong(self, cell: str) -> set[str]:
        """Why the cell is not valid; what a test machine does that is busy with other things set aside."""
        return {reason.rule for reason in self.cell(cell).reasons} - {"client_lag", "not_stationary"}

    def access(self, service: str) -> list[AccessLine]:
        return read_access_log(self.log_folder / f"{service}.jsonl")

    def records(self) -> list[Path]:
        """Of services, in the registry."""
        return sorted((Path(self._environment["XDG_STATE_HOME"]) / "loadcell" / "fleet" / "services").glob("*/*.json"))
