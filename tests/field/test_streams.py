"""Streams as servers write them: whatever the line ends, the fields and the cuts, the answer is the same."""

import json
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from loadcell.testing.replies import (
    CLOSE,
    DONE,
    HANG,
    LAST_CHUNK,
    RESET,
    Item,
    Script,
    Step,
    chat_event,
    chat_reply,
    chunk,
    completion_event,
    event,
    head,
    json_reply,
    plain,
    sse,
    usage,
    usage_event,
)

from .conftest import Play, Played

FINISH = chat_event(finish_reason="stop")
END = FINISH + usage_event(5, 3) + DONE
SSE_TYPE = ("Content-Type", "text/event-stream")


def delta(**fields: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


def cut(stream: bytes, sizes: Sequence[int]) -> list[bytes]:
    """`stream` in pieces of these sizes, the rest as the last one."""
    edges = [0, *(sum(sizes[: count + 1]) for count in range(len(sizes))), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges) if start < end]


def sent(pieces: Sequence[bytes], framing: str = "chunked", every_ms: float = 2.0) -> Script:
    """A body in these pieces, each a send of its own."""
    if framing == "length":
        first = head(200, [SSE_TYPE, ("Content-Length", str(sum(map(len, pieces))))])
        return [(0.0, first), *((every_ms, piece) for piece in pieces)]
    return sse(*pieces, every_ms=every_ms, chunked=framing == "chunked")


def torn(script: Script, sizes: Sequence[int]) -> Script:
    """The bytes of a whole script, framing included, cut without regard to what they mean."""
    stream = b"".join(what for _, what in script if isinstance(what, bytes))
    parting: list[Step] = [(0.0, what) for _, what in script if not isinstance(what, bytes)]
    return [*((2.0, piece) for piece in cut(stream, sizes)), *parting]


class TestCharactersAndCuts:
    """中 is E4 B8 AD: three bytes that no read has to hold together."""

    EVENT = chat_event("中文")

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        at = cls.EVENT.index(b"\xe4")
        whole = cls.EVENT + END
        scripts: dict[str, Script] = {
            f"{framing} after byte {inside}": sent(cut(whole, [at + inside]), framing, every_ms=15)
            for framing in ("chunked", "length", "close")
            for inside in (1, 2, 4)
        }
        draw = random.Random(7)
        for framing in ("chunked", "length", "close"):
            script = sent([whole], framing)
            for number in range(3):
                scripts[f"{framing} torn {number}"] = torn(script, [draw.randrange(1, 40) for _ in range(12)])
        scripts["bytes of the last character one by one"] = sent([*cut(cls.EVENT, [at + 3, 1, 1, 1, 1]), END])
        return play(scripts)

    def test_no_cut_costs_a_request_or_a_character(self, played: Played) -> None:
        assert {name: (record.outcome, record.attempts[-1].text) for name, record in played.records.items()} == dict.fromkeys(
            played.records, ("ok", "中文")
        )

    def test_a_character_is_one_event_however_it_was_cut(self, played: Played) -> None:
        assert {len(record.attempts[-1].chunk_us) for record in played.records.values()} == {1}
        assert played.whole.counts.malformed_events == 0

    def test_an_event_arrives_with_its_last_byte(self, played: Played) -> None:
        assert played.ms("chunked after byte 1", "first_token_ns") > 14


def test_fifty_answers_with_a_character_cut_in_two_are_fifty_successes(play: Play) -> None:
    event_bytes = chat_event("中文")
    at = event_bytes.index(b"\xe4") + 1
    played = play({"cut": sent([event_bytes[:at], event_bytes[at:], FINISH + DONE], every_ms=30)}, times=50)
    assert played.whole.counts.by_outcome == {"ok": 50}
    assert {record.attempts[0].text for record in played.result.records} == {"中文"}


