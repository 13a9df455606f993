"""When requests are sent: rates that do not drift, bursts that start together, loads that end when they were told to."""

import json
import subprocess
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression
from typing import Any

import pytest

from loadcell.api import BenchResult
from loadcell.errors import UserError
from loadcell.testing.replies import Script, chat_stream, error_reply
from loadcell.testing.scripted_server import Received, ScriptedServer

Serve = Callable[..., ScriptedServer]
Bench = Callable[..., BenchResult]
Command = Callable[..., "subprocess.CompletedProcess[str]"]

ANSWER = chat_stream("a", "b")


def _posts(server: ScriptedServer) -> list[Received]:
    return [request for request in server.requests if request.method == "POST"]


@pytest.mark.parametrize(("arrival", "workers"), [("constant", 1), ("constant", 2), ("poisson", 1), ("gamma", 1)])
def test_an_open_loop_keeps_to_its_schedule_to_the_end(serve: Serve, bench: Bench, arrival: str, workers: int) -> None:
    """What the server saw against what was planned: the slope is 1, however long the run."""
    server = serve(ANSWER)
    flags: dict[str, Any] = {"burstiness": 0.5} if arrival == "gamma" else {}
    result = bench(server, request_rate=200, arrival=arrival, num_prompts=300, workers=workers, **flags)
    planned = sorted(record.scheduled_ns for record in result.records)
    seen = sorted(request.arrived_ns for request in _posts(server))
    slope, _ = linear_regression(planned, seen)
    assert slope == pytest.approx(1, abs=0.01)
    if arrival == "constant":
        assert 299 / (planned[-1] - planned[0]) * 1e9 == pytest.approx(200, rel=1e-6)
    lag = result.summary.client.dispatch_lag
    assert lag.n == 300
    assert lag.percentiles_ms["p50"] is not None
    assert lag.percentiles_ms["p50"] < 5
    assert "Dispatch lag: p50" in result.report.read_text()
    assert result.summary.whole.rates.target_per_s == 200


@pytest.mark.parametrize("burstiness", ["inf", float("inf")])
def test_an_infinite_burstiness_means_even_gaps(serve: Serve, bench: Bench, burstiness: Any) -> None:
    result = bench(serve(ANSWER), request_rate=100, burstiness=burstiness, num_prompts=20)
    planned = sorted(record.scheduled_ns for record in result.records)
    assert {later - earlier for earlier, later in pairwise(planned)} == {10_000_000}
    assert result.summary.whole.counts.ok == 20


def test_steps_and_ramps_follow_their_rates(serve: Serve, bench: Bench) -> None:
    server = serve(ANSWER)
    stepped = bench(server, steps="20:0.5,100:0.5", arrival="constant")
    starts = [record.scheduled_ns for record in stepped.records]
    first = min(starts)
    early = sum(1 for at in starts if at - first < 0.5e9)
    assert early == pytest.approx(10, abs=1)
    assert len(starts) - early == pytest.approx(50, abs=1)
    assert stepped.summary.stop_reason == "count"
    ramped = bench(server, ramp_up_strategy="linear", ramp_up_start_rps=10, ramp_up_end_rps=190, duration=1.0, arrival="constant")
    assert ramped.summary.whole.counts.offered == pytest.approx(100, abs=3)


def test_a_ramp_of_concurrency_opens_slot_by_slot(serve: Serve, bench: Bench) -> None:
    server = serve(chat_stream("a", "b", first_ms=1500))
    bench(server, concurrency=10, num_prompts=10, ramp_concurrency=1.0)
    arrived = [request.arrived_ns for request in _posts(server)]
    slope, _ = linear_regression(range(10), arrived)
    assert slope / 1e9 == pytest.approx(1 / 9, rel=0.1)


@pytest.mark.parametrize(
    ("workers", "load"), [(1, {"concurrency": 50}), (4, {"concurrency": 50}), (2, {}), (2, {"request_rate": "inf", "concurrency": 50})]
)
def test_a_burst_is_in_flight_all_at_once(serve: Serve, bench: Bench, workers: int, load: dict[str, Any]) -> None:
    """The server answers nobody until all fifty are there."""
    together = threading.Barrier(50)

    def reply(request: Received) -> Script:
        together.wait(timeout=20)
        return ANSWER

    result = bench(serve(reply), num_prompts=50, workers=workers, **load)
    assert result.summary.whole.counts.by_outcome == {"ok": 50}
    spread = result.summary.whole.latency.queue_delay
    assert spread.n == 50
    assert spread.max_ms is not None
    assert "Queue delay" in result.report.read_text()


