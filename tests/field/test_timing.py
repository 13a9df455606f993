"""What each stamp and figure means, on streams whose times are known. Seconds are scaled down to tens of ms."""

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from loadcell.testing.replies import (
    DONE,
    Item,
    Script,
    chat_event,
    chat_reply,
    chat_stream,
    completion_event,
    event,
    sse,
    usage,
    usage_event,
)
from loadcell.testing.scripted_server import ScriptedServer

from .conftest import Play, Played, replies, write_prompts

FINISH = chat_event(finish_reason="stop")
TAIL = FINISH + DONE


def delta(**fields: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


class TestFirstTokenAndGaps:
    """A long wait for the first token, then nine more every 10 ms."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        letters = [chat_event(letter) for letter in "abcdefghij"]
        texts = [completion_event(letter) for letter in "abcdefghij"]
        events = {
            "chat": [*letters, FINISH + usage_event(5, 10) + DONE],
            "without usage": [*letters, TAIL],
            "completions": [*texts, completion_event(finish_reason="length") + usage_event(5, 10) + DONE],
        }
        return play({name: sse(*items, first_ms=200, every_ms=10) for name, items in events.items()})

    def test_the_wait_is_the_ttft(self, played: Played) -> None:
        ttft = played.whole.latency.ttft
        assert ttft.n == 3
        assert ttft.min_ms is not None
        assert ttft.max_ms is not None
        assert 199 < ttft.min_ms <= ttft.max_ms < 1_000

    def test_there_are_nine_gaps_and_none_is_the_wait(self, played: Played) -> None:
        for stats in (played.whole.latency.itl, played.whole.latency.icl):
            assert stats.n == 27
            assert stats.percentiles_ms["p50"] == pytest.approx(10, abs=5)
            assert stats.percentiles_ms["p75"] is not None
            assert stats.percentiles_ms["p75"] < 150
        for record in played.records.values():
            assert len(record.attempts[-1].chunk_us) == 10

    def test_tpot_leaves_the_first_token_out(self, played: Played) -> None:
        assert played.whole.latency.tpot.percentiles_ms["p50"] == pytest.approx(10, abs=5)


class TestOpenings:
    """What comes before the first text is no token."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        text: list[Item] = [(100.0, chat_event("a")), (10.0, chat_event("b")), TAIL]
        openings: dict[str, list[Item]] = {
            "role with empty text": [(5.0, chat_event("", role="assistant"))],
            "role alone": [(5.0, delta(role="assistant"))],
            "role with null": [(5.0, delta(role="assistant", content=None))],
            "empty delta": [(5.0, delta())],
            "empty text twice": [(5.0, chat_event("")), (5.0, chat_event(""))],
            "null everywhere": [(5.0, delta(role=None, content=None, reasoning=None, reasoning_content=None, tool_calls=None))],
            "empty reasoning": [(5.0, delta(reasoning_content="")), (5.0, delta(reasoning=""))],
            "empty tool calls": [(5.0, delta(content="", tool_calls=[]))],
            "role with usage": [(5.0, chat_event("", role="assistant", usage=usage(5, 0)))],
            "delta null": [(5.0, event({"choices": [{"index": 0, "delta": None, "finish_reason": None}]}))],
            "usage": [(5.0, usage_event(5, 0))],
            "comment": [(5.0, b": hello\n\n")],
            "role in the first read": [(5.0, chat_event("", role="assistant") + b": x\n\n")],
        }
        return play({name: sse(*opening, *text) for name, opening in openings.items()})

    def test_the_first_text_is_the_first_token(self, played: Played) -> None:
        assert played.whole.counts.by_outcome == {"ok": len(played.records)}
        for name in played.records:
            assert 99 < played.ms(name, "first_token_ns") < 1_000, name
            assert played.ms(name, "first_token_ns") == played.ms(name, "first_answer_ns"), name
            assert len(played.last(name).chunk_us) == 2, name

    def test_the_first_event_is_told_apart(self, played: Played) -> None:
        assert played.ms("role with empty text", "first_event_ns") < 90


class TestReasoning:
    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        def thoughtful(field: str) -> Script:
            thoughts: list[Item] = [(40.0, delta(**{field: "r1"})), (40.0, delta(**{field: "r2", "content": None}))]
            return sse(chat_event("", role="assistant"), *thoughts, (150.0, chat_event("A")), (10.0, chat_event("B")), TAIL)

        both = delta(reasoning="r", reasoning_content="r")
        parts = delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "r"}]}])
        return play(
            {
                "reasoning": thoughtful("reasoning"),
                "reasoning_content": thoughtful("reasoning_content"),
                "both": sse((40.0, both), (40.0, both), (150.0, chat_event("A")), (10.0, chat_event("B")), TAIL),
                "parts": sse((40.0, parts), (40.0, parts), (150.0, chat_event("A")), (10.0, chat_event("B")), TAIL),
            }
        )

    @pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "both", "parts"])
    def test_a_thought_is_the_first_token_and_no_answer(self, played: Played, name: str) -> None:
        assert 39 < played.ms(name, "first_token_ns") < 200
        assert 229 < played.ms(name, "first_answer_ns") < 1_000
        assert len(played.last(name).chunk_us) == 4
        assert played.last(name).text == "AB"

    def test_both_have_figures(self, played: Played) -> None:
        latency = played.whole.latency
        assert (latency.ttft.n, latency.ttfa.n) == (4, 4)
        assert "First answer" in played.report


