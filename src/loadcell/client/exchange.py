"""One attempt in flight: what was sent, what came back and when. Raw reads are kept as they are until there is time to parse them."""

import itertools
import time
from array import array
from typing import Any, Final, Literal

from loadcell.client.connection import Connection
from loadcell.client.limits import Timeouts
from loadcell.records import Attempt, Endpoint, Outcome, Request
from loadcell.wire.answer import AnswerReader
from loadcell.wire.verdict import Answer

Stage = Literal["connecting", "sending", "head", "body", "ended"]

ENDLESS: Final = 1 << 62
CHUNKED: Final = -1


class Exchange:
    """`left`: body bytes to come (length), `CHUNKED`, or `ENDLESS` (until the peer closes). Stamps: monotonic ns.

    `ended` is the outcome by which reading stopped (null: the response ended by itself); `work` is the caller's own.
    """

    __slots__ = (
        "bytes_seen",
        "check_ns",
        "clock_reads",
        "connected_ns",
        "connection",
        "datas",
        "dispatched_ns",
        "dropped",
        "ended",
        "ended_ns",
        "endpoint",
        "error",
        "left",
        "output_seen_ns",
        "reader",
        "request",
        "sent_ns",
        "stage",
        "stale_replays",
        "stamps",
        "wire_bytes",
        "work",
    )

    def __init__(self, request: Request, endpoint: Endpoint, wire_bytes: bytes, dispatched_ns: int, keep_text: bool, work: Any) -> None:
        self.request = request
        self.endpoint = endpoint
        self.wire_bytes = wire_bytes
        self.dispatched_ns = dispatched_ns
        self.work = work
        self.reader = AnswerReader(request.stream, keep_text)
        self.datas: list[bytes] = []
        self.stamps: array[int] = array("q")
        self.clock_reads: list[int] = []
        self.connection: Connection | None = None
        self.stage: Stage = "connecting"
        self.left = CHUNKED
        self.bytes_seen = False
        self.connected_ns: int | None = None
        self.sent_ns: int | None = None
        self.ended: Outcome | None = None
        self.ended_ns: int | None = None
        self.error: str | None = None
        self.stale_replays = 0
        self.check_ns = 0
        self.output_seen_ns = 0
        self.dropped: tuple[str, ...] = ()

    def parse(self) -> None:
        """Give the reader what has been read since the last time."""
        if self.datas:
            self.reader.feed_many(self.datas, self.stamps, self.clock_reads)
            self.output_seen_ns = self.reader.last_output_ns or 0
            # Emptied in place: the drain holds on to their `append`.
            self.datas.clear()
            del self.stamps[:]
            self.clock_reads.clear()

    def last_output_ns(self) -> int | None:
        """The last output event's arrival, everything that was read taken into account."""
        self.parse()
        return self.reader.last_output_ns

    def overdue(self, now_ns: int, timeouts: Timeouts) -> tuple[Outcome, str] | None:
        """The timeout that has struck at `now_ns`, if any; else `check_ns` becomes the next moment at which one could."""
        total_at = self.dispatched_ns + round(timeouts.total_s * 1e9)
        if now_ns >= total_at:
            return "total_timeout", f"not finished within {timeouts.total_s:g} s (--total-timeout)"
        if self.sent_ns is None:
            limit = self.dispatched_ns + round(timeouts.connect_s * 1e9)
            if now_ns >= limit:
                return "connect_error", f"no connection within {timeouts.connect_s:g} s (--connect-timeout)"
            self.check_ns = min(total_at, limit)
            return None
        last = self.last_output_ns()
        wait_s, since = (timeouts.first_output_s, self.sent_ns) if last is None else (timeouts.idle_s, last)
        limit = since + round(wait_s * 1e9)
        if now_ns >= limit:
            if last is None:
                return "first_byte_timeout", f"no output within {wait_s:g} s (--first-byte-timeout)"
            return "idle_timeout", f"no output for {wait_s:g} s (--idle-timeout)"
        self.check_ns = min(total_at, limit)
        if last is None:
            # The first output may come any moment, and the silence after it is another limit's, which may be the shorter one.
            self.check_ns = min(self.check_ns, now_ns + round(timeouts.idle_s * 1e9))
        return None

    def answer(self) -> Answer:
        """The response, judged; parses whatever is left."""
        self.parse()
        head = self.reader.head
        # The wall clock matters to a refusal alone, which may say until when it is to be left in peace.
        return self.reader.result(self.ended, time.time() if head is not None and head.status >= 300 else None)


def attempt_of(exchange: Exchange, answer: Answer, origin_ns: int, *, keep_text: bool, waited_ns: int = 0) -> Attempt:
    """The record of an ended exchange; stamps become ns since `origin_ns`. A text is kept if asked for, or if its tokens are still to be counted."""

    def since(stamp: int | None) -> int | None:
        return None if stamp is None else stamp - origin_ns

    request, source = exchange.request, answer.output_source
    tokens = answer.output_tokens
    if source is None and answer.chunks:
        tokens, source = len(answer.chunks), "chunks"
    told = answer.input_tokens is not None
    return Attempt(
        endpoint=exchange.endpoint.index,
        outcome=answer.outcome,
        status=answer.status,
        error=exchange.error if exchange.error is not None and answer.outcome == exchange.ended else answer.error,
        error_code=answer.error_code,
        dispatched_ns=exchange.dispatched_ns - origin_ns,
        connected_ns=since(exchange.connected_ns),
        sent_ns=since(exchange.sent_ns),
        headers_ns=since(answer.headers_ns),
        first_event_ns=since(answer.first_event_ns),
        first_token_ns=since(answer.first_token_ns),
        first_answer_ns=since(answer.first_answer_ns),
        last_token_ns=since(answer.last_token_ns),
        done_ns=since(answer.done_ns if answer.done_ns is not None else exchange.ended_ns),
        streamed=answer.streamed,
        chunk_us=_deltas_us(answer.chunks, origin_ns),
        chunk_tokens=None if answer.chunk_tokens is None else answer.chunk_tokens.tolist(),
        coalesced=answer.coalesced,
        clock_stamps=answer.clock_stamps,
        output_tokens=tokens,
        output_source=source,
        input_tokens=answer.input_tokens if told else request.input_tokens,
        input_source="usage" if told else request.input_source,
        reasoning_tokens=answer.reasoning_tokens,
        cached_tokens=answer.cached_tokens,
        finish_reason=answer.finish_reason,
        stale_replays=exchange.stale_replays,
        malformed_events=answer.malformed_events,
        retry_after_s=answer.retry_after_s,
        waited_ns=waited_ns,
        dropped_fields=list(exchange.dropped) or None,
        text=answer.text if keep_text else None,
    )


def _deltas_us(stamps: "array[int]", origin_ns: int) -> list[int]:
    """First µs since the origin, then the difference of each rounded absolute time to the one before."""
    if not stamps:
        return []
    whole = [(stamp - origin_ns) // 1000 for stamp in stamps]
    return [whole[0], *[later - earlier for earlier, later in itertools.pairwise(whole)]]
