"""One token event -> the bytes around its text. A server writes all events of a stream alike but for the text, so the next one can be
told by its ends: whatever stands between them and could be a plain JSON string is its text. Nothing is guessed: an event that
differs by a byte is read as JSON.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from loadcell.wire.openai import NOT_PLAIN, PlainEvent, decode_event

_MARKS: Final = (b'"content":"', b'"content": "', b'"text":"', b'"text": "')
_PROBE: Final = "\x7f?"  # no text of a token that is learnt from
_decode_strings: Final = msgspec.json.Decoder(list[str]).decode


class Template(Struct, frozen=True, gc=False):
    """`before` and `after` the text, both without the framing."""

    before: bytes
    after: bytes


def learn(payload: bytes) -> Template | None:
    """The template of an event that delivers only a text; null when this is not such an event, or its text has escapes."""
    event = _plain(payload)
    if event is None:
        return None
    text = _text(event)
    for mark in _MARKS:
        start = payload.find(mark) + len(mark)
        if start < len(mark):
            continue
        end = payload.find(b'"', start)
        template = Template(payload[:start], payload[end:])
        probed = _plain(template.before + _PROBE.encode() + template.after)
        if end > start and payload[start:end] == text.encode() and probed is not None and _text(probed) == _PROBE:
            return template
    return None


def strings(texts: Sequence[bytes]) -> str | None:
    """What stands between the quotes of JSON strings, one after the other; null where one of them is empty, no JSON, or hard to tell."""
    lines = b"\n".join(texts)
    if not all(texts) or lines.count(b"\n") != len(texts) - 1:
        return None
    if b'"' not in lines and b"\\" not in lines:
        try:
            text = lines.decode()
        except UnicodeDecodeError:
            return None
        text = text.replace("\n", "")
        if text.isprintable():
            return text
    # Every quote inside must follow a lone backslash: then n strings come out only if each ends where its text does.
    if b"\\\\" in lines or lines.count(b'"') != lines.count(b'\\"'):
        return None
    try:
        found = _decode_strings(b'["%b"]' % lines.replace(b"\n", b'","'))
    except NOT_PLAIN:
        return None
    return "".join(found) if len(found) == len(texts) else None


def _plain(payload: bytes) -> PlainEvent | None:
    """The event, if a text is all that it tells."""
    try:
        event = decode_event(payload)
    except NOT_PLAIN:
        return None
    if event.usage is not None or len(event.choices) != 1 or event.choices[0].finish_reason is not None:
        return None
    delta = event.choices[0].delta
    if delta is not None and (delta.reasoning_content or delta.reasoning):
        return None
    return event


def _text(event: PlainEvent) -> str:
    choice = event.choices[0]
    return (choice.delta.content if choice.delta is not None else choice.text) or ""