def test_nothing_but_thoughts_is_an_answer_that_never_began(play: Play) -> None:
    played = play({"thinks": sse(delta(reasoning="a"), (10.0, delta(reasoning="b")), chat_event(finish_reason="length"), DONE)})
    assert played.records["thinks"].outcome == "ok"
    assert played.last("thinks").first_answer_ns is None
    assert (played.whole.latency.ttft.n, played.whole.latency.ttfa.n) == (1, 0)


class TestSeveralTokensAnEvent:
    """Speculative decoding: the gap between events is not the time of a token."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        events = [chat_event("abc") for _ in range(20)]
        running = [chat_event("abc", usage=usage(5, 3 * number)) for number in range(1, 21)]
        ids = [
            event({"choices": [{"index": 0, "delta": {"content": "abc"}, "token_ids": [1, 2, 3], "finish_reason": None}]})
            for _ in range(20)
        ]
        end = FINISH + usage_event(5, 60) + DONE
        return play({name: sse(*items, end, every_ms=15) for name, items in (("usage", events), ("running", running), ("ids", ids))})

    def test_both_figures_stand_apart(self, played: Played) -> None:
        latency = played.whole.latency
        assert latency.icl.n == 57
        assert latency.icl.percentiles_ms["p50"] == pytest.approx(15, abs=4)
        assert latency.tpot.percentiles_ms["p50"] == pytest.approx(5, abs=2.5)
        assert latency.itl.percentiles_ms["p50"] == pytest.approx(5, abs=2.5)

    def test_tpot_times_tokens_is_the_decode_time(self, played: Played) -> None:
        for name, tpot_ms in zip(played.records, played.result.columns()["tpot_ms"], strict=True):
            attempt = played.last(name)
            assert attempt.output_tokens == 60
            decode_ms = played.ms(name, "last_token_ns") - played.ms(name, "first_token_ns")
            assert tpot_ms * 57 == pytest.approx(decode_ms, rel=0.001)

    def test_tokens_of_each_event_are_kept_where_they_are_told(self, played: Played) -> None:
        assert played.last("usage").chunk_tokens is None
        assert played.last("running").chunk_tokens == played.last("ids").chunk_tokens == [3] * 20


class TestHiddenReasoning:
    """A thousand tokens, nine hundred and fifty of them made before anything is seen."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        def ends_with(told: dict[str, object]) -> Script:
            return sse((100.0, chat_event("a")), (10.0, chat_event("b")), FINISH, event({"choices": [], "usage": told}), DONE)

        base = {"prompt_tokens": 5, "completion_tokens": 1000}
        one = event({"choices": [], "usage": base | {"completion_tokens_details": {"reasoning_tokens": 950}}})
        return play(
            {
                "details": ends_with(base | {"completion_tokens_details": {"reasoning_tokens": 950}}),
                "beside": ends_with(base | {"reasoning_tokens": 950}),
                "other words": ends_with({"input_tokens": 5, "output_tokens": 1000, "output_tokens_details": {"reasoning_tokens": 950}}),
                "one event": sse((100.0, chat_event("a")), FINISH, one, DONE),
            }
        )

    def test_no_speed_is_claimed(self, played: Played) -> None:
        latency = played.whole.latency
        assert (latency.tpot.n, latency.tpot.mean_ms, latency.itl.n) == (0, None, 0)
        assert "hides its reasoning" in played.report

    def test_the_share_is_shown(self, played: Played) -> None:
        assert played.whole.tokens.reasoning_share == pytest.approx(0.95)
        assert "3,800 output tokens were reasoning (95.0 %)" in played.report

    def test_it_can_meet_no_limit_on_speed(self, play: Play) -> None:
        details = {"prompt_tokens": 5, "completion_tokens": 1000, "completion_tokens_details": {"reasoning_tokens": 950}}
        script = sse((20.0, chat_event("a")), (10.0, chat_event("b")), FINISH, event({"choices": [], "usage": details}), DONE)
        played = play({"hidden": script}, goodput=["tpot:500"])
        assert played.whole.rates.goodput_requests == 0


def test_answers_that_are_not_streamed_stay_out_of_the_figures_of_streams(play: Play) -> None:
    scripts: dict[str, Script] = {f"s{number}": chat_stream("a", "b", first_ms=50, every_ms=10) for number in range(8)}
    scripts |= {f"p{number}": [(400.0, chat_reply("ab"))] for number in range(2)}
    played = play(scripts)
    latency = played.whole.latency
    assert (latency.ttft.n, latency.tpot.n, latency.itl.n, latency.e2e.n) == (8, 8, 8, 10)
    assert latency.ttft.mean_ms is not None
    assert latency.ttft.mean_ms < 200
    assert latency.ttft.mean_ms == pytest.approx(50, abs=30)
    assert latency.e2e.max_ms is not None
    assert latency.e2e.max_ms > 399
    assert {played.last(name).streamed for name in scripts if name[0] == "p"} == {False}


