"""Servers that fall silent: each silence ends by its own timeout, and never holds up the rest."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from loadcell.records import RequestRecord
from loadcell.testing.replies import DONE, HANG, Script, Step, chat_event, chat_reply, chat_stream, head, models_reply, sse, usage_event
from loadcell.testing.scripted_server import Received, ScriptedServer

from .conftest import Play, Played, replies, write_prompts

GOOD = chat_stream("a", "b", first_ms=10, every_ms=5)
SILENT: Script = [(0.0, HANG)]
STREAM = head(200, [("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked")])


def lasted_s(record: RequestRecord) -> float:
    attempt = record.attempts[-1]
    assert attempt.done_ns is not None
    start = attempt.sent_ns if attempt.sent_ns is not None else attempt.dispatched_ns
    assert start is not None
    return (attempt.done_ns - start) / 1e9


def trickle(piece: bytes, times: int, every_ms: float = 30) -> list[Step]:
    return [(every_ms, piece) for _ in range(times)]


class TestNoFirstOutput:
    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        role = chat_event("", role="assistant")
        return play(
            {
                "nothing": SILENT,
                "headers": [(0.0, STREAM), (0.0, HANG)],
                "half the headers": [(0.0, STREAM[:30]), (0.0, HANG)],
                "comments": sse(*trickle(b": keep-alive\n\n", 40), HANG),
                "a role": sse(role, HANG),
                "empty deltas": sse(*trickle(role, 40), HANG),
                "usage": sse(*trickle(usage_event(4, 0), 40), HANG),
                "continue": [(0.0, b"HTTP/1.1 100 Continue\r\n\r\n"), (0.0, HANG)],
                "half a plain answer": [(0.0, chat_reply("abc")[:-20]), (0.0, HANG)],
                "good": GOOD,
            },
            first_byte_timeout=0.6,
        )

    def test_each_ends_when_it_is_due(self, played: Played) -> None:
        for name in played.records.keys() - {"good"}:
            record = played.records[name]
            assert record.outcome == "first_byte_timeout", name
            assert 0.6 <= lasted_s(record) < 2.5, name
            assert "--first-byte-timeout" in (record.error or "")

    def test_the_run_ends_and_the_others_are_whole(self, played: Played) -> None:
        assert played.records["good"].outcome == "ok"
        assert played.result.summary.stop_reason == "count"
        assert played.whole.latency.ttft.n == 1
        assert "first\\_byte\\_timeout" in played.report or "first_byte_timeout" in played.report


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_server_that_accepts_and_never_answers(play: Play, api: str, stream: bool) -> None:
    played = play({"a": SILENT}, times=4, concurrency=2, endpoint_type=api, stream=stream, first_byte_timeout=0.5)
    assert played.whole.counts.by_outcome == {"first_byte_timeout": 4}
    assert all(0.5 <= lasted_s(record) < 2.5 for record in played.result.records)
    assert (played.result.summary.verdict, played.result.exit_code) == ("invalid", 1)


class TestSilenceAfterTheFirstOutput:
    """One of three stalls; the others end as they should, and there is a file of all."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        first = chat_event("x")
        return play(
            {
                "one": GOOD,
                "two": GOOD,
                "stalls": sse(first, HANG),
                "comments": sse(first, *trickle(b": still here\n\n", 40), HANG),
                "empty deltas": sse(first, *trickle(chat_event(""), 40), HANG),
                "pings": sse(first, *trickle(b"event: ping\ndata: {}\n\n", 40), HANG),
                "half an event": sse(first, chat_event("y")[:-4], HANG),
                "half a chunk": [*sse(first)[:-1], (0.0, b"40\r\ndata: {"), (0.0, HANG)],
            },
            idle_timeout=0.5,
        )

    def test_silence_has_its_name_and_its_time(self, played: Played) -> None:
        for name in played.records.keys() - {"one", "two"}:
            record = played.records[name]
            assert record.outcome == "idle_timeout", name
            assert 0.5 <= lasted_s(record) < 2.5, name
            assert record.attempts[-1].text == "x"

    def test_all_are_in_the_files(self, played: Played) -> None:
        folder = played.result.folder
        assert played.whole.counts.by_outcome == {"ok": 2, "idle_timeout": 6}
        counts = json.loads((folder / "summary.json").read_bytes())["whole"]["counts"]
        assert (counts["ok"], counts["failed"]) == (2, 6)
        assert len((folder / "records.jsonl").read_text().splitlines()) == 9

    def test_steady_output_is_never_idle(self, play: Play) -> None:
        slow = sse(*(chat_event("x") for _ in range(8)), chat_event(finish_reason="stop"), DONE, first_ms=150, every_ms=150)
        assert play({"slow": slow}, idle_timeout=0.6, first_byte_timeout=0.6).whole.counts.by_outcome == {"ok": 1}

    def test_silence_after_the_finish_is_no_failure(self, play: Play) -> None:
        finish = chat_event(finish_reason="stop")
        played = play({"finish": sse(chat_event("a"), finish, HANG), "done": sse(chat_event("a"), finish, DONE, HANG)}, idle_timeout=0.4)
        assert played.whole.counts.by_outcome == {"ok": 2}
        assert played.whole.latency.e2e.max_ms is not None
        assert played.whole.latency.e2e.max_ms < 390


