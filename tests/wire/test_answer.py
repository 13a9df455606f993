"""The reader as the client uses it: byte scripts -> outcome, stamps, counts."""

import json
from typing import Any

import pytest

from loadcell.records import Outcome
from loadcell.wire.answer import AnswerReader
from loadcell.wire.verdict import Answer

pytestmark = pytest.mark.usefixtures("take")

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
DONE = b"data: [DONE]\n\n"


def event(obj: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(obj, ensure_ascii=False).encode() + b"\n\n"


def delta(finish: str | None = None, index: int = 0, usage: dict[str, int] | None = None, **fields: Any) -> bytes:
    obj: dict[str, Any] = {"id": "c", "choices": [{"index": index, "delta": fields, "finish_reason": finish}]}
    return event(obj | ({"usage": usage} if usage is not None else {}))


def usage(output: int, prompt: int = 4, **more: Any) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output} | more})


def read(script: list[tuple[int, bytes]], framing: str = "chunked", keep_text: bool = True, ended: Outcome | None = None) -> Answer:
    """`script`: (ms, bytes of the body); the head comes at 1 ms, the end of the body with the last read."""
    reader = AnswerReader(keep_text=keep_text)
    chunked = framing == "chunked"
    # Stopped from outside: the body had not ended.
    size = sum(len(data) for _, data in script) + (ended is not None)
    how = {"chunked": b"Transfer-Encoding: chunked\r\n", "length": b"Content-Length: %d\r\n" % size, "close": b""}[framing]
    reader.feed(OK + how + b"\r\n", 1)
    for at, data in script:
        reader.feed(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data, at)
    if ended is None:
        if chunked:
            reader.feed(b"0\r\n\r\n", script[-1][0])
        elif framing == "close":
            reader.eof(script[-1][0])
        assert reader.complete
    return reader.result(ended)


framings = pytest.mark.parametrize("framing", ["chunked", "length", "close"])


@framings
def test_a_plain_stream(framing: str) -> None:
    script = [(10, delta(role="assistant", content="")), (20, delta(content="a")), (30, delta(content="b"))]
    answer = read([*script, (40, delta("stop") + usage(2) + DONE)], framing)
    assert (answer.outcome, answer.status, answer.streamed, answer.finish_reason) == ("ok", 200, True, "stop")
    assert (answer.headers_ns, answer.first_event_ns, answer.first_token_ns, answer.first_answer_ns) == (1, 10, 20, 20)
    assert (answer.last_token_ns, answer.done_ns, list(answer.chunks)) == (30, 40, [20, 30])
    assert (answer.output_tokens, answer.output_source, answer.input_tokens) == (2, "usage", 4)
    assert (answer.text, answer.reasoning_text, answer.coalesced, answer.chunk_tokens) == ("ab", "", 0, None)
    assert answer.reusable is (framing != "close")


@framings
def test_many_reads_in_one_call_are_as_read_by_read(framing: str) -> None:
    script = [(at, delta(content=f"{at} ")) for at in range(2, 40)]
    answer = read([*script, (40, delta("length") + DONE)], framing)
    assert list(answer.chunks) == list(range(2, 40))
    assert answer.text == "".join(f"{at} " for at in range(2, 40))
    assert (answer.output_tokens, answer.output_source, answer.outcome) == (None, None, "ok")


ODD_TEXTS = [
    rb"\n",
    rb"\"",
    rb"\\",
    rb"\\" + b'"',
    b'","',
    b"\\",
    b"",
    b"\n",
    b"\r",
    b"\x00",
    b"\x7f",
    b"\xff",
    b"\xc3",
    "é\u2028€".encode(),
    rb"\ud83d",
    rb"\ud83d\ude00",
    b"long" * 200,
    b'x"},"logprobs":1,"k":{"content":"y',
]


@pytest.mark.parametrize("odd", ODD_TEXTS)
@pytest.mark.parametrize("more", [b" token", rb"\"", rb"\t", b"\\"])
def test_reads_that_are_alike_are_read_together_as_one_by_one(odd: bytes, more: bytes) -> None:
    texts = [b" %d" % at for at in range(150)]
    texts[40], texts[44], texts[110] = odd, more, odd
    events = [b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text for text in texts]
    chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in [*events, delta("stop"), DONE]]
    reads = [OK + b"Transfer-Encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n"]
    together, apart = AnswerReader(keep_text=True), AnswerReader(keep_text=True)
    together.feed_many(reads, range(len(reads)))
    for stamp, part in enumerate(reads):
        apart.feed(part, stamp)
    one, other = together.result(), apart.result()
    assert one == other
    assert (one.text, list(one.chunks)) == (other.text, list(other.chunks))


