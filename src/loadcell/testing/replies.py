"""Builders of the bytes that an OpenAI-compatible server sends: heads, events, whole answers, and scripts of them in time.

Knows nothing of sockets. A script is a sequence of steps for `ScriptedServer`: (ms after the step before, bytes or an action).
Every byte is under the test's control: a builder is a convenience, never a filter.
"""

import enum
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final


class Action(enum.Enum):
    """What a script may do besides sending bytes."""

    CLOSE = "close"  # FIN; what the client still sends is met by a reset, as with any closed socket
    RESET = "reset"  # RST at once; bytes sent before may be lost on their way
    HANG = "hang"  # say nothing more until the client leaves or the server closes


CLOSE: Final = Action.CLOSE
RESET: Final = Action.RESET
HANG: Final = Action.HANG

Step = tuple[float, bytes | Action]
Script = Sequence[Step]
Item = bytes | Action | Step

DONE: Final = b"data: [DONE]\n\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
REASONS: Final = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed"} | {
    429: "Too Many Requests",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


def head(status: int = 200, headers: Sequence[tuple[str, str]] = (), version: str = "HTTP/1.1") -> bytes:
    """Status line and headers, nothing added."""
    lines = [f"{version} {status} {REASONS.get(status, 'Status')}", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def plain(body: bytes, status: int = 200, content_type: str = "text/plain", headers: Sequence[tuple[str, str]] = ()) -> bytes:
    """A whole answer with Content-Length."""
    return head(status, [("Content-Type", content_type), ("Content-Length", str(len(body))), *headers]) + body


def json_reply(value: Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> bytes:
    return plain(json.dumps(value).encode(), status, "application/json", headers)


def error_reply(
    status: int,
    message: str = "scripted error",
    kind: str = "BadRequestError",
    code: int | str | None = None,
    headers: Sequence[tuple[str, str]] = (),
) -> bytes:
    """An error as OpenAI and vLLM word it: {"error": {"message", "type", "param", "code"}}."""
    return json_reply({"error": error_object(message, kind, status if code is None else code)}, status, headers)


def error_object(message: str, kind: str = "InternalServerError", code: int | str = 500) -> dict[str, Any]:
    return {"message": message, "type": kind, "param": None, "code": code}


def models_reply(*ids: str) -> bytes:
    """The answer to GET /v1/models."""
    return json_reply({"object": "list", "data": [{"id": model, "object": "model", "owned_by": "scripted"} for model in ids]})


def event(value: Any) -> bytes:
    """One SSE data event: a str as it stands, anything else as JSON."""
    return b"data: " + (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode() + b"\n\n"


def usage(prompt: int, completion: int, **details: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **details}


def chat_event(
    content: str | None = None,
    *,
    role: str | None = None,
    reasoning: str | None = None,
    reasoning_field: str = "reasoning_content",
    tool_calls: list[dict[str, Any]] | None = None,
    finish_reason: str | None = None,
    usage: dict[str, Any] | None = None,
    **extra: Any,
) -> bytes:
    """One chat.completion.chunk; the delta holds only what is given, `extra` goes beside `choices`."""
    fields = {"role": role, "content": content, reasoning_field: reasoning, "tool_calls": tool_calls}
    delta = {name: value for name, value in fields.items() if value is not None}
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return event(_object("chat.completion.chunk", [choice], usage, extra))


def completion_event(text: str = "", *, finish_reason: str | None = None, usage: dict[str, Any] | None = None, **extra: Any) -> bytes:
    """One streamed text_completion."""
    return event(_object("text_completion", [{"index": 0, "text": text, "finish_reason": finish_reason}], usage, extra))


def usage_event(prompt: int, completion: int, **details: Any) -> bytes:
    """The event after the last choice: no choices, only usage."""
    return event(_object("chat.completion.chunk", [], usage(prompt, completion, **details), {}))


def error_event(message: str = "engine died", kind: str = "InternalServerError", code: int | str = 500) -> bytes:
    """An error object inside a 200."""
    return event({"error": error_object(message, kind, code)})


def chat_reply(content: str, prompt: int = 4, completion: int = 2, finish_reason: str = "stop") -> bytes:
    """A whole answer that is not streamed."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish_reason}
    return json_reply(_object("chat.completion", [choice], usage(prompt, completion), {}))


def _object(kind: str, choices: list[dict[str, Any]], usage: dict[str, Any] | None, extra: dict[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = {"id": "c", "object": kind, "created": 1, "model": "m", "choices": choices, **extra}
    return whole if usage is None else {**whole, "usage": usage}


def chunk(data: bytes) -> bytes:
    """`data` as one chunk of a chunked body (RFC 9112, 7.1)."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def sse(
    *items: Item,
    first_ms: float = 0.0,
    every_ms: float = 0.0,
    chunked: bool = True,
    status: int = 200,
    headers: Sequence[tuple[str, str]] = (),
) -> list[Step]:
    """A streamed answer: the head at once, the first item after `first_ms`, each later one `every_ms` after its predecessor.

    An item is bytes, an action, or a (ms, bytes) step with its own delay. Each item is one chunk; not `chunked`, the body ends with the
    connection. A script that holds an action ends there, without the body's proper end.
    """
    framing = ("Transfer-Encoding", "chunked") if chunked else ("Connection", "close")
    script: list[Step] = [(0.0, head(status, [("Content-Type", "text/event-stream; charset=utf-8"), framing, *headers]))]
    for position, item in enumerate(items):
        after_ms, what = item if isinstance(item, tuple) else (every_ms if position else first_ms, item)
        if isinstance(what, Action):
            return [*script, (after_ms, what)]
        script.append((after_ms, chunk(what) if chunked and what else what))
    script.append((0.0, LAST_CHUNK if chunked else CLOSE))
    return script


def chat_stream(*contents: str, prompt: int = 4, first_ms: float = 0.0, every_ms: float = 0.0) -> list[Step]:
    """A well-behaved chat stream as vLLM sends it: role, one event a token, finish, usage, [DONE]."""
    events: list[Item] = [(0.0, chat_event("", role="assistant"))]
    events += [(every_ms if position else first_ms, chat_event(content)) for position, content in enumerate(contents)]
    events += [(0.0, chat_event(finish_reason="stop")), (0.0, usage_event(prompt, len(contents))), (0.0, DONE)]
    return sse(*events)


def mock_steps(steps: Iterable[dict[str, Any]]) -> list[Step]:
    """Steps written as JSON: `after_ms` with `text` or `hex`, and `times` to repeat the bytes within one send."""
    return [
        (
            float(step["after_ms"]),
            (bytes.fromhex(step["hex"]) if "hex" in step else str(step["text"]).encode()) * int(step.get("times", 1)),
        )
        for step in steps
    ]
