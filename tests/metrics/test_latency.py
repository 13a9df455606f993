"""Each formula on hand-made requests."""

from typing import Any

import pytest

from loadcell.metrics.latency import (
    RequestLatency,
    first_chunk_tokens,
    gaps_us,
    hides_reasoning,
    request_latency,
    token_gaps,
    tokens_after_first_chunk,
)
from loadcell.records import Attempt

from .build import MS, attempt, failed, record


def latency_of(*attempts: Attempt, open_loop: bool = False, **fields: Any) -> RequestLatency:
    found = request_latency(record(0, list(attempts), **fields), open_loop)
    assert found is not None
    return found


def test_the_first_tokens_delay_is_no_gap() -> None:
    """First token at 1000 ms, then nine every 10 ms."""
    one = attempt(0, [1000 + 10 * k for k in range(10)])
    found = latency_of(one)
    assert found.ttft == 1000 * MS
    assert gaps_us(one) == [10_000] * 9
    assert token_gaps(one) == ([10_000] * 9, [1] * 9)
    assert found.tpot == 10 * MS
    assert found.max_stall == 10 * MS
    assert found.e2e == 1090 * MS


def test_reasoning_is_the_first_token_and_content_the_first_answer() -> None:
    found = latency_of(attempt(0, [100, 200, 2000], first_answer_ns=2000 * MS))
    assert (found.ttft, found.ttfa) == (100 * MS, 2000 * MS)


def test_several_tokens_a_chunk_by_usage_alone() -> None:
    """Twenty events of three tokens every 30 ms: TPOT is 10 ms, the gap between events 30 ms, ITL unknown."""
    one = attempt(0, [50 + 30 * k for k in range(20)], output_tokens=60)
    assert latency_of(one).tpot == 10 * MS
    assert latency_of(one).first_chunk_estimated
    assert latency_of(one).max_stall == 30 * MS
    assert token_gaps(one) is None


def test_several_tokens_a_chunk_told_by_the_server() -> None:
    one = attempt(0, [50 + 30 * k for k in range(20)], output_tokens=60, chunk_tokens=[3] * 20)
    assert latency_of(one).tpot == 10 * MS
    assert not latency_of(one).first_chunk_estimated
    assert token_gaps(one) == ([30_000] * 19, [3] * 19)


def test_a_chunk_without_a_token_lends_its_time_to_the_next() -> None:
    one = attempt(0, [10, 20, 30, 40], output_tokens=4, chunk_tokens=[1, 0, 2, 1])
    assert token_gaps(one) == ([20_000, 10_000], [2, 1])


def test_an_unequal_first_chunk_is_taken_out_of_the_divisor() -> None:
    one = attempt(0, [100, 110, 120], output_tokens=12, chunk_tokens=[10, 1, 1])
    assert first_chunk_tokens(one) == (10, False)
    assert latency_of(one).tpot == 10 * MS


def test_hidden_reasoning_refuses_a_decode_speed() -> None:
    """Thousand tokens, 950 of them hidden before the first visible event, which comes 100 ms before the end."""
    one = attempt(0, [5000, 5050, 5100], output_tokens=1000, reasoning_tokens=950)
    assert hides_reasoning(one)
    assert latency_of(one).tpot is None
    assert latency_of(one).ttft == 5000 * MS


def test_visible_reasoning_keeps_its_speed() -> None:
    one = attempt(0, [100, 200, 300], first_answer_ns=300 * MS, reasoning_tokens=2)
    assert not hides_reasoning(one)
    assert latency_of(one).tpot == 100 * MS


@pytest.mark.parametrize(
    ("fields", "tokens_after"),
    [({"output_tokens": 64}, 0), ({"output_tokens": 1}, 0), ({"output_tokens": None}, None)],
    ids=["one event of many tokens", "one token", "tokens unknown"],
)
def test_a_single_event_has_no_speed(fields: dict[str, Any], tokens_after: int | None) -> None:
    one = attempt(0, [800], **fields)
    found = latency_of(one)
    assert (found.ttft, found.e2e) == (800 * MS, 800 * MS)
    assert (found.tpot, found.max_stall) == (None, None)
    assert tokens_after_first_chunk(one)[0] == tokens_after
    assert gaps_us(one) == []


@pytest.mark.parametrize("fields", [{}, {"chunk_tokens": [2, 1, 1], "output_tokens": 4}, {"output_tokens": 9}])
def test_events_that_all_came_at_once_have_no_speed(fields: dict[str, Any]) -> None:
    one = attempt(0, [800, 800, 800], **fields)
    found = latency_of(one)
    assert (found.ttft, found.e2e) == (800 * MS, 800 * MS)
    assert (found.tpot, found.max_stall) == (None, None)
    assert tokens_after_first_chunk(one) == (0, False)
    assert gaps_us(one) == []
    assert token_gaps(one) in (([], []), None)


def test_a_burst_within_a_stream_keeps_its_gaps() -> None:
    one = attempt(0, [100, 100, 120])
    assert gaps_us(one) == [0, 20_000]
    assert latency_of(one).tpot == 10 * MS


def test_a_whole_answer_has_an_end_and_no_first_token() -> None:
    found = latency_of(attempt(0, [], last_token_ns=2500 * MS, done_ns=2500 * MS, output_tokens=8, streamed=False))
    assert (found.ttft, found.ttfa, found.tpot) == (None, None, None)
    assert (found.e2e, found.stream_end) == (2500 * MS, 2500 * MS)


def test_from_the_schedule_and_from_the_send() -> None:
    found = latency_of(attempt(1500, [1900, 2000]), due_ms=100)
    assert (found.queue_delay, found.scheduled_ttft, found.scheduled_e2e) == (1400 * MS, 1800 * MS, 1900 * MS)
    assert (found.ttft, found.e2e) == (400 * MS, 500 * MS)


@pytest.mark.parametrize(("open_loop", "user_ms"), [(False, 1200), (True, 1250)])
def test_a_retried_request_has_two_latencies(open_loop: bool, user_ms: int) -> None:
    found = latency_of(failed(50, 400, "http_5xx"), attempt(1000, [1100, 1250], waited_ns=100 * MS), due_ms=0, open_loop=open_loop)
    assert (found.ttft, found.e2e) == (100 * MS, 250 * MS)
    assert found.user_latency == user_ms * MS
    assert found.retry_wait == 100 * MS
    assert found.queue_delay == 50 * MS


def test_the_users_watch_starts_at_the_dispatch_when_the_first_connection_failed() -> None:
    first = failed(0, 5, "connect_error", sent_ns=None, dispatched_ns=1 * MS)
    found = latency_of(first, attempt(10, [20, 30]))
    assert found.user_latency == 29 * MS
    assert found.queue_delay is None


def test_connect_time_is_null_on_a_kept_connection() -> None:
    assert latency_of(attempt(10, [20])).connect is None
    assert latency_of(attempt(10, [20], dispatched_ns=4 * MS, connected_ns=9 * MS)).connect == 5 * MS


def test_a_request_that_was_never_tried_has_no_latency() -> None:
    assert request_latency(record(0, []), open_loop=True) is None
