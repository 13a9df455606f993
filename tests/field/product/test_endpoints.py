"""Several services, some of them ill: who is asked, who is left alone, who comes back, and what the report says of each."""

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loadcell.api import BenchResult
from loadcell.clock import MonotonicClock
from loadcell.errors import LoadcellError, UserError
from loadcell.recordlog import read_events
from loadcell.records import Event
from loadcell.testing.replies import HANG, Script, chat_stream, error_reply, json_reply, models_reply
from loadcell.testing.scripted_server import Received, ScriptedServer

Serve = Callable[..., ScriptedServer]
Bench = Callable[..., BenchResult]

ANSWER = chat_stream("a", "b", first_ms=5)
HEALTHY: dict[str, Script] = {"/health": [(0.0, json_reply({}))]}


def _posts(server: ScriptedServer) -> list[Received]:
    return [request for request in server.requests if request.method == "POST"]


def _events(result: BenchResult, name: str | None = None) -> list[Event]:
    found = read_events(result.folder / "events.jsonl")
    return [event for event in found if event.endpoint is not None and name in (None, event.endpoint)]


def _every(nth: int, bad: Script) -> Callable[[Received], Script]:
    lock, seen = threading.Lock(), [0]

    def reply(request: Received) -> Script:
        with lock:
            seen[0] += 1
            return bad if seen[0] % nth == 0 else ANSWER

    return reply


@pytest.mark.parametrize(("status", "nth"), [(400, 3), (400, 1), (404, 2), (413, 1), (422, 3)])
def test_mistakes_of_the_client_are_counted_and_harm_no_endpoint(serve: Serve, bench: Bench, status: int, nth: int) -> None:
    bad = [(0.0, error_reply(status, "prompt is too long", code="context_length_exceeded"))]
    servers = [serve(_every(nth, bad), HEALTHY), serve(ANSWER, HEALTHY)]
    result = bench(*servers, num_prompts=60, concurrency=4)
    counts = result.summary.whole.counts
    assert counts.by_outcome.get("http_4xx") == 30 // nth
    assert counts.ok == 60 - 30 // nth
    assert counts.attempts == 60
    assert [len(_posts(server)) for server in servers] == [30, 30]
    assert result.summary.healthy_at_end == [server.name for server in servers]
    assert _events(result) == []


def test_too_many_requests_means_slower_not_dead(serve: Serve, bench: Bench) -> None:
    busy = [(0.0, error_reply(429, "slow down"))]
    servers = [serve(_every(2, busy), HEALTHY), serve(ANSWER, HEALTHY)]
    result = bench(*servers, num_prompts=60, concurrency=4)
    assert result.summary.whole.counts.ok == 60
    assert result.summary.whole.counts.failed_attempts == result.summary.endpoints[0].failed_attempts > 0
    assert not any(endpoint.ejections for endpoint in result.summary.endpoints)


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_stops_the_run_at_once(serve: Serve, bench: Bench, status: int) -> None:
    servers = [serve([(0.0, error_reply(status, "who are you"))], HEALTHY), serve(ANSWER, HEALTHY)]
    result = bench(*servers, num_prompts=100_000, concurrency=4)
    assert result.summary.stop_reason == "fatal"
    assert result.summary.stop_detail is not None
    assert str(status) in result.summary.stop_detail
    assert "who are you" in result.summary.stop_detail
    assert len(_posts(servers[0])) <= 8
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("strategy", "workers"), [("round_robin", 1), ("round_robin", 2), ("random", 1), ("least_conn", 2), ("power_of_two", 1)]
)
def test_an_endpoint_that_fails_at_once_is_asked_a_handful_of_times(serve: Serve, bench: Bench, strategy: str, workers: int) -> None:
    bad, good = serve([(0.0, error_reply(500, "engine is dead"))], HEALTHY), serve(ANSWER, HEALTHY)
    result = bench(bad, good, num_prompts=100, concurrency=4, request_max_retries=1, lb_strategy=strategy, workers=workers)
    counts = result.summary.whole.counts
    assert counts.ok == 100
    failed = len(_posts(bad))
    assert 2 <= failed <= 12
    assert (counts.retried, counts.failed_attempts, counts.first_try_ok) == (failed, failed, 100 - failed)
    assert result.summary.endpoints[0].failed_attempts == failed
    assert result.summary.endpoints[0].ejections == 1
    assert result.summary.healthy_at_end == [good.name]
    ejection = _events(result, bad.name)[0]
    assert ejection.kind == "endpoint_unhealthy"
    assert "http_5xx" in (ejection.cause or "")
    report = result.report.read_text()
    assert "Succeeded at the first try" in report
    assert "endpoint_lost" in {reason.rule for reason in result.summary.reasons}


