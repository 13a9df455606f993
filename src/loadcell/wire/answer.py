"""Reads of one response -> what it delivered and when: the `AnswerReader` that a connection feeds.

Takes the framing apart (http1, sse) and hands whole events to a `Tally`. Purely incremental: how a stream is cut into reads
changes stamps, never meaning. Reads no clock and never raises, whatever the bytes.
"""

from collections.abc import Collection, Sequence
from typing import Final, Literal

from loadcell.records import Outcome
from loadcell.wire.alike import TAKE, ChunkStarts, chunk_starts
from loadcell.wire.http1 import Head, ResponseParser
from loadcell.wire.openai import MalformedError, decode
from loadcell.wire.sse import SseEvent, SseParser
from loadcell.wire.tally import OUTPUT, Tally
from loadcell.wire.template import learn
from loadcell.wire.verdict import Answer, Response, judge
from loadcell.wire.whole import whole_stream

MAX_ERROR_BODY: Final = 65_536
_BLANK: Final = b" \t\r\n\xef\xbb\xbf"

Sink = Literal["undecided", "sse", "plain", "error"]
# Where the next read may be taken by the fast path: nowhere, at the beginning of a chunk, at the beginning of an event.
_GENERAL, _CHUNK, _EVENT = 0, 1, 2
_MOST_LEARNS: Final = 8
_WORTH_LEARNING: Final = 4