@framings
def test_a_character_cut_between_two_reads(framing: str) -> None:
    whole = delta(content="中文")
    cut = whole.index("中".encode()) + 1
    answer = read([(0, whole[:cut]), (30, whole[cut:]), (30, delta("stop") + DONE)], framing)
    assert (answer.text, answer.outcome, answer.first_token_ns, answer.malformed_events) == ("中文", "ok", 30, 0)


@framings
def test_an_event_of_any_length(framing: str) -> None:
    answer = read([(1, delta(content="x" * 300_000)), (2, delta("stop") + DONE)], framing)
    assert answer.text is not None
    assert (len(answer.text), answer.outcome) == (300_000, "ok")


@framings
def test_no_blank_after_data_and_other_fields(framing: str) -> None:
    script = b"retry: 1000\nid: 7\nevent: message\n" + delta(content="hi").replace(b"data: ", b"data:")
    answer = read([(5, script), (9, delta("stop").replace(b"data: ", b"data:") + b"data:[DONE]\n\n")], framing)
    assert (answer.text, answer.outcome, answer.malformed_events, answer.done_ns) == ("hi", "ok", 0, 9)


@framings
def test_several_crlf_events_in_one_read_are_counted_as_coalesced(framing: str) -> None:
    events = b"".join([delta(content="a"), delta(content="b"), delta(content="c"), delta("stop"), usage(3), DONE])
    answer = read([(200, events.replace(b"\n", b"\r\n"))], framing)
    assert (answer.text, answer.outcome, len(answer.chunks), answer.output_tokens) == ("abc", "ok", 3, 3)
    assert (answer.headers_ns, answer.first_token_ns, answer.last_token_ns, answer.coalesced) == (1, 200, 200, 3)


def test_the_last_output_event_of_a_read_is_exact() -> None:
    answer = read([(5, delta(content="a") + delta(content="b") + delta(content="c")), (9, delta("stop") + DONE)])
    assert answer.coalesced == 2


@framings
def test_comments_are_neither_tokens_nor_events(framing: str) -> None:
    answer = read([(0, b":\n\n"), (100, b": keep-alive\n\n"), (300, delta(content="ok") + delta("stop") + DONE)], framing)
    assert (answer.first_event_ns, answer.first_token_ns, answer.text, answer.outcome) == (300, 300, "ok", "ok")


def test_usage_alone_is_no_token() -> None:
    answer = read([(1, delta(content="hi")), (20, delta("stop")), (40, usage(1, 5)), (41, DONE)])
    assert (len(answer.chunks), answer.last_token_ns, answer.output_tokens, answer.input_tokens) == (1, 1, 1, 5)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_output_but_no_answer(field: str) -> None:
    script = [(100, delta(**{field: "r1"})), (200, delta(**{field: "r2"})), (2000, delta(content="A"))]
    answer = read([*script, (2010, delta("stop") + usage(3, completion_tokens_details={"reasoning_tokens": 2}) + DONE)])
    assert (answer.first_token_ns, answer.first_answer_ns, list(answer.chunks)) == (100, 2000, [100, 200, 2000])
    assert (answer.text, answer.reasoning_text, answer.reasoning_tokens, answer.first_chunk_text) == ("A", "r1r2", 2, "r1")


def test_tool_calls_are_output_but_no_answer() -> None:
    calls = [{"index": 0, "id": "x", "function": {"name": "f", "arguments": ""}}]
    script = [(5, delta(tool_calls=calls)), (6, delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}]))]
    answer = read([*script, (7, delta("tool_calls") + DONE)])
    assert (answer.outcome, answer.tool_text, answer.text, answer.first_token_ns, answer.first_answer_ns) == ("ok", "f{}", "", 5, None)


def test_completions_and_refusals() -> None:
    text = [event({"choices": [{"index": 0, "text": word, "finish_reason": None}]}) for word in ("a", "b")]
    answer = read([(5, text[0]), (6, text[1]), (7, delta(refusal="no") + delta("stop") + DONE)])
    assert (answer.outcome, answer.text, list(answer.chunks)) == ("ok", "abno", [5, 6, 7])