@pytest.mark.parametrize(("workers", "probes"), [(1, {"health_check_interval": 0.1}), (2, {"health_check_interval": 0})])
def test_an_ejected_endpoint_rests_is_tried_once_and_comes_back(serve: Serve, bench: Bench, probes: dict[str, Any], workers: int) -> None:
    """It fails until it has rested once; then one request at a time decides."""
    down_ns = [0]

    def ill(request: Received) -> Script:
        down_ns[0] = down_ns[0] or request.arrived_ns
        return [(0.0, error_reply(500))] if request.arrived_ns < down_ns[0] + 200_000_000 else ANSWER

    bad, good = serve(ill, HEALTHY), serve(ANSWER, HEALTHY)
    result = bench(bad, good, duration=2.0, concurrency=4, health_recovery_interval=0.5, workers=workers, **probes)
    kinds = [event.kind for event in _events(result, bad.name)]
    assert kinds[0] == "endpoint_unhealthy"
    assert "endpoint_trial" in kinds
    assert kinds[-1] == "endpoint_recovered"
    assert kinds.count("endpoint_recovered") == 1
    assert result.summary.healthy_at_end == [bad.name, good.name]
    origin = result.records.header.origin.monotonic_ns
    ejected, back = (
        next(event.at_ns for event in _events(result, bad.name) if event.kind == kind)
        for kind in ("endpoint_unhealthy", "endpoint_recovered")
    )
    between = [request for request in _posts(bad) if ejected + 60_000_000 < request.arrived_ns - origin < back - 1_000_000]
    assert len(between) <= 1
    assert len(_posts(bad)) > 20
    assert result.summary.whole.counts.ok == result.summary.whole.counts.offered


def test_an_endpoint_that_stays_ill_gets_one_trial_at_a_time(serve: Serve, bench: Bench) -> None:
    bad, good = serve([(0.0, error_reply(500))], HEALTHY), serve(ANSWER, HEALTHY)
    result = bench(bad, good, duration=2.0, concurrency=4, health_recovery_interval=0.3, health_check_interval=0.1)
    kinds = [event.kind for event in _events(result, bad.name)]
    assert kinds.count("endpoint_unhealthy") >= 3
    assert "endpoint_recovered" not in kinds
    assert len(_posts(bad)) <= 6 + kinds.count("endpoint_unhealthy")
    assert result.summary.whole.counts.ok == result.summary.whole.counts.offered


def _models(*ids: str) -> dict[str, Script]:
    return {**HEALTHY, "/v1/models": [(0.0, models_reply(*ids))]}


def _refusing() -> str:
    server = ScriptedServer(ANSWER)
    server.close()
    return server.base_url


def test_the_model_is_found_though_the_first_endpoint_is_dead(serve: Serve, bench: Bench) -> None:
    one, two = serve(ANSWER, _models("far", "near")), serve(ANSWER, _models("near", "far"))
    result = bench(_refusing(), one, two, num_prompts=20, concurrency=2, model=None)
    assert result.summary.whole.counts.ok == 20
    assert {json.loads(request.body)["model"] for request in [*_posts(one), *_posts(two)]} == {"far"}
    assert result.summary.run.model == "far"


def test_endpoints_that_serve_different_models_are_an_error_naming_them(serve: Serve, bench: Bench) -> None:
    one, two = serve(ANSWER, _models("far")), serve(ANSWER, _models("near"))
    with pytest.raises(UserError) as refused:
        bench(_refusing(), one, two, num_prompts=20, model=None)
    for word in (one.name, two.name, "far", "near", "--model"):
        assert word in str(refused.value)
    assert _posts(one) == _posts(two) == []


def test_where_nobody_names_a_model_the_reasons_are_told(serve: Serve, bench: Bench) -> None:
    silent = serve(ANSWER, HEALTHY)
    with pytest.raises(LoadcellError) as refused:
        bench(_refusing(), silent, num_prompts=20, model=None)
    assert "refused" in str(refused.value)
    assert "404" in str(refused.value)
    assert "--model" in str(refused.value)


