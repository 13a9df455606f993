"""The same load by `vllm bench serve` itself: our export has its keys, of its types, and figures of its size."""

import json
import os
import subprocess
from typing import Any

import pytest

from .engine import MODEL, Engine
from .product import bench

pytestmark = [pytest.mark.real, pytest.mark.timeout(300, func_only=True)]

REQUESTS, OUTPUT = 16, 32
# Words that both command lines take.
LOAD = ("--dataset-name", "random", "--random-input-len", "128", "--random-output-len", str(OUTPUT), "--num-prompts", str(REQUESTS))
RESULT = ("--backend", "openai", "--max-concurrency", "2", "--ignore-eos", "--save-result", "--save-detailed")
PERCENTILES = ("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90")


@pytest.fixture(scope="module")
def theirs(engines: list[Engine], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("theirs")
    vllm, model = os.environ["LOADCELL_VLLM"], os.environ["LOADCELL_VLLM_MODEL"]
    where = ("--base-url", engines[0].base_url, "--model", MODEL, "--tokenizer", model, "--result-filename", "result.json")
    words = [vllm, "bench", "serve", *where, *LOAD, *RESULT, *PERCENTILES, "--disable-tqdm", "--seed", "77"]
    done = subprocess.run(
        words, cwd=place, env=os.environ | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((place / "result.json").read_text())
    return found


@pytest.fixture(scope="module")
def ours(engines: list[Engine], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("ours")
    run = bench(engines[:1], place, *LOAD, *RESULT, *PERCENTILES, "--result-filename", "result.json", "--save-text", "--seed", "78")
    assert run.faults == [], run
    found: dict[str, Any] = json.loads((place / "result.json").read_text())
    return found


def test_every_key_of_the_tool_is_there_and_no_other(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    assert set(ours) == set(theirs)


def test_values_have_the_types_of_the_tool(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    unmeasured = {key for key, value in ours.items() if value is None and theirs[key] is not None}
    assert unmeasured == {"rtfx"}
    for key in theirs.keys() - unmeasured:
        assert _kind(ours[key]) == _kind(theirs[key]), key


def test_both_saw_the_same_server(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    same = ("completed", "failed", "total_output_tokens", "output_lens", "num_prompts", "max_concurrency", "request_rate", "backend")
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}
    for key in ("median_ttft_ms", "median_tpot_ms", "median_e2el_ms", "request_throughput"):
        assert 1 / 4 < ours[key] / theirs[key] < 4, (key, ours[key], theirs[key])


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return f"list of {_kind(value[0])}" if value else "list"
    return "number" if isinstance(value, int | float) else type(value).__name__
