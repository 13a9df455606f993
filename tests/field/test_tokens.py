"""Where token counts come from, and what happens where they are refused, repeated or missing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import loadcell
from loadcell.testing.replies import (
    DONE,
    Script,
    chat_event,
    chat_stream,
    completion_event,
    error_reply,
    event,
    json_reply,
    sse,
    usage,
    usage_event,
)
from loadcell.testing.scripted_server import Received, ScriptedServer

from .conftest import Play, Played, name_in

FINISH = chat_event(finish_reason="stop")


class TestPromptTokens:
    """The server counts a chat template of twenty tokens that the client does not see."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        def templated(request: Received) -> Script:
            return chat_stream("a", "b", prompt=len(name_in(request).split()) + 20)

        return play({f"{number} " + "word " * 99: templated for number in range(4)}, tokenizer="words")

    def test_the_servers_count_is_delivered_and_ours_was_asked(self, played: Played) -> None:
        tokens = played.whole.tokens
        assert (tokens.input_delivered.min, tokens.input_delivered.max) == (120, 120)
        assert tokens.input_asked.mean is not None
        assert tokens.input_asked.mean != 120
        assert tokens.input_sources == {"usage": 4}
        for record in played.records.values():
            assert record.attempts[-1].input_source == "usage"
            assert record.input_asked == tokens.input_asked.min

    def test_the_report_names_both_and_their_source(self, played: Played) -> None:
        assert "| Input asked | 4 |" in played.report
        assert "| Input delivered | 4 | 480 | 120.0 | 120 | 120 |" in played.report
        assert "Input counts come from: usage 4" in played.report


