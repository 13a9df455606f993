"""Decoded JSON -> meaning in the OpenAI API: text, reasoning, tool calls, usage, end, error.

Two readers of one event: `decode_event` (typed, fast, knows only what most events hold) and the tolerant
`piece_of`, `usage_of` over plain objects, for everything else. Neither knows of HTTP, SSE or time.
"""

import json
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

MAX_COUNT: Final = 1 << 53


TokenCount = Annotated[int, Meta(ge=0, lt=MAX_COUNT)]


class _OutputDetails(Struct, gc=False):
    reasoning_tokens: TokenCount | None = None


class _InputDetails(Struct, gc=False):
    cached_tokens: TokenCount | None = None


class PlainUsage(Struct, gc=False):
    completion_tokens: TokenCount | None = None
    prompt_tokens: TokenCount | None = None
    reasoning_tokens: TokenCount | None = None
    completion_tokens_details: _OutputDetails | None = None
    prompt_tokens_details: _InputDetails | None = None
    output_tokens: None = None
    input_tokens: None = None

    def counts(self) -> "Usage":
        output, prompt = self.completion_tokens_details, self.prompt_tokens_details
        reasoning = output.reasoning_tokens if output is not None else None
        return Usage(
            output=self.completion_tokens,
            input=self.prompt_tokens,
            reasoning=self.reasoning_tokens if reasoning is None else reasoning,
            cached=prompt.cached_tokens if prompt is not None else None,
        )


class PlainDelta(Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: None = None
    refusal: None = None
    function_call: None = None


class PlainChoice(Struct, gc=False):
    index: Literal[0] = 0
    delta: PlainDelta | None = None
    text: str | None = None
    message: None = None
    finish_reason: str | None = None
    token_ids: None = None


class PlainEvent(Struct, gc=False):
    """An event as most are. What is typed None is refused by the decoder when it holds anything, so that nobody has to look."""

    choices: list[PlainChoice]
    usage: PlainUsage | None = None
    error: None = None


decode_event: Final = msgspec.json.Decoder(PlainEvent).decode
"""bytes -> PlainEvent; raises one of NOT_PLAIN for any other event."""

NOT_PLAIN: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_decode_any: Final = msgspec.json.Decoder().decode


class MalformedError(Exception):
    """Not JSON, however kindly read. `cut`: it could be the beginning of JSON. Never leaves this room."""

    def __init__(self, cut: bool) -> None:
        super().__init__("malformed JSON")
        self.cut = cut


class Piece(Struct, frozen=True, gc=False):
    """What one choice of an event, or of a whole answer, holds. `tokens`: how many the server says (its ids); else null."""

    index: int = 0
    answer: str = ""
    reasoning: str = ""
    tool: str = ""
    finish_reason: str | None = None
    tokens: int | None = None

    @property
    def is_output(self) -> bool:
        return bool(self.answer or self.reasoning or self.tool)


class Usage(Struct, frozen=True, gc=False):
    """Token counts as the server tells them; null where it does not."""

    output: int | None = None
    input: int | None = None
    reasoning: int | None = None
    cached: int | None = None

    def largest(self, other: "Usage") -> "Usage":
        """Field by field the larger: running totals are never summed, and a null takes nothing away."""
        return Usage(
            output=_larger(self.output, other.output),
            input=_larger(self.input, other.input),
            reasoning=_larger(self.reasoning, other.reasoning),
            cached=_larger(self.cached, other.cached),
        )


def decode(payload: bytes) -> object:
    """JSON -> plain object. Bad UTF-8 is replaced; NaN and lone surrogates are let through. Raises MalformedError."""
    cut = False
    try:
        return _decode_any(payload)
    except RecursionError:
        raise MalformedError(cut=False) from None
    except UnicodeDecodeError:
        pass
    except msgspec.DecodeError as error:
        cut = "truncated" in str(error)
    try:
        return json.loads(payload.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise MalformedError(cut) from None


def choices_of(obj: dict[str, Any]) -> list[Piece]:
    """One piece for each choice of an event or a whole answer, in order."""
    choices = obj.get("choices")
    return [piece_of(choice) for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def piece_of(choice: dict[str, Any]) -> Piece:
    """`delta` (an event), `message` (a whole answer) or `text` (completions)."""
    message, text = choice.get("delta"), ""
    if not isinstance(message, dict):
        message, text = choice.get("message"), _text(choice.get("text"))
    if not isinstance(message, dict):
        message = {}
    content, thinking = _content(message.get("content"))
    index, ids = choice.get("index"), choice.get("token_ids")
    return Piece(
        index=index if isinstance(index, int) and 0 <= index < 65_536 else 0,
        answer=content + _text(message.get("refusal")) + text,
        # Some servers send both spellings with the same text: one of them counts.
        reasoning=_text(message.get("reasoning_content")) or _text(message.get("reasoning")) or thinking,
        tool=_tool_text(message),
        finish_reason=_finish_reason(choice.get("finish_reason")),
        tokens=len(ids) if isinstance(ids, list) else None,
    )


def usage_of(obj: dict[str, Any]) -> Usage | None:
    """The `usage` object, wherever it stands: its own event, the finish chunk, or every event. Gateways use the Responses API's names, too."""
    usage = obj.get("usage")
    if not isinstance(usage, dict):
        return None
    output_details = usage.get("completion_tokens_details") or usage.get("output_tokens_details")
    input_details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    reasoning = count_of(output_details.get("reasoning_tokens")) if isinstance(output_details, dict) else None
    cached = count_of(input_details.get("cached_tokens")) if isinstance(input_details, dict) else None
    output, prompt = count_of(usage.get("completion_tokens")), count_of(usage.get("prompt_tokens"))
    return Usage(
        output=output if output is not None else count_of(usage.get("output_tokens")),
        input=prompt if prompt is not None else count_of(usage.get("input_tokens")),
        reasoning=reasoning if reasoning is not None else count_of(usage.get("reasoning_tokens")),
        cached=cached,
    )


def count_of(value: object) -> int | None:
    """A token count, or null for whatever is none (negative, fractional, absurd, text)."""
    if isinstance(value, float) and value.is_integer() and abs(value) < MAX_COUNT:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT else None


def sound_text(text: str) -> str:
    """`text` with surrogate halves joined where two events split a pair, and replaced where one is alone."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _larger(one: int | None, two: int | None) -> int | None:
    return two if one is None else one if two is None else max(one, two)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _content(value: object) -> tuple[str, str]:
    """Answer and thinking of a `content` that is text, or a list of typed parts."""
    if not isinstance(value, list):
        return _text(value), ""
    parts = [part for part in value if isinstance(part, dict)]
    thoughts = [part.get("thinking") for part in parts]
    inner = [step for thought in thoughts if isinstance(thought, list) for step in thought if isinstance(step, dict)]
    thinking = "".join(map(_text, thoughts)) + "".join(_text(step.get("text")) for step in inner)
    return "".join(_text(part.get("text")) for part in parts), thinking


def _tool_text(message: dict[str, Any]) -> str:
    calls = message.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    functions.append(message.get("function_call"))
    return "".join(_text(f.get("name")) + _text(f.get("arguments")) for f in functions if isinstance(f, dict))


def _finish_reason(value: object) -> str | None:
    """Text, or the `type` of an object, which some servers send."""
    if isinstance(value, dict):
        value = value.get("type")
    return sound_text(value)[:64] if isinstance(value, str) and value else None
