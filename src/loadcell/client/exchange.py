"""One attempt in flight: what was sent, what came back and when. Raw reads are kept as they are until there is time to parse them."""

import time
from array import array
from operator import sub
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
            # Emptied in place: the drain holds on to them.
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
    request, source = exchange.request, answer.output_source
    tokens = answer.output_tokens
    if source is None and answer.chunks:
        tokens, source = len(answer.chunks), "chunks"
    told = answer.input_tokens is not None
    connected, sent, headers, first_event = exchange.connected_ns, exchange.sent_ns, answer.headers_ns, answer.first_event_ns
    first_token, first_answer, last_token = answer.first_token_ns, answer.first_answer_ns, answer.last_token_ns
    done = answer.done_ns if answer.done_ns is not None else exchange.ended_ns
    # By position, in the order of the fields: thousands of these a second, and by keyword each takes three times as long.
    return Attempt(
        exchange.endpoint.index,
        answer.outcome,
        answer.status,
        exchange.error if exchange.error is not None and answer.outcome == exchange.ended else answer.error,
        answer.error_code,
        exchange.dispatched_ns - origin_ns,
        None if connected is None else connected - origin_ns,
        None if sent is None else sent - origin_ns,
        None if headers is None else headers - origin_ns,
        None if first_event is None else first_event - origin_ns,
        None if first_token is None else first_token - origin_ns,
        None if first_answer is None else first_answer - origin_ns,
        None if last_token is None else last_token - origin_ns,
        None if done is None else done - origin_ns,
        answer.streamed,
        _deltas_us(answer.chunks, origin_ns),
        None if answer.chunk_tokens is None else answer.chunk_tokens.tolist(),
        answer.coalesced,
        answer.clock_stamps,
        tokens,
        source,
        answer.input_tokens if told else request.input_tokens,
        "usage" if told else request.input_source,
        answer.reasoning_tokens,
        answer.cached_tokens,
        answer.finish_reason,
        exchange.stale_replays,
        answer.malformed_events,
        answer.retry_after_s,
        waited_ns,
        list(exchange.dropped) or None,
        answer.text if keep_text else None,
    )


def _deltas_us(stamps: "array[int]", origin_ns: int) -> list[int]:
    """First µs since the origin, then the difference of each rounded absolute time to the one before."""
    if not stamps:
        return []
    whole = [(stamp - origin_ns) // 1000 for stamp in stamps]
    return [whole[0], *map(sub, whole[1:], whole)]
