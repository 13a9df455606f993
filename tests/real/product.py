"""The product as a user runs it: `loadcell bench …` as a process, and what it left behind."""

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from loadcell.recordlog import LogHeader, read_events, read_header, read_records
from loadcell.records import Attempt, Event, RequestRecord

from .engine import MODEL, Engine

_LIMIT_S = 240


class Bench:
    """`loadcell bench` against `engines`, started at once. Its folder is `place/run`."""

    def __init__(self, engines: Iterable[Engine], place: Path, words: Sequence[str]) -> None:
        self.folder = place / "run"
        urls = [word for engine in engines for word in ("--base-url", engine.base_url)]
        command = [sys.executable, "-m", "loadcell", "bench", *urls, "--model", MODEL, "--output-dir", str(self.folder), *words]
        self._process = subprocess.Popen(
            command, cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def records_so_far(self) -> int:
        """Lines of the parts that the workers append to, without their headers."""
        parts = list(self.folder.glob("records.part-*.jsonl"))
        return sum(part.read_bytes().count(b"\n") - 1 for part in parts if part.stat().st_size)

    def finish(self) -> "Run":
        out, err = self._process.communicate(timeout=_LIMIT_S)
        return Run(self.folder, self._process.returncode, out, err)


class Run:
    """A finished run: its exit code, its words, its files."""

    def __init__(self, folder: Path, exit_code: int, out: str, err: str) -> None:
        self.folder, self.exit_code, self.out, self.err = folder, exit_code, out, err

    def __repr__(self) -> str:
        reasons = (
            [f"{one['rule']}: {one['observed']}" for one in self.summary["reasons"]] if (self.folder / "summary.json").exists() else []
        )
        return f"exit code {self.exit_code}, {reasons}, in {self.folder}\n{self.out}\n{self.err}"

    @cached_property
    def summary(self) -> dict[str, Any]:
        path = self.folder / "summary.json"
        assert path.exists(), f"no summary, exit code {self.exit_code}\n{self.out}\n{self.err}"
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    @cached_property
    def header(self) -> LogHeader:
        return read_header(self.folder / "records.jsonl")

    @cached_property
    def records(self) -> list[RequestRecord]:
        """Of the measured phase."""
        return [record for record in read_records(self.folder / "records.jsonl") if record.phase == "measure"]

    @cached_property
    def events(self) -> list[Event]:
        return list(read_events(self.folder / "events.jsonl"))

    @property
    def finals(self) -> list[Attempt]:
        """The attempts that count, of requests that were sent."""
        return [record.attempts[-1] for record in self.records if record.attempts]

    def endpoint(self, engine: Engine) -> dict[str, Any]:
        return next(one for one in self.summary["endpoints"] if one["name"] == engine.name)

    @property
    def late(self) -> bool:
        """The client was kept from running, and says so: the machine was busy with something else."""
        return "client_lag" in [reason["rule"] for reason in self.summary["reasons"]]

    @property
    def faults(self) -> list[str]:
        """Rules of the verdict that were broken, that one apart."""
        return [reason["rule"] for reason in self.summary["reasons"] if reason["rule"] != "client_lag"]

    @property
    def judged(self) -> tuple[str, int]:
        """The verdict and the exit code."""
        return self.summary["verdict"], self.exit_code


def bench(engines: Iterable[Engine], place: Path, *words: str) -> Run:
    with Bench(engines, place, words) as running:
        return running.finish()
