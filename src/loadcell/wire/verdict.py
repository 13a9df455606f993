"""What a response delivered -> its outcome and the figures that go into the record. One rule per line of docs/metrics.md.

Takes the reader's facts as they are; decodes the body of a plain or refused answer. Knows no sockets, clocks or retries.
"""

from array import array
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from loadcell.records import Outcome, TokenSource
from loadcell.wire.apierror import ApiError, body_error, stream_error, text_error
from loadcell.wire.http1 import Head
from loadcell.wire.openai import MalformedError, Piece, Usage, choices_of, decode, sound_text, usage_of
from loadcell.wire.retryafter import retry_after_s

FAILED_FINISH: Final = frozenset({"abort", "error"})


class Delivered(Struct, frozen=True):
    """The reader's facts at the end. `body` is what was kept of a plain or refused answer; stamps are ns."""

    head: Head | None
    invalid: str | None
    complete: bool
    plain: bool
    streaming_asked: bool
    keep_text: bool
    body: bytes
    headers_ns: int | None
    first_event_ns: int | None
    first_token_ns: int | None
    first_answer_ns: int | None
    last_event_ns: int | None
    done_ns: int | None
    chunks: "array[int]"
    chunk_tokens: "array[int] | None"
    pending_tokens: int
    coalesced: int
    clock_stamps: int
    malformed_events: int
    saw_done: bool
    all_finished: bool
    finish_reason: str | None
    error: ApiError | None
    usage: Usage
    answer: list[str]
    reasoning: list[str]
    tool: list[str]
    first_chunk_text: str | None
    reusable: bool


class Answer(Struct, frozen=True, kw_only=True):
    """One response, judged. Stamps are ns of the caller's clock.

    `output_source` null: the server told no count, so count `text`, `reasoning_text` and `tool_text` with a tokenizer, else take
    the number of chunks. The texts are given only when they were asked for or are needed for that.
    `streamed` is null when no body of a 2xx answer came. `chunk_tokens` is null unless the server told every chunk's tokens.
    """

    outcome: Outcome
    status: int | None = None
    error: str | None = None
    error_code: str | None = None
    error_param: str | None = None
    retry_after_s: float | None = None
    headers_ns: int | None = None
    first_event_ns: int | None = None
    first_token_ns: int | None = None
    first_answer_ns: int | None = None
    last_token_ns: int | None = None
    done_ns: int | None = None
    streamed: bool | None = None
    chunks: "array[int]"
    chunk_tokens: "array[int] | None" = None
    coalesced: int = 0
    clock_stamps: int = 0
    output_tokens: int | None = None
    output_source: TokenSource | None = None
    input_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    malformed_events: int = 0
    text: str | None = None
    reasoning_text: str | None = None
    tool_text: str | None = None
    first_chunk_text: str | None = None
    reusable: bool = False


def judge(delivered: Delivered, ended: Outcome | None = None) -> Answer:
    """The answer of one response. `ended` is the outcome by which reading was stopped; it counts unless the answer had ended."""
    facts = _with_plain_body(delivered) if delivered.plain else delivered
    outcome, error = _outcome(facts, ended)
    head, has_output = facts.head, bool(facts.answer or facts.reasoning or facts.tool)
    done_ns = facts.done_ns if facts.done_ns is not None or not _finished(facts) else _last_stamp(facts)
    output_tokens, source, chunk_tokens = _counts(facts, has_output)
    texts = facts.keep_text or source != "usage"
    return Answer(
        outcome=outcome,
        status=head.status if head is not None else None,
        error=error.message if error is not None else None,
        error_code=error.code if error is not None else None,
        error_param=error.param if error is not None else None,
        retry_after_s=retry_after_s(head.get("retry-after"), head.get("date")) if head is not None and head.status >= 300 else None,
        headers_ns=facts.headers_ns,
        first_event_ns=facts.first_event_ns,
        first_token_ns=facts.first_token_ns,
        first_answer_ns=facts.first_answer_ns,
        last_token_ns=_last_token(facts, outcome, has_output, done_ns),
        done_ns=done_ns,
        streamed=None if not facts.plain and facts.first_event_ns is None else not facts.plain,
        chunks=facts.chunks,
        chunk_tokens=chunk_tokens,
        coalesced=facts.coalesced,
        clock_stamps=facts.clock_stamps,
        output_tokens=output_tokens,
        output_source=source,
        input_tokens=facts.usage.input,
        reasoning_tokens=facts.usage.reasoning,
        cached_tokens=facts.usage.cached,
        finish_reason=facts.finish_reason,
        malformed_events=facts.malformed_events,
        text=sound_text("".join(facts.answer)) if texts else None,
        reasoning_text=sound_text("".join(facts.reasoning)) if texts else None,
        tool_text=sound_text("".join(facts.tool)) if texts else None,
        first_chunk_text=sound_text(facts.first_chunk_text) if facts.first_chunk_text is not None else None,
        reusable=facts.reusable,
    )


