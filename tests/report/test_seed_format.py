"""The multi-service client's JSONL: its keys, its definitions, its units."""

import json
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest

from loadcell.metrics.facts import RunFacts
from loadcell.records import Attempt, Endpoint, RequestRecord
from loadcell.report.seed import encode, port_labels

REQUEST_KEYS = [
    "request_id",
    "input_tokens",
    "output_tokens",
    "first_token_time_ms",
    "e2e_latency_ms",
    "inter_token_latencies",
    "tpot_ms",
    "mean_itl_ms",
    "success",
    "error",
    "target_port",
]
MS = 1_000_000


def written(records: Iterable[RequestRecord], facts: RunFacts) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    def strict(word: str) -> float:
        raise AssertionError(word)

    lines = [json.loads(line, parse_constant=strict) for line in b"".join(encode(records, facts)).splitlines()]
    return lines[:-1], lines[-1]


def test_a_request_line_has_exactly_the_keys_in_their_order_and_ms(records: list[RequestRecord], facts: RunFacts) -> None:
    lines, _ = written(records, facts)
    assert [list(line) for line in lines] == [REQUEST_KEYS] * 4
    assert lines[0] == {
        "request_id": 0,
        "input_tokens": 512,
        "output_tokens": 3,
        "first_token_time_ms": 100.0,
        "e2e_latency_ms": 130.0,
        "inter_token_latencies": [10.0, 20.0],
        "tpot_ms": 15.0,
        "mean_itl_ms": 15.0,
        "success": True,
        "error": "",
        "target_port": 30005,
    }


def test_a_retried_request_shows_its_final_attempt(records: list[RequestRecord], facts: RunFacts) -> None:
    lines, summary = written(records, facts)
    assert (lines[1]["target_port"], lines[1]["first_token_time_ms"], lines[1]["e2e_latency_ms"]) == (30006, 200.0, 1500.0)
    assert summary["retried"] == 1


def test_what_a_failed_request_did_not_reach_is_null(records: list[RequestRecord], facts: RunFacts) -> None:
    lines, _ = written(records, facts)
    refused, lost = lines[2], lines[3]
    assert refused["error"] == "connect_error: connection refused"
    assert (refused["success"], refused["target_port"], refused["inter_token_latencies"]) == (False, 30006, [])
    for key in ("output_tokens", "first_token_time_ms", "e2e_latency_ms", "tpot_ms", "mean_itl_ms"):
        assert refused[key] is None
    assert (lost["target_port"], lost["error"]) == (None, "no_endpoint: all endpoints are down")


def test_the_last_line_sums_up(records: list[RequestRecord], facts: RunFacts) -> None:
    _, summary = written(records, facts)
    assert (summary["completed"], summary["failed"], summary["duration"]) == (2, 2, 2.0)
    assert (summary["request_throughput"], summary["output_throughput"], summary["input_throughput"]) == (1.0, 3.0, 512.0)
    assert (summary["total_input_tokens"], summary["total_output_tokens"], summary["total_tokens"]) == (1024, 6, 1030)
    assert (summary["mean_ttft_ms"], summary["median_ttft_ms"], summary["std_ttft_ms"]) == (150.0, 150.0, pytest.approx(50.0))
    assert summary["p95_ttft_ms"] == pytest.approx(195.0)
    assert (summary["mean_e2e_ms"], summary["mean_tpot_ms"]) == (815.0, (15.0 + 650.0) / 2)
    assert summary["mean_itl_ms"] == pytest.approx((10 + 20 + 1270 + 30) / 4)
    assert summary["p50_itl_ms"] == summary["median_itl_ms"] == 25.0
    assert summary["healthy_ports_at_end"] == [30005]
    assert (summary["lb_strategy"], summary["num_services"]) == ("round_robin", 2)


def test_per_port_count_is_ok_there_and_failed_is_finally_failed_there(records: list[RequestRecord], facts: RunFacts) -> None:
    _, summary = written(records, facts)
    ports = summary["per_port_stats"]
    assert {port: (figures["count"], figures["failed"]) for port, figures in ports.items()} == {"30005": (1, 0), "30006": (1, 1)}
    assert (ports["30006"]["mean_ttft_ms"], ports["30006"]["p95_ttft_ms"], ports["30006"]["mean_e2e_ms"]) == (200.0, 200.0, 1500.0)


