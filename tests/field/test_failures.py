"""Failures are counted, named, shown beside every headline, and kept out of every latency."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadcell.testing.certificate import self_made_certificate
from loadcell.testing.replies import (
    CLOSE,
    DONE,
    HANG,
    RESET,
    Script,
    chat_event,
    chat_reply,
    chat_stream,
    chunk,
    completion_event,
    error_event,
    error_reply,
    event,
    head,
    json_reply,
    plain,
    sse,
    usage_event,
)
from loadcell.testing.scripted_server import Received, ScriptedServer

from .conftest import Play, Played, replies, write_prompts

FINISH = chat_event(finish_reason="stop")
GOOD = chat_stream("a", "b", "c", first_ms=20, every_ms=5)
STREAM = head(200, [("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked")])
LATENCIES = ("ttft", "ttfa", "e2e", "stream_end", "tpot", "icl", "itl", "max_stall", "user_latency", "scheduled_e2e")


def nothing_in_latencies(played: Played, ok: int) -> None:
    """No latency has more samples than there were successes (gaps: than their gaps)."""
    for name in ("ttft", "e2e", "tpot", "stream_end", "user_latency", "queue_delay", "max_stall"):
        assert getattr(played.whole.latency, name).n <= ok, name
    assert played.whole.latency.icl.n <= 2 * ok


class TestErrorsInsideAStream:
    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        tokens = [chat_event("a"), chat_event("b")]
        timeout = {"message": "upstream timed out", "type": "timeout", "code": 504}
        scripts: dict[str, Script] = {
            "object": sse(*tokens, error_event("upstream timed out", "timeout", 504), DONE),
            "code as text": sse(*tokens, event({"error": timeout | {"code": "504"}}), DONE),
            "no done": sse(*tokens, error_event("upstream timed out", "timeout", 504)),
            "then closed": sse(*tokens, error_event("upstream timed out", "timeout", 504), CLOSE),
            "then reset": sse(*tokens, error_event("upstream timed out", "timeout", 504), (10.0, RESET)),
            "then a finish": sse(*tokens, error_event("upstream timed out", "timeout", 504), FINISH, usage_event(4, 2), DONE),
            "bare": sse(*tokens, event({"object": "error", **timeout}), DONE),
            "type error": sse(*tokens, event({"type": "error", "error": timeout}), DONE),
            "named event": sse(*tokens, b"event: error\ndata: " + json.dumps(timeout).encode() + b"\n\n", DONE),
            "message and code": sse(*tokens, event({"message": "upstream timed out", "code": 504}), DONE),
            "detail": sse(*tokens, event({"detail": "upstream timed out", "status_code": 504}), DONE),
            "beside choices": sse(*tokens, chat_event("c", error=timeout), DONE),
            "with the finish": sse(*tokens, chat_event(finish_reason="error", error=timeout), DONE),
            "crlf, no blank": sse(*tokens, b"data:" + json.dumps({"error": timeout}).encode() + b"\r\n\r\ndata:[DONE]\r\n\r\n"),
            "closing body": sse(*tokens, error_event("upstream timed out", "timeout", 504), chunked=False),
            "in the tokens' read": sse(b"".join(tokens) + error_event("upstream timed out", "timeout", 504) + DONE),
            "completions": sse(completion_event("a"), completion_event("b"), error_event("upstream timed out", "timeout", 504), DONE),
        }
        return play(scripts | {"good": GOOD})

    def test_it_is_a_failure_with_its_code(self, played: Played) -> None:
        for name in played.records.keys() - {"good"}:
            attempt = played.last(name)
            assert (attempt.outcome, attempt.status, attempt.error_code) == ("stream_error", 200, "504"), name
            assert "timed out" in (attempt.error or ""), name

    def test_what_came_before_is_kept_apart(self, played: Played) -> None:
        assert all(played.last(name).text in ("ab", "abc") for name in played.records)
        assert played.whole.rates.wasted_output_tokens == 2 * (len(played.records) - 1)
        assert played.whole.rates.output_tokens_in_window == 3

    def test_no_latency_comes_of_it(self, played: Played) -> None:
        nothing_in_latencies(played, ok=1)
        assert "upstream timed out" in played.report


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (sse(chat_event("a"), event({"error": "text only"}), DONE), "text only"),
        (sse(event({"error": {"message": "CUDA error: out of memory"}}), DONE), "out of memory"),
        (sse(chat_event("a"), chat_event(finish_reason="abort"), DONE), "abort"),
        (sse(chat_event("a"), chat_event(finish_reason="error"), DONE), "error"),
        (sse(chat_event("a"), event({"text": "NETWORK ERROR", "error_code": 50001}), DONE), "50001"),
        (sse(chat_event("a"), b"event: error\ndata: the engine is dead\n\n", DONE), "the engine is dead"),
        ([(0.0, json_reply({"error": {"message": "boom", "code": 500}}))], "boom"),
        ([(0.0, json_reply({"object": "error", "message": "boom", "code": 500}))], "boom"),
        ([(0.0, json_reply({"detail": "boom"}))], "boom"),
        ([(0.0, chat_reply("half", finish_reason="abort"))], "abort"),
    ],
)
def test_errors_in_other_words(play: Play, script: Script, words: str) -> None:
    played = play({"bad": script, "good": GOOD})
    assert played.records["bad"].outcome == "stream_error"
    assert words in (played.records["bad"].error or "")


def test_text_that_speaks_of_errors_is_text(play: Play) -> None:
    talk = [chat_event('{"error": {"code": 500}}'), chat_event("data: error"), chat_event("event: error\n")]
    played = play({"talk": sse(*talk, FINISH, DONE), "null": sse(chat_event("a", error=None), FINISH, DONE)})
    assert played.whole.counts.by_outcome == {"ok": 2}


class TestTruncated:
    """Bodies that end without saying that the answer has ended."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        tokens = [chat_event(letter) for letter in "abc"]
        body = b"".join(tokens)
        return play(
            {
                "clean end of chunks": sse(*tokens, every_ms=5),
                "clean end of length": [(0.0, plain(body, content_type="text/event-stream"))],
                "closed": sse(*tokens, chunked=False),
                "closed within chunks": sse(*tokens, CLOSE),
                "closed within a length": [(0.0, plain(body + FINISH, content_type="text/event-stream")[:-20]), (0.0, CLOSE)],
                "closed within an event": sse(*tokens, FINISH[:-9], CLOSE),
                "closed within a chunk": [(0.0, STREAM), (0.0, chunk(body) + chunk(FINISH + DONE)[:30]), (0.0, CLOSE)],
                "usage and no end": sse(*tokens, usage_event(4, 3)),
                "completions": sse(*(completion_event(letter) for letter in "abc")),
                "good": GOOD,
            }
        )

    def test_they_have_failed(self, played: Played) -> None:
        for name in played.records.keys() - {"good"}:
            assert played.records[name].outcome == "truncated", name
        assert played.whole.counts.by_outcome == {"truncated": 9, "ok": 1}

    def test_the_text_is_kept_and_enters_no_figure(self, played: Played) -> None:
        assert {played.last(name).text for name in played.records} == {"abc"}
        nothing_in_latencies(played, ok=1)
        assert played.whole.rates.wasted_output_tokens == 27