@pytest.mark.parametrize("silence", [[(0.0, HANG)], [(0.0, b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"), (0.0, HANG)]])
def test_an_endpoint_that_passes_probes_and_brings_nothing_is_ejected(serve: Serve, bench: Bench, silence: Script) -> None:
    dead, good = serve(silence, _models("m")), serve(ANSWER, _models("m"))
    result = bench(dead, good, duration=2.0, concurrency=4, first_byte_timeout=0.4, health_check_interval=0.1)
    event = _events(result, dead.name)[0]
    assert event.kind == "endpoint_unhealthy"
    assert "first_byte_timeout" in (event.cause or "")
    assert "probe ok, no tokens" in (event.cause or "")
    assert "probe ok, no tokens" in result.report.read_text()
    assert 2 <= len(_posts(dead)) <= 6
    assert result.summary.endpoints[0].probes_sent > 3
    assert result.summary.endpoints[0].probes_failed == 0
    assert result.summary.whole.counts.ok == result.summary.whole.counts.offered
    assert dead.name not in (result.summary.healthy_at_end or [])


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_probes_are_light_and_in_no_figure(serve: Serve, bench: Bench, path: str) -> None:
    server = serve(chat_stream("a", "b", first_ms=20), {path: [(0.0, json_reply({}))]})
    result = bench(server, duration=1.5, concurrency=2, health_check_interval=0.2, health_path=path)
    first, last = _posts(server)[0].arrived_ns, _posts(server)[-1].arrived_ns
    during = [request for request in server.requests if first <= request.arrived_ns <= last and request.method != "POST"]
    assert {(request.method, request.path) for request in during} == {("GET", path)}
    assert 4 <= len(during) <= 9
    probes = server.paths().count(path)
    assert result.summary.endpoints[0].probes_sent == probes
    assert result.summary.whole.counts.attempts == len(_posts(server)) == len(list(result.records))
    assert f"| {probes} / 0 |" in result.report.read_text()


def test_no_probes_at_all_when_they_are_switched_off(serve: Serve, bench: Bench) -> None:
    server = serve(ANSWER, HEALTHY)
    bench(server, duration=0.5, concurrency=2, health_check_interval=0)
    assert "/health" not in server.paths()


def test_a_slow_answer_to_a_probe_is_an_answer(serve: Serve, bench: Bench) -> None:
    server = serve(ANSWER, {"/health": [(1200.0, json_reply({}))]})
    other = serve(ANSWER, {"/health": [(1200.0, json_reply({}))]})
    result = bench(server, other, num_prompts=10, concurrency=1, ready_check_timeout_sec=10)
    assert result.summary.whole.counts.ok == 10
    waiting = next(request for request in server.requests if request.path == "/health")
    assert _posts(server)[0].arrived_ns - waiting.arrived_ns > 1_150_000_000
    assert not any(endpoint.ejections for endpoint in result.summary.endpoints)


@pytest.mark.slow
def test_the_limit_of_a_probe_can_be_set(serve: Serve, bench: Bench) -> None:
    slow, good = serve(ANSWER, {"/health": [(700.0, json_reply({}))]}), serve(chat_stream("a", "b", first_ms=30), HEALTHY)
    strict = bench(
        slow, good, duration=1.5, concurrency=1, request_rate=2, arrival="constant", health_check_interval=0.1, health_timeout=0.2
    )
    assert strict.summary.endpoints[0].probes_failed >= 2
    lenient = bench(
        slow, good, duration=1.5, concurrency=1, request_rate=2, arrival="constant", health_check_interval=0.1, health_timeout=3
    )
    assert lenient.summary.endpoints[0].probes_failed == 0


def test_an_endpoint_that_never_gets_ready_is_named(serve: Serve, bench: Bench) -> None:
    loading = serve(ANSWER, {"/health": [(0.0, error_reply(503, "loading"))]})
    began_ns = MonotonicClock().now_ns()
    with pytest.raises(LoadcellError) as refused:
        bench(loading, serve(ANSWER, HEALTHY), num_prompts=10, ready_check_timeout_sec=1)
    assert MonotonicClock().now_ns() - began_ns < 10e9
    assert loading.name in str(refused.value)
    assert "503" in str(refused.value)
    assert _posts(loading) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_each_endpoint_has_its_row_and_percentiles_pool_samples(serve: Serve, bench: Bench, workers: int) -> None:
    servers = [serve(chat_stream("a", "b", first_ms=ms), HEALTHY) for ms in (20, 20, 100)]
    result = bench(*servers, num_prompts=150, concurrency=9, workers=workers)
    rows, whole = result.summary.endpoints, result.summary.whole
    assert [row.name for row in rows] == [server.name for server in servers]
    assert [row.figures.counts.ok for row in rows] == [50, 50, 50]
    assert [row.share for row in rows] == pytest.approx([1 / 3] * 3)
    assert [row.figures.tokens.output_delivered.total for row in rows] == [100, 100, 100]
    medians = [row.figures.latency.ttft.percentiles_ms["p50"] for row in rows]
    assert medians == pytest.approx([20, 20, 100], rel=0.35)
    samples = result.columns()["ttft_ms"]
    for name, value in whole.latency.ttft.percentiles_ms.items():
        assert value == pytest.approx(np.percentile(samples, float(name[1:])), rel=1e-6)
    assert sum(row.figures.rates.output_tokens_per_s or 0 for row in rows) == pytest.approx(whole.rates.output_tokens_per_s)
    report = result.report.read_text()
    assert all(f"| {server.name} | 50 | 33.3 % | 50 | 0 |" in report for server in servers)


def test_short_answers_are_flowing_tokens_too(serve: Serve, bench: Bench) -> None:
    """Streams that come and go between two looks of the health check keep an endpoint alive as long ones do."""
    server = serve(chat_stream("a", "b", first_ms=3), {"/health": [(0.0, error_reply(500, "busy"))]})
    # Probes begin before the load does: two of them must not fit into its start, however slow the machine.
    result = bench(server, duration=4, concurrency=2, health_check_interval=1)
    kinds = {event.kind for event in _events(result)}
    assert kinds == {"probe_warning"}
    assert result.summary.healthy_at_end == [result.summary.endpoints[0].name]
