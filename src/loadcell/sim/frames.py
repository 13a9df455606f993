"""Bytes that go out: HTTP heads and SSE chunks in vLLM's shape and order of keys.

What does not change within a request is made once; a chunk is then `prefix + text + suffix`. Text of the engine's own words
needs no JSON escapes.
"""

from typing import Final

import msgspec

_STATUS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_encode: Final = msgspec.json.Encoder().encode

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
DONE: Final = b"data: [DONE]\n\n"
LAST_CHUNK: Final = b"0\r\n\r\n"


def head(status: int, content_type: str, *, length: int, keep_alive: bool, extra: str = "") -> bytes:
    """Head of a response whose length is known. `extra` is whole header lines."""
    connection = "" if keep_alive else "connection: close\r\n"
    reason = _STATUS.get(status, "Unknown")
    return (
        f"HTTP/1.1 {status} {reason}\r\nserver: loadcell-sim\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n{connection}{extra}\r\n"
    ).encode()


def stream_head(framing: str, close: bool, extra: str) -> bytes:
    """Head of an event stream; `framing` is the transfer-encoding line, or empty where only the close ends the body."""
    connection = "connection: close\r\n" if close else ""
    return (
        f"HTTP/1.1 200 OK\r\nserver: loadcell-sim\r\ncontent-type: text/event-stream; charset=utf-8\r\n{framing}{connection}{extra}\r\n"
    ).encode()


def json_response(status: int, payload: object, *, keep_alive: bool, extra: str = "") -> bytes:
    body = _encode(payload)
    return head(status, "application/json", length=len(body), keep_alive=keep_alive, extra=extra) + body


def chunked(data: bytes) -> bytes:
    """One chunk of the chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(payload: object) -> bytes:
    return b"data: %b\n\n" % _encode(payload)


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None) -> dict[str, object]:
    """The usage object of vLLM; `cached_tokens` None leaves the details out."""
    counts: dict[str, object] = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
    if cached_tokens is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return counts


def error_body(message: str, kind: str, code: int, param: str | None = None) -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class StreamFrames:
    """The events of one streamed answer. `text` arguments are ASCII words, never in need of escapes."""

    __slots__ = ("_chat", "_common", "_field", "_reasoning_field", "_text_prefix", "_text_suffix")

    def __init__(self, *, chat: bool, response_id: str, created: int, model: str, reasoning_field: str) -> None:
        kind = "chat.completion.chunk" if chat else "text_completion"
        self._chat = chat
        self._reasoning_field = reasoning_field.encode()
        self._common = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,' % (
            _encode(response_id),
            kind.encode(),
            created,
            _encode(model),
        )
        if chat:
            self._text_prefix = self._common + b'"choices":[{"index":0,"delta":{"content":"'
            self._text_suffix = b'"},"logprobs":null,"finish_reason":null}]}\n\n'
        else:
            self._text_prefix = self._common + b'"choices":[{"index":0,"text":"'
            self._text_suffix = b'","logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'

    def role(self) -> bytes:
        return self._common + b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'

    def plain(self, text_length: int) -> tuple[bytes, bytes]:
        """Chunk-coded prefix and suffix around an answer text of that many bytes."""
        length = len(self._text_prefix) + text_length + len(self._text_suffix)
        return b"%x\r\n%b" % (length, self._text_prefix), self._text_suffix + b"\r\n"

    def text(self, text: bytes, *, reasoning: bool = False, finish: str | None = None, counts: dict[str, object] | None = None) -> bytes:
        """One event with all that can vary."""
        reason = b'"%b"' % finish.encode() if finish else b"null"
        tail = b"" if counts is None else b',"usage":' + _encode(counts)
        if self._chat:
            field = self._reasoning_field if reasoning else b"content"
            return b'%b"choices":[{"index":0,"delta":{"%b":"%b"},"logprobs":null,"finish_reason":%b}]%b}\n\n' % (
                self._common,
                field,
                text,
                reason,
                tail,
            )
        return b'%b"choices":[{"index":0,"text":"%b","logprobs":null,"finish_reason":%b,"stop_reason":null}]%b}\n\n' % (
            self._common,
            text,
            reason,
            tail,
        )

    def usage(self, counts: dict[str, object]) -> bytes:
        return b'%b"choices":[],"usage":%b}\n\n' % (self._common, _encode(counts))


def whole_answer(
    *,
    chat: bool,
    response_id: str,
    created: int,
    model: str,
    text: str,
    reasoning: str | None,
    reasoning_field: str,
    finish: str,
    counts: dict[str, object],
) -> bytes:
    """The body of an answer that is not streamed."""
    if chat:
        message: dict[str, object] = {"role": "assistant", "content": text or None, "tool_calls": []}
        message[reasoning_field] = reasoning
        choice: dict[str, object] = {"index": 0, "message": message}
    else:
        choice = {"index": 0, "text": text}
    choice |= {"logprobs": None, "finish_reason": finish, "stop_reason": None}
    return _encode(
        {
            "id": response_id,
            "object": "chat.completion" if chat else "text_completion",
            "created": created,
            "model": model,
            "choices": [choice],
            "usage": counts,
        }
    )