EMPTY: dict[str, Script] = {
    "done alone": sse(DONE),
    "role and done": sse(chat_event("", role="assistant"), DONE),
    "finish alone": sse(FINISH, DONE),
    "usage of nothing": sse(chat_event("", role="assistant"), FINISH, usage_event(4, 0), DONE),
    "no chunks": sse(),
    "no bytes": [(0.0, plain(b"", content_type="text/event-stream"))],
    "closed": sse(chunked=False),
    "comments": sse(b": a\n\n", b": b\n\n"),
    "204": [(0.0, head(204))],
    "plain": [(0.0, chat_reply("", completion=0))],
    "plain null": [(0.0, json_reply({"choices": [{"index": 0, "message": {"content": None}, "finish_reason": "stop"}]}))],
}


class TestEmptyAnswers:
    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        return play(EMPTY)

    def test_all_have_failed(self, played: Played) -> None:
        assert {name: record.outcome for name, record in played.records.items()} == dict.fromkeys(EMPTY, "empty_output")

    def test_there_is_no_rate_to_boast_of(self, played: Played) -> None:
        rates = played.whole.rates
        assert (rates.requests_per_s, rates.output_tokens_per_s, rates.completed_in_window) == (0, 0, 0)
        assert all(getattr(played.whole.latency, name).n == 0 for name in LATENCIES)
        assert played.result.summary.verdict == "invalid"
        assert played.result.exit_code == 1

    def test_a_tokens_count_without_text_is_no_failure(self, play: Play) -> None:
        """Special tokens have no text: the server counted two, and finished."""
        played = play({"special": sse(chat_event("", role="assistant"), FINISH, usage_event(4, 2), DONE)})
        assert played.records["special"].outcome == "ok"
        assert played.whole.latency.ttft.n == 0


