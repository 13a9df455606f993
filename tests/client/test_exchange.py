"""What an ended exchange leaves in the record, and when it is overdue."""

import pytest

from loadcell.client.exchange import Exchange, attempt_of
from loadcell.client.limits import Timeouts
from loadcell.testing.replies import DONE, LAST_CHUNK, chat_event, chunk, head, usage_event

from .driving import S, asking, endpoint_of

HEAD = head(200, [("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked")])
LIMITS = Timeouts(connect_s=10, first_output_s=100, idle_s=50, total_s=1000)


def exchange_at(now: int, stream: bool = True) -> Exchange:
    return Exchange(asking(stream=stream), endpoint_of("http://127.0.0.1:1/v1"), b"", now, False, None)


def test_chunk_times_are_rounded_once_and_never_add_up():
    exchange = exchange_at(0)
    exchange.sent_ns = 500
    exchange.datas.append(HEAD)
    exchange.stamps.append(900)
    stamps = [10_000 + 3_333_999 * number for number in range(1_000)]
    for stamp in stamps:
        exchange.datas.append(chunk(chat_event("a")))
        exchange.stamps.append(stamp)
    exchange.datas.append(chunk(chat_event(finish_reason="stop")) + chunk(usage_event(4, 1_000)) + chunk(DONE) + LAST_CHUNK)
    exchange.stamps.append(stamps[-1] + 1)
    attempt = attempt_of(exchange, exchange.answer(), 0, keep_text=False)
    absolute, total = [], 0
    for delta in attempt.chunk_us:
        total += delta
        absolute.append(total)
    assert absolute == [stamp // 1000 for stamp in stamps]
    assert (attempt.first_token_ns, attempt.last_token_ns, attempt.done_ns) == (stamps[0], stamps[-1], stamps[-1] + 1)
    assert attempt.outcome == "ok"


def test_stamps_are_told_from_the_runs_origin():
    exchange = exchange_at(5 * S)
    exchange.sent_ns = 5 * S + 10
    exchange.datas.append(HEAD + chunk(chat_event("a")) + LAST_CHUNK)
    exchange.stamps.append(6 * S)
    attempt = attempt_of(exchange, exchange.answer(), 2 * S, keep_text=False, waited_ns=7)
    assert (attempt.dispatched_ns, attempt.sent_ns, attempt.first_token_ns) == (3 * S, 3 * S + 10, 4 * S)
    assert attempt.chunk_us == [4_000_000]
    assert attempt.connected_ns is None
    assert attempt.waited_ns == 7
    assert attempt.outcome == "truncated"
    assert (attempt.output_tokens, attempt.output_source) == (1, "chunks")


def test_what_was_never_answered_has_no_stamps_at_all():
    exchange = exchange_at(0)
    exchange.ended, exchange.error, exchange.ended_ns = "connect_error", "ECONNREFUSED: connection refused", 99
    attempt = attempt_of(exchange, exchange.answer(), 0, keep_text=False)
    assert (attempt.outcome, attempt.error) == ("connect_error", "ECONNREFUSED: connection refused")
    assert attempt.done_ns == 99
    assert {attempt.sent_ns, attempt.headers_ns, attempt.first_token_ns, attempt.last_token_ns, attempt.output_tokens} == {None}
    assert attempt.chunk_us == []


@pytest.mark.parametrize(
    ("sent", "last", "stream", "at_s", "outcome"),
    [
        (None, None, True, 10, "connect_error"),
        (5, None, True, 105, "first_byte_timeout"),
        (5, 200, True, 250, "idle_timeout"),
        (5, 990, True, 1000, "total_timeout"),
        (5, None, False, 105, "first_byte_timeout"),
    ],
)
def test_each_timeout_strikes_on_its_nanosecond(sent, last, stream, at_s, outcome):
    exchange = exchange_at(0, stream)
    exchange.sent_ns = None if sent is None else sent * S
    if last is not None:
        exchange.datas.append(HEAD + chunk(chat_event("a")))
        exchange.stamps.append(last * S)
    assert exchange.overdue(at_s * S - 1, LIMITS) is None
    assert exchange.check_ns == at_s * S
    struck = exchange.overdue(at_s * S, LIMITS)
    assert struck is not None
    assert struck[0] == outcome


def test_silence_after_the_first_output_is_seen_though_the_limit_of_the_first_is_later():
    exchange = exchange_at(0)
    exchange.sent_ns = 5 * S
    assert exchange.overdue(6 * S, LIMITS) is None
    assert exchange.check_ns == 56 * S
    exchange.datas.append(HEAD + chunk(chat_event("a")))
    exchange.stamps.append(7 * S)
    assert exchange.overdue(exchange.check_ns, LIMITS) is None
    assert exchange.check_ns == 57 * S
    struck = exchange.overdue(57 * S, LIMITS)
    assert struck is not None
    assert struck[0] == "idle_timeout"
