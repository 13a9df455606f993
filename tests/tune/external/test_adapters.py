"""What external benchmarks are told to do, and what their files say: every version's keys, and what is missing."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadcell.metrics.slo import parse_slo
from loadcell.tune.external import ADAPTERS, offered
from loadcell.tune.external.ais_bench import rendered
from loadcell.tune.external.told import Asked, BenchFailedError, Given, Told, command
from loadcell.tune.spec import BenchmarkTable

VLLM = {
    "num_prompts": 20, "completed": 19, "duration": 4.0, "output_throughput": 500.5, "request_throughput": 4.75,
    "mean_ttft_ms": 120.0, "median_ttft_ms": 110.0, "p99_ttft_ms": 300.0, "mean_tpot_ms": 0.0, "p95_e2el_ms": 900.0,
}  # fmt: skip
OLD = {
    "Output token throughput (tok/s)": 400.0, "Request throughput (req/s)": 4.0, "Total requests": 40, "Succeed requests": 40,
    "Average time to first token (s)": 0.2, "Average time per output token (s)": 0.02, "Average latency (s)": 1.5,
}  # fmt: skip
NEW = {
    "Output Throughput (tok/s)": 400.0, "Req Throughput (req/s)": 4.0, "Total Requests": 40, "Success Requests": 30,
    "TTFT (ms)": 200.0, "TPOT (ms)": 20.0, "Avg Latency (s)": 1.5, "ITL (ms)": -1,
}  # fmt: skip
AIS = {
    "Total Requests": {"total": 8}, "Success Requests": {"total": 8}, "Request Throughput": {"total": "0.0813 req/s"},
    "Output Token Throughput": {"total": "41.622 token/s"},
}  # fmt: skip
AIS_CSV = "Performance Parameters,Stage,Average,Min,Max,Median,P75,P90,P99,N\nTTFT,total,2006.0 ms,2005.1 ms,2007.4 ms,2006.1 ms,2006.2 ms,2006.6 ms,2007.3 ms,8\nE2EL,total,12.3 s,,,,,,,8\n"


def asked(folder: Path, **more: Any) -> Asked:
    return Asked("http://127.0.0.1:9000", "127.0.0.1", 9000, "tiny", "/models/tiny", "chat", folder, **more)


def read(kind: str, folder: Path, files: dict[str, Any], **args: Any) -> Told:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return ADAPTERS[kind].read([folder / name for name in files], Given(args))


def words(kind: str, folder: Path, table: BenchmarkTable | None = None, **more: Any) -> list[str]:
    return list(command(ADAPTERS[kind], table or BenchmarkTable(kind=kind), asked(folder, **more)).argv)


def test_vllm_gets_the_service_and_the_load_and_is_asked_for_the_percentiles_of_the_limits(tmp_path: Path) -> None:
    found = words("vllm_benchmark", tmp_path, load={"concurrency": 16.0, "request_rate": 4.0}, slos=[parse_slo("ttft p90 <= 1s")], seed=3)
    line = " ".join(found)
    assert found[:3] == ["vllm", "bench", "serve"]
    for part in (
        "--base-url http://127.0.0.1:9000",
        "--model /models/tiny",
        "--served-model-name tiny",
        "--backend openai-chat --endpoint /v1/chat/completions",
        "--max-concurrency 16",
        "--request-rate 4.0",
        "--seed 3",
        "--metric-percentiles 50,90,95,99",
        "--percentile-metrics ttft,tpot,itl,e2el",
        f"--result-dir {tmp_path}/results",
    ):
        assert part in line
    assert "--save-result" in found


def test_what_the_study_says_stands(tmp_path: Path) -> None:
    args = ("--host", "{host}", "--port", "{port}", "--max-concurrency", "7", "--backend", "vllm", "--model=m", "--served-model-name", "s")
    table = BenchmarkTable(kind="vllm_benchmark", args=args, executable="/venv/bin/vllm", output_dir="{folder}/out")
    found = words("vllm_benchmark", tmp_path, table, load={"concurrency": 16.0})
    assert found[:9] == ["/venv/bin/vllm", "bench", "serve", "--host", "127.0.0.1", "--port", "9000", "--max-concurrency", "7"]
    assert not {"--base-url", "--endpoint"} & set(found)
    assert found.count("--max-concurrency") == 1
    assert command(ADAPTERS["vllm_benchmark"], table, asked(tmp_path)).results == tmp_path / "out"
    other = BenchmarkTable(kind="vllm_benchmark", executable=("python", "-m", "my.bench"))
    assert words("vllm_benchmark", tmp_path, other)[:3] == ["python", "-m", "my.bench"]


def test_a_folder_that_the_arguments_name_is_where_results_are(tmp_path: Path) -> None:
    table = BenchmarkTable(kind="evalscopeperf", args=("--outputs-dir", str(tmp_path / "o"), "--parallel", "16", "--number", "400"))
    found = command(ADAPTERS["evalscopeperf"], table, asked(tmp_path, load={"concurrency": 4.0}))
    assert found.results == tmp_path / "o"
    assert found.argv.count("--outputs-dir") == 1
    assert " ".join(found.argv).startswith("evalscope perf --outputs-dir")
    assert "--url http://127.0.0.1:9000/v1/chat/completions" in " ".join(found.argv)
    assert "--parallel 4" not in " ".join(found.argv)


def test_vllm_results_are_seconds_and_what_it_did_not_measure_is_null(tmp_path: Path) -> None:
    told = read("vllm_benchmark", tmp_path, {"r.json": VLLM, "note.txt": "x"}, **{"num-warmups": 2})
    assert told.figures["throughput"] == 500.5
    assert told.figures["ttft_mean"] == pytest.approx(0.12)
    assert told.figures["ttft_p50"] == pytest.approx(0.11)
    assert told.figures["ttft_p99"] == pytest.approx(0.3)
    assert told.figures["e2e_p95"] == pytest.approx(0.9)
    assert told.figures["tpot_mean"] is None
    assert told.figures["success_rate"] == pytest.approx(0.95)
    assert (told.requests, told.completed, told.extra) == (20, 19, 3)


@pytest.mark.parametrize("summary", [OLD, NEW])
def test_evalscope_under_the_keys_of_all_its_versions(tmp_path: Path, summary: dict[str, Any]) -> None:
    rows = [{"Percentiles": "50%", "TTFT (s)": 0.1, "Latency (s)": 1.4}, {"Percentiles": "95%", "TTFT (ms)": 150.0, "TPOT (ms)": 25.0}]
    told = read("evalscopeperf", tmp_path, {"a/benchmark_summary.json": summary, "a/benchmark_percentile.json": rows})
    assert told.figures["throughput"] == 400
    assert told.figures["request_rate"] == 4
    assert told.figures["ttft_mean"] == pytest.approx(0.2)
    assert told.figures["tpot_mean"] == pytest.approx(0.02)
    assert told.figures["e2e_mean"] == 1.5
    assert told.figures["ttft_p50"] == pytest.approx(0.1)
    assert told.figures["ttft_p95"] == pytest.approx(0.15)
    assert told.figures["success_rate"] == told.completed / 40


@pytest.mark.parametrize(
    ("args", "besides"),
    [
        ({}, 1),
        ({"warmup-num": 6, "number": 40}, 7),
        ({"warmup-num": 0.1, "number": 40}, 5),
        ({"warmup-num": 0.001, "number": 40}, 2),
        ({"warmup-num": 6, "no-test-connection": True}, 6),
    ],
)
def test_what_evalscope_asks_besides_its_requests(tmp_path: Path, args: dict[str, Any], besides: int) -> None:
    assert read("evalscopeperf", tmp_path, {"benchmark_summary.json": NEW}, **args).extra == besides


def test_evalscope_percentiles_as_a_table_of_columns(tmp_path: Path) -> None:
    table = {"Percentiles": ["50%", "99%"], "TTFT (ms)": [100.0, 400.0], "TPOT (ms)": [10.0, 12.0]}
    told = read("evalscopeperf", tmp_path, {"benchmark_summary.json": NEW, "benchmark_percentile.json": table})
    assert told.figures["ttft_p99"] == pytest.approx(0.4)


def test_ais_bench_s_table_and_rates(tmp_path: Path) -> None:
    told = read("ais_bench", tmp_path, {"x/performances/m/d.csv": AIS_CSV, "x/performances/m/d.json": AIS})
    assert told.figures["ttft_mean"] == pytest.approx(2.006)
    assert told.figures["ttft_p99"] == pytest.approx(2.0073)
    assert told.figures["e2e_mean"] == pytest.approx(12.3)
    assert told.figures["throughput"] == pytest.approx(41.622)
    assert told.figures["request_rate"] == pytest.approx(0.0813)


@pytest.mark.parametrize(
    ("kind", "files", "words"),
    [
        ("vllm_benchmark", {}, "0 result files"),
        ("vllm_benchmark", {"a.json": VLLM, "b.json": VLLM}, "2 result files"),
        ("vllm_benchmark", {"a.json": "{"}, "cannot be read"),
        ("vllm_benchmark", {"a.json": VLLM | {"completed": 0}}, "none of 20 requests"),
        ("vllm_benchmark", {"a.json": {key: value for key, value in VLLM.items() if key != "output_throughput"}}, "no output_throughput"),
        ("vllm_benchmark", {"a.json": json.dumps(VLLM).replace("500.5", "NaN")}, "output_throughput"),
        ("vllm_benchmark", {"a.json": VLLM | {"output_throughput": ""}}, "no output_throughput"),
        ("vllm_benchmark", {"a.json": VLLM | {"output_throughput": 0}}, "no measurement"),
        ("evalscopeperf", {}, "0 files benchmark_summary.json"),
        ("evalscopeperf", {"a/benchmark_summary.json": NEW, "b/benchmark_summary.json": NEW}, "one --parallel"),
        ("evalscopeperf", {"benchmark_summary.json": {}}, "has no Total Requests"),
        ("evalscopeperf", {"benchmark_summary.json": NEW | {"Success Requests": 0}}, "none of 40"),
        ("evalscopeperf", {"benchmark_summary.json": NEW | {"Req Throughput (req/s)": None}}, "has no Req Throughput"),
        ("ais_bench", {"performances/d.csv": AIS_CSV}, "cannot be read"),
        (
            "ais_bench",
            {"performances/d.csv": AIS_CSV, "performances/d.json": AIS | {"Request Throughput": {}}},
            "has no Request Throughput",
        ),
    ],
)
def test_what_is_missing_is_a_failure_and_never_zero(tmp_path: Path, kind: str, files: dict[str, Any], words: str) -> None:
    with pytest.raises(BenchFailedError, match=words):
        read(kind, tmp_path, files)


def test_which_figures_will_be_there_is_known_before() -> None:
    slos = [parse_slo("ttft p97 <= 1s")]
    assert "ttft_p97" in offered(BenchmarkTable(kind="vllm_benchmark"), slos)
    narrow = BenchmarkTable(kind="vllm_benchmark", args={"metric-percentiles": "99", "percentile-metrics": "ttft"})
    assert "ttft_p97" not in offered(narrow, slos)
    assert "ttft_p99" in offered(narrow, slos)
    assert "e2e_mean" not in offered(narrow, slos)
    assert "ttft_p97" not in offered(BenchmarkTable(kind="evalscopeperf"), slos)
    assert "goodput" not in offered(BenchmarkTable(kind="evalscopeperf"), slos)


def test_the_model_s_file_of_ais_bench_is_rendered_as_a_copy(tmp_path: Path) -> None:
    text = 'models = [dict(host_ip="localhost", host_port=8080, batch_size=1, request_rate = 0, retry=2, path="x")]'
    assert rendered(text, asked(tmp_path, load={"concurrency": 12.0, "request_rate": 2.5})) == (
        'models = [dict(host_ip="127.0.0.1", host_port=9000, batch_size=12, request_rate = 2.5, retry=2, path="x")]'
    )


def test_ais_bench_is_told_of_the_copy_and_its_own_file_stays(tmp_path: Path) -> None:
    configs = tmp_path / "pkg" / "configs"
    own = configs / "models" / "api" / "chat.py"
    own.parent.mkdir(parents=True)
    own.write_text('models = [dict(host_ip="localhost", host_port=8080, batch_size=1)]')
    tool = tmp_path / "ais_bench"
    tool.write_text(f"#!/bin/sh\necho '│ --models │ chat │ {own} │'\n")
    tool.chmod(0o755)
    folder = tmp_path / "load"
    table = BenchmarkTable(kind="ais_bench", executable=str(tool), args={"models": "chat", "datasets": "d"})
    found = command(ADAPTERS["ais_bench"], table, asked(folder, load={"concurrency": 5.0}))
    assert f"--config-dir {folder}/configs" in " ".join(found.argv)
    assert "batch_size=5" in (folder / "configs" / "models" / "api" / "chat.py").read_text()
    assert "batch_size=1" in own.read_text()
    broken = BenchmarkTable(kind="ais_bench", executable="/bin/false", args={"models": "chat"})
    with pytest.raises(BenchFailedError, match="names no file"):
        command(ADAPTERS["ais_bench"], broken, asked(tmp_path / "other"))
