"""One request -> its latencies, in nanoseconds. The formulas of docs/metrics.md, one function each.

Null when the stamp or the count behind a figure is missing. Knows nothing of windows or of other requests.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from loadcell.records import Attempt, RequestRecord

US: Final = 1_000
"""Nanoseconds in the unit of `Attempt.chunk_us`."""


class RequestLatency(Struct, frozen=True, gc=False):
    """Every latency of one request, ns. `first_chunk_estimated`: TPOT rests on an estimate of the tokens in the first chunk."""

    ttft: int | None
    ttfa: int | None
    e2e: int | None
    stream_end: int | None
    tpot: float | None
    max_stall: int | None
    queue_delay: int | None
    scheduled_ttft: int | None
    scheduled_e2e: int | None
    user_latency: int | None
    connect: int | None
    retry_wait: int | None
    first_chunk_estimated: bool


def _since(start_ns: int | None, stamp_ns: int | None) -> int | None:
    return None if start_ns is None or stamp_ns is None else stamp_ns - start_ns


def final_attempt(record: RequestRecord) -> Attempt | None:
    """The attempt that counts: the last."""
    return record.attempts[-1] if record.attempts else None


def first_sent_ns(record: RequestRecord) -> int | None:
    """When the first attempt's bytes left; when it was taken up, if it never got to send (its connection failed)."""
    if not record.attempts:
        return None
    first = record.attempts[0]
    return first.sent_ns if first.sent_ns is not None else first.dispatched_ns


def taken_up_ns(record: RequestRecord) -> int | None:
    """When the generator took the request up: the first attempt's `dispatched`, less the time it had to wait for an endpoint."""
    if not record.attempts:
        return None
    first = record.attempts[0]
    taken_up = first.dispatched_ns if first.dispatched_ns is not None else first.sent_ns
    return None if taken_up is None else max(record.scheduled_ns, taken_up - first.waited_ns)


def user_start_ns(record: RequestRecord, open_loop: bool) -> int | None:
    """Where the user's own stopwatch starts: at the schedule in an open loop, else at the first attempt's `sent`."""
    return record.scheduled_ns if open_loop else first_sent_ns(record)


def end_ns(attempt: Attempt) -> int | None:
    """The attempt's last sign: its end, or the last stamp that it got to."""
    stamps = (attempt.done_ns, attempt.last_token_ns, attempt.headers_ns, attempt.sent_ns, attempt.dispatched_ns)
    return next((stamp for stamp in stamps if stamp is not None), None)


def hides_reasoning(attempt: Attempt) -> bool:
    """Tokens were reasoned before the first visible event: the server counts reasoning, and the first output is already the answer."""
    return bool(attempt.reasoning_tokens) and attempt.first_token_ns is not None and attempt.first_token_ns == attempt.first_answer_ns


def came_at_once(attempt: Attempt) -> bool:
    """All output shared one arrival: a single event, or a server (or a proxy before it) that held the stream back and let it go in one piece.
    The time between its tokens is unknown then, not zero.
    """
    return bool(attempt.chunk_us) and not any(attempt.chunk_us[1:])


def chunk_token_counts(attempt: Attempt) -> list[int] | None:
    """Tokens of each chunk, where the server told them for every chunk."""
    counts = attempt.chunk_tokens
    return counts if counts is not None and len(counts) == len(attempt.chunk_us) else None


def first_chunk_tokens(attempt: Attempt) -> tuple[float | None, bool]:
    """(tokens in the first chunk, whether that is an estimate). Told by the server, else output tokens / chunks: exact where that is 1."""
    counts = chunk_token_counts(attempt)
    if counts:
        return counts[0], False
    if attempt.output_tokens is None or not attempt.chunk_us:
        return None, False
    return attempt.output_tokens / len(attempt.chunk_us), attempt.output_tokens != len(attempt.chunk_us)


def tokens_after_first_chunk(attempt: Attempt) -> tuple[float | None, bool]:
    """(TPOT's divisor, whether it is an estimate). Null when it is unknown; 0 when everything came in one chunk."""
    first, estimated = first_chunk_tokens(attempt)
    if attempt.output_tokens is None or first is None or hides_reasoning(attempt):
        return None, False
    if came_at_once(attempt):
        return 0.0, False
    return max(0.0, attempt.output_tokens - first), estimated


def tpot_ns(attempt: Attempt) -> float | None:
    """(last_token − first_token) / (output tokens − tokens in the first chunk)."""
    divisor, _estimated = tokens_after_first_chunk(attempt)
    if not divisor or attempt.first_token_ns is None or attempt.last_token_ns is None:
        return None
    return (attempt.last_token_ns - attempt.first_token_ns) / divisor


def gaps_us(attempt: Attempt) -> list[int]:
    """The raw gaps between output-carrying events, µs; the first event's own time is none of them. None at all where all came at once."""
    return [] if came_at_once(attempt) else attempt.chunk_us[1:]


def one_token_per_chunk(attempt: Attempt) -> bool:
    """Every chunk carried one token: told so by the server, or there are as many tokens as chunks."""
    counts = chunk_token_counts(attempt)
    if counts is not None:
        return all(count == 1 for count in counts)
    return attempt.output_tokens == len(attempt.chunk_us)


def token_gaps(attempt: Attempt) -> tuple[list[int], list[int]] | None:
    """(gaps in µs, tokens of the chunk that ends each), for token-weighted ITL. Null when the tokens per chunk are unknown.

    A chunk of no token (its count did not move) ends nothing: its time belongs to the next chunk that brought one.
    """
    counts = chunk_token_counts(attempt)
    if counts is None:
        gaps = gaps_us(attempt)
        return (gaps, [1] * len(gaps)) if one_token_per_chunk(attempt) else None
    gaps, tokens = gaps_us(attempt), counts[1:]
    if not gaps:
        return [], []
    return _carry_empty(zip(gaps, tokens, strict=True)) if 0 in tokens else (gaps, tokens)


def _carry_empty(pairs: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    gaps: list[int] = []
    tokens: list[int] = []
    carried = 0
    for gap, count in pairs:
        carried += gap
        if count > 0:
            gaps.append(carried)
            tokens.append(count)
            carried = 0
    return gaps, tokens


def request_latency(record: RequestRecord, open_loop: bool) -> RequestLatency | None:
    """All latencies of one request; null when it has no attempt. TTFT and E2E are the final attempt's."""
    attempt = final_attempt(record)
    if attempt is None:
        return None
    sent, due = attempt.sent_ns, record.scheduled_ns
    gaps = gaps_us(attempt)
    wait_ns = sum(one.waited_ns for one in record.attempts)
    return RequestLatency(
        ttft=_since(sent, attempt.first_token_ns),
        ttfa=_since(sent, attempt.first_answer_ns),
        e2e=_since(sent, attempt.last_token_ns),
        stream_end=_since(sent, attempt.done_ns),
        tpot=tpot_ns(attempt),
        max_stall=max(gaps) * US if gaps else None,
        queue_delay=_since(due, record.attempts[0].sent_ns),
        scheduled_ttft=_since(due, attempt.first_token_ns),
        scheduled_e2e=_since(due, attempt.last_token_ns),
        user_latency=_since(user_start_ns(record, open_loop), attempt.last_token_ns),
        connect=_since(attempt.dispatched_ns, attempt.connected_ns),
        retry_wait=wait_ns if len(record.attempts) > 1 or wait_ns else None,
        first_chunk_estimated=tokens_after_first_chunk(attempt)[1],
    )