PAGES: dict[str, tuple[bytes, str]] = {
    "404 json": (error_reply(404, "Not Found", "NotFoundError"), "http_4xx"),
    "404 html": (plain(b"<html><h1>404 Not Found</h1></html>", 404, "text/html"), "http_4xx"),
    "404 nothing": (plain(b"", 404), "http_4xx"),
    "400": (error_reply(400, "bad"), "http_4xx"),
    "413": (plain(b"too large", 413), "http_4xx"),
    "502": (plain(b"<html><h1>502 Bad Gateway</h1><hr>nginx</html>", 502, "text/html"), "http_5xx"),
    "503": (plain(b"no healthy upstream", 503), "http_5xx"),
    "504": (plain(b"", 504), "http_5xx"),
    "500 that looks like an answer": (plain(chat_reply("a").partition(b"\r\n\r\n")[2], 500, "application/json"), "http_5xx"),
    "500 that streams": (plain(chat_event("a") + DONE, 500, "text/event-stream"), "http_5xx"),
    "429": (plain(b"slow down", 429), "http_429"),
    "302": (plain(b"", 302, headers=[("Location", "https://sso.example/login")]), "invalid_response"),
}


class TestErrorPages:
    @pytest.mark.parametrize("page", ["404 json", "404 html", "502", "503", "429"])
    def test_a_server_of_nothing_else_has_no_rate(self, play: Play, page: str) -> None:
        played = play({"a": [(1.0, PAGES[page][0])]}, times=40, concurrency=4)
        rates, counts = played.whole.rates, played.whole.counts
        assert counts.by_outcome == {PAGES[page][1]: 40}
        assert (rates.requests_per_s, counts.success_rate, counts.failure_rate) == (0, 0, 1)
        assert rates.attempts_per_s is not None
        assert rates.attempts_per_s > 0
        assert "Attempts (failed ones too; no throughput)" in played.report
        assert (played.result.summary.verdict, played.result.exit_code) == ("invalid", 1)

    def test_each_page_is_its_own_kind(self, play: Play) -> None:
        played = play({name: [(0.0, page)] for name, (page, _) in PAGES.items()})
        assert {name: record.outcome for name, record in played.records.items()} == {name: kind for name, (_, kind) in PAGES.items()}
        assert played.last("502").error == "502 Bad Gateway nginx"
        assert "sso.example" in (played.last("302").error or "")