def test_a_run_that_asks_for_whole_answers_has_no_first_token(play: Play) -> None:
    played = play({"a": [(40.0, chat_reply("ab"))], "b": [(40.0, chat_reply("abc", completion=3))]}, stream=False)
    assert all(json.loads(request.body)["stream"] is False for request in played.asked())
    assert all("stream_options" not in json.loads(request.body) for request in played.asked())
    latency = played.whole.latency
    assert (latency.ttft.n, latency.tpot.n, latency.e2e.n) == (0, 0, 2)
    assert played.whole.tokens.output_delivered.total == 5


class TestSingleEvents:
    """The whole text in one event."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        text = "word " * 64
        held = b"".join(chat_event("word ") for _ in range(64))
        return play(
            {
                "one event": sse((80.0, chat_event(text)), FINISH, usage_event(5, 64), DONE),
                "with finish and usage": sse((80.0, chat_event(text, finish_reason="stop", usage=usage(5, 64))), DONE),
                "role before": sse(chat_event("", role="assistant"), (80.0, chat_event(text)), FINISH, usage_event(5, 64), DONE),
                "held back by a proxy": sse((80.0, held + FINISH + usage_event(5, 64) + DONE)),
            }
        )

    def test_speed_is_unknown_and_the_report_says_why(self, played: Played) -> None:
        latency = played.whole.latency
        for stats in (latency.tpot, latency.itl, latency.icl, latency.max_stall):
            assert (stats.n, stats.mean_ms) == (0, None)
        assert "does not stream token by token: 4 of 4 answers came in a single event or a single read" in played.report

    def test_ttft_and_tokens_are_known(self, played: Played) -> None:
        assert played.whole.latency.ttft.n == 4
        assert played.whole.tokens.output_delivered.total == 4 * 64
        assert played.whole.latency.ttft.min_ms is not None
        assert played.whole.latency.ttft.min_ms > 79


def test_one_token_is_no_sign_of_a_server_that_does_not_stream(play: Play) -> None:
    played = play({"one": chat_stream("a", first_ms=10)}, times=4)
    assert "token by token" not in played.report


def test_an_open_loop_shows_the_wait_for_a_slot_beside_the_latency(play: Play) -> None:
    """Ten arrivals within 50 ms, one place: each waits for all before it."""
    played = play({f"{number}": chat_stream("a", "b", first_ms=30, every_ms=5) for number in range(10)}, request_rate=200, concurrency=1)
    latency, columns = played.whole.latency, played.result.columns()
    assert latency.e2e.percentiles_ms["p50"] is not None
    assert latency.e2e.percentiles_ms["p50"] < 150
    assert latency.scheduled_e2e.max_ms is not None
    assert latency.scheduled_e2e.max_ms > 250
    assert list(columns["user_latency_ms"]) == list(columns["scheduled_e2e_ms"])


def test_a_stepped_wall_clock_moves_no_duration(tmp_path: Path) -> None:
    """Every process of the run sees the wall clock jump back by 30 s in the middle of the load; what the kernel stamps does not jump with it."""
    (tmp_path / "sitecustomize.py").write_text(
        dedent(
            """
            import time

            began, real_time, real_time_ns, real_gettime_ns = time.monotonic(), time.time, time.time_ns, time.clock_gettime_ns

            def step():
                return 30 if time.monotonic() - began > 0.8 else 0

            time.time = lambda: real_time() - step()
            time.time_ns = lambda: real_time_ns() - step() * 10**9
            time.clock_gettime_ns = lambda which: real_gettime_ns(which) - (step() * 10**9 if which == time.CLOCK_REALTIME else 0)
            """
        )
    )
    names = [f"p{number}" for number in range(60)]
    with ScriptedServer(replies(dict.fromkeys(names, chat_stream(*"abcdef", first_ms=40, every_ms=20)))) as server:
        words = [sys.executable, "-m", "loadcell", "bench", "--base-url", server.base_url, "--model", "m", "--tokenizer", "words"]
        words += ["--dataset-name", "custom", "--dataset-path", str(write_prompts(tmp_path / "prompts.jsonl", names))]
        words += ["--num-prompts", "60", "--concurrency", "4", "--output-dir", str(tmp_path / "run"), "--health-check-interval", "0"]
        done = subprocess.run(
            words, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=60
        )
    assert (tmp_path / "run" / "summary.json").exists(), done.stderr
    whole = json.loads((tmp_path / "run" / "summary.json").read_bytes())["whole"]
    assert whole["counts"]["ok"] == 60
    assert whole["stamps"]["clock"] > 0, "the step was not seen"
    for name, low in (("ttft", 39), ("e2e", 139), ("icl", 0), ("stream_end", 139)):
        stats = whole["latency"][name]
        assert low <= stats["min_ms"] <= stats["max_ms"] < 5_000, name