class TestLongEvents:
    """Lines have no limit."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        long, tail = chat_event("x" * 300_000), FINISH + DONE
        tool = delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "y" * 200_000}}])
        logprobs = event(
            {"choices": [{"index": 0, "delta": {"content": "z"}, "logprobs": {"content": ["q" * 70_000]}, "finish_reason": None}]}
        )
        body = long + tail
        return play(
            {
                "chunked": sse(long, tail),
                "length": sent([body], "length"),
                "close": sent([body], "close"),
                "many sends": sent(cut(body, [30_000] * 9), "chunked", every_ms=1),
                "many small chunks": sse(*cut(body, [997] * 290)),
                "completions text": sse(completion_event("x" * 300_000), completion_event(finish_reason="length") + DONE),
                "tool": sse(tool, chat_event(finish_reason="tool_calls") + DONE),
                "logprobs": sse(logprobs, tail),
                "plain": [(0.0, chat_reply("x" * 300_000))],
            }
        )

    def test_all_are_whole(self, played: Played) -> None:
        assert played.whole.counts.by_outcome == {"ok": len(played.records)}
        texts = {name: len(played.last(name).text or "") for name in played.records}
        assert texts == dict.fromkeys(played.records, 300_000) | {"tool": 0, "logprobs": 1}

    def test_each_is_one_event(self, played: Played) -> None:
        assert {name: len(played.last(name).chunk_us) for name in played.records} == dict.fromkeys(played.records, 1) | {"plain": 0}


HI = json.dumps({"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}]}).encode()
STOP = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}).encode()
PRETTY = json.dumps({"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}]}, indent=1).encode()

SPELLINGS: dict[str, bytes] = {
    "no blank after the colon": b"data:" + HI + b"\n\ndata:" + STOP + b"\n\ndata:[DONE]\n\n",
    "retry, id and event before": b"retry: 1000\nid: 7\nevent: message\ndata:" + HI + b"\n\ndata:[DONE]\n\n",
    "id and event after": b"data: " + HI + b"\nid: 7\nevent: message\n\ndata: [DONE]\n\n",
    "a named event": b"event: chat.completion.chunk\ndata: " + HI + b"\n\ndata: [DONE]\n\n",
    "fields without values": b"event\nid\nretry\ndata: " + HI + b"\n\ndata: [DONE]\n\n",
    "fields nobody knows": b"x-request: 1\nfoo\ndata: " + HI + b"\n\ndata: [DONE]\n\n",
    "crlf": b"data: " + HI + b"\r\n\r\ndata: [DONE]\r\n\r\n",
    "cr alone": b"data: " + HI + b"\r\rdata: [DONE]\r\r",
    "mixed line ends": b"data: " + HI + b"\r\n\ndata: " + STOP + b"\n\r\ndata: [DONE]\r\r\n",
    "byte order mark": b"\xef\xbb\xbfdata: " + HI + b"\n\ndata: [DONE]\n\n",
    "more blank lines than needed": b"\n\n\ndata: " + HI + b"\n\n\n\n\ndata: [DONE]\n\n\n",
    "json over several data lines": b"".join(b"data: " + line + b"\n" for line in PRETTY.split(b"\n")) + b"\ndata: [DONE]\n\n",
    "comments between": b": a\n\n:\n\ndata: " + HI + b"\n\n: data: not this\n\ndata: [DONE]\n\n",
    "a comment inside an event": b": a\ndata: " + HI + b"\n: b\n\ndata: [DONE]\n\n",
    "done without line end": b"data: " + HI + b"\n\ndata: [DONE]",
    "done with one line end": b"data: " + HI + b"\n\ndata: [DONE]\n",
    "done with blanks": b"data: " + HI + b"\n\ndata:  [DONE] \n\n",
    "finish and no done": b"data: " + HI + b"\n\ndata: " + STOP + b"\n\n",
    "finish without its blank line": b"data: " + HI + b"\n\ndata: " + STOP + b"\n",
    "finish without line end": b"data: " + HI + b"\n\ndata: " + STOP,
    "more after done": b"data: " + HI + b"\n\ndata: [DONE]\n\ndata: " + HI + b"\n\n",
    "empty data": b"data:\n\ndata: " + HI + b"\n\ndata: \n\ndata: [DONE]\n\n",
    "no choices and no usage first": b'data: {"choices": [], "prompt_filter_results": []}\n\ndata: ' + HI + b"\n\ndata: [DONE]\n\n",
    "choices null": b'data: {"choices": null}\n\ndata: ' + HI + b"\n\ndata: [DONE]\n\n",
    "ping event": b'event: ping\ndata: {"type": "ping"}\n\ndata: ' + HI + b"\n\ndata: [DONE]\n\n",
    "escaped text": b"data: " + HI.replace(b'"hi"', b'"\\u0068\\u0069"') + b"\n\ndata: [DONE]\n\n",
}


class TestSpellings:
    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        scripts: dict[str, Script] = {}
        for name, stream in SPELLINGS.items():
            for framing in ("chunked", "length", "close"):
                scripts[f"{name} / {framing}"] = sent([stream], framing)
            scripts[f"{name} / bit by bit"] = sent(cut(stream, [7] * (len(stream) // 7)), "chunked", every_ms=0)
        return play(scripts)

    @pytest.mark.parametrize("framing", ["chunked", "length", "close", "bit by bit"])
    @pytest.mark.parametrize("name", SPELLINGS)
    def test_is_read(self, played: Played, name: str, framing: str) -> None:
        attempt = played.last(f"{name} / {framing}")
        assert (attempt.outcome, attempt.text, len(attempt.chunk_us), attempt.malformed_events) == ("ok", "hi", 1, 0)

    def test_nothing_is_called_malformed(self, played: Played) -> None:
        assert played.whole.counts.by_outcome == {"ok": len(played.records)}
        assert "malformed" not in played.report


class TestOneRead:
    """Under load several events share one read."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        events = [*(chat_event(letter) for letter in "abc"), FINISH, usage_event(5, 3), DONE]
        crlf = [one.replace(b"\n", b"\r\n") for one in events]
        late = {"first_ms": 60.0}
        scripts: dict[str, Script] = {
            "crlf": sse(b"".join(crlf), **late),
            "lf": sse(b"".join(events), **late),
            "close": sse(b"".join(crlf), chunked=False, **late),
            "a chunk for each": [*sse(b"", **late)[:1], (60.0, b"".join(map(chunk, crlf)) + LAST_CHUNK)],
            "with the end before": sse(b"".join(crlf[:2]), b"".join(crlf[2:]), **late),
        }
        return play(scripts)

    def test_text_and_events(self, played: Played) -> None:
        for name in played.records:
            attempt = played.last(name)
            assert (attempt.outcome, attempt.text, len(attempt.chunk_us), attempt.output_tokens) == ("ok", "abc", 3, 3), name

    def test_time_is_not_zero(self, played: Played) -> None:
        for name in played.records:
            assert 59 < played.ms(name, "first_token_ns") < 1_000, name
            assert 59 < played.ms(name, "last_token_ns") < 1_000, name

    def test_what_came_at_once_has_no_speed(self, played: Played) -> None:
        """All events of an answer in one read say nothing about the time between tokens: that is unknown, not zero."""
        assert played.whole.latency.tpot.n == 0
        assert played.whole.latency.itl.n == 0
        assert "does not stream token by token" in played.report