def test_the_command_leaves_its_files_and_its_exit_code(tmp_path: Path) -> None:
    scripts = {"a": GOOD, "b": GOOD, "c": sse(chat_event("x"), HANG)}
    out = tmp_path / "out.jsonl"
    with ScriptedServer(replies(scripts)) as server:
        words = [sys.executable, "-m", "loadcell", "bench", "--base-url", server.base_url, "--model", "m", "--tokenizer", "words"]
        words += ["--dataset-name", "custom", "--dataset-path", str(write_prompts(tmp_path / "prompts.jsonl", list(scripts)))]
        words += ["--num-prompts", "3", "--concurrency", "3", "--idle-timeout", "0.5"]
        words += ["--output-dir", str(tmp_path / "run"), "--output-file", str(out)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    verdict = json.loads((tmp_path / "run" / "summary.json").read_bytes())["verdict"]
    assert done.returncode == (1 if verdict == "invalid" else 0), done.stderr
    assert "timeouts: connect 10 s, first output 300 s, idle 0.5 s, total 1800 s" in done.stderr
    assert "2 ok, 1 failed" in done.stdout
    last = json.loads(out.read_text().splitlines()[-1])
    assert (last["completed"], last["failed"]) == (2, 1)


def test_a_stream_without_end_meets_the_total(play: Play) -> None:
    played = play({"endless": sse(*trickle(chat_event("x"), 200, every_ms=20)), "good": GOOD}, total_timeout=0.8)
    endless = played.records["endless"]
    assert endless.outcome == "total_timeout"
    assert 0.75 < lasted_s(endless) < 2.5
    assert "--total-timeout" in (endless.error or "")
    assert played.records["good"].outcome == "ok"
    assert played.whole.latency.e2e.n == 1


@contextmanager
def full_queue() -> Iterator[int]:
    """A port whose accept queue is full: the kernel answers no further connection."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def test_a_connection_that_is_never_made(play: Play) -> None:
    with full_queue() as port:
        played = play({"a": GOOD, "b": GOOD}, base_url=[f"http://127.0.0.1:{port}"], connect_timeout=0.5)
    assert played.whole.counts.by_outcome == {"connect_error": 2}
    assert all(0.5 <= lasted_s(record) < 2.5 for record in played.records.values())
    assert "--connect-timeout" in (played.records["a"].error or "")


def test_a_silent_endpoint_among_others_is_left_and_its_requests_are_served(play: Play) -> None:
    hosts: list[str] = []

    def one_is_silent(request: Received) -> Script:
        hosts.append(request.headers["host"])
        return SILENT if request.headers["host"] == hosts[0] else GOOD

    played = play({f"{number}": one_is_silent for number in range(20)}, servers=2, concurrency=4, first_byte_timeout=0.4)
    assert played.whole.counts.by_outcome == {"ok": 20}
    failed = [attempt.outcome for record in played.result.records for attempt in record.attempts[:-1]]
    assert set(failed) == {"first_byte_timeout"}
    assert sum(one.ejections for one in played.result.summary.endpoints) == 1


def test_a_silent_server_does_not_hold_up_the_start_or_the_end(play: Play) -> None:
    """Neither the model list, the tokenizer, the counters nor the probes answer; only generation does."""
    with ScriptedServer(lambda request: GOOD if request.path.endswith("completions") else SILENT) as server:
        played = play({"a": GOOD, "b": GOOD}, base_url=[server.base_url], health_check_interval=0.2, health_timeout=0.2)
    assert played.whole.counts.by_outcome == {"ok": 2}


def test_the_model_is_asked_for_where_none_is_given(play: Play) -> None:
    def answers(request: Received) -> Script:
        if request.path == "/v1/models":
            return [(0.0, models_reply("first", "second"))]
        return GOOD

    with ScriptedServer(answers) as server:
        played = play({"a": GOOD}, base_url=[server.base_url], model=None)
        bodies = [json.loads(request.body) for request in server.requests if request.method == "POST"]
    assert played.whole.counts.by_outcome == {"ok": 1}
    assert {body["model"] for body in bodies} == {"first"}


def test_defaults_are_minutes_and_are_stated() -> None:
    done = subprocess.run([sys.executable, "-m", "loadcell", "bench", "--help"], capture_output=True, text=True, check=True, timeout=60)
    shown = re.sub(r"[│╭╮╰╯─\s]+", " ", re.sub(r"\x1b\[[0-9;]*m", "", done.stdout))
    for flag, seconds in (("--connect-timeout", 10), ("--first-byte-timeout", 300), ("--idle-timeout", 120), ("--total-timeout", 1800)):
        assert re.search(rf"{flag} [^\[]*\[default: {seconds}\]", shown), flag
