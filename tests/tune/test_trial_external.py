"""Trials whose load is another tool's: stand-ins that ask the real service, and write what the tool would."""

import os
import signal
import stat
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from loadcell.errors import UserError
from loadcell.fleet.registry import Registry
from loadcell.tune.outcome import TrialResult
from loadcell.tune.spec import BenchmarkTable, TrialTable

from .trials import Told, study, trial

pytestmark = pytest.mark.timeout(120)

STAND_IN = """#!{python}
import json, pathlib, sys, time, urllib.request
def option(name, default=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default
url = (option("--base-url") or option("--url")).split("/v1")[0] + "/v1/chat/completions"
out = pathlib.Path(option("--result-dir") or option("--outputs-dir")); out.mkdir(parents=True, exist_ok=True)
body = json.dumps({{"model": option("--served-model-name") or option("--model"), "messages": [{{"role": "user", "content": "a b"}}], "max_tokens": 5}}).encode()
began, done = time.time(), 0
for _ in range({requests} + 1):
    try:
        urllib.request.urlopen(urllib.request.Request(url, body, {{"Content-Type": "application/json"}}), timeout=60).read()
        done += 1
    except OSError as error:
        print(error, flush=True)
done -= 1
seconds = time.time() - began
{write}
sys.exit({code})
"""
VLLM = 'out.joinpath("r.json").write_text(json.dumps({"num_prompts": %d, "completed": done, "output_throughput": 5 * done / seconds, "request_throughput": done / seconds, "mean_ttft_ms": 25.0, "p95_ttft_ms": 30.0}))'
EVALSCOPE = 'out.joinpath("t", "m").mkdir(parents=True); out.joinpath("t", "m", "benchmark_summary.json").write_text(json.dumps({"Output token throughput (tok/s)": 5 * done / seconds, "Request throughput (req/s)": done / seconds, "Total requests": done, "Succeed requests": done, "Average time to first token (s)": 0.03}))'


def tool(tmp_path: Path, write: str, *, requests: int = 20, code: int = 0) -> str:
    path = tmp_path / "tool"
    path.write_text(STAND_IN.format(python=sys.executable, requests=requests, write=write, code=code))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def ran(tmp_path: Path, program: str, kind: str = "vllm_benchmark", told: Told | None = None, **how: Any) -> TrialResult:
    table = BenchmarkTable(kind=kind, executable=program, **how.pop("table", {}))  # type: ignore[arg-type]
    spec = study(how.pop("args", None), benchmark=table, **how)
    return trial(tmp_path, spec, told).measure({"max_num_seqs": 16}, 1, "search")


@pytest.mark.parametrize(("kind", "write"), [("vllm_benchmark", VLLM % 20), ("evalscopeperf", EVALSCOPE)])
def test_a_tool_s_figures_are_judged_by_the_same_limits_and_nobody_else_asked(tmp_path: Path, kind: str, write: str) -> None:
    result = ran(tmp_path, tool(tmp_path, write), kind, slo=("ttft mean <= 100ms", "success_rate >= 99%"))
    assert result.outcome == "ok", result.evidence
    assert result.objective == pytest.approx(result.figures["throughput"])
    assert result.figures["throughput_per_device"] is None  # no device is given
    assert result.figures["ttft_mean"] in (pytest.approx(0.025), pytest.approx(0.03))
    assert (result.violations["ttft mean <= 100ms"] or 0) < 0
    assert result.extra["purity"]["foreign"] == 0
    assert result.extra["purity"]["counted"] == 21
    assert (tmp_path / "study" / "trials" / "0001" / "load" / "command.json").exists()


def test_a_limit_that_is_missed_by_its_figures(tmp_path: Path) -> None:
    result = ran(tmp_path, tool(tmp_path, VLLM % 20), slo=("ttft p95 <= 10ms",), table={"args": {"max-concurrency": 7}})
    assert result.load["concurrency"] == 7
    assert result.outcome == "slo_violated"
    assert "3 times the limit" in (result.evidence or "")