def _outcome(facts: Delivered, ended: Outcome | None) -> tuple[Outcome, ApiError | None]:
    head = facts.head
    if head is None:
        if facts.invalid is not None:
            return "invalid_response", ApiError(facts.invalid)
        return (ended, None) if ended else ("connection_reset", ApiError("closed before the response header was complete"))
    if not 200 <= head.status < 300:
        return _refused(facts, head)
    if facts.error is not None:
        return "stream_error", facts.error
    if not _finished(facts):
        return _unfinished(facts, head, ended)
    if facts.finish_reason in FAILED_FINISH:
        return "stream_error", ApiError(f"finish_reason {facts.finish_reason}", facts.finish_reason)
    if facts.answer or facts.reasoning or facts.tool or (facts.finish_reason is not None and facts.usage.output):
        return "ok", None
    if facts.malformed_events:
        return "invalid_response", ApiError(f"none of {facts.malformed_events} events could be read as JSON")
    return "empty_output", ApiError("the answer holds no text, reasoning or tool call")


def _finished(facts: Delivered) -> bool:
    """The answer itself says that it is whole, whatever became of the connection."""
    return facts.saw_done or facts.all_finished


def _unfinished(facts: Delivered, head: Head, ended: Outcome | None) -> tuple[Outcome, ApiError | None]:
    if facts.invalid is not None:
        return "invalid_response", ApiError(facts.invalid)
    if not facts.complete and ended:
        return ended, None
    bare = not facts.plain and facts.first_event_ns is None and facts.complete
    if bare and (head.framing == "none" or not facts.streaming_asked):
        return "empty_output", ApiError("the body is empty")
    if facts.malformed_events and not facts.chunks:
        return "invalid_response", ApiError(f"none of {facts.malformed_events} events could be read as JSON")
    return "truncated", ApiError("the body ended early" if facts.plain else "the stream ended without finish_reason and without [DONE]")


def _refused(facts: Delivered, head: Head) -> tuple[Outcome, ApiError | None]:
    if head.status < 400 or head.status >= 600:
        where = head.get("location")
        told = f"status {head.status}" + (f", redirected to {where}: give that URL" if where else "")
        return "invalid_response", text_error(told.encode())
    error = None if head.coding else body_error(facts.body, head.content_type)
    outcome: Outcome = "http_429" if head.status == 429 else "http_4xx" if head.status < 500 else "http_5xx"
    return outcome, error or ApiError(f"HTTP {head.status}")


def _with_plain_body(facts: Delivered) -> Delivered:
    """The facts of an answer that came as one JSON body, as if its events had been read."""
    if not facts.complete:
        return facts
    try:
        obj = decode(facts.body)
    except MalformedError as malformed:
        cut = malformed.cut and facts.head is not None and facts.head.framing == "close"
        shown = text_error(facts.body, html=facts.body.lstrip()[:1] == b"<")
        return facts if cut else replace(facts, invalid=f"the body is no JSON: {shown.message if shown else ''}")
    fields: dict[str, Any] = obj if isinstance(obj, dict) else {}
    pieces = choices_of(fields)
    error = stream_error(fields)
    if not pieces and error is None:
        return replace(facts, invalid="the body is JSON without choices")
    return replace(
        facts,
        error=error,
        usage=usage_of(fields) or facts.usage,
        all_finished=bool(pieces),
        finish_reason=_worst_finish(pieces),
        answer=[piece.answer for piece in pieces if piece.answer],
        reasoning=[piece.reasoning for piece in pieces if piece.reasoning],
        tool=[piece.tool for piece in pieces if piece.tool],
        pending_tokens=sum(piece.tokens or 0 for piece in pieces),
    )


def _worst_finish(pieces: list[Piece]) -> str | None:
    reasons = [piece.finish_reason for piece in pieces if piece.finish_reason is not None]
    failed = [reason for reason in reasons if reason in FAILED_FINISH]
    return next(iter(failed or reasons), None)


def _counts(facts: Delivered, has_output: bool) -> tuple[int | None, TokenSource | None, "array[int] | None"]:
    """(output tokens, source, tokens of each chunk). A usage of 0 beside output is a server that does not count."""
    told = facts.chunk_tokens
    if facts.usage.output is not None and (facts.usage.output or not has_output):
        return facts.usage.output, "usage", told if told is not None and sum(told) <= facts.usage.output else None
    if told is not None:
        return sum(told) + facts.pending_tokens, "chunks", told
    return (facts.pending_tokens, "chunks", None) if facts.plain and facts.pending_tokens else (None, None, None)


def _last_stamp(facts: Delivered) -> int | None:
    stamps = [stamp for stamp in (facts.last_event_ns, facts.chunks[-1] if facts.chunks else None) if stamp is not None]
    return max(stamps, default=None)


def _last_token(facts: Delivered, outcome: Outcome, has_output: bool, done_ns: int | None) -> int | None:
    if facts.plain:
        return done_ns if outcome == "ok" and has_output else None
    return facts.chunks[-1] if facts.chunks else None
