"""`vllm bench serve` and `evalscope perf` themselves as what loads the real server: two trials each, their figures as they wrote them."""

import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .experiment import Place
from .studies import READY_REQUESTS, TunedStudy, study

pytestmark = [pytest.mark.real, pytest.mark.timeout(300, func_only=True)]

REQUESTS, WARMUP, AT_ONCE, OUTPUT = 24, 6, 6, 24
LADDER = (1, 8)
PROMPTS = 40

VLLM_BENCH = f"""
dataset-name = "random"
random-input-len = 64
random-output-len = {OUTPUT}
num-prompts = {REQUESTS}
num-warmups = {WARMUP}
max-concurrency = {AT_ONCE}
ignore-eos = true
"""
EVALSCOPE = f"""
dataset = "line_by_line"
dataset-path = "DATASET"
tokenizer-path = "MODEL"
number = {REQUESTS}
warmup-num = {WARMUP}
parallel = {AT_ONCE}
max-tokens = {OUTPUT}
min-tokens = {OUTPUT}
"""
STUDY = """
[study]
name = "KIND"
budget = { trials = TRIALS }
confirm = { max-rounds = 0 }

[benchmark]
kind = "KIND"
executable = "PROGRAM"
timeout = "5m"
[benchmark.env]
HF_HUB_OFFLINE = "1"
[benchmark.args]
ARGS

[[slo]]
metric = "success_rate"
limit = "99%"
[[slo]]
metric = "ttft"
statistic = "p95"
limit = "60s"

[objective]
metric = "throughput"

[[parameter]]
name = "max_num_seqs"
kind = "int"
flag = "--max-num-seqs"
ladder = LADDER
"""


class Tool(NamedTuple):
    """`asks`: requests besides warm-ups and those that count. `figures`: what its own files say, by our names, in s, tokens/s and requests/s."""

    kind: str
    args: str
    says: str
    asks: int
    figures: Any


def _vllm_figures(folder: Path) -> dict[str, float]:
    (path,) = folder.rglob("*.json")
    told = json.loads(path.read_text())
    assert (told["completed"], told["total_output_tokens"]) == (REQUESTS, REQUESTS * OUTPUT)
    names = {"throughput": "output_throughput", "request_rate": "request_throughput"}
    latencies = {"ttft_mean": "mean_ttft_ms", "ttft_p95": "p95_ttft_ms", "tpot_mean": "mean_tpot_ms", "e2e_p99": "p99_e2el_ms"}
    return {ours: told[its] for ours, its in names.items()} | {ours: told[its] / 1000 for ours, its in latencies.items()}


def _evalscope_figures(folder: Path) -> dict[str, float]:
    (summary,), (rows,) = (
        [json.loads(path.read_text()) for path in folder.rglob(f"benchmark_{name}.json")] for name in ("summary", "percentile")
    )
    assert (summary["Success Requests"], summary["Avg Output Tokens"]) == (REQUESTS, OUTPUT)
    p95 = next(row for row in rows if row["Percentiles"] == "95%")
    return {
        "throughput": summary["Output Throughput (tok/s)"],
        "request_rate": summary["Req Throughput (req/s)"],
        "ttft_mean": summary["Avg TTFT (ms)"] / 1000,
        "tpot_mean": summary["Avg TPOT (ms)"] / 1000,
        "e2e_mean": summary["Avg Latency (s)"],
        "ttft_p95": p95["TTFT (ms)"] / 1000,
        "e2e_p95": p95["Latency (s)"],
    }


TOOLS = (
    Tool("vllm_benchmark", VLLM_BENCH, "Serving Benchmark Result", 0, _vllm_figures),
    Tool("evalscopeperf", EVALSCOPE, "Per-Request Metrics", 1, _evalscope_figures),
)


@pytest.fixture(scope="module")
def programs(place: Place, evalscope: Path) -> dict[str, Path]:
    return {"vllm_benchmark": place.vllm, "evalscopeperf": evalscope}


def written(tool: Tool, place: Place, program: Path, *, trials: int = len(LADDER), **changes: str) -> str:
    """`changes`: text -> another one."""
    dataset = place.folder / "prompts.txt"
    draw = random.Random(0)
    dataset.write_text("".join(" ".join("".join(draw.choices("abcdefgh", k=4)) for _ in range(20)) + "\n" for _ in range(PROMPTS)))
    words = {"KIND": tool.kind, "PROGRAM": str(program), "TRIALS": str(trials), "ARGS": tool.args} | changes
    words |= {"LADDER": str(list(LADDER)), "DATASET": str(dataset), "MODEL": str(place.model)}
    text = STUDY
    for word, value in words.items():
        text = text.replace(word, value)
    return text


@pytest.mark.parametrize("tool", TOOLS, ids=[one.kind for one in TOOLS])
def test_its_figures_are_the_trials_and_nobody_else_asks(tool: Tool, place: Place, programs: Mapping[str, Path]) -> None:
    with study(place, tool.kind, written(tool, place, programs[tool.kind]) + place.fleet(args="max-num-seqs = 1")) as begun:
        begun.tune()
    assert begun.exit_code == 0, begun
    found = begun.found
    assert (found.state, found.announced, found.best) == ("complete", "not_confirmed", found.default)
    assert [(one.configuration, one.outcome) for one in found.trials] == [({"max_num_seqs": value}, "ok") for value in LADDER]
    for one in begun.recorded_results():
        load = begun.place_of(one) / "load"
        told = tool.figures(load / "results")
        assert {name: one.figures[name] for name in told} == pytest.approx(told)
        assert one.objective == pytest.approx(told["throughput"])
        assert (one.figures["success_rate"], one.n["success_rate"], one.load) == (1, REQUESTS, {"concurrency": AT_ONCE})
        counted = tool.asks + WARMUP + REQUESTS
        assert one.extra["purity"] == {"counted": counted, "sent": REQUESTS, "foreign": 0}
        assert begun.generations(one) == {"200": READY_REQUESTS + counted}
        assert tool.says in (load / "benchmark.log").read_text()
        assert one.verdict == "valid"
    _checks(begun)


def _checks(begun: TunedStudy) -> None:
    begun.begin("check", file="run/best.toml")
    begun.finish()
    assert begun.exit_code == 0, begun


@pytest.mark.parametrize(
    ("tool", "changes", "said"),
    [
        (
            TOOLS[0],
            {"ignore-eos = true": 'endpoint = "/v1/elsewhere"\ntokenizer = "MODEL"'},
            "ValueError: OpenAI Chat Completions API URL must end with one of",
        ),
        (TOOLS[1], {"line_by_line": "no_such_data"}, "ValueError: Dataset plugin 'no_such_data' is not registered."),
    ],
    ids=[one.kind for one in TOOLS],
)
def test_a_run_of_it_that_fails_is_a_failed_trial_with_its_own_words(
    tool: Tool, changes: dict[str, str], said: str, place: Place, programs: Mapping[str, Path]
) -> None:
    """Against a simulated server, which starts at once."""
    text = written(tool, place, programs[tool.kind], trials=1, **changes)
    with study(place, f"{tool.kind}-fails", text + '[fleet]\nengine = "simulated"\nmodel = "tiny"\n') as begun:
        begun.tune()
    assert begun.exit_code == 1, begun
    (one,) = begun.recorded_results()
    assert (one.outcome, one.objective) == ("bench_failed", None)
    assert one.exit_code == 1
    assert (one.evidence or "").startswith(f"it ended with exit code 1: {said}")
    assert Counter(trial.outcome for trial in begun.found.trials) == {"bench_failed": 1}
