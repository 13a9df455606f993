"""What is loaded before the first request. A run starts in a fraction of a second; most of these alone would add half of that."""

import subprocess
import sys
from pathlib import Path

import pytest

from loadcell.testing.replies import chat_stream
from loadcell.testing.scripted_server import ScriptedServer

HEAVY = {"typer", "pydantic", "rich", "numpy", "scipy", "tokenizers", "asyncio", "ssl", "http.client", "concurrent.futures", "statistics"}

RUN = f"""
import sys
from loadcell.cli.bench import TABLE
from loadcell.cli.plain import values_of
from loadcell.flags.resolve import scenario_from_flags
from loadcell.api import run_scenario
import loadcell.cli.watch
from loadcell.load.runner import Watcher

class Seeing(Watcher):
    def started(self):
        print("loaded:", *({HEAVY} & set(sys.modules)))

run_scenario(*scenario_from_flags(values_of(sys.argv[1:], TABLE)), Seeing())
"""
WORKER = f"""
import sys
import loadcell.load.worker
print("loaded:", *({HEAVY | {"loadcell.workload", "loadcell.scenario", "tempfile"}} & set(sys.modules)))
"""


def said(code: str, *words: str) -> str:
    return subprocess.run([sys.executable, "-c", code, *words], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@pytest.mark.parametrize("export", [[], ["--output-file", "results.jsonl"]])
def test_control_has_loaded_nothing_heavy_when_the_load_starts(export: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ScriptedServer(chat_stream("a", "b")) as server:
        url = f"http://127.0.0.1:{server.port}"
        assert said(RUN, "--base-url", url, "--model", "m", "--tokenizer", "words", "--num-prompts", "1", *export) == "loaded:"


def test_a_worker_loads_nothing_heavy() -> None:
    assert said(WORKER) == "loaded:"