class TestComments:
    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        silence: list[Item] = [(0.0, b":\n\n"), (30.0, b": keep-alive\n\n"), (30.0, b": OPENROUTER PROCESSING\n\n"), (30.0, b":\n")]
        tail: list[Item] = [(30.0, b"\n" + chat_event("a")), (0.0, FINISH + DONE)]
        return play(
            {
                "chunked": sse(*silence, *tail),
                "close": sse(*silence, *tail, chunked=False),
                "crlf": sse(*(_crlf(item) for item in (*silence, *tail))),
                "an event that pings": sse((0.0, b"event: ping\ndata: {}\n\n"), (120.0, chat_event("a")), FINISH + DONE),
            },
            warmup_requests=2,
        )

    def test_a_comment_is_no_token(self, played: Played) -> None:
        assert played.whole.counts.by_outcome == {"ok": 4}
        for name in played.records:
            attempt = played.last(name)
            assert (attempt.text, len(attempt.chunk_us), attempt.malformed_events) == ("a", 1, 0)
            assert 119 < played.ms(name, "first_token_ns") < 1_000

    def test_they_do_no_harm_while_warming_up(self, played: Played) -> None:
        assert played.result.summary.warmup.ok == 2


def _crlf(item: Item) -> Item:
    assert isinstance(item, tuple)
    assert isinstance(item[1], bytes)
    return item[0], item[1].replace(b"\n", b"\r\n")