@pytest.mark.parametrize(
    ("write", "code", "table", "words"),
    [
        ("print('Traceback: no data set')", 1, {}, "exit code 1"),
        (VLLM % 20, 3, {}, "exit code 3"),
        ("pass", 0, {}, "0 result files"),
        ('out.joinpath("r.json").write_text(json.dumps({"num_prompts": 20, "completed": 20}))', 0, {}, "no output_throughput"),
        (VLLM % 20 + "; print('RuntimeError: NPU fault')", 0, {"fail_on": ("NPU fault",)}, "NPU fault"),
    ],
)
def test_a_tool_that_fails_is_a_failed_trial_whatever_it_wrote(
    tmp_path: Path, write: str, code: int, table: dict[str, Any], words: str
) -> None:
    result = ran(tmp_path, tool(tmp_path, write, code=code), table=table)
    assert (result.outcome, result.objective) == ("bench_failed", None)
    assert words in (result.evidence or "")


def test_a_tool_that_is_not_there_is_told(tmp_path: Path) -> None:
    result = ran(tmp_path, str(tmp_path / "nothing"))
    assert (result.outcome, result.exit_code) == ("bench_failed", 127)


@pytest.mark.slow
def test_a_service_that_hangs_is_seen_by_its_own_counter(tmp_path: Path) -> None:
    """The tool waits for an answer that does not come; the service says that it runs a request, and makes no token."""
    result = ran(tmp_path, tool(tmp_path, VLLM % 20), args={"fault": "hang,after_requests=8"}, trial=TrialTable(hang="6s"))
    assert result.outcome == "hung", result.evidence
    assert "stood still" in (result.evidence or "")
    assert result.measure_s < 40


class Stops(Told):
    """SIGSTOPs the service a moment after the tool has begun."""

    def __init__(self, state: Path) -> None:
        super().__init__()
        self._registry = Registry(state)

    def phase(self, number: int, phase: str) -> None:
        if phase == "measure":
            (entry,) = [entry for entry in self._registry.entries() if entry.port is not None]
            assert entry.group is not None
            threading.Timer(1.0, os.kill, (entry.group.pid, signal.SIGSTOP)).start()


@pytest.mark.slow
def test_a_service_that_was_stopped_by_a_signal_is_a_hang_too(tmp_path: Path) -> None:
    result = ran(tmp_path, tool(tmp_path, VLLM % 20, requests=10_000), told=Stops(tmp_path / "state"))
    assert result.outcome == "hung"
    assert "stopped by a signal" in (result.evidence or "")


def test_a_service_that_dies_ends_the_tool_and_is_to_blame(tmp_path: Path) -> None:
    result = ran(tmp_path, tool(tmp_path, VLLM % 20, requests=10_000), args={"fault": "crash,after_requests=30,code=9"})
    assert (result.outcome, result.exit_code) == ("crashed", 9)


@pytest.mark.slow
def test_a_deadline_of_the_tool(tmp_path: Path) -> None:
    result = ran(tmp_path, tool(tmp_path, "time.sleep(60)"), table={"timeout": "4s"})
    assert result.outcome == "bench_failed"
    assert "benchmark.timeout" in (result.evidence or "")


class Visitor(Told):
    """Somebody else, who asks for tokens during the load."""

    def __init__(self, state: Path) -> None:
        super().__init__()
        self._state = state

    def phase(self, number: int, phase: str) -> None:
        super().phase(number, phase)
        if phase == "measure":
            threading.Thread(target=self._ask).start()

    def _ask(self) -> None:
        url = next(entry.base_url for entry in Registry(self._state).entries() if entry.base_url)
        for _ in range(5):
            body = b'{"model": "%s", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}' % self._model(url)
            urllib.request.urlopen(urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})).read()

    def _model(self, url: str) -> bytes:
        import json

        return json.loads(urllib.request.urlopen(f"{url}/v1/models").read())["data"][0]["id"].encode()  # type: ignore[no-any-return]


def test_requests_that_were_not_the_tool_s_are_counted(tmp_path: Path) -> None:
    result = ran(tmp_path, tool(tmp_path, VLLM % 60, requests=60), told=Visitor(tmp_path / "state"))
    assert result.outcome == "ok"
    assert result.extra["purity"]["foreign"] == 5
    assert result.verdict == "suspect"


def test_what_a_tool_does_not_tell_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not tell e2e p97"):
        trial(tmp_path, study(benchmark=BenchmarkTable(kind="evalscopeperf"), slo=("e2e p97 <= 1s",))).check()
    with pytest.raises(UserError, match="loads one service"):
        trial(tmp_path, study(benchmark=BenchmarkTable(kind="evalscopeperf"), fleet={"replicas": 2})).check()