class TestRunningTotals:
    """Usage in every event is a total, not an addition."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        totals = [chat_event(letter, usage=usage(3, number)) for number, letter in enumerate("abcde", start=1)]
        texts = [completion_event(letter, usage=usage(3, number)) for number, letter in enumerate("abcde", start=1)]
        again = [chat_event(letter, usage=usage(3, 5)) for letter in "abcde"]
        swapped = [totals[0], totals[2], totals[1], totals[4], totals[3]]
        extra = usage(3, 5) | {"completion_tokens_details": {"reasoning_tokens": 0}}
        return play(
            {
                "no end": sse(*totals, FINISH, DONE),
                "final usage too": sse(*totals, FINISH, usage_event(3, 5), DONE),
                "role counts none": sse(chat_event("", role="assistant", usage=usage(3, 0)), *totals, FINISH, DONE),
                "in the finish": sse(*totals, chat_event(finish_reason="stop", usage=usage(3, 5)), DONE),
                "with details": sse(*totals, FINISH, event({"choices": [], "usage": extra}), DONE),
                "completions": sse(*texts, completion_event(finish_reason="stop"), DONE),
                "the end in every one": sse(*again, FINISH, DONE),
                "out of order": sse(*swapped, FINISH, DONE),
                "null at the end": sse(*totals, event({"choices": [], "usage": None}), DONE),
                "apart from the text": sse(
                    *(chat_event(letter) + usage_event(3, at) for at, letter in enumerate("abcde", 1)), FINISH, DONE
                ),
            }
        )

    def test_the_largest_counts(self, played: Played) -> None:
        for name in played.records:
            attempt = played.last(name)
            assert (attempt.outcome, attempt.output_tokens, attempt.output_source, attempt.input_tokens) == ("ok", 5, "usage", 3), name

    def test_the_sum_is_five_each(self, played: Played) -> None:
        assert played.whole.tokens.output_delivered.total == 5 * len(played.records)


def asks_for(field: str) -> Callable[[Received], bool]:
    return lambda request: field in json.loads(request.body)


class TestUsageOnRequest:
    def test_it_is_asked_for(self, play: Play) -> None:
        def only_if_asked(request: Received) -> Script:
            wanted = (json.loads(request.body).get("stream_options") or {}).get("include_usage") is True
            return sse(chat_event("a"), chat_event("b"), FINISH, *([usage_event(3, 2)] if wanted else []), DONE)

        for api in ("chat", "completions"):
            played = play({"a": only_if_asked}, endpoint_type=api)
            assert (played.last("a").output_tokens, played.last("a").output_source) == (2, "usage")

    @pytest.mark.parametrize(
        "refusal",
        [
            error_reply(400, "Unrecognized request argument supplied: stream_options", "invalid_request_error"),
            error_reply(400, "Unknown field stream_options"),
            error_reply(422, "stream_options: extra fields not permitted"),
            json_reply(
                {"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}]}, 422
            ),
            json_reply({"object": "error", "message": "property 'stream_options' is unsupported", "code": 400}, 400),
            json_reply({"error": "stream options are not supported"}, 400),
            json_reply({"error": {"message": "bad request", "param": "stream_options"}}, 400),
        ],
    )
    def test_a_server_that_refuses_the_question_is_asked_once_without(self, play: Play, refusal: bytes) -> None:
        def strict(request: Received) -> Script:
            return [(0.0, refusal)] if asks_for("stream_options")(request) else sse(chat_event("a"), chat_event("b"), FINISH, DONE)

        played = play(dict.fromkeys("abcd", strict), concurrency=1)
        assert played.whole.counts.by_outcome == {"ok": 4}
        assert sum(map(asks_for("stream_options"), played.asked())) == 1
        assert played.whole.tokens.output_sources == {"chunks": 4}
        assert played.whole.tokens.output_delivered.total == 8
        assert "refused stream_options: sent without" in played.report
        assert [attempt.outcome for attempt in played.records["a"].attempts] == ["http_4xx", "ok"]
        assert played.last("b").dropped_fields == ["stream_options"]

    def test_each_endpoint_is_asked_for_itself(self, play: Play) -> None:
        first: list[str] = []

        def one_is_strict(request: Received) -> Script:
            first.append(request.headers["host"])
            if request.headers["host"] == first[0] and asks_for("stream_options")(request):
                return [(0.0, error_reply(400, "stream_options is not supported"))]
            return sse(chat_event("a"), FINISH, *([usage_event(3, 2)] if asks_for("stream_options")(request) else []), DONE)

        played = play(dict.fromkeys("abcdefgh", one_is_strict), servers=2, concurrency=1)
        assert played.whole.counts.by_outcome == {"ok": 8}
        assert played.whole.tokens.output_sources == {"chunks": 4, "usage": 4}
        assert [one.dropped_fields for one in played.result.summary.endpoints] == [["stream_options"], []]
        assert played.whole.counts.retried <= 1

    def test_ignore_eos_and_stream_options_refused_one_after_the_other(self, play: Play) -> None:
        def strict(request: Received) -> Script:
            for field in ("ignore_eos", "stream_options", "min_tokens"):
                if asks_for(field)(request):
                    return [(0.0, error_reply(400, f"Unsupported parameter: '{field}'"))]
            return chat_stream("a")

        played = play(dict.fromkeys("abc", strict), concurrency=1, ignore_eos=True, min_tokens=1)
        assert played.whole.counts.by_outcome == {"ok": 3}
        assert len(played.asked()) == 6
        assert played.last("c").dropped_fields == ["ignore_eos", "min_tokens", "stream_options"]

    def test_many_at_once_are_no_failures(self, play: Play) -> None:
        def strict(request: Received) -> Script:
            if asks_for("stream_options")(request):
                return [(5.0, error_reply(400, "stream_options is not supported"))]
            return chat_stream("a")

        played = play({"a": strict}, times=64, concurrency=16, max_failures=1)
        assert played.whole.counts.by_outcome == {"ok": 64}
        assert sum(map(asks_for("stream_options"), played.asked())) <= 16

    def test_a_server_that_refuses_everything_is_not_asked_forever(self, play: Play) -> None:
        played = play({"a": [(0.0, error_reply(400, "stream_options is not supported"))]}, concurrency=1)
        assert played.whole.counts.by_outcome == {"http_4xx": 1}
        assert len(played.asked()) == 2


class TestNoUsage:
    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        empty = event({"choices": [], "usage": usage(0, 0)})
        return play(
            {
                "none": sse(chat_event("a"), chat_event("b"), FINISH, DONE),
                "null": sse(chat_event("a", usage=None), chat_event("b"), event({"choices": [], "usage": None}), FINISH, DONE),
                "zeros": sse(chat_event("a"), chat_event("b"), FINISH, empty, DONE),
                "no number": sse(
                    chat_event("a"), chat_event("b"), event({"choices": [], "usage": {"completion_tokens": "2"}}), FINISH, DONE
                ),
                "negative": sse(chat_event("a"), chat_event("b"), event({"choices": [], "usage": {"completion_tokens": -1}}), FINISH, DONE),
            }
        )

    def test_tokens_are_counted_as_chunks_and_marked(self, played: Played) -> None:
        for name in played.records:
            attempt = played.last(name)
            assert (attempt.outcome, attempt.output_tokens, attempt.output_source) == ("ok", 2, "chunks"), name
        assert "are counted as chunks: the server sent no usage" in played.report

    def test_with_a_tokenizer_they_are_counted_by_it(self, play: Play, tmp_path: Path) -> None:
        tokenizers = pytest.importorskip("tokenizers")
        path = str(toy_tokenizer(tokenizers, tmp_path))
        played = play({"a b a b": sse(chat_event("ab ab"), chat_event(" ab a"), FINISH, DONE)}, tokenizer=path)
        attempt = played.last("a b a b")
        assert attempt.output_source == "tokenizer"
        assert (attempt.output_tokens or 0) > 2

    def test_a_plain_answer_without_usage_has_an_unknown_length_not_zero(self, play: Play) -> None:
        whole = {"choices": [{"index": 0, "message": {"content": "hello"}, "finish_reason": "stop"}]}
        played = play({"a": [(0.0, json_reply(whole))]})
        assert played.records["a"].outcome == "ok"
        assert played.last("a").output_tokens is None
        assert played.whole.tokens.output_delivered.mean is None


def toy_tokenizer(tokenizers: Any, folder: Path) -> Path:
    """Letters, and one merge: `ab` is a single token, so that cutting and joining random tokens changes their number."""
    vocabulary = {"a": 0, "b": 1, "c": 2, "d": 3, "ab": 4, " ": 5}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[("a", "b")]))
    tokenizer.decoder = tokenizers.decoders.Fuse()
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize(("prefix_len", "input_len"), [(0, 128), (16, 64)])
def test_random_prompts_keep_their_length_when_they_are_encoded_again(tmp_path: Path, prefix_len: int, input_len: int) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = toy_tokenizer(tokenizers, tmp_path)
    toy = tokenizers.Tokenizer.from_file(str(path))
    with ScriptedServer(chat_stream("a")) as server:
        result = loadcell.bench(
            base_url=[server.base_url],
            model="m",
            tokenizer=str(path),
            num_prompts=100,
            concurrency=8,
            input_len=input_len,
            prefix_len=prefix_len,
            output_len=1,
            health_check_interval=0,
            output_dir=str(tmp_path / "run"),
        )
    lengths = [len(toy.encode(name_in(request)).ids) for request in server.requests if request.method == "POST"]
    asked = result.summary.whole.tokens.input_asked
    assert (min(lengths), max(lengths)) == (asked.min, asked.max)
    off = result.summary.prompts.off_target
    if off is None:
        assert set(lengths) == {input_len + prefix_len}
    else:
        assert off.n == sum(length != input_len + prefix_len for length in lengths)
        assert "prompts missed their length by" in result.report.read_text()


class TestShortAnswers:
    """Sixty of two hundred tokens came, though the end of the text was to be ignored."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        short = sse(chat_event("a"), chat_event("b"), FINISH, usage_event(5, 60), DONE)
        return play({f"p{number}": short for number in range(4)}, output_len=200, ignore_eos=True, min_tokens=200)

    def test_the_request_said_so(self, played: Played) -> None:
        bodies = [json.loads(request.body) for request in played.asked()]
        assert {(body["max_tokens"], body["ignore_eos"], body["min_tokens"]) for body in bodies} == {(200, True, 200)}

    def test_asked_and_delivered_stand_side_by_side(self, played: Played) -> None:
        tokens = played.whole.tokens
        assert (tokens.output_asked.mean, tokens.output_delivered.mean) == (200, 60)
        assert tokens.delivered_share == pytest.approx(0.3)
        assert "| Output asked | 4 | 800 | 200.0 | 200 | 200 |" in played.report
        assert "| Output delivered | 4 | 240 | 60.0 | 60 | 60 |" in played.report

    def test_the_run_is_suspect(self, played: Played) -> None:
        assert played.result.summary.verdict != "valid"
        assert "short_outputs" in {reason.rule for reason in played.result.summary.reasons}


