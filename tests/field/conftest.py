"""Whole runs against byte scripts. One run plays a table of scripts, one request for each, so that many answers cost the start of one run."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
from msgspec import Struct

import loadcell
from loadcell.api import BenchResult
from loadcell.metrics.summary import Figures
from loadcell.records import Attempt, RequestRecord
from loadcell.testing.replies import Script, error_reply
from loadcell.testing.scripted_server import Received, Reply, ScriptedServer

Answering = Script | Callable[[Received], Script]
Scripts = Mapping[str, Answering | Sequence[Answering]]
NOT_FOUND: Script = [(0.0, error_reply(404, "Not Found", "NotFoundError"))]


class Played(Struct, frozen=True):
    """A run over; `records` by the name of the script that was played to it."""

    result: BenchResult
    records: dict[str, RequestRecord]
    servers: list[ScriptedServer]

    @property
    def whole(self) -> Figures:
        return self.result.summary.whole

    @property
    def report(self) -> str:
        return self.result.report.read_text()

    def last(self, name: str) -> Attempt:
        return self.records[name].attempts[-1]

    def asked(self) -> list[Received]:
        """Generation requests that arrived at any server, in order."""
        posts = [request for server in self.servers for request in server.requests if request.method == "POST"]
        return sorted(posts, key=lambda request: request.arrived_ns)

    def ms(self, name: str, stamp: str) -> float:
        """A stamp of the last attempt, in ms after its `sent`."""
        attempt = self.last(name)
        assert attempt.sent_ns is not None
        return float((getattr(attempt, stamp) - attempt.sent_ns) / 1e6)


class Play(Protocol):
    def __call__(self, scripts: Scripts, *, servers: int = 1, times: int = 1, output_len: int = 8, **flags: Any) -> Played: ...


def name_in(request: Received) -> str:
    """The prompt of a request: the name of the script that it wants."""
    body = json.loads(request.body)
    prompt = str(body["messages"][-1]["content"] if "messages" in body else body["prompt"])
    return re.sub(r"^\(warm-up \S+\) ", "", prompt)


def replies(scripts: Scripts) -> Reply:
    """By prompt; a sequence of scripts is played one an attempt, its last one from then on."""
    seen: Counter[str] = Counter()

    def reply(request: Received) -> Script:
        if request.method != "POST" or not request.path.endswith("completions"):
            return NOT_FOUND
        name = name_in(request)
        wanted: Any = scripts[name]
        if not callable(wanted) and wanted and not isinstance(wanted[0], tuple):
            seen[name] += 1
            wanted = wanted[min(seen[name], len(wanted)) - 1]
        return wanted(request) if callable(wanted) else wanted  # type: ignore[no-any-return]

    return reply


def write_prompts(path: Path, names: Sequence[str], output_len: int = 8) -> Path:
    path.write_text("".join(json.dumps({"prompt": name, "output_len": output_len}) + "\n" for name in names))
    return path


@pytest.fixture(scope="session")
def play(tmp_path_factory: pytest.TempPathFactory) -> Play:
    """Play each script to one request (`times`: to so many), all at once unless `concurrency` says otherwise."""

    def run(scripts: Scripts, *, servers: int = 1, times: int = 1, output_len: int = 8, **flags: Any) -> Played:
        folder = tmp_path_factory.mktemp("played")
        names = [name for name in scripts for _ in range(times)]
        reply = replies(scripts)
        started = [ScriptedServer(reply) for _ in range(servers)]
        asked: dict[str, Any] = {
            "base_url": [server.base_url for server in started],
            "model": "m",
            "dataset_name": "custom",
            "dataset_path": str(write_prompts(folder / "prompts.jsonl", names, output_len)),
            "tokenizer": "words",
            "num_prompts": len(names),
            "concurrency": len(names),
            "health_check_interval": 0,
            "save_text": True,
            "first_byte_timeout": 10,
            "idle_timeout": 10,
            "output_dir": str(folder / "run"),
        }
        try:
            result = loadcell.bench(**asked | flags)
        finally:
            for server in started:
                server.close()
        return Played(result, {names[record.index]: record for record in result.records}, started)

    return run