def test_several_choices() -> None:
    script = [(5, delta(content="a")), (6, delta(content="x", index=1)), (7, delta("stop")), (8, delta(content="y", index=1))]
    answer = read([*script, (9, delta("stop", index=1) + usage(4) + DONE)])
    assert (answer.text, len(answer.chunks), answer.output_tokens, answer.outcome) == ("axy", 3, 4, "ok")
    cut = read(script, ended="connection_reset")
    assert cut.outcome == "connection_reset"


@framings
def test_running_usage_tells_the_tokens_of_each_chunk(framing: str) -> None:
    totals = [1, 3, 4, 4, 9]
    script = [(at, delta(content=str(at), usage={"prompt_tokens": 3, "completion_tokens": n})) for at, n in enumerate(totals, 2)]
    answer = read([*script, (9, delta("stop") + DONE)], framing)
    assert (answer.output_tokens, answer.output_source, answer.chunk_tokens and list(answer.chunk_tokens)) == (9, "usage", [1, 2, 1, 0, 5])


def test_running_usage_that_stops_or_shrinks_tells_nothing_of_chunks() -> None:
    one = delta(content="a", usage={"prompt_tokens": 3, "completion_tokens": 2})
    assert read([(2, one), (3, delta(content="b")), (4, delta("stop") + DONE)]).chunk_tokens is None
    less = delta(content="b", usage={"prompt_tokens": 3, "completion_tokens": 1})
    answer = read([(2, one), (3, less), (4, delta("stop") + DONE)])
    assert (answer.chunk_tokens, answer.output_tokens) == (None, 2)


def test_token_ids_tell_the_tokens_of_each_chunk() -> None:
    def ids(text: str, count: int) -> bytes:
        return event({"choices": [{"index": 0, "delta": {"content": text}, "token_ids": list(range(count)), "finish_reason": None}]})

    answer = read([(2, ids("a", 2)), (3, ids("", 1)), (4, ids("b", 1)), (5, ids("", 1) + delta("stop") + DONE)])
    assert answer.chunk_tokens is not None
    assert (list(answer.chunk_tokens), answer.output_tokens, answer.output_source) == ([2, 2], 5, "chunks")


def test_usage_in_the_finish_chunk_of_a_one_event_answer() -> None:
    answer = read([(800, delta("stop", content="all", usage={"prompt_tokens": 1, "completion_tokens": 64}) + DONE)])
    assert (answer.output_tokens, answer.chunk_tokens and list(answer.chunk_tokens)) == (64, [64])


def test_a_usage_of_zero_beside_output_counts_nothing() -> None:
    answer = read([(2, delta(content="a")), (3, delta("stop") + usage(0) + DONE)])
    assert (answer.outcome, answer.output_tokens, answer.output_source, answer.text) == ("ok", None, None, "a")


def test_texts_are_given_only_where_needed() -> None:
    told = read([(2, delta(content="a")), (3, delta("stop") + usage(1) + DONE)], keep_text=False)
    assert (told.text, told.reasoning_text) == (None, None)
    assert read([(2, delta(content="a")), (3, delta("stop") + DONE)], keep_text=False).text == "a"


CUT = [(2, delta(content="a")), (3, delta(content="b"))]


