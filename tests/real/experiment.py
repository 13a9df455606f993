"""`loadcell run SPEC` as a user has it, over vLLM servers that it starts and stops: a specification, a process, a folder."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import psutil

from loadcell.report.experiment import CellResult, ExperimentResults

from .engine import DTYPE, ENVIRONMENT, MAX_MODEL_LEN, MODEL

LIMIT_S = 280

# Asked to end when the tests are killed (PR_SET_PDEATHSIG: SIGTERM): it stops its servers then.
_LAUNCH = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
os.execv(sys.executable, [sys.executable, "-m", "loadcell", *sys.argv[1:]])
"""


class Place(NamedTuple):
    """Where experiments stand, and what they start."""

    vllm: Path
    model: Path
    folder: Path

    def experiment(self, name: str, scenarios: str, replicas: int, *, model: Path | None = None, top: str = "") -> "Experiment":
        """`top`: more lines of [fleet]."""
        folder = self.folder / name
        folder.mkdir()
        lines = [f'name = "{name}"', self.fleet(replicas, model=model, top=top), scenarios]
        (folder / "experiment.toml").write_text("\n".join(lines))
        return Experiment(folder)

    def fleet(self, replicas: int = 1, *, model: Path | None = None, top: str = "", args: str = "") -> str:
        """`[fleet]`, of vLLM. `top`, `args`: more lines of it and of its arguments."""
        fleet = {"executable": self.vllm, "model": model or self.model, "served-model-name": MODEL, "start-timeout": "10m"}
        lines = [
            f'[fleet]\nengine = "vllm"\ncpus = "apart"\nreplicas = {replicas}',
            *(f'{key} = "{value}"' for key, value in fleet.items()),
            top,
            f'[fleet.args]\nload-format = "dummy"\nmax-model-len = {MAX_MODEL_LEN}\nenforce-eager = true\ndtype = "{DTYPE}"',
            args,
            "[fleet.env]",
            *(f'{key} = "{value}"' for key, value in ENVIRONMENT.items()),
        ]
        return "\n".join(lines)


class Experiment:
    """One specification. Its run's folder is `run`; its registry of services is its own."""

    file = "experiment.toml"
    limit_s = LIMIT_S

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.exit_code: int | None = None
        self.out = self.err = ""
        self._state = folder / "state"
        self._process: subprocess.Popen[str] | None = None

    def __repr__(self) -> str:
        return f"exit code {self.exit_code}, in {self.folder}\n{self.out}\n{self.err}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """As a user would end it, so that it stops its servers."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
        for process in self.left():
            process.kill()

    def begin(self, verb: str, *words: str, file: str | None = None) -> None:
        """`loadcell VERB FILE`, on its way; its own file where none is given."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, verb, file or self.file, *words],
            cwd=self.folder,
            env=os.environ | {"XDG_STATE_HOME": str(self._state)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self) -> None:
        assert self._process is not None
        self.out, self.err = self._process.communicate(timeout=self.limit_s)
        self.exit_code = self._process.returncode

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """What it gives as soon as it gives something, while the command goes on."""
        assert self._process is not None
        give_up = time.monotonic() + self.limit_s
        while not (found := condition()):
            if self._process.poll() is not None:
                self.finish()
                raise AssertionError(f"it ended before {what}: {self}")
            assert time.monotonic() < give_up, f"{what} did not come: {self.tails()}"
            time.sleep(0.05)
        return found

    def answered(self, cell: str) -> int:
        """Records of this cell so far: lines of the parts that the workers append to, without their headers."""
        parts = [part.read_bytes() for part in (self.run / "cells" / cell).glob("records.part-*.jsonl")]
        return sum(max(part.count(b"\n") - 1, 0) for part in parts)

    def main_process(self, service: str) -> psutil.Process:
        """Of a server that runs, as it was recorded."""
        entry = next(entry for entry in self._entries() if entry["service"] == service)
        return psutil.Process(entry["group"]["pid"])

    def left(self) -> list[psutil.Process]:
        """Whatever lives of the servers: all have inherited the variable of the state folder, as the command itself has."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and self._is_ours(process):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def _is_ours(self, process: psutil.Process) -> bool:
        return process.environ().get("XDG_STATE_HOME") == str(self._state) and process.pid != getattr(self._process, "pid", None)

    def recorded(self) -> list[str]:
        """Services in the registry."""
        return [entry["service"] for entry in self._entries()]

    def _entries(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self._state.rglob("services/*/*.json"))]

    @property
    def results(self) -> ExperimentResults:
        return msgspec.json.decode((self.run / "results.json").read_bytes(), type=ExperimentResults)

    def cell(self, name: str) -> CellResult:
        return next(cell for cell in self.results.cells if cell.name == name)

    def faults(self, cell: str) -> set[str]:
        """Rules of its verdict that were broken; what says that this machine was busy, or that few requests are few, set aside."""
        return {reason.rule for reason in self.cell(cell).reasons} - {"client_lag", "not_stationary"}

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run / "fleet_events.jsonl").read_text().splitlines()]

    def log(self, service: str) -> str:
        return (self.run / "logs" / f"{service}.log").read_text(errors="replace")

    def tails(self) -> str:
        logs = sorted((self.run / "logs").glob("*.log"))
        return "\n".join(f"{log}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-20:]) for log in logs)


def kill(process: psutil.Process) -> None:
    os.kill(process.pid, signal.SIGKILL)