def test_a_run_where_all_failed_has_rates_of_zero_and_null_latencies(records: list[RequestRecord], facts: RunFacts) -> None:
    _, summary = written(records[2:], facts)
    assert (summary["completed"], summary["failed"], summary["request_throughput"]) == (0, 2, 0.0)
    assert {summary[f"{stat}_{name}_ms"] for stat in ("mean", "p99", "std") for name in ("ttft", "tpot", "itl", "e2e")} == {None}
    assert summary["per_port_stats"]["30005"] == dict.fromkeys(summary["per_port_stats"]["30005"]) | {"count": 0, "failed": 0}


def test_nothing_at_all_is_still_a_summary() -> None:
    lines, summary = written([], RunFacts())
    assert lines == []
    assert (summary["completed"], summary["duration"], summary["request_throughput"], summary["healthy_ports_at_end"]) == (
        0,
        None,
        None,
        None,
    )


def test_one_token_has_no_tpot_and_no_itl(facts: RunFacts) -> None:
    attempt = Attempt(
        endpoint=0, outcome="ok", sent_ns=0, first_token_ns=MS, last_token_ns=MS, done_ns=MS, chunk_us=[1000], output_tokens=1
    )
    lines, summary = written([RequestRecord(index=0, scheduled_ns=0, outcome="ok", attempts=[attempt])], facts)
    assert (lines[0]["first_token_time_ms"], lines[0]["tpot_ms"], lines[0]["mean_itl_ms"]) == (1.0, None, None)
    assert (summary["mean_ttft_ms"], summary["mean_tpot_ms"], summary["p99_itl_ms"]) == (1.0, None, None)


def test_an_unknown_length_makes_the_total_unknown(records: list[RequestRecord], facts: RunFacts) -> None:
    attempt = Attempt(endpoint=0, outcome="ok", sent_ns=0, last_token_ns=MS, done_ns=MS, streamed=False)
    _, summary = written([records[0], RequestRecord(index=9, scheduled_ns=0, outcome="ok", attempts=[attempt])], facts)
    assert (summary["completed"], summary["total_output_tokens"], summary["output_throughput"]) == (2, None, None)


def test_warm_up_is_not_in_the_file(records: list[RequestRecord], facts: RunFacts) -> None:
    warm = RequestRecord(index=0, scheduled_ns=0, outcome="ok", phase="warmup", attempts=records[0].attempts)
    lines, summary = written([warm, *records], facts)
    assert (len(lines), summary["completed"]) == (4, 2)


def test_duration_covers_what_ended_in_the_drain(records: list[RequestRecord]) -> None:
    _, summary = written(records, RunFacts(window_start_ns=0, window_end_ns=1000 * MS, endpoints=(ends(0), ends(1))))
    assert summary["duration"] == 1.52


def ends(index: int, host: str = "a", port: int = 1, url: str | None = None) -> Endpoint:
    url = url or f"http://{host}:{port}/v1"
    return Endpoint(index, f"{host}:{port}", url, "http", host, port, "/v1/chat/completions", "/v1/models", "")


@pytest.mark.parametrize(
    ("endpoints", "labels"),
    [
        ((ends(0, "a", 1), ends(1, "a", 2)), [1, 2]),
        ((ends(0, "a", 1), ends(1, "b", 1)), ["a:1", "b:1"]),
        ((ends(0, "a", 1, "http://a:1/x"), ends(1, "a", 1, "http://a:1/y")), ["http://a:1/x", "http://a:1/y"]),
        ((), []),
    ],
)
def test_ports_where_all_share_a_host(endpoints: tuple[Endpoint, ...], labels: list[int | str]) -> None:
    assert port_labels(endpoints) == labels


def test_a_long_run_is_not_held_in_memory(facts: RunFacts) -> None:
    """Half a million tokens: as objects they would take tens of MB."""
    gaps = [20_000] * 999

    def long_run() -> Iterable[RequestRecord]:
        for index in range(500):
            attempt = Attempt(
                endpoint=0,
                outcome="ok",
                sent_ns=0,
                first_token_ns=MS,
                last_token_ns=20 * 999 * MS,
                chunk_us=[1000, *gaps],
                output_tokens=1000,
            )
            yield RequestRecord(index=index, scheduled_ns=0, outcome="ok", attempts=[attempt])

    tracemalloc.start()
    for _ in encode(long_run(), facts):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24_000_000