@pytest.mark.parametrize(
    ("script", "ended", "outcome"),
    [
        ([*CUT, (4, event({"error": {"message": "boom", "code": 504}}) + DONE)], None, "stream_error"),
        ([*CUT, (4, b"event: error\ndata: engine died\n\n")], None, "stream_error"),
        ([*CUT, (4, event({"error": "boom"}))], "connection_reset", "stream_error"),
        ([*CUT, (4, delta("abort") + DONE)], None, "stream_error"),
        ([*CUT, (4, delta("error"))], None, "stream_error"),
        (CUT, None, "truncated"),
        ([(4, b": nothing\n\n")], None, "empty_output"),
        ([(4, delta(role="assistant", content=""))], None, "truncated"),
        ([*CUT, (4, event({"detail": "boom"}) + DONE)], None, "stream_error"),
        (CUT, "connection_reset", "connection_reset"),
        (CUT, "idle_timeout", "idle_timeout"),
        (CUT, "cancelled", "cancelled"),
        ([*CUT, (4, delta("stop"))], "connection_reset", "ok"),
        ([*CUT, (4, delta("stop"))], "cancelled", "ok"),
        ([*CUT, (4, DONE)], "idle_timeout", "ok"),
        ([*CUT, (4, DONE)], None, "ok"),
        ([*CUT, (4, delta("stop"))], None, "ok"),
        ([*CUT, (4, b"data: [DONE]")], None, "ok"),
        ([*CUT, (4, b"data: [DONE]\n")], None, "ok"),
        ([*CUT, (4, delta("stop")[:-2])], None, "ok"),
        ([*CUT, (4, delta("stop")[:-9])], None, "truncated"),
        ([(4, DONE)], None, "empty_output"),
        ([(3, delta(role="assistant", content="")), (4, delta("stop") + DONE)], None, "empty_output"),
        ([(3, delta("stop")), (4, usage(0) + DONE)], None, "empty_output"),
        ([(3, delta("stop")), (4, usage(1) + DONE)], None, "ok"),
        ([(4, usage(1) + DONE)], None, "empty_output"),
        ([(4, b"data: {nonsense\n\n" + DONE)], None, "invalid_response"),
        ([(4, b"data: {nonsense\n\n")], None, "invalid_response"),
        ([*CUT, (4, b"data: {nonsense\n\n" + delta("stop") + DONE)], None, "ok"),
    ],
)
@framings
def test_outcomes_of_streams(script: list[tuple[int, bytes]], ended: Outcome | None, outcome: str, framing: str) -> None:
    answer = read(script, framing, ended=ended)
    assert answer.outcome == outcome
    if outcome == "ok" and answer.chunks:
        assert (answer.last_token_ns, answer.done_ns, answer.text) == (3, 4, "ab")
    if outcome == "ok" and not answer.chunks:
        assert (answer.first_token_ns, answer.last_token_ns, answer.output_tokens) == (None, None, 1)


def test_an_error_in_the_stream_keeps_what_came_before() -> None:
    answer = read([*CUT, (4, event({"error": {"message": "boom", "type": "Timeout", "code": 504}}) + DONE)])
    assert (answer.error, answer.error_code, answer.text, list(answer.chunks)) == ("boom", "504", "ab", [2, 3])


def test_malformed_events_are_counted() -> None:
    answer = read([*CUT, (4, b"data: {nonsense\n\ndata: more\n\n"), (5, delta("stop") + DONE)])
    assert (answer.malformed_events, answer.text) == (2, "ab")


def test_hidden_reasoning_is_passed_on() -> None:
    answer = read(
        [(5000, delta(content="x")), (5100, delta("stop") + usage(1000, completion_tokens_details={"reasoning_tokens": 950}) + DONE)]
    )
    assert (answer.output_tokens, answer.reasoning_tokens, answer.reasoning_text) == (1000, 950, "")


