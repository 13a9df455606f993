"""What a response delivered -> its outcome and the figures that go into the record. One rule per line of docs/metrics.md.

Takes the reader's facts as they are; decodes the body of a plain or refused answer. Knows no sockets, clocks or retries.
"""

from array import array
from typing import Any

from msgspec import Struct

from loadcell.records import Outcome, TokenSource
from loadcell.wire.apierror import ApiError, body_error, text_error
from loadcell.wire.http1 import Head
from loadcell.wire.openai import MalformedError, decode, sound_text
from loadcell.wire.retryafter import retry_after_s
from loadcell.wire.tally import FAILED_FINISH, Tally


class Response(Struct, frozen=True):
    """How the response came. `body` is what was kept of a plain or refused answer, null for a stream; stamps are ns.

    `wall_s`: seconds since 1970 when it was read, for a Retry-After that is a date.
    """

    head: Head | None
    invalid: str | None
    complete: bool
    body: bytes | None
    streaming_asked: bool
    keep_text: bool
    headers_ns: int | None
    done_ns: int | None
    coalesced: int
    clock_stamps: int
    reusable: bool
    wall_s: float | None = None


class Answer(Struct, frozen=True):
    """One response, judged. Stamps are ns of the caller's clock.

    `output_source` null: the server told no count, so count `text`, `reasoning_text` and `tool_text` with a tokenizer, else take
    the number of chunks. The texts are given only when they were asked for or are needed for that.
    `streamed` is null when no body of a 2xx answer came. `chunk_tokens` is null unless the server told every chunk's tokens.
    """

    outcome: Outcome
    chunks: "array[int]"
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


def judge(response: Response, tally: Tally, ended: Outcome | None = None) -> Answer:
    """The answer of one response. `ended` is the outcome by which reading was stopped; it counts unless the answer had ended.

    The tally of a plain answer is filled from its body here.
    """
    head = response.head
    plain = response.body is not None and head is not None and 200 <= head.status < 300
    fault = _read_plain_body(response, tally) if plain else response.invalid
    outcome, error = _outcome(response, tally, fault, ended)
    last_output_ns = tally.chunks[-1] if tally.chunks else None
    done_ns = response.done_ns
    if done_ns is None and tally.finished and tally.last_event_ns is not None:
        # Whole, but the body was never ended: the stream's last event is its end.
        done_ns = max(tally.last_event_ns, last_output_ns or tally.last_event_ns)
    output_tokens, source, chunk_tokens = _counts(tally)
    texts = response.keep_text or source != "usage"
    # By position, in the order of the fields, as it is made for every request: by keyword it takes three times as long.
    return Answer(
        outcome,
        tally.chunks,
        head.status if head is not None else None,
        error.message if error is not None else None,
        error.code if error is not None else None,
        error.param if error is not None else None,
        _retry_after_s(head, response.wall_s) if head is not None and head.status >= 300 else None,
        response.headers_ns,
        tally.first_event_ns,
        tally.first_token_ns,
        tally.first_answer_ns,
        (done_ns if outcome == "ok" and tally.has_output else None) if plain else last_output_ns,
        done_ns,
        False if plain else True if tally.first_event_ns is not None else None,
        chunk_tokens,
        response.coalesced,
        response.clock_stamps,
        output_tokens,
        source,
        tally.usage.input,
        tally.usage.reasoning,
        tally.usage.cached,
        tally.finish_reason,
        tally.malformed_events,
        sound_text(tally.answer_text()) if texts else None,
        sound_text("".join(tally.reasonings)) if texts else None,
        sound_text("".join(tally.tools)) if texts else None,
        sound_text(tally.first_text) if tally.first_text is not None else None,
        response.reusable,
    )


def _retry_after_s(head: Head, wall_s: float | None) -> float | None:
    return retry_after_s(head.get("retry-after"), head.get("date"), head.get("retry-after-ms"), wall_s)


def _outcome(response: Response, tally: Tally, fault: str | None, ended: Outcome | None) -> tuple[Outcome, ApiError | None]:
    head = response.head
    if head is None:
        if fault is not None:
            return "invalid_response", ApiError(fault)
        return (ended, None) if ended else ("connection_reset", ApiError("closed before the response header was complete"))
    if not 200 <= head.status < 300:
        return _refused(response, head)
    if tally.error is not None:
        return "stream_error", tally.error
    if not tally.finished:
        return _unfinished(response, tally, fault, ended)
    if tally.finish_reason in FAILED_FINISH:
        return "stream_error", ApiError(f"finish_reason {tally.finish_reason}", tally.finish_reason)
    if tally.has_output or (tally.finish_reason is not None and tally.usage.output):
        return "ok", None
    if tally.malformed_events:
        return "invalid_response", _unreadable(tally)
    return "empty_output", ApiError("the answer holds no text, reasoning or tool call")


def _unfinished(response: Response, tally: Tally, fault: str | None, ended: Outcome | None) -> tuple[Outcome, ApiError | None]:
    if fault is not None:
        return "invalid_response", ApiError(fault)
    if not response.complete and ended:
        return ended, None
    if response.complete and response.body is None and tally.first_event_ns is None:
        # Whole by its framing, and nothing in it: what an engine's crash leaves of every answer, rather than of one that had begun.
        return "empty_output", ApiError("the body is empty")
    if tally.malformed_events and not tally.chunks:
        return "invalid_response", _unreadable(tally)
    early = "the stream ended without finish_reason and without [DONE]" if response.body is None else "the body ended early"
    return "truncated", ApiError(early)


def _unreadable(tally: Tally) -> ApiError:
    return ApiError(f"no output, and {tally.malformed_events} events could not be read as JSON")


def _refused(response: Response, head: Head) -> tuple[Outcome, ApiError | None]:
    if head.status < 400 or head.status >= 600:
        where = head.get("location")
        told = f"status {head.status}" + (f", redirected to {where}: give that URL" if where else "")
        return "invalid_response", text_error(told.encode())
    error = None if head.coding or not response.body else body_error(response.body, head.content_type)
    outcome: Outcome = "http_429" if head.status == 429 else "http_4xx" if head.status < 500 else "http_5xx"
    return outcome, error or ApiError(f"HTTP {head.status}")


def _read_plain_body(response: Response, tally: Tally) -> str | None:
    """Take an answer that came as one JSON body; why it cannot be taken, or null (also while it is not whole)."""
    if not response.complete or response.invalid is not None or tally.finished:
        return response.invalid
    body = response.body or b""
    try:
        obj = decode(body)
    except MalformedError as malformed:
        if malformed.cut and response.head is not None and response.head.framing == "close":
            return None
        shown = text_error(body, html=body.lstrip()[:1] == b"<")
        return f"the body is no JSON: {shown.message if shown else ''}"
    fields: dict[str, Any] = obj if isinstance(obj, dict) else {}
    return None if tally.take_whole(fields) else "the body is JSON without choices"


def _counts(tally: Tally) -> tuple[int | None, TokenSource | None, "array[int] | None"]:
    """(output tokens, source, tokens of each chunk). A usage of 0 beside output is a server that does not count."""
    told, output = tally.chunk_tokens, tally.usage.output
    if output is not None and (output or not tally.has_output):
        return output, "usage", told if told is not None and sum(told) <= output else None
    if told is not None:
        return sum(told) + tally.pending_ids, "chunks", told
    # A plain answer whose choices hold token ids.
    return (tally.pending_ids, "chunks", None) if tally.pending_ids and not tally.chunks else (None, None, None)