class TestUsageEvents:
    """An event of usage alone is neither a token nor the end of a gap."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        extra = {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": None}
        return play(
            {
                "after the finish": sse(chat_event("a"), FINISH, (30.0, usage_event(5, 1)), DONE),
                "without finish": sse(chat_event("a"), usage_event(5, 1), DONE),
                "in the finish": sse(chat_event("a"), chat_event(finish_reason="stop", usage=usage(5, 1)), DONE),
                "choices left out": sse(chat_event("a"), FINISH, event({"object": "x", "usage": usage(5, 1)}), DONE),
                "choices null": sse(chat_event("a"), FINISH, event({"choices": None, "usage": usage(5, 1)}), DONE),
                "details": sse(chat_event("a"), FINISH, event({"choices": [], "usage": usage(5, 1, **extra)}), DONE),
                "before the text": sse(usage_event(5, 0), chat_event("a"), FINISH, usage_event(5, 1), DONE),
                "after done": sse(chat_event("a"), chat_event(finish_reason="stop", usage=usage(5, 1)), DONE, usage_event(9, 9)),
                "other words": sse(chat_event("a"), FINISH, event({"choices": [], "usage": {"input_tokens": 5, "output_tokens": 1}}), DONE),
                "completions": sse(completion_event("a"), completion_event(finish_reason="stop"), usage_event(5, 1), DONE),
            }
        )

    def test_usage_is_taken_and_counts_nothing_else(self, played: Played) -> None:
        for name in played.records:
            attempt = played.last(name)
            assert (attempt.outcome, attempt.text, len(attempt.chunk_us)) == ("ok", "a", 1), name
            assert (attempt.output_tokens, attempt.output_source, attempt.input_tokens, attempt.input_source) == (1, "usage", 5, "usage"), (
                name
            )

    def test_no_gap_comes_of_it(self, played: Played) -> None:
        latency = played.whole.latency
        assert (latency.itl.n, latency.icl.n, latency.tpot.n, latency.ttft.n) == (0, 0, 0, 10)


class TestPlainAnswers:
    """A server may ignore `stream: true` and send one JSON object."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        body = chat_reply("hello world", prompt=5, completion=7)
        text = json.dumps(
            {"choices": [{"index": 0, "text": "hello world", "finish_reason": "stop"}], "usage": usage(5, 7)}, indent=2
        ).encode()
        answer = body.partition(b"\r\n\r\n")[2]
        chunked = head(200, [("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")])
        return play(
            {
                "length": [(60.0, body)],
                "head before body": [(0.0, body[:80]), (60.0, body[80:])],
                "completions": [(60.0, plain(text, content_type="application/json"))],
                "called a stream": [(60.0, plain(answer, content_type="text/event-stream"))],
                "called text": [(60.0, plain(b"\n\n  " + answer, content_type="text/plain"))],
                "chunked": [(0.0, chunked), *((15.0, chunk(piece)) for piece in cut(answer, [40, 40, 40])), (0.0, LAST_CHUNK)],
                "close": [(0.0, head(200, [("Content-Type", "application/json")])), (60.0, answer), (0.0, CLOSE)],
            }
        )

    def test_text_and_usage_are_read(self, played: Played) -> None:
        for name in played.records:
            attempt = played.last(name)
            assert (attempt.outcome, attempt.text, attempt.streamed) == ("ok", "hello world", False), name
            assert (attempt.output_tokens, attempt.output_source, attempt.input_tokens) == (7, "usage", 5), name

    def test_there_is_a_latency_and_no_first_token(self, played: Played) -> None:
        for name in played.records:
            attempt = played.last(name)
            assert attempt.first_token_ns is None
            assert attempt.chunk_us == []
            assert 59 < played.ms(name, "last_token_ns") < 1_000, name
        latency = played.whole.latency
        assert (latency.ttft.n, latency.itl.n, latency.icl.n, latency.tpot.n, latency.e2e.n) == (0, 0, 0, 0, 7)
        assert latency.ttft.mean_ms is None


