"""The study of a public report, re-enacted: its two files, `vllm` and `evalscope` played by stand-ins that come first on PATH.

There the tuner's health check sent a request for tokens every second of the measurement, and one that was slow ended the trial.
"""

import json
import socket
import sys

import pytest
from tests.tune.optix import configs

from loadcell.fleet.registry import Registry
from loadcell.tune.optix.read import read_optix
from loadcell.tune.spec import space_of
from loadcell.tune.trial import Trial

VLLM = """#!{python}
import os, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("0.22.1"), sys.exit()
assert words[0] == "serve", words
ours = ("--host", "--port", "--served-model-name", "--max-num-seqs", "--max-num-batched-tokens", "--max-model-len", "--gpu-memory-utilization")
kept = [word for at, word in enumerate(words[2:]) if word in ours or words[2:][at - 1] in ours and at]
os.execv({python!r}, [{python!r}, "-m", "loadcell", "simulate", "--model", words[1], "--access-log", {log!r}, *kept])
"""

EVALSCOPE = """#!{python}
import json, pathlib, sys, time, urllib.request
from concurrent.futures import ThreadPoolExecutor

assert sys.argv[1] == "perf", sys.argv
given = dict(zip(sys.argv[2::2], sys.argv[3::2]))

def ask(number):
    body = json.dumps({{"model": given["--model"], "prompt": f"question {{number}} of the set", "max_tokens": 32}}).encode()
    request = urllib.request.Request(given["--url"], body, {{"Content-Type": "application/json"}})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["usage"]["completion_tokens"]

total, began = int(given["--number"]), time.monotonic()
with ThreadPoolExecutor(int(given["--parallel"])) as pool:
    tokens = sum(pool.map(ask, range(total)))
took = time.monotonic() - began
folder = pathlib.Path(given["--outputs-dir"], "20260904_073000", given["--model"])
folder.mkdir(parents=True)
(folder / "benchmark_summary.json").write_text(json.dumps({{
    "Output token throughput (tok/s)": tokens / took, "Request throughput (req/s)": total / took, "Average time to first token (s)": 0.02,
    "Average time per output token (s)": 0.004, "Total requests": total, "Succeed requests": total,
}}))
"""


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


@pytest.mark.slow
def test_the_load_is_all_that_the_service_is_asked(tmp_path, monkeypatch):
    log, bin_folder, model = tmp_path / "access.jsonl", tmp_path / "bin", tmp_path / "model"
    bin_folder.mkdir(), model.mkdir()
    for name, text in (("vllm", VLLM), ("evalscope", EVALSCOPE)):
        (bin_folder / name).write_text(text.format(python=sys.executable, log=str(log)))
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_folder), prepend=":")
    (tmp_path / "cluster.toml").write_text(configs.CLUSTER)
    text = (
        configs.REPORTED.replace("9975", free_port())
        .replace("/data/models/Qwen3-0.6B", str(model))
        .replace("/tmp/evalscope_out", str(tmp_path / "out"))
    )
    (tmp_path / "config.toml").write_text(text)
    spec = read_optix(
        tmp_path / "config.toml", "multihost_infer", "evalscopeperf", environment={"CLUSTER_CONFIG_PATH": str(tmp_path / "cluster.toml")}
    )
    trial = Trial(spec, tmp_path, Registry(tmp_path / "state"), {})
    trial.check()
    result = trial.measure(space_of(spec).default(), 0, "default")
    assert result.outcome == "ok", result
    assert result.objective is not None
    assert result.objective > 0
    asked = [entry for line in log.read_text().splitlines() if (entry := json.loads(line))["method"] == "POST"]
    load = [entry for entry in asked if entry["prompt_head"].startswith("question")]
    assert len(load) == 400
    first, last = min(one["arrival_ns"] for one in load), max(one["end_ns"] for one in load)
    assert [one["path"] for one in asked if one not in load and one["end_ns"] > first and one["arrival_ns"] < last] == []
    assert len(asked) - len(load) == 1  # the readiness check, before the load