REFUSALS = [
    {
        "message": "Unsupported parameter: 'max_tokens' is not supported with this model.",
        "param": "max_tokens",
        "code": "unsupported_parameter",
    },
    {"message": "Use 'max_completion_tokens' instead.", "param": "max_tokens", "code": None},
    {"message": "invalid", "param": "max_tokens"},
    {"message": "max_tokens: Extra inputs are not permitted"},
    {"message": "unknown field max_tokens"},
]


class TestOtherNameOfMaxTokens:
    @pytest.mark.parametrize(("refusal", "servers"), [*((refusal, 1) for refusal in REFUSALS), (REFUSALS[0], 2)])
    def test_the_first_refusal_ends_the_run_with_a_hint(self, play: Play, refusal: dict[str, Any], servers: int) -> None:
        played = play({"a": [(0.0, json_reply({"error": refusal}, 400))]}, times=500, concurrency=2, servers=servers)
        summary = played.result.summary
        assert summary.stop_reason == "fatal"
        assert "--max-tokens-field max_completion_tokens" in (summary.stop_detail or "")
        assert "--max-tokens-field max_completion_tokens" in played.report
        assert len(played.asked()) <= 4
        assert played.result.exit_code == 1

    def test_the_other_name_is_accepted(self, play: Play) -> None:
        def modern(request: Received) -> Script:
            body = json.loads(request.body)
            if "max_tokens" in body or body.get("max_completion_tokens") != 8:
                return [(0.0, json_reply({"error": REFUSALS[0]}, 400))]
            return chat_stream("a")

        played = play(dict.fromkeys("abc", modern), max_tokens_field="max_completion_tokens")
        assert played.whole.counts.by_outcome == {"ok": 3}

    @pytest.mark.parametrize(
        "refusal",
        [
            {"message": "max_tokens is too large: 99999. This model supports at most 4096 completion tokens", "param": "max_tokens"},
            {"message": "max_tokens must be at least 1, got 0.", "param": "max_tokens"},
            {"message": "This model's maximum context length is 512 tokens, you requested 600 (88 + 512 max_tokens)", "param": None},
        ],
    )
    def test_a_bad_value_is_a_failure_of_its_request_alone(self, play: Play, refusal: dict[str, Any]) -> None:
        played = play({"bad": [(0.0, json_reply({"error": refusal}, 400))], "good": chat_stream("a")}, concurrency=1)
        assert played.whole.counts.by_outcome == {"http_4xx": 1, "ok": 1}
        assert played.result.summary.stop_reason == "count"
