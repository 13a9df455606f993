"""Any split of a stream into reads gives the same answer, and no bytes whatever raise."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from loadcell.records import Outcome
from loadcell.wire.answer import AnswerReader

pytestmark = pytest.mark.usefixtures("take")

# What may differ with the reads: when things were seen, and how many events shared a read.
STAMPS = {"headers_ns", "first_event_ns", "first_token_ns", "first_answer_ns", "last_token_ns", "done_ns", "chunks", "coalesced"}

texts = st.sampled_from(["", "a", " token", "中文", "\u2028", '"}\n\n', "x" * 700, "data: "])
deltas = st.one_of(
    st.builds(lambda text: {"content": text}, texts),
    st.builds(lambda text: {"reasoning_content": text}, texts),
    st.builds(lambda text: {"reasoning": text, "content": None}, texts),
    st.builds(lambda text: {"tool_calls": [{"function": {"arguments": text}}]}, texts),
    st.just({"role": "assistant", "content": ""}),
)
choices = st.builds(
    lambda index, delta, finish, ids: (
        {"index": index, "delta": delta, "finish_reason": finish} | ({} if ids is None else {"token_ids": ids})
    ),
    st.sampled_from([0, 0, 0, 0, 1]),
    deltas,
    st.sampled_from([None] * 9 + ["stop", "abort"]),
    st.sampled_from([None, None, None, [7], [7, 8]]),
)
usages = st.one_of(st.none(), st.builds(lambda n: {"prompt_tokens": 3, "completion_tokens": n}, st.integers(0, 20)))
objects: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(lambda choice, usage: {"choices": [choice], "usage": usage}, choices, usages),
    st.builds(lambda choice: {"id": "c", "choices": [choice]}, choices),
    st.builds(lambda text: {"choices": [{"index": 0, "text": text, "finish_reason": None}]}, texts),
    st.builds(lambda usage: {"choices": [], "usage": usage}, usages),
    st.just({"error": {"message": "boom", "code": 5}}),
)
payloads = st.one_of(
    st.builds(lambda obj: json.dumps(obj, ensure_ascii=False).encode(), objects), st.sampled_from([b"[DONE]", b"{cut", b"\xff", b""])
)
forms = st.sampled_from(
    [b"data: %b\n\n"] * 8 + [b"data:%b\r\n\r\n", b"data: %b\r\r", b": c\n\ndata: %b\n\n", b"event: message\nid: 1\ndata: %b\n\n"]
)
bodies = st.lists(st.builds(lambda form, payload: form % payload, forms, payloads), max_size=12)


@st.composite
def responses(draw: st.DrawFn) -> tuple[bytes, bool]:
    """(the bytes of a response, whether the peer then closes)."""
    parts, framing = draw(bodies), draw(st.sampled_from(["chunked", "length", "close"]))
    body = b"".join(parts) + draw(st.sampled_from([b"", b"", b"data: [DONE]", b"data: {", b"data: [DONE]\n\n"]))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    if framing == "close":
        return head + b"\r\n" + body, True
    if framing == "length":
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body, False
    size = draw(st.sampled_from([b"%x", b"%X", b"%04x", b"%x;a=b"]))
    if draw(st.booleans()):
        pieces = [part for part in parts if part] + ([body[sum(map(len, parts)) :]] if len(body) > sum(map(len, parts)) else [])
    else:
        step = draw(st.integers(1, 400))
        pieces = [body[at : at + step] for at in range(0, len(body), step)]
    chunks = b"".join(size % len(piece) + b"\r\n" + piece + b"\r\n" for piece in pieces)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n", False


def meaning(reads: list[bytes], closes: bool, batch: int = 1) -> dict[str, Any]:
    reader = AnswerReader(keep_text=True)
    for at in range(0, len(reads), batch):
        some = reads[at : at + batch]
        reader.feed_many(some, range(at, at + len(some)))
    if closes:
        reader.eof(len(reads))
    fields = asdict(reader.result())
    assert len(fields["chunks"]) >= fields["coalesced"] >= 0
    stamps = [fields[name] for name in ("headers_ns", "first_event_ns", "first_token_ns", "last_token_ns") if fields[name] is not None]
    assert stamps == sorted(stamps)
    assert list(fields["chunks"]) == sorted(fields["chunks"])
    return {name: value for name, value in fields.items() if name not in STAMPS} | {"chunks": len(fields["chunks"])}


@settings(max_examples=300)
@given(responses(), st.lists(st.integers(0, 5_000)), st.integers(1, 5))
def test_any_split_gives_the_same_answer(response: tuple[bytes, bool], cuts: list[int], batch: int) -> None:
    data, closes = response
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    assert meaning([data[a:b] for a, b in pairwise(at)], closes, batch) == meaning([data], closes)


@settings(max_examples=60)
@given(responses())
def test_byte_by_byte_gives_the_same_answer(response: tuple[bytes, bool]) -> None:
    data, closes = response
    assert meaning([data[at : at + 1] for at in range(len(data))], closes, 7) == meaning([data], closes)


@settings(max_examples=200)
@given(bodies, st.sampled_from([b"%x", b"%04x"]))
def test_one_event_a_read_is_as_all_at_once(parts: list[bytes], size: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    reads = [head, *(size % len(part) + b"\r\n" + part + b"\r\n" for part in parts), b"0\r\n\r\n"]
    assert meaning(reads, closes=False, batch=len(reads)) == meaning([b"".join(reads)], closes=False)


ENDS: list[Outcome | None] = [None, "idle_timeout", "cancelled", "connection_reset"]
edits = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "copy", "insert"]), st.integers(0, 5_000), st.integers(1, 40), st.binary(max_size=6)),
    max_size=6,
)


def mutated(data: bytes, changes: list[tuple[str, int, int, bytes]]) -> bytes:
    for kind, where, size, noise in changes:
        at = where % (len(data) + 1)
        match kind:
            case "flip":
                data = data[:at] + bytes(byte ^ size for byte in data[at : at + 1]) + data[at + 1 :]
            case "cut":
                data = data[:at] + data[at + size :]
            case "copy":
                data = data[:at] + data[at : at + size] + data[at:]
            case _:
                data = data[:at] + noise + data[at:]
    return data


@settings(max_examples=500)
@given(responses(), edits, st.lists(st.integers(0, 5_000), max_size=8), st.sampled_from(ENDS))
def test_a_damaged_response_never_raises(
    response: tuple[bytes, bool], changes: list[tuple[str, int, int, bytes]], cuts: list[int], ended: Outcome | None
) -> None:
    data = mutated(response[0], changes)
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    reader = AnswerReader(keep_text=True)
    for a, b in pairwise(at):
        reader.feed(data[a:b], a)
    if response[1]:
        reader.eof(len(data))
    answer = reader.result(ended)
    for text in (answer.text, answer.reasoning_text, answer.tool_text, answer.error, answer.finish_reason):
        assert text is None or text.encode() is not None
    assert answer.outcome == "ok" or answer.error or answer.outcome == ended


KEYS = [
    "choices",
    "delta",
    "message",
    "content",
    "reasoning",
    "tool_calls",
    "function",
    "arguments",
    "usage",
    "error",
    "code",
    "detail",
    "loc",
]
KEYS += [
    "completion_tokens",
    "prompt_tokens_details",
    "cached_tokens",
    "finish_reason",
    "index",
    "token_ids",
    "text",
    "param",
    "type",
    "object",
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300)
@given(json_values, st.sampled_from([b"200 OK", b"400 Bad", b"503 Busy"]), st.booleans())
def test_json_of_any_shape_never_raises(value: object, status: bytes, stream: bool) -> None:
    body = json.dumps(value).encode()
    body = b"data: " + body + b"\n\ndata: [DONE]\n\n" if stream else body
    reader = AnswerReader(keep_text=True)
    reader.feed(b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body, 1)
    answer = reader.result()
    assert answer.outcome != "ok" or answer.text is not None


@given(st.binary(max_size=300), st.integers(1, 50))
def test_noise_never_raises(data: bytes, step: int) -> None:
    for head in (b"", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 "):
        reader = AnswerReader()
        for at in range(0, len(head + data), step):
            reader.feed((head + data)[at : at + step], at)
        reader.eof(999)
        reader.result()