class TestFraming:
    """HTTP around the stream."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        body = chat_event("h") + chat_event("i") + FINISH + DONE
        chunked = head(200, [SSE_TYPE, ("Transfer-Encoding", "chunked")])
        hint = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
        return play(
            {
                "continue first": [(0.0, b"HTTP/1.1 100 Continue\r\n\r\n" + hint), *sse(body)],
                "http 1.0": [(0.0, head(200, [SSE_TYPE], version="HTTP/1.0")), (2.0, body), (0.0, CLOSE)],
                "chunk extensions": [(0.0, chunked), (2.0, b"%x;a=b\r\n%s\r\n0;c\r\n\r\n" % (len(body), body))],
                "trailers": [(0.0, chunked), (2.0, chunk(body) + b"0\r\nX-Time: 1\r\nX-Other: 2\r\n\r\n")],
                "padded sizes": [(0.0, chunked), (2.0, b"%08X\r\n%s\r\n0000\r\n\r\n" % (len(body), body))],
                "one byte a chunk": [(0.0, chunked + b"".join(chunk(body[at : at + 1]) for at in range(len(body))) + LAST_CHUNK)],
                "odd header case": [
                    (0.0, b"HTTP/1.1 200\r\ncontent-TYPE:text/event-stream\r\ntransfer-encoding:Chunked\r\n\r\n" + chunk(body) + LAST_CHUNK)
                ],
                "bare line feeds": [(0.0, b"HTTP/1.1 200 OK\nContent-Type: text/event-stream\nConnection: close\n\n" + body), (0.0, CLOSE)],
                "no content type": [(0.0, head(200, [("Transfer-Encoding", "chunked")]) + chunk(body) + LAST_CHUNK)],
                "called json": [(0.0, plain(body, content_type="application/json"))],
                "reset after the end": [(0.0, head(200, [SSE_TYPE])), (2.0, body), (20.0, RESET)],
                "end without the last chunk": [(0.0, chunked), (2.0, chunk(body)), (0.0, CLOSE)],
                "silence after done": [(0.0, chunked), (2.0, chunk(body)), (0.0, HANG)],
            }
        )

    def test_all_are_read(self, played: Played) -> None:
        for name in played.records:
            attempt = played.last(name)
            assert (attempt.outcome, attempt.text, len(attempt.chunk_us)) == ("ok", "hi", 2), (name, attempt.error)

    def test_time_after_done_is_not_the_answers(self, played: Played) -> None:
        assert played.ms("silence after done", "done_ns") < 900


class TestDeltas:
    """What a delta may hold besides text."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}
        more = {"index": 0, "function": {"arguments": '{"a": 1}'}}
        done = chat_event(finish_reason="tool_calls") + DONE
        two = {"choices": [{"index": 0, "delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}}]}
        return play(
            {
                "tool calls": sse(delta(role="assistant", content=None), delta(tool_calls=[call]), (5.0, delta(tool_calls=[more])), done),
                "function call": sse(delta(function_call={"name": "f", "arguments": "{"}), delta(function_call={"arguments": "}"}), done),
                "refusal": sse(delta(refusal="no"), delta(refusal=" way"), FINISH + DONE),
                "parts": sse(delta(content=[{"type": "text", "text": "a"}]), delta(content=[{"type": "text", "text": "b"}]), FINISH + DONE),
                "empty tool calls": sse(delta(content="a", tool_calls=[]), delta(content="b", tool_calls=None), FINISH + DONE),
                "empty finish reason": sse(
                    *(event({"choices": [{"index": 0, "delta": {"content": letter}, "finish_reason": ""}]}) for letter in "ab"),
                    FINISH + DONE,
                ),
                "separator in the text": sse(delta(content="a\u2028\u0085"), delta(content="b\x0b\x1e"), FINISH + DONE),
                "half a pair each": sse(
                    event('{"choices":[{"delta":{"content":"\\ud83d"}}]}'), event('{"choices":[{"delta":{"content":"\\ude00"}}]}'), DONE
                ),
                "bad utf-8": sse(
                    b'data: {"choices":[{"delta":{"content":"a\xff"}}]}\n\n', b'data: {"choices":[{"delta":{"content":"b"}}]}\n\n', DONE
                ),
                "two choices": sse(event(two), event({"choices": [{"index": 1, "delta": {"content": "c"}}]}), DONE),
            }
        )

    def test_output_is_output(self, played: Played) -> None:
        for name in played.records:
            attempt = played.last(name)
            assert (attempt.outcome, len(attempt.chunk_us), attempt.malformed_events) == ("ok", 2, 0), (name, attempt.error)

    def test_texts(self, played: Played) -> None:
        texts = {name: played.last(name).text for name in ("refusal", "parts", "half a pair each", "separator in the text", "two choices")}
        assert texts == {
            "refusal": "no way",
            "parts": "ab",
            "half a pair each": "😀",
            "separator in the text": "a\u2028\u0085b\x0b\x1e",
            "two choices": "abc",
        }

    def test_a_tool_call_is_no_answer(self, played: Played) -> None:
        attempt = played.last("tool calls")
        assert attempt.first_token_ns is not None
        assert attempt.first_answer_ns is None


class TestCompletions:
    """The other API, over several endpoints at once."""

    @pytest.fixture(scope="class")
    @classmethod
    def played(cls, play: Play) -> Played:
        events = [completion_event(letter) for letter in "abc"]
        end = completion_event(finish_reason="length") + usage_event(5, 3) + DONE
        whole = json.dumps({"choices": [{"index": 0, "text": "abc", "finish_reason": "length"}], "usage": usage(5, 3)}).encode()
        return play(
            {
                "event by event": sse(*events, end, first_ms=40, every_ms=10),
                "crlf": sse(*(one.replace(b"\n", b"\r\n") for one in (*events, end)), first_ms=40, every_ms=10),
                "finish with the last token": sse(*events[:2], completion_event("c", finish_reason="length", usage=usage(5, 3)), DONE),
                "an empty text first": sse(completion_event(""), (40.0, b"".join(events)), end),
                "plain": [(40.0, plain(whole, content_type="application/json"))],
            },
            servers=2,
            endpoint_type="completions",
        )

    def test_text_tokens_and_path(self, played: Played) -> None:
        for name in played.records:
            attempt = played.last(name)
            assert (attempt.outcome, attempt.text, attempt.output_tokens) == ("ok", "abc", 3), name
        assert {request.path for request in played.asked()} == {"/v1/completions"}

    def test_an_empty_text_is_no_token(self, played: Played) -> None:
        assert played.ms("an empty text first", "first_token_ns") > 39
        assert len(played.last("an empty text first").chunk_us) == 3


def test_events_that_are_no_json_are_counted_and_passed_over(play: Play) -> None:
    bad = b"data: {bad\n\n"
    played = play({"one": sse(chat_event("a"), bad, chat_event("b"), FINISH + DONE), "all": sse(bad, bad, DONE)})
    assert (played.last("one").outcome, played.last("one").text, played.last("one").malformed_events) == ("ok", "ab", 1)
    assert played.records["all"].outcome == "invalid_response"
    assert "3 malformed events" in played.report


@pytest.mark.parametrize(
    ("script", "outcome", "words"),
    [
        ([(0.0, plain(b"<html><body>Sign in</body></html>", content_type="text/html"))], "invalid_response", "Sign in"),
        ([(0.0, json_reply({"status": "up"}))], "invalid_response", "without choices"),
        ([(0.0, b"SSH-2.0-OpenSSH_9.6\r\n"), (0.0, CLOSE)], "invalid_response", "HTTP/1"),
        ([(0.0, plain(b"x", content_type="text/event-stream", headers=[("Content-Encoding", "gzip")]))], "invalid_response", "gzip"),
    ],
)
def test_what_is_no_answer_is_named(play: Play, script: Script, outcome: str, words: str) -> None:
    played = play({"odd": script, "good": sse(chat_event("a"), FINISH + DONE)})
    assert played.records["odd"].outcome == outcome
    assert words in (played.records["odd"].error or "")
    assert played.records["good"].outcome == "ok"
