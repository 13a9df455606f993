"""One token event -> the bytes around its text. A server writes all events of a stream alike but for the text, so the next one can be
told by its ends: whatever stands between them and could be a plain JSON string is its text. Nothing is guessed: an event that
differs by a byte is read as JSON.
"""

from typing import Final

from msgspec import Struct

from loadcell.wire.openai import NOT_PLAIN, decode_event

_MARKS: Final = (b'"content":"', b'"content": "', b'"text":"', b'"text": "')
_PROBE: Final = "\x7f?"  # no text of a token that is learnt from


class Template(Struct, frozen=True, gc=False):
    """`before` and `after` the text, both without the framing."""

    before: bytes
    after: bytes


def learn(payload: bytes) -> Template | None:
    """The template of an event that was taken as output, if a text is all that it delivers, and one without escapes; else null."""
    for mark in _MARKS:
        start = payload.find(mark) + len(mark)
        if start < len(mark):
            continue
        end = payload.find(b'"', start)
        template = Template(payload[:start], payload[end:])
        if end > start and b"\\" not in payload[start:end] and _text_alone(template.before + _PROBE.encode() + template.after) == _PROBE:
            return template
    return None


def _text_alone(payload: bytes) -> str | None:
    """The text of an event that tells nothing else."""
    try:
        event = decode_event(payload)
    except NOT_PLAIN:
        return None
    if event.usage is not None or len(event.choices) != 1 or event.choices[0].finish_reason is not None:
        return None
    choice = event.choices[0]
    if choice.delta is None:
        return choice.text
    return None if choice.delta.reasoning_content or choice.delta.reasoning else choice.delta.content