def whole(status: bytes, body: bytes, headers: bytes = b"", ended: Outcome | None = None, asked: bool = True) -> Answer:
    reader = AnswerReader(streaming_asked=asked, keep_text=True)
    reader.feed(b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n" % len(body) + headers + b"\r\n", 10)
    if body:
        reader.feed(body[:7], 20)
        reader.feed(body[7:], 300)
    return reader.result(ended)


PLAIN = json.dumps(
    {
        "choices": [{"index": 0, "message": {"content": "hi", "reasoning_content": "r"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7},
    }
).encode()


@pytest.mark.parametrize("kind", [b"application/json", b"text/event-stream", b"text/plain"])
@pytest.mark.parametrize("asked", [True, False])
def test_a_plain_answer_has_no_first_token(kind: bytes, asked: bool) -> None:
    answer = whole(b"200 OK", PLAIN, b"Content-Type: " + kind + b"\r\n", asked=asked)
    assert (answer.outcome, answer.streamed, answer.text, answer.reasoning_text, answer.finish_reason) == ("ok", False, "hi", "r", "stop")
    assert (answer.headers_ns, answer.first_event_ns, answer.first_token_ns, answer.first_answer_ns) == (10, None, None, None)
    assert (answer.last_token_ns, answer.done_ns, list(answer.chunks)) == (300, 300, [])
    assert (answer.output_tokens, answer.output_source, answer.input_tokens) == (7, "usage", 5)


def test_a_stream_labelled_as_json() -> None:
    body = delta(content="a") + delta("stop") + DONE
    answer = whole(b"200 OK", body, b"Content-Type: application/json\r\n")
    assert (answer.outcome, answer.streamed, answer.text) == ("ok", True, "a")


@pytest.mark.parametrize(
    ("status", "body", "headers", "outcome", "error"),
    [
        (b"200 OK", b'{"error":{"message":"boom","code":1}}', b"", "stream_error", "boom"),
        (b"200 OK", b'{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}', b"", "empty_output", "no text"),
        (b"200 OK", b'{"choices":[{"message":{"content":"x"},"finish_reason":"abort"}]}', b"", "stream_error", "abort"),
        (b"200 OK", b'{"ok":true}', b"", "invalid_response", "without choices"),
        (b"200 OK", b"<html>Login please</html>", b"Content-Type: text/html\r\n", "invalid_response", "Login please"),
        (b"200 OK", b"{not json at all", b"", "invalid_response", "not json"),
        (b"200 OK", b"\x1f\x8b1234567", b"Content-Encoding: gzip\r\n", "invalid_response", "gzip"),
        (b"204 No Content", b"", b"", "empty_output", "empty"),
        (b"200 OK", b"", b"", "empty_output", "empty"),
        (b"400 Bad Request", b'{"error":{"message":"no","param":"max_tokens"}}', b"", "http_4xx", "no"),
        (b"401 Unauthorized", b"who are you", b"", "http_4xx", "who are you"),
        (b"404 Not Found", b"", b"", "http_4xx", "HTTP 404"),
        (b"429 Too Many Requests", b'{"detail":"slow down"}', b"Retry-After: 7\r\n", "http_429", "slow down"),
        (b"502 Bad Gateway", b"<h1>502</h1>nginx", b"Content-Type: text/html\r\n", "http_5xx", "502 nginx"),
        (b"503 Service Unavailable", b"\x1f\x8b12345678", b"Content-Encoding: gzip\r\n", "http_5xx", "HTTP 503"),
        (b"307 Temporary Redirect", b"", b"Location: https://other/\r\n", "invalid_response", "https://other/"),
    ],
)
def test_outcomes_of_whole_answers(status: bytes, body: bytes, headers: bytes, outcome: str, error: str) -> None:
    answer = whole(status, body, headers)
    assert answer.outcome == outcome
    assert answer.error is not None
    assert error in answer.error
    assert answer.status == int(status[:3])
    assert answer.last_token_ns is None
    assert answer.first_token_ns is None
    if b"Retry-After" in headers:
        assert answer.retry_after_s == 7.0
    if b"param" in body:
        assert answer.error_param == "max_tokens"


def test_a_date_in_retry_after_counts_from_the_servers_clock() -> None:
    headers = b"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nRetry-After: Sun, 06 Nov 1994 08:50:07 GMT\r\n"
    assert whole(b"503 Busy", b"", headers).retry_after_s == 30.0
    assert whole(b"503 Busy", b"", b"Retry-After: Sun, 06 Nov 1994 08:50:07 GMT\r\n").retry_after_s is None


def test_a_status_counts_though_its_body_was_cut() -> None:
    reader = AnswerReader()
    reader.feed(b"HTTP/1.1 503 Busy\r\nContent-Length: 100\r\nRetry-After: 2\r\n\r\nover", 5)
    answer = reader.result("connection_reset")
    assert (answer.outcome, answer.error, answer.retry_after_s) == ("http_5xx", "over", 2.0)


@pytest.mark.parametrize(("ended", "outcome"), [(None, "truncated"), ("total_timeout", "total_timeout")])
def test_a_plain_answer_cut_short(ended: Outcome | None, outcome: str) -> None:
    reader = AnswerReader(streaming_asked=False)
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + PLAIN[:50], 5)
    if ended is None:
        reader.eof(6)
    assert reader.result(ended).outcome == outcome


def test_a_plain_answer_until_close_that_is_cut() -> None:
    reader = AnswerReader(streaming_asked=False)
    reader.feed(b"HTTP/1.1 200 OK\r\n\r\n" + PLAIN[:50], 5)
    reader.eof(6)
    assert reader.result().outcome == "truncated"


@pytest.mark.parametrize(
    ("data", "ended", "outcome"),
    [
        (b"", None, "connection_reset"),
        (b"HTTP/1.1 200", None, "connection_reset"),
        (b"", "first_byte_timeout", "first_byte_timeout"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "cancelled", "cancelled"),
        (b"220 smtp ready\r\n", "first_byte_timeout", "invalid_response"),
    ],
)
def test_no_whole_header(data: bytes, ended: Outcome | None, outcome: str) -> None:
    reader = AnswerReader()
    reader.feed(data, 1)
    reader.eof(2)
    answer = reader.result(ended)
    assert (answer.outcome, answer.status, answer.streamed, answer.reusable) == (outcome, None, None, False)


def test_a_broken_chunk_after_the_end_of_the_answer_changes_nothing_but_the_connection() -> None:
    reader = AnswerReader(keep_text=True)
    reader.feed(OK + b"Transfer-Encoding: chunked\r\n\r\n", 1)
    body = delta(content="a") + delta("stop") + DONE
    reader.feed(b"%x\r\n%b\r\nzz\r\n" % (len(body), body), 2)
    answer = reader.result()
    assert (answer.outcome, answer.text, answer.reusable, reader.settled) == ("ok", "a", False, True)


def test_a_broken_chunk_before_it_is_invalid() -> None:
    reader = AnswerReader()
    reader.feed(OK + b"Transfer-Encoding: chunked\r\n\r\n", 1)
    reader.feed(b"%x\r\n%b\r\nzz\r\n" % (len(CUT[0][1]), CUT[0][1]), 2)
    answer = reader.result("connection_reset")
    assert (answer.outcome, list(answer.chunks)) == ("invalid_response", [2])
    assert answer.error is not None
    assert "chunk size" in answer.error


def test_interim_responses_are_no_status() -> None:
    reader = AnswerReader()
    reader.feed(b"HTTP/1.1 103 Early Hints\r\n\r\n", 1)
    assert reader.headers_ns is None
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-", 5)
    assert reader.headers_ns == 5
    assert reader.head is None
    reader.feed(b"Length: 0\r\n\r\n", 9)
    assert (reader.headers_ns, reader.complete, reader.done_ns) == (5, True, 9)


def test_stamps_of_our_own_clock_are_counted() -> None:
    reader = AnswerReader()
    reader.feed(OK + b"\r\n", 1)
    reader.feed_many([delta(content="a"), delta(content="b"), delta(content="c")], [2, 3, 4], clock_reads=[1])
    reader.feed_many([delta(content="d"), delta(content="e")], [5, 6], clock_reads=range(2))
    reader.feed(delta(content="f"), 7, kernel=False)
    assert (reader.clock_stamps, list(reader.result().chunks), reader.last_output_ns) == (4, [2, 3, 4, 5, 6, 7], 7)


def test_what_is_left_of_a_length_framed_body() -> None:
    reader = AnswerReader()
    assert reader.body_remaining() is None
    body = delta(content="a") + delta(content="b") + DONE
    reader.feed(OK + b"Content-Length: %d\r\n\r\n" % len(body), 1)
    assert reader.body_remaining() == len(body)
    for at in range(2):
        reader.feed(delta(content="ab"[at]), 2 + at)
    assert reader.body_remaining() == len(DONE)
    reader.feed(DONE, 5)
    assert (reader.body_remaining(), reader.complete, reader.saw_done) == (0, True, True)


@pytest.mark.parametrize("size", [b"%x", b"%X", b"%04x", b"%08X", b"%x;x=y"])
def test_any_way_to_write_a_chunk_size(size: bytes) -> None:
    reader = AnswerReader(keep_text=True)
    reader.feed(OK + b"Transfer-Encoding: chunked\r\n\r\n", 1)
    for at in range(2, 300):
        data = delta(content="y" * at)
        reader.feed(size % len(data) + b"\r\n" + data + b"\r\n", at)
    reader.feed(b"e\r\n" + DONE + b"\r\n000\r\n\r\n", 300)
    answer = reader.result()
    assert (answer.outcome, list(answer.chunks), reader.complete) == ("ok", list(range(2, 300)), True)
    assert answer.text == "".join("y" * at for at in range(2, 300))


def test_nothing_counts_after_done() -> None:
    answer = read([*CUT, (4, DONE), (5, delta(content="late") + event({"error": "late"}))])
    assert (answer.outcome, answer.text, answer.done_ns) == ("ok", "ab", 4)


def test_bytes_after_the_body_spoil_the_connection() -> None:
    reader = AnswerReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1", 1)
    assert reader.complete
    assert not reader.reusable


def test_error_bodies_are_kept_up_to_a_cap() -> None:
    reader = AnswerReader()
    reader.feed(b"HTTP/1.1 500 Oops\r\n\r\n", 1)
    for _ in range(40):
        reader.feed(b"x" * 10_000, 2)
    reader.eof(3)
    answer = reader.result()
    assert answer.error is not None
    assert (answer.outcome, len(answer.error)) == ("http_5xx", 300)