def test_bursts_arrive_together_and_the_rate_counts_requests(serve: Serve, bench: Bench) -> None:
    server = serve(ANSWER)
    result = bench(server, request_rate=50, burst_size=10, arrival="constant", num_prompts=50)
    moments = sorted({record.scheduled_ns for record in result.records})
    assert len(moments) == 5
    assert (moments[-1] - moments[0]) / 4e9 == pytest.approx(0.2, rel=1e-3)


@pytest.mark.parametrize(("rows", "load"), [(1, {"concurrency": 2}), (7, {"concurrency": 2}), (7, {"request_rate": 20})])
def test_a_duration_is_kept_though_the_data_set_is_small(
    serve: Serve, bench: Bench, tmp_path: Path, load: dict[str, Any], rows: int
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"question number {row}", "output_len": 2}) + "\n" for row in range(rows)))
    server = serve(chat_stream("a", "b", first_ms=20))
    result = bench(server, dataset_name="custom", dataset_path=str(data), duration=1.5, **load)
    seen = [request.arrived_ns for request in _posts(server)]
    assert (seen[-1] - seen[0]) / 1e9 == pytest.approx(1.5, abs=0.35)
    assert len(seen) > rows
    assert result.summary.stop_reason == "duration"
    assert result.summary.whole.window.duration_s == pytest.approx(1.5, abs=0.001)
    assert result.summary.prompts.reused > 0
    assert result.summary.whole.counts.ok == len(seen)


@pytest.mark.parametrize("rate", [1, 4])
def test_the_quiet_after_the_last_arrival_belongs_to_the_duration(serve: Serve, bench: Bench, rate: float) -> None:
    server = serve(ANSWER)
    result = bench(server, request_rate=rate, duration=1.9, arrival="constant")
    assert result.summary.stop_reason == "duration"
    assert result.summary.whole.window.duration_s == pytest.approx(1.9, abs=0.001)
    assert len(_posts(server)) == (2 if rate == 1 else 8)
    assert result.summary.whole.rates.requests_per_s == pytest.approx(len(_posts(server)) / 1.9)
    assert bench(server, request_rate=20, num_prompts=4, duration=30, arrival="constant").summary.stop_reason == "count"
    assert bench(server, steps="20:0.2", duration=30, arrival="constant").summary.stop_reason == "count"


def test_the_reason_of_the_end_is_recorded(serve: Serve, bench: Bench) -> None:
    server = serve(chat_stream("a", "b", first_ms=10))
    assert bench(server, concurrency=1, num_prompts=5).summary.stop_reason == "count"
    assert bench(server, concurrency=1, num_prompts=5, duration=20).summary.stop_reason == "count"
    assert bench(server, concurrency=1, num_prompts=100_000, duration=0.5).summary.stop_reason == "duration"
    assert bench(server, request_rate=20, duration=0.5).summary.stop_reason == "duration"
    failing = serve([(5.0, error_reply(500))])
    failed = bench(failing, concurrency=2, num_prompts=100_000, max_failures=10)
    assert failed.summary.stop_reason == "max_failures"
    assert failed.summary.stop_detail is not None
    assert "--max-failures 10" in failed.summary.stop_detail
    assert 10 < len(_posts(failing)) < 500
    assert "max-failures" in failed.report.read_text()


@pytest.mark.parametrize(
    "flags",
    [{"concurrency": value} for value in (0, -1, "0", "-1", "inf", "nan", 1.5, "", "none")]
    + [{"max_concurrency": 0}]
    + [{"request_rate": value} for value in (0, -1, "nan", "-inf", "", "fast", float("nan"))]
    + [{name: value} for name in ("num_prompts", "duration", "workers", "burst_size") for value in (0, -3, "x", "nan")]
    + [{"duration": "inf", "concurrency": 1}, {"duration": 1}, {"burstiness": 0, "request_rate": 5}, {"warmup_requests": -1}],
    ids=str,
)
def test_what_is_no_load_is_refused_before_any_request(serve: Serve, bench: Bench, tmp_path: Path, flags: dict[str, Any]) -> None:
    server = serve(ANSWER)
    with pytest.raises(UserError) as refused:
        bench(server, **flags)
    flag = next(iter(flags)).replace("_", "-")
    assert f"--{flag}" in str(refused.value)
    assert server.requests == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["--concurrency", "0"], ["--concurrency=-1"], ["--request-rate", "0"], ["--request-rate=nan"]])
def test_the_command_line_refuses_with_its_own_exit_code(serve: Serve, command: Command, words: list[str]) -> None:
    server = serve(ANSWER)
    done = command("bench", "--base-url", server.base_url, *words)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert server.requests == []


def test_no_limit_has_a_word_of_its_own(serve: Serve, bench: Bench) -> None:
    server = serve(chat_stream("a", "b", first_ms=300))
    result = bench(server, concurrency="unlimited", num_prompts=30)
    assert server.peak_requests == 30
    assert result.summary.whole.concurrency.cap is None
    assert "unlimited" in result.report.read_text()