class AnswerReader:
    """One response on one connection. Stamps are ns of the caller's clock; null until seen.

    `tally` is what the events delivered so far. `coalesced` counts output events that shared a read with a later event,
    `clock_stamps` those that the kernel did not stamp.
    """

    __slots__ = (
        "_body",
        "_closed",
        "_data_ns",
        "_ended_ns",
        "_fast",
        "_http",
        "_learns",
        "_learnt_at",
        "_prefix",
        "_sink",
        "_sse",
        "_starts",
        "_template",
        "clock_stamps",
        "coalesced",
        "headers_ns",
        "keep_text",
        "streaming_asked",
        "tally",
    )

    def __init__(self, streaming_asked: bool = True, keep_text: bool = False) -> None:
        self.streaming_asked = streaming_asked
        self.keep_text = keep_text
        self.tally = Tally()
        self.headers_ns: int | None = None
        self.coalesced = 0
        self.clock_stamps = 0
        self._http = ResponseParser()
        self._sse = SseParser()
        self._sink: Sink = "undecided"
        self._fast = _GENERAL
        self._starts: ChunkStarts = chunk_starts(0)
        self._template: tuple[bytes, bytes] | None = None
        self._learns = _MOST_LEARNS
        self._learnt_at = 0
        self._closed = False
        self._data_ns: int | None = None
        self._ended_ns: int | None = None
        self._prefix = b""
        self._body = bytearray()

    @property
    def head(self) -> Head | None:
        return self._http.head

    @property
    def complete(self) -> bool:
        return self._http.complete

    @property
    def invalid(self) -> str | None:
        """Why the response cannot be read further (one line); null when it can."""
        return self._http.invalid

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another request: the body ended by its framing and nothing speaks against it."""
        head = self._http.head
        return self._http.complete and head is not None and head.keep_alive and not self._http.surplus and not self._closed

    @property
    def settled(self) -> bool:
        """Whether nothing more can change the answer, so that the connection may be let go: complete, invalid or closed."""
        return self._http.complete or self._http.invalid is not None or self._closed

    @property
    def saw_done(self) -> bool:
        """The stream's `[DONE]` was read."""
        return self.tally.saw_done

    @property
    def done_ns(self) -> int | None:
        """The end: `[DONE]`, else the end of the body."""
        return self._ended_ns if self.tally.done_ns is None else self.tally.done_ns

    @property
    def first_token_ns(self) -> int | None:
        return self.tally.first_token_ns

    @property
    def last_output_ns(self) -> int | None:
        chunks = self.tally.chunks
        return chunks[-1] if chunks else None

    def body_remaining(self) -> int | None:
        """Bytes of a length-framed body still to come, for a caller that counts reads and feeds them later; null elsewhere."""
        head = self._http.head
        return self._http.left if head is not None and head.framing == "length" else None

    def feed(self, data: bytes, stamp_ns: int, kernel: bool = True) -> None:
        """One read and its stamp. `kernel`: the stamp is the kernel's."""
        before = len(self.tally.chunks)
        whole = whole_stream(data) if self._http.untouched else None
        if whole is None:
            self._feed_all((data,), (stamp_ns,))
        else:
            self._take_whole(*whole, stamp_ns)
        if not kernel:
            self.clock_stamps += len(self.tally.chunks) - before

    def feed_many(self, datas: Sequence[bytes], stamps: Sequence[int], clock_reads: Collection[int] = ()) -> None:
        """Reads in order and their stamps, of equal length. `clock_reads`: indexes of those not stamped by the kernel."""
        if not clock_reads:
            self._feed_all(datas, stamps)
        elif len(clock_reads) == len(datas):
            before = len(self.tally.chunks)
            self._feed_all(datas, stamps)
            self.clock_stamps += len(self.tally.chunks) - before
        else:
            own = frozenset(clock_reads)
            for at, (data, stamp) in enumerate(zip(datas, stamps, strict=True)):
                self.feed(data, stamp, kernel=at not in own)

    def eof(self, stamp_ns: int) -> None:
        """The peer closed its side."""
        if self._closed:
            return
        self._closed = True
        self._http.eof()
        self._end(stamp_ns)

    def result(self, ended: Outcome | None = None, wall_s: float | None = None) -> Answer:
        """The verdict. `ended`: the outcome by which the caller stopped reading; it counts unless the answer had ended before.

        `wall_s`: seconds since 1970 now, for a Retry-After that is a date.
        """
        self._flush()
        # By position, in the order of the fields, as the structs that are made of it.
        response = Response(
            self._http.head,
            self._http.invalid,
            self._http.complete,
            bytes(self._body) if self._sink in ("plain", "error") else None,
            self.streaming_asked,
            self.keep_text,
            self.headers_ns,
            self.done_ns,
            self.coalesced,
            self.clock_stamps,
            self.reusable,
            wall_s,
        )
        return judge(response, self.tally, ended)

    def _feed_all(self, datas: Sequence[bytes], stamps: Sequence[int]) -> None:
        http, tally = self._http, self.tally
        take_plain = tally.take_plain
        at, size = 0, len(datas)
        while at < size:
            fast, template = self._fast, self._template
            if template is not None and fast == _CHUNK:
                stop, text = TAKE(datas, at, *template, http.chunk_digits)
                if stop > at:
                    tally.chunks.extend(stamps[at:stop])
                    tally.answers.append(text)
                    if stop == size:
                        break
                    at = stop
            data, stamp = datas[at], stamps[at]
            at += 1
            if fast == _CHUNK:
                start = self._starts[len(data)]
                if start and data.startswith(start) and data.endswith(b"}\n\n\r\n"):
                    payload = data[len(start) - 1 : -4]
                    if taken := take_plain(payload, stamp):
                        if taken == OUTPUT and self._learns:
                            self._learn(payload)
                        continue
            # The read that ends the body is left to the parser of the framing.
            elif fast == _EVENT and len(data) < http.left and data.startswith(b"data: {") and data.endswith(b"}\n\n"):
                rest = http.left - len(data)
                if take_plain(data[6:-2], stamp):
                    http.left = rest
                    continue
            self._feed_general(data, stamp)
        tally.compact()

    def _take_whole(self, head: Head, events: list[bytes], stamp: int) -> None:
        """A response that came in one read."""
        self._http.end_with(head)
        self._sink = "sse"
        self.headers_ns = self._data_ns = self._ended_ns = stamp
        self._take_payloads([(b"", event) for event in events], stamp)

    def _learn(self, payload: bytes) -> None:
        """The ends of the events to come, if they are like this one: `payload` was taken as output. An attempt that brings little is not
        repeated for ever: a stream whose events all differ is read as JSON.
        """
        chunks = len(self.tally.chunks)
        if chunks - self._learnt_at < _WORTH_LEARNING:
            self._learns -= 1
        self._learnt_at = chunks
        found = learn(payload) if self.tally.counts_chunks else None
        if found is not None:
            self._template = b"data: " + found.before, found.after + b"\n\n\r\n"

    def _feed_general(self, data: bytes, stamp: int) -> None:
        """Any read: takes the framing apart, then hands the body to whoever reads it."""
        http = self._http
        body = http.feed(data)
        if self.headers_ns is None and http.status_seen:
            self.headers_ns = stamp
        if body:
            self._data_ns = stamp
            self._take_body(body, stamp)
        if http.complete:
            self._end(stamp)
        self._fast = self._fast_mode()

    def _fast_mode(self) -> int:
        begun = self._sink == "sse" and self.tally.first_event_ns is not None and not self.tally.saw_done
        if not (begun and self._sse.at_boundary and self._http.at_boundary):
            return _GENERAL
        self._starts = chunk_starts(self._http.chunk_digits)
        return _CHUNK if self._http.head is not None and self._http.head.framing == "chunked" else _EVENT

    def _take_body(self, body: bytes, stamp: int) -> None:
        if self._sink == "undecided":
            body = self._prefix + body
            self._sink = self._choose_sink(body)
            self._prefix = body if self._sink == "undecided" else b""
        if self._sink == "sse":
            self._take_payloads(self._sse.feed(body), stamp)
        elif self._sink == "plain":
            self._body += body
        elif self._sink == "error":
            self._body += body[: MAX_ERROR_BODY - len(self._body)]

    def _choose_sink(self, body: bytes) -> Sink:
        """By status, then by the first byte that is not blank, then by Content-Type: servers answer a request for a stream
        with plain JSON, and label either as the other. No line of SSE begins as JSON or HTML does.
        """
        head = self._http.head
        if head is None or not 200 <= head.status < 300:
            return "error"
        first = body.lstrip(_BLANK)[:1]
        if not first:
            return "undecided"
        if first in b'{[<"':
            return "plain"
        return "sse" if "event-stream" in head.content_type or first in b":deir" else "plain"

    def _take_payloads(self, events: list[SseEvent], stamp: int) -> None:
        tally, last_is_output = self.tally, False
        before = len(tally.chunks)
        for name, payload in events:
            last_is_output = tally.take_event(name, payload, stamp)
        if len(events) > 1:
            self.coalesced += len(tally.chunks) - before - last_is_output

    def _end(self, stamp: int) -> None:
        self._flush()
        if self._ended_ns is None:
            self._ended_ns = stamp

    def _flush(self) -> None:
        """The body's last event may lack its blank line: `[DONE]` and whole JSON count, anything else was cut off."""
        left = self._sse.finish() if self._sink == "sse" else None
        if left is None or self._data_ns is None:
            return
        name, payload = left
        if payload.strip() != b"[DONE]":
            try:
                decode(payload)
            except MalformedError:
                return
        self.tally.take_event(name, payload, self._data_ns)
