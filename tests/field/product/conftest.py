"""The whole product against servers of a test's making: `bench` from Python, `command` as a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import loadcell
from loadcell.api import BenchResult
from loadcell.testing.replies import Script
from loadcell.testing.scripted_server import Reply, ScriptedServer, by_path

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key and no proxy of the machine that the tests run on."""
    for name in ("OPENAI_API_KEY", *_PROXIES, *map(str.upper, _PROXIES)):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def serve() -> Iterator[Callable[..., ScriptedServer]]:
    """`serve(script_or_reply)`: a server of chat completions; `others` are further paths (everything else is a 404)."""
    servers: list[ScriptedServer] = []

    def start(answer: Script | Reply, others: dict[str, Script | Reply] | None = None, **options: Any) -> ScriptedServer:
        server = ScriptedServer(by_path({"/v1/chat/completions": answer, **(others or {})}), **options)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., BenchResult]:
    """`bench(server, …, **flags)`: one run, in a folder of its own. Short prompts and their lengths by words unless flags say otherwise."""
    made = 0

    def run(*targets: ScriptedServer | str, **flags: Any) -> BenchResult:
        nonlocal made
        made += 1
        urls = [target if isinstance(target, str) else target.base_url for target in targets]
        usual: dict[str, Any] = {"model": "m", "tokenizer": "words", "output_dir": str(tmp_path / f"run-{made}")}
        if urls:
            usual["base_url"] = urls
        if flags.get("dataset_name", "random") == "random":
            usual |= {"input_len": 8, "output_len": 2}
        return loadcell.bench(**{**usual, **flags})

    return run


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """`command("bench", …)`: the command line in `tmp_path`, to its end."""

    def run(*words: str, env: dict[str, str] | None = None, **options: Any) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "loadcell", *words],
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **options,
        )

    return run


@pytest.fixture
def strict_json() -> Callable[[str | bytes], Any]:
    """A parser that refuses NaN and Infinity, as every JSON parser but Python's does."""

    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return lambda text: json.loads(text, parse_constant=no_constant)
