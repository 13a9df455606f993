"""`loadcell bench` as a process of its own, that tests interrupt, starve and kill."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from loadcell.recordlog import Log, read_log
from loadcell.records import RequestRecord
from loadcell.testing.replies import Script, chat_stream, models_reply
from loadcell.testing.scripted_server import Received, ScriptedServer

PATIENCE_S = 30


class Bench:
    """One command on its way. `folder` is its run folder."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.out = ""
        self.err = ""

    def workers(self) -> list[psutil.Process]:
        return [child for child in psutil.Process(self.process.pid).children() if "loadcell.load.worker" in " ".join(child.cmdline())]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit code; fails rather than hang."""
        self.out, self.err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode

    def records(self) -> list[RequestRecord]:
        return list(self.log())

    def log(self) -> Log:
        return read_log(self.folder / "records.jsonl")

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return found


@contextmanager
def bench(folder: Path, *urls: str, **options: Any) -> Iterator[Bench]:
    """Start it; keywords are flags (`file_limit`: bytes that a file may have). Killed at the end of the block if it still runs."""
    file_limit: int | None = options.pop("file_limit", None)
    flags = {
        "model": "m",
        "tokenizer": "words",
        "input_len": 8,
        "output_len": 3,
        "output_dir": folder,
        "health_check_interval": 0,
    } | options
    words = [word for url in urls for word in ("--base-url", url)]
    for name, value in flags.items():
        words += [f"--{name.replace('_', '-')}"] if value is True else [f"--{name.replace('_', '-')}", str(value)]
    process = subprocess.Popen(
        [sys.executable, "-m", "loadcell", "bench", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"},
    )
    if file_limit is not None:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (file_limit, file_limit))
    try:
        yield Bench(process, folder)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


class Counting:
    """A reply that tells when so many requests have come. `script` answers them."""

    def __init__(self, script: Script, at: int) -> None:
        self._script, self._at = script, at
        self._count = 0
        self._lock = threading.Lock()
        self.reached = threading.Event()

    def __call__(self, request: Received) -> Script:
        if request.path.endswith("/models"):
            return [(0.0, models_reply("m"))]
        if request.method != "POST":
            return [(0.0, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")]
        with self._lock:
            self._count += 1
            if self._count == self._at:
                self.reached.set()
        return self._script

    def wait(self) -> None:
        assert self.reached.wait(PATIENCE_S), "the load never came so far"


@contextmanager
def counting(at: int, script: Script | None = None) -> Iterator[tuple[ScriptedServer, Counting]]:
    reply = Counting(script if script is not None else chat_stream("a", "b", "c", first_ms=5, every_ms=2), at)
    with ScriptedServer(reply) as server:
        yield server, reply


def until(condition: Callable[[], Any]) -> None:
    """Look until it holds; yields the processor in between."""
    give_up = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < give_up, "it never came"
        pause.wait(0.01)
