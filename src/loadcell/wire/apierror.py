"""What a server says went wrong -> one line, a code, the parameter it blames. All shapes seen in the field.

`{"error": {...}}`, `{"error": "text"}`, `{"object": "error", ...}`, `{"detail": ...}` (FastAPI), `event: error`, and bodies of
plain text or HTML. Knows nothing of HTTP beyond the status number.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct

from loadcell.wire.openai import MalformedError, decode, sound_text

MAX_ERROR_CHARS: Final = 300
_MAX_SCANNED: Final = 4_096

_REFUSED: Final = re.compile(
    r"unknown|unrecogni[sz]ed|unsupported|not (?:be )?(?:supported|permitted|allowed|accepted|recogni[sz]ed)|unexpected|forbidden|extra"
    r"|does(?: not|n't) (?:support|accept|exist)|invalid (?:parameter|field|argument|key)",
    re.IGNORECASE,
)
# A blamed parameter whose value is wrong; whatever else is said of it, the name itself is not known.
_BAD_VALUE: Final = re.compile(
    r"too (?:large|big|long|high|many|small)|at (?:least|most)|m(?:ax|in)imum|(?:less|greater|more|larger|smaller|lower|higher) than|exceed"
    r"|between|range|integer|number|positive|negative|null|limit|context|<|>|\d",
    re.IGNORECASE,
)


class ApiError(Struct, frozen=True):
    """`message` is one printable line of at most 300 characters."""

    message: str
    code: str | None = None
    param: str | None = None


def stream_error(obj: object, name: bytes = b"") -> ApiError | None:
    """The error that an event (or a 200 body) reports; null when it reports none. `name` is the event's name."""
    fields = obj if isinstance(obj, dict) else {}
    error = fields.get("error")
    if error and error is not True:
        return _described(error, fields)
    if _is_bare_error(fields) or error is True or name == b"error":
        return _described(obj, fields)
    return None


def _is_bare_error(fields: dict[str, Any]) -> bool:
    """An error that stands by itself, without an `error` key: vLLM's old shape, FastAPI's `detail`, FastChat's `error_code`, a message with a code."""
    if "choices" in fields:
        return False
    told = fields.get("detail") or fields.get("error_code") or (fields.get("message") and (fields.get("code") or fields.get("status")))
    return bool(told) or "error" in (fields.get("object"), fields.get("type"))


def body_error(body: bytes, content_type: str = "") -> ApiError | None:
    """The error in the body of a non-2xx response, whatever the server wrote; null for an empty body."""
    try:
        obj = decode(body)
    except MalformedError:
        return text_error(body, html="html" in content_type or body.lstrip()[:1] == b"<")
    fields = obj if isinstance(obj, dict) else {}
    error = fields.get("error")
    return _described(error if error and error is not True else obj, fields)


def text_error(body: bytes, html: bool = False) -> ApiError | None:
    text = body[:_MAX_SCANNED].decode("utf-8", "replace")
    line = one_line(re.sub(r"<[^<>]*>", " ", text) if html else text)
    return ApiError(line) if line else None


def refused_field(status: int, text: str, param: str | None = None) -> str | None:
    """Which optional field of the request a 400 or 422 refuses, so that it can be left out; null when it is none of them.

    "max_tokens" means that the server wants its other name (`--max-tokens-field max_completion_tokens`): a hint, it
    cannot be dropped. A bad *value* (a context too long, min_tokens above max_tokens) is no refusal.
    """
    if status not in (400, 422):
        return None
    told = f"{param or ''} {text}"
    for field in ("stream_options", "ignore_eos"):
        if field in told or field.replace("_", " ") in told.lower():
            return field
    refused = _REFUSED.search(text) is not None
    if _names("min_tokens", told) and refused:
        return "min_tokens"
    named = _names("max_tokens", told) and (refused or "max_completion_tokens" in text or "Use 'max" in text)
    if named or (param == "max_tokens" and _BAD_VALUE.search(text) is None):
        return "max_tokens"
    return None


def one_line(text: str) -> str:
    """Printable, single-spaced, at most 300 characters (the cut shown by an ellipsis)."""
    scanned = text[:_MAX_SCANNED]
    line = " ".join("".join(char if char.isprintable() else " " for char in sound_text(scanned)).split())
    return line if len(line) <= MAX_ERROR_CHARS else line[: MAX_ERROR_CHARS - 1] + "…"


def _names(field: str, text: str) -> bool:
    return re.search(rf"(?<![A-Za-z_]){field}(?![A-Za-z_])", text) is not None


def _described(error: object, outer: dict[str, Any]) -> ApiError | None:
    inner = error if isinstance(error, dict) else {}
    message = one_line(_message(error))
    told = (
        inner.get("code"),
        outer.get("code"),
        outer.get("error_code"),
        outer.get("status_code"),
        inner.get("type"),
        outer.get("error_type"),
    )
    code = _first(_code, told)
    param = inner.get("param") or outer.get("param")
    if not message and code is None:
        return None if error in (None, {}, [], "") else ApiError(one_line(repr(error)))
    return ApiError(message or f"code {code}", code, one_line(param) if isinstance(param, str) else None)


def _message(error: object, depth: int = 0) -> str:
    if isinstance(error, str):
        return error
    if isinstance(error, list):
        return "; ".join(_message(item, depth + 1) for item in error[:5]) if depth < 3 else ""
    if not isinstance(error, dict):
        return "" if error is None else str(error)[:MAX_ERROR_CHARS]
    for key in ("message", "detail", "msg", "error_msg", "error_message", "error", "reason"):
        value = error.get(key)
        if value and isinstance(value, str | list | dict) and depth < 3:
            where = error.get("loc")
            place = ".".join(str(part) for part in where[:8]) + ": " if isinstance(where, list) else ""
            return place + _message(value, depth + 1)
    return ""


def _code(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        return None
    return one_line(value)[:64] if isinstance(value, str) else str(value) if abs(value) < 1 << 53 else None


def _first(convert: Any, values: Iterable[object]) -> str | None:
    for value in values:
        found: str | None = convert(value)
        if found is not None:
            return found
    return None
