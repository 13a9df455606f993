"""Attempts, waits and connections: nothing is retried behind the user's back, and nothing leaks."""

import json
import time
from collections import Counter
from email.utils import formatdate
from typing import Any

import pytest

from loadcell.testing.replies import CLOSE, RESET, Action, Script, Step, chat_event, chat_stream, error_reply, plain, sse
from loadcell.testing.scripted_server import Received, ScriptedServer

from .conftest import Play, Played, name_in, replies

GOOD = chat_stream("a", "b", first_ms=20, every_ms=5)
BUSY: Script = [(5.0, error_reply(503, "busy"))]


def after(seconds: object, status: int = 429, **headers: str) -> Script:
    return [(0.0, error_reply(status, "slow down", headers=[("Retry-After", str(seconds)), *headers.items()]))]


class TestAttempts:
    """Two refusals, then an answer, for each of twenty requests."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        return play({f"{number}": [BUSY, BUSY, GOOD] for number in range(20)}, request_max_retries=2, health_max_failures=1000)

    def test_every_attempt_is_on_record(self, played: Played) -> None:
        assert played.whole.counts.by_outcome == {"ok": 20}
        for record in played.records.values():
            assert [attempt.outcome for attempt in record.attempts] == ["http_5xx", "http_5xx", "ok"]
            assert [attempt.status for attempt in record.attempts] == [503, 503, 200]
        counts = played.whole.counts
        assert (counts.attempts, counts.failed_attempts, counts.retried) == (60, 40, 20)
        assert len(played.asked()) == 60

    def test_nobody_succeeded_at_the_first_try(self, played: Played) -> None:
        assert (played.whole.counts.first_try_ok, played.whole.counts.first_try_rate) == (0, 0)
        assert "| Succeeded at the first try | 0 (0.0 %) |" in played.report

    def test_latency_from_the_first_send_and_from_the_last_attempt(self, played: Played) -> None:
        latency = played.whole.latency
        assert (latency.e2e.n, latency.user_latency.n, latency.retry_wait.n) == (20, 20, 20)
        assert latency.e2e.percentiles_ms["p50"] is not None
        assert latency.user_latency.min_ms is not None
        assert latency.retry_wait.min_ms is not None
        assert latency.e2e.percentiles_ms["p50"] < 250
        # 0.1 s and 0.2 s of backoff.
        assert latency.user_latency.min_ms > 300
        assert latency.retry_wait.min_ms == pytest.approx(300, abs=20)

    def test_a_limit_counts_what_the_user_waited(self, play: Play) -> None:
        played = play({"a": [BUSY, GOOD]}, request_max_retries=1, goodput=["e2el:90"])
        assert played.whole.rates.goodput_requests == 0


def test_one_endpoint_is_not_asked_twice_unless_told_to(play: Play) -> None:
    played = play({f"{number}": [BUSY, GOOD] for number in range(5)})
    assert played.whole.counts.by_outcome == {"http_5xx": 5}
    assert {len(record.attempts) for record in played.records.values()} == {1}


def test_several_endpoints_take_over_for_each_other(play: Play) -> None:
    hosts: list[str] = []

    def one_is_ill(request: Received) -> Script:
        hosts.append(request.headers["host"])
        return GOOD if request.headers["host"] == hosts[0] else BUSY

    played = play({f"{number}": one_is_ill for number in range(12)}, servers=2, concurrency=2, health_max_failures=1000)
    assert played.whole.counts.by_outcome == {"ok": 12}
    for record in played.records.values():
        ends = [(attempt.endpoint, attempt.outcome) for attempt in record.attempts]
        assert len(ends) == 1 or (ends[0][0] != ends[1][0] and ends[0][1] == "http_5xx")
    assert played.whole.counts.retried >= 4


FAULTS: dict[str, tuple[Script, str]] = {
    "500": ([(0.0, error_reply(500))], "http_5xx"),
    "502": ([(0.0, plain(b"", 502))], "http_5xx"),
    "429": ([(0.0, error_reply(429))], "http_429"),
    "closed": ([(0.0, b"HTTP/1.1 2"), (0.0, CLOSE)], "connection_reset"),
    "reset": (sse(chat_event("x"), (5.0, RESET)), "connection_reset"),
    "truncated": (sse(chat_event("x")), "truncated"),
    "empty": (sse(), "empty_output"),
    "error": (sse(chat_event("x"), b'data: {"error": {"message": "died", "code": 500}}\n\n'), "stream_error"),
}


def test_these_faults_are_tried_again(play: Play) -> None:
    played = play({name: [fault, GOOD] for name, (fault, _) in FAULTS.items()}, request_max_retries=1, health_max_failures=100)
    for name, (_, outcome) in FAULTS.items():
        assert [attempt.outcome for attempt in played.records[name].attempts] == [outcome, "ok"], name
        assert played.last(name).text == "ab"


def test_a_request_that_is_wrong_is_not_sent_again(play: Play) -> None:
    statuses = {"400": 400, "404": 404, "413": 413, "422": 422}
    played = play({name: [[(0.0, error_reply(status, "no"))], GOOD] for name, status in statuses.items()}, request_max_retries=3)
    assert {name: [attempt.status for attempt in record.attempts] for name, record in played.records.items()} == {
        name: [status] for name, status in statuses.items()
    }
    assert len(played.asked()) == 4


def test_retries_end(play: Play) -> None:
    played = play({"a": BUSY}, request_max_retries=2, health_max_failures=100)
    assert [attempt.outcome for attempt in played.records["a"].attempts] == ["http_5xx"] * 3
    assert played.records["a"].outcome == "http_5xx"
    gaps_ms = [(two.arrived_ns - one.arrived_ns) / 1e6 for one, two in zip(played.asked(), played.asked()[1:], strict=False)]
    assert [gap > low for gap, low in zip(gaps_ms, (99, 199), strict=True)] == [True, True], gaps_ms


class TestRetryAfter:
    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        dated = {"Date": formatdate(1_700_000_000, usegmt=True)}
        return play(
            {
                "429": [after(1), GOOD],
                "503": [after(1, 503), GOOD],
                "a date": [after(formatdate(1_700_000_001, usegmt=True), **dated), GOOD],
            },
            request_max_retries=2,
        )

    @pytest.mark.parametrize("name", ["429", "503", "a date"])
    def test_the_second_attempt_comes_no_earlier(self, played: Played, name: str) -> None:
        asked = [request.arrived_ns for request in played.asked() if name_in(request) == name]
        assert len(asked) == 2
        assert asked[1] - asked[0] >= 0.999e9

    def test_the_wait_is_no_latency(self, played: Played) -> None:
        for name in played.records:
            first, second = played.records[name].attempts
            assert (first.retry_after_s, second.outcome) == (1.0, "ok")
            assert second.waited_ns >= 0.999e9
            assert played.ms(name, "last_token_ns") < 900
        assert played.whole.latency.retry_wait.n == 3
        assert played.whole.latency.e2e.max_ms is not None
        assert played.whole.latency.e2e.max_ms < 900
        assert "| Waited between attempts |" in played.report


def test_a_date_counts_from_our_own_clock_where_the_server_tells_none(play: Play) -> None:
    """A date has whole seconds: what is more than one second away is less than two."""
    played = play({"a": [lambda _: after(formatdate(time.time() + 2, usegmt=True)), GOOD]}, request_max_retries=1)
    first, second = played.records["a"].attempts
    assert first.retry_after_s is not None
    assert 0.9 < first.retry_after_s <= 2
    assert second.waited_ns >= 0.9e9


def test_milliseconds_are_the_finer_wait(play: Play) -> None:
    fine = error_reply(429, "slow", headers=[("Retry-After", "20"), ("Retry-After-Ms", "250")])
    played = play({"a": [[(0.0, fine)], GOOD]}, request_max_retries=1)
    first, second = played.records["a"].attempts
    assert (first.retry_after_s, second.outcome) == (0.25, "ok")
    assert 0.249e9 <= second.waited_ns < 5e9


def test_other_requests_leave_a_resting_endpoint_alone(play: Play) -> None:
    played = play({"first": [after(0.5), GOOD]} | {f"{number}": GOOD for number in range(5)}, request_max_retries=1, concurrency=1)
    assert played.whole.counts.by_outcome == {"ok": 6}
    asked = played.asked()
    assert asked[1].arrived_ns - asked[0].arrived_ns >= 0.499e9


def test_with_another_endpoint_the_request_moves_on_at_once(play: Play) -> None:
    hosts: list[str] = []

    def one_is_busy(request: Received) -> Script:
        hosts.append(request.headers["host"])
        return after(30) if request.headers["host"] == hosts[0] else GOOD

    played = play({f"{number}": one_is_busy for number in range(8)}, servers=2, concurrency=1)
    assert played.whole.counts.by_outcome == {"ok": 8}
    assert Counter(hosts)[hosts[0]] == 1
    assert played.whole.window.duration_s is not None
    assert played.whole.window.duration_s < 5


class TestKeptConnections:
    """A server that closes each connection a moment after its answer, without having said so."""

    @pytest.mark.parametrize("parting", [CLOSE, RESET])
    @pytest.mark.parametrize("delay_ms", [0.0, 5.0])
    def test_nothing_fails(self, play: Play, parting: Action, delay_ms: float) -> None:
        played = play({"a": [*chat_stream("a", "b"), (delay_ms, parting)]}, times=200, concurrency=4)
        counts = played.whole.counts
        assert counts.by_outcome == {"ok": 200}
        assert (counts.attempts, counts.retried) == (200, 0)
        assert counts.stale_replays == sum(record.attempts[0].stale_replays for record in played.result.records)
        assert played.whole.latency.e2e.max_ms is not None
        assert played.whole.latency.e2e.max_ms < 1_000

    def test_a_request_lost_on_a_kept_connection_is_sent_again_and_counted(self, play: Play) -> None:
        """The second request on each connection is read, and the connection closed."""

        def forgetful(request: Received) -> Script:
            return GOOD if request.nth == 0 else [(0.0, CLOSE)]

        played = play({"a": forgetful}, times=12, concurrency=2)
        counts = played.whole.counts
        assert counts.by_outcome == {"ok": 12}
        assert (counts.attempts, counts.stale_replays) == (12, 10)
        assert {record.attempts[0].stale_replays for record in played.result.records} == {0, 1}
        assert "10 requests were sent again on a fresh connection" in played.report

    def test_there_is_one_replay_and_none_on_a_fresh_connection(self, play: Play) -> None:
        played = play({"good": GOOD, "bad": [(0.0, CLOSE)]}, concurrency=1)
        assert played.records["bad"].outcome == "connection_reset"
        assert played.last("bad").stale_replays == 1
        assert len(played.asked()) == 3

    def test_no_replay_once_a_byte_has_come(self, play: Play) -> None:
        played = play({"good": GOOD, "bad": [(0.0, b"HTTP/1.1 200 OK\r\n"), (5.0, CLOSE)]}, concurrency=1)
        assert played.records["bad"].outcome == "connection_reset"
        assert played.last("bad").stale_replays == 0
        assert len(played.asked()) == 2

    def test_the_ttft_of_a_replayed_request_is_from_its_own_send(self, play: Play) -> None:
        played = play({"a": GOOD, "b": lambda request: [(150.0, CLOSE)] if request.nth else GOOD}, concurrency=1)
        assert played.last("b").stale_replays == 1
        assert played.ms("b", "first_token_ns") < 140


class TestBodiesOfFailures:
    """A large error page, many times: read to its end or closed, never left hanging."""

    @pytest.mark.parametrize("framing", ["length", "chunked", "close"])
    def test_connections_stay_near_the_concurrency(self, play: Play, framing: str) -> None:
        page = b"x" * 100_000
        if framing == "length":
            script: Script = [(0.0, plain(page, 503))]
        else:
            script = sse(page, chunked=framing == "chunked", status=503)
        played = play({"a": script}, times=300, concurrency=8)
        server = played.servers[0]
        assert played.whole.counts.by_outcome == {"http_5xx": 300}
        assert server.peak_connections <= 8 + 4
        assert server.accepted <= (300 if framing == "close" else 8) + 4

    def test_with_retries_too(self, play: Play) -> None:
        played = play(
            {f"{number}": [[(0.0, plain(b"x" * 100_000, 503))], GOOD] for number in range(100)},
            concurrency=8,
            request_max_retries=1,
            health_max_failures=10_000,
        )
        assert played.whole.counts.by_outcome == {"ok": 100}
        assert played.servers[0].peak_connections <= 8 + 4

    def test_a_page_without_end_is_let_go(self, play: Play) -> None:
        endless: list[Step] = [(0.0, b"HTTP/1.1 503 Busy\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000)]
        played = play({"a": [*endless, (0.0, CLOSE)], "b": GOOD}, concurrency=1)
        assert {name: record.outcome for name, record in played.records.items()} == {"a": "http_5xx", "b": "ok"}


def some_reset(number: int) -> Script | None:
    return [(0.0, RESET)] if number % 3 == 2 else None


def test_a_burst_of_connections_some_reset_costs_only_those(play: Play) -> None:
    """Every third connection is reset as soon as it is accepted."""
    names = {f"{number}": GOOD for number in range(200)}
    with ScriptedServer(replies(names), greet=some_reset) as server:
        played = play(names, base_url=[server.base_url], health_max_failures=10_000, request_rate="inf", concurrency="unlimited")
        accepted = server.accepted
    outcomes = played.whole.counts.by_outcome
    assert set(outcomes) == {"ok", "connection_reset"}, outcomes
    assert outcomes["ok"] + outcomes["connection_reset"] == 200
    assert abs(outcomes["connection_reset"] - accepted // 3) <= 4
    assert played.result.summary.stop_reason == "count"


def test_a_burst_at_a_short_accept_queue_ends_too(play: Play) -> None:
    """The kernel drops what does not fit and tries again by itself: seconds later, or never within the timeout."""
    names = {f"{number}": GOOD for number in range(40)}
    with ScriptedServer(replies(names), greet=some_reset, backlog=1) as server:
        played = play(
            names, base_url=[server.base_url], request_rate="inf", concurrency="unlimited", first_byte_timeout=2, connect_timeout=2
        )
    outcomes = played.whole.counts.by_outcome
    assert set(outcomes) <= {"ok", "connection_reset", "connect_error", "first_byte_timeout"}, outcomes
    assert sum(outcomes.values()) == 40
    assert outcomes["ok"] > 0


def test_a_port_that_refuses_is_a_failure_of_each_request(play: Play) -> None:
    with ScriptedServer(GOOD) as gone:
        url = gone.base_url
    played = play(dict.fromkeys("abcd", GOOD), base_url=[url])
    assert played.whole.counts.by_outcome == {"connect_error": 4}
    assert "ECONNREFUSED" in (played.records["a"].error or "")
    assert (played.whole.counts.sent, played.result.exit_code) == (0, 1)


def test_retried_requests_say_so_in_every_format(play: Play, tmp_path: Any) -> None:
    out = tmp_path / "out.jsonl"
    played = play({f"{number}": [BUSY, GOOD] for number in range(4)}, request_max_retries=1, health_max_failures=99, output_file=str(out))
    last = json.loads(out.read_text().splitlines()[-1])
    assert (last["completed"], last["failed"], last["retried"]) == (4, 0, 4)
    assert played.whole.counts.retried == 4