def test_the_command_exits_with_one_when_nothing_was_ok(tmp_path: Path) -> None:
    with ScriptedServer(replies({"a": [(0.0, error_reply(404))]})) as server:
        words = [sys.executable, "-m", "loadcell", "bench", "--base-url", server.base_url, "--model", "m", "--tokenizer", "words"]
        words += ["--dataset-name", "custom", "--dataset-path", str(write_prompts(tmp_path / "prompts.jsonl", ["a"]))]
        words += [
            "--num-prompts",
            "12",
            "--concurrency",
            "2",
            "--output-dir",
            str(tmp_path / "run"),
            "--output-file",
            str(tmp_path / "o.jsonl"),
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "INVALID" in done.stdout
    assert "12 failed (100.0 %)" in done.stdout
    last = json.loads((tmp_path / "o.jsonl").read_text().splitlines()[-1])
    assert (last["completed"], last["failed"], last["request_throughput"]) == (0, 12, 0)


class TestResetsAmongGoodOnes:
    """Twenty good answers, and five that are reset long after."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        good: dict[str, Any] = {f"good {number}": GOOD for number in range(20)}
        late = sse(chat_event("x"), (600.0, RESET))
        return play(good | {f"bad {number}": late for number in range(5)})

    def test_latencies_are_over_the_good_ones(self, played: Played) -> None:
        latency = played.whole.latency
        assert (latency.ttft.n, latency.e2e.n, latency.tpot.n, latency.icl.n) == (20, 20, 20, 40)
        assert latency.e2e.max_ms is not None
        assert latency.e2e.max_ms < 500

    def test_the_bad_ones_stand_in_the_failures(self, played: Played) -> None:
        assert played.whole.counts.by_outcome == {"ok": 20, "connection_reset": 5}
        assert "| connection_reset | 5 |" in played.report

    def test_throughput_is_of_good_tokens_over_the_stated_window(self, played: Played) -> None:
        window, rates = played.whole.window, played.whole.rates
        assert window.duration_s is not None
        assert window.duration_s > 0.59
        assert rates.output_tokens_in_window == 60
        assert rates.output_tokens_per_s == pytest.approx(60 / window.duration_s)
        assert rates.wasted_output_tokens == 5
        assert window.rule in played.report


class TestOneThatRefusesWork:
    """Every second request is refused; the others are quick."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        busy: dict[str, Script] = {f"{number}": GOOD if number % 2 else [(0.0, error_reply(503, "busy"))] for number in range(20)}
        return play(busy, concurrency=4, goodput=["ttft:5000"])

    def test_failures_stand_beside_the_headline(self, played: Played) -> None:
        first = "\n".join(played.report.splitlines()[:6])
        assert "10 ok, 10 failed (50.0 %)" in first
        counts = json.loads((played.result.folder / "summary.json").read_bytes())["whole"]["counts"]
        assert (counts["ok"], counts["failed"], counts["failure_rate"], counts["success_rate"]) == (10, 10, 0.5, 0.5)

    def test_the_run_is_suspect_and_strictly_a_failure(self, played: Played) -> None:
        assert played.result.summary.verdict != "valid"
        assert "failures" in {reason.rule for reason in played.result.summary.reasons}

    def test_refused_work_is_not_good(self, played: Played) -> None:
        rates = played.whole.rates
        assert (rates.goodput_requests, rates.attainment, rates.completed_in_window) == (10, 0.5, 10)
        assert rates.goodput_per_s is not None
        assert rates.requests_per_s is not None
        assert rates.goodput_per_s <= rates.requests_per_s


def test_endpoints_show_their_own_failures(play: Play) -> None:
    hosts: list[str] = []

    def one_is_ill(request: Received) -> Script:
        hosts.append(request.headers["host"])
        return GOOD if request.headers["host"] == hosts[0] else [(0.0, error_reply(503))]

    played = play({"a": one_is_ill}, times=12, servers=2, concurrency=1, request_max_retries=0, health_max_failures=100)
    good, ill = sorted(played.result.summary.endpoints, key=lambda one: one.failed_attempts)
    assert (good.figures.counts.ok, good.figures.counts.failed) == (6, 0)
    assert (ill.figures.counts.ok, ill.figures.counts.failed, ill.failed_attempts) == (0, 6, 6)
    assert ill.figures.rates.requests_per_s == 0
    assert played.whole.counts.by_outcome == {"ok": 6, "http_5xx": 6}


def test_the_run_stops_after_so_many_failures(play: Play) -> None:
    played = play({"a": [(5.0, error_reply(500))]}, times=400, concurrency=2, max_failures=10)
    assert played.result.summary.stop_reason == "max_failures"
    assert 11 <= played.whole.counts.failed < 400
    assert played.result.exit_code == 1


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (error_reply(401, "Invalid API key"), "--api-key-env"),
        (error_reply(404, "The model `m` does not exist.", "NotFoundError"), "--model"),
    ],
)
def test_what_no_request_can_survive_ends_the_run_at_once(play: Play, page: bytes, words: str) -> None:
    played = play({"a": [(0.0, page)]}, times=300, concurrency=2)
    assert played.result.summary.stop_reason == "fatal"
    assert words in (played.result.summary.stop_detail or "")
    assert len(played.asked()) <= 4
    assert played.result.exit_code == 1


