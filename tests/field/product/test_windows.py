"""Which requests and which seconds count: cut-off work, ramps and drains, warm-up, a cold engine."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadcell.api import BenchResult
from loadcell.records import RequestRecord
from loadcell.testing.replies import Script, chat_stream
from loadcell.testing.scripted_server import Received, ScriptedServer

Serve = Callable[..., ScriptedServer]
Bench = Callable[..., BenchResult]


def _posts(server: ScriptedServer) -> list[Received]:
    return [request for request in server.requests if request.method == "POST"]


@pytest.mark.parametrize(("drain", "workers"), [(0, 1), (0, 2), (0.2, 1), (5, 1)])
def test_tokens_of_requests_cut_off_at_the_end_count_for_the_time_they_came_in(
    serve: Serve, bench: Bench, drain: float, workers: int
) -> None:
    """Four streams of 50 tokens a second: 200 tokens a second, wherever the end of the run falls."""
    server = serve(chat_stream(*(["t "] * 40), first_ms=20, every_ms=20))
    result = bench(server, concurrency=4, duration=2.0, drain_timeout=drain, output_len=40, workers=workers)
    whole = result.summary.whole
    assert whole.rates.output_tokens_per_s == pytest.approx(200, rel=0.06)
    assert whole.window.duration_s == pytest.approx(2.0, abs=0.001)
    assert whole.counts.ok == (12 if drain == 5 else 8)
    assert whole.counts.cancelled == (0 if drain == 5 else 4)
    assert whole.counts.failed == 0
    assert whole.counts.by_outcome.get("cancelled", 0) == whole.counts.cancelled
    assert whole.rates.completed_in_window == 8
    assert whole.rates.requests_per_s == pytest.approx(4, rel=0.01)
    assert whole.latency.e2e.n == whole.counts.ok
    assert "cancelled" in result.report.read_text()


def test_a_run_whose_every_request_is_cut_off_still_tells_its_throughput(serve: Serve, bench: Bench) -> None:
    server = serve(chat_stream(*(["t "] * 100), first_ms=20, every_ms=20))
    result = bench(server, concurrency=2, duration=1.0, drain_timeout=0, output_len=100)
    assert result.summary.whole.counts.ok == 0
    assert result.summary.whole.counts.cancelled == 2
    assert result.summary.whole.rates.output_tokens_per_s == pytest.approx(100, rel=0.08)
    assert result.summary.whole.rates.requests_per_s == 0
    assert result.summary.whole.latency.e2e.mean_ms is None


@pytest.mark.slow
def test_steady_state_stands_beside_the_whole_run(serve: Serve, bench: Bench) -> None:
    """One straggler at the end: the whole run's mean is that of a service half idle, the steady state's is not."""

    def reply(request: Received) -> Script:
        return chat_stream("a", "b", first_ms=3300 if "straggle" in _prompt(request) else 330)

    rows = [{"prompt": f"number {at}", "output_len": 2} for at in range(135)] + [{"prompt": "straggle", "output_len": 2}]
    server = serve(reply)
    result = bench(server, dataset_name="custom", dataset_path=_data(rows), concurrency=8, num_prompts=136)
    whole, steady = result.summary.whole, result.summary.steady
    assert steady.figures is not None
    assert whole.window.duration_s is not None
    assert steady.window.duration_s is not None
    assert whole.window.duration_s > steady.window.duration_s + 2.5
    assert whole.rates.requests_per_s is not None
    assert steady.figures.rates.requests_per_s is not None
    assert steady.figures.rates.requests_per_s == pytest.approx(8 / 0.333, rel=0.1)
    assert steady.figures.rates.requests_per_s > 1.3 * whole.rates.requests_per_s
    assert steady.requests + steady.cut == 136
    assert steady.share == pytest.approx(steady.requests / 136)
    assert "first reached" in steady.window.rule
    report = result.report.read_text()
    assert "Steady state beside the whole run" in report
    assert "first reached" in report


@pytest.mark.parametrize(
    ("load", "why"), [({"concurrency": 4}, "shorter than"), ({}, "shorter than"), ({"request_rate": 50}, "shorter than")]
)
def test_where_there_is_no_steady_state_the_report_says_why(serve: Serve, bench: Bench, load: dict[str, Any], why: str) -> None:
    result = bench(serve(chat_stream("a", "b", first_ms=20)), num_prompts=20, **load)
    assert result.summary.steady.figures is None
    assert result.summary.steady.why_null is not None
    assert why in result.summary.steady.why_null
    assert why in result.report.read_text()


@pytest.mark.parametrize(
    ("workers", "load"), [(1, {"concurrency": 4}), (2, {"concurrency": 4}), (2, {"concurrency": 4, "request_rate": 200})]
)
def test_warm_up_obeys_the_cap(serve: Serve, bench: Bench, load: dict[str, Any], workers: int) -> None:
    server = serve(chat_stream("a", "b", first_ms=30))
    result = bench(server, warmup_requests=30, num_prompts=20, workers=workers, **load)
    assert server.peak_requests <= 4
    assert len(_posts(server)) == 50
    assert result.summary.warmup.requests == 30
    assert result.summary.warmup.ok == 30
    assert result.summary.whole.counts.offered == 20
    _assert_apart(list(result.records), 30)


def test_warm_up_by_time_obeys_the_cap_and_ends(serve: Serve, bench: Bench) -> None:
    server = serve(chat_stream("a", "b", first_ms=30))
    result = bench(server, warmup_duration=0.6, concurrency=3, num_prompts=9)
    warmup = result.summary.warmup.requests
    assert server.peak_requests == 3
    assert 10 < warmup <= 63
    assert result.summary.whole.counts.offered == 9
    _assert_apart(list(result.records), warmup)


def test_warm_up_of_an_uncapped_load_is_no_flood(serve: Serve, bench: Bench) -> None:
    server = serve(chat_stream("a", "b", first_ms=30))
    result = bench(server, warmup_requests=100, request_rate=20, num_prompts=5)
    assert server.peak_requests <= 16
    assert result.summary.warmup.requests == 100


def _assert_apart(records: list[RequestRecord], warmup: int) -> None:
    """Rows of the warm-up are tagged, and all of them lie before the measurement."""
    phases = [record.phase for record in records]
    assert phases.count("warmup") == warmup
    ended = max(attempt.done_ns or 0 for record in records if record.phase == "warmup" for attempt in record.attempts)
    assert ended <= min(record.scheduled_ns for record in records if record.phase == "measure")


def _cold(cold: int, cold_ms: float) -> Callable[[Received], Script]:
    served = 0

    def reply(request: Received) -> Script:
        nonlocal served
        served += 1
        return chat_stream("a", "b", first_ms=cold_ms if served <= cold else 20)

    return reply


@pytest.mark.parametrize("load", [{"concurrency": 10}, {"request_rate": 50, "arrival": "constant"}])
def test_a_cold_engine_is_noticed(serve: Serve, bench: Bench, load: dict[str, Any]) -> None:
    result = bench(serve(_cold(10, 600)), num_prompts=60, **load)
    wave = result.summary.first_wave
    assert wave is not None
    assert wave.outlier
    assert wave.ratio > 5
    assert any("warm" in notice for notice in result.summary.notices)
    assert "warm" in result.report.read_text().split("## Notices")[1]


def test_a_cold_engine_is_no_matter_after_a_warm_up(serve: Serve, bench: Bench) -> None:
    result = bench(serve(_cold(10, 300)), num_prompts=40, concurrency=10, warmup_requests=10)
    assert result.summary.first_wave is not None
    assert not result.summary.first_wave.outlier
    assert result.summary.whole.latency.ttft.max_ms is not None
    assert result.summary.whole.latency.ttft.max_ms < 250
    assert result.summary.warmup.requests == 10


def _prompt(request: Received) -> str:
    return str(json.loads(request.body)["messages"][-1]["content"])


@pytest.fixture(autouse=True)
def _folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _data(rows: list[dict[str, Any]]) -> str:
    Path("data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "data.jsonl"
