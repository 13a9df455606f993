"""Studies over simulated engines on this machine, for tests of trials."""

import json
from pathlib import Path
from typing import Any

from loadcell.fleet.registry import Registry
from loadcell.fleet.spec import FleetSpec
from loadcell.tune.parameters import Parameter, Place
from loadcell.tune.spec import StudySpec, StudyTable, TrialTable
from loadcell.tune.trial import Trial, TrialWatcher

QUICK = {"ttft-ms": 200, "itl-ms": 4}
"""Slow enough that a busy machine is no late client: its lag is judged against TTFT."""
BENCH = {"num_prompts": 60, "input_len": 8, "output_len": 10, "concurrency": 4, "tokenizer": "words", "health_check_interval": 0}
SEQS = Parameter("max_num_seqs", "int", Place(flag="--max-num-seqs"), low=1, high=64, log=True, default=16)


def study(args: dict[str, Any] | None = None, *, fleet: dict[str, Any] | None = None, **how: Any) -> StudySpec:
    services = FleetSpec(
        **({"engine": "simulated", "port": "auto", "stop_timeout": 5, "start_timeout": 60, "args": QUICK | (args or {})} | (fleet or {}))
    )
    bench = BENCH | how.pop("bench", {})
    given = {"study": StudyTable(name="t"), "parameter": (SEQS,), "trial": TrialTable(hang="3s")} | how
    return StudySpec(fleet=services, bench={key: value for key, value in bench.items() if value is not None}, **given)


class Told(TrialWatcher):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.notes: list[str] = []

    def phase(self, number: int, phase: str) -> None:
        self.phases.append(phase)

    def note(self, text: str) -> None:
        self.notes.append(text)


def trial(tmp_path: Path, spec: StudySpec, watcher: TrialWatcher | None = None) -> Trial:
    return Trial(spec, tmp_path / "study", Registry(tmp_path / "state"), {}, watcher=watcher)


def generations(log: Path) -> int:
    """Generation requests in a simulated engine's access log."""
    return sum("completions" in json.loads(line)["path"] for line in log.read_text().splitlines())