BROKEN: dict[str, tuple[Script, str]] = {
    "closed before the head": ([(0.0, CLOSE)], "connection_reset"),
    "reset before the head": ([(0.0, RESET)], "connection_reset"),
    "closed within the head": ([(0.0, b"HTTP/1.1 200 OK\r\nContent-"), (5.0, CLOSE)], "connection_reset"),
    "reset within the stream": (sse(chat_event("a"), (10.0, RESET)), "connection_reset"),
    "reset before any event": (sse((10.0, RESET)), "connection_reset"),
    "bad chunk size": ([(0.0, STREAM), (0.0, b"zz\r\nabc\r\n"), (0.0, HANG)], "invalid_response"),
    "bad length": ([(0.0, head(200, [("Content-Length", "-5")])), (0.0, HANG)], "invalid_response"),
    "json cut by a close": (
        [(0.0, head(200, [("Content-Type", "application/json")])), (0.0, b'{"choices": [{"mess'), (0.0, CLOSE)],
        "truncated",
    ),
}


def test_broken_connections_are_told_apart_and_cost_nobody_else(play: Play) -> None:
    scripts: dict[str, Script | Callable[[Received], Script]] = {name: script for name, (script, _) in BROKEN.items()}
    played = play(scripts | {f"good {number}": GOOD for number in range(8)})
    wanted = {name: outcome for name, (_, outcome) in BROKEN.items()} | {f"good {number}": "ok" for number in range(8)}
    assert {name: record.outcome for name, record in played.records.items()} == wanted


@pytest.mark.parametrize("delay_ms", [0.0, 20.0])
@pytest.mark.parametrize("status", [401, 413, 503])
def test_a_refusal_that_comes_before_the_whole_request_is_read(play: Play, status: int, delay_ms: float) -> None:
    """The server answers at once and closes; the rest of a long prompt finds nobody."""
    long = "word " * 400_000
    refusal: Script = [(delay_ms, plain(b"not this one", status, headers=[("Connection", "close")])), (0.0, CLOSE)]
    with ScriptedServer(GOOD, greet=lambda _: refusal) as server:
        played = play({long: GOOD}, base_url=[server.base_url])
    attempt = played.last(long)
    assert (attempt.status, attempt.error) == (status, "not this one")


class TestOverTls:
    """The same stories where every byte is encrypted, and an end may come without a farewell."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play, tmp_path_factory: pytest.TempPathFactory) -> Played:
        certificate = self_made_certificate(tmp_path_factory.mktemp("tls"))
        token = chat_event("中")
        at = token.index(b"\xe4") + 1
        end = FINISH + DONE
        scripts: dict[str, Script] = {
            "good": GOOD,
            "cut": sse(token[:at], token[at:], end, every_ms=5),
            "long": sse(chat_event("x" * 300_000), end),
            "long and closed": sse(chat_event("x" * 300_000), end, chunked=False),
            "whole": [(20.0, chat_reply("hello"))],
            "closed after the finish": sse(chat_event("a"), FINISH, (5.0, CLOSE)),
            "truncated": sse(chat_event("a"), (5.0, CLOSE)),
            "reset": sse(chat_event("a"), (5.0, RESET)),
            "error": sse(chat_event("a"), error_event(), DONE),
            "empty": sse(DONE),
            "stalls": sse(chat_event("a"), HANG),
            "silent": [(0.0, HANG)],
            "page": [(0.0, error_reply(503))],
        }
        with ScriptedServer(replies(scripts), tls=certificate.server) as server:
            return play(scripts, base_url=[server.base_url], ca_file=str(certificate.ca_file), idle_timeout=0.6, first_byte_timeout=0.6)

    def test_outcomes(self, played: Played) -> None:
        assert {name: record.outcome for name, record in played.records.items()} == {
            **dict.fromkeys(("good", "cut", "long", "long and closed", "whole", "closed after the finish"), "ok"),
            "truncated": "truncated",
            "reset": "connection_reset",
            "error": "stream_error",
            "empty": "empty_output",
            "stalls": "idle_timeout",
            "silent": "first_byte_timeout",
            "page": "http_5xx",
        }

    def test_texts(self, played: Played) -> None:
        assert played.last("cut").text == "中"
        assert {len(played.last(name).text or "") for name in ("long", "long and closed")} == {300_000}
