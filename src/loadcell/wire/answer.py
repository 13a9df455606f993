"""Reads of one response -> what it delivered and when: the `AnswerReader` that a connection feeds.

Takes the framing apart (http1, sse) and hands whole events to a `Tally`. Purely incremental: how a stream is cut into reads
changes stamps, never meaning. Reads no clock and never raises, whatever the bytes.
"""

from collections.abc import Collection, Sequence
from typing import Final, Literal

from loadcell.records import Outcome
from loadcell.wire.http1 import Head, ResponseParser
from loadcell.wire.openai import MalformedError, decode
from loadcell.wire.sse import SseEvent, SseParser
from loadcell.wire.tally import OUTPUT, Tally
from loadcell.wire.template import learn, strings
from loadcell.wire.verdict import Answer, Response, judge
from loadcell.wire.whole import whole_stream

MAX_ERROR_BODY: Final = 65_536
_MAX_FAST: Final = 8_192
_BLANK: Final = b" \t\r\n\xef\xbb\xbf"

# By digits of the size (0: as few as it takes), then by total size of a read that is exactly one chunk: the bytes it begins
# with, chunk size and `data: {` included. There is one such beginning for each, so that one look-up and one comparison
# replace the parsing of the size.
_CHUNK_STARTS: Final[dict[int, dict[int, bytes]]] = {}

Sink = Literal["undecided", "sse", "plain", "error"]
# Where the next read may be taken by the fast path: nowhere, at the beginning of a chunk, at the beginning of an event.
_GENERAL, _CHUNK, _EVENT = 0, 1, 2
_NO_TEMPLATE: Final = (b"", b"")
_UNPRINTABLE: Final = "\n"
_MOST_LEARNS: Final = 8
_WORTH_LEARNING: Final = 4
# Reads that are looked at together: few until there is a template; fewer than `_ENOUGH` are not worth it, and one that differs spoils all.
_FEW: Final = 3
_ENOUGH: Final = 24
_MANY: Final = 64


def _chunk_start(size: int, digits: int) -> bytes:
    """The beginning of a `size`-byte read that is one whole chunk with one `data: {` event; b"" where that is impossible."""
    for width in (digits,) if digits else range(1, 5):
        body = size - width - 4
        if 0 < body < _MAX_FAST and len(b"%0*x" % (width, body)) == width and (digits or len(b"%x" % body) == width):
            return b"%0*x\r\ndata: {" % (width, body)
    return b""


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
        self._starts: dict[int, bytes] = {}
        self._template = _NO_TEMPLATE
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
            self._feed_each((data,), (stamp_ns,))
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
        at, size = 0, len(datas)
        while at < size:
            learnt = self._template is not _NO_TEMPLATE
            if size - at < _ENOUGH or self._fast == _EVENT:
                stop = size
            else:
                stop = min(size, at + (_MANY if learnt or not self._learns else _FEW))
                if learnt and self._fast == _CHUNK:
                    at += self._take_alike(datas[at:stop], stamps[at:stop])
            self._feed_each(datas[at:stop], stamps[at:stop])
            at = stop

    def _take_alike(self, datas: Sequence[bytes], stamps: Sequence[int]) -> int:
        """Take these reads at once, up to the last that ends as the template does, if each is one event of it; how many were taken."""
        before, after = self._template
        count = len(datas)
        while count and not datas[count - 1].endswith(after):
            count -= 1  # the end of the answer
        sizes = [*map(len, datas[:count])]
        begins: dict[int, int] = {}
        between: dict[int, bytes] = {}
        for size in set(sizes):
            start = self._start_of(size)
            if not start:
                return 0
            begins[size] = len(start) - 1 + len(before)
            between[size] = b"%b%b%b" % (after, start[:-1], before)
        end = -len(after)
        texts = [data[begins[size] : end] for data, size in zip(datas, sizes, strict=False)]
        expected = [b""] * (2 * count)
        expected[::2] = map(between.__getitem__, sizes)
        expected[1::2] = texts
        # As one: n comparisons of two ends each cost more than putting together what should have come.
        if b"".join(expected) + after != after + b"".join(datas[:count]):
            return 0
        found = strings(texts)
        if found is None:
            return 0
        self.tally.chunks.extend(stamps[:count])
        self.tally.answers.append(found)
        return count

    def _feed_each(self, datas: Sequence[bytes], stamps: Sequence[int]) -> None:
        http, tally = self._http, self.tally
        take, add_text, add_chunk = tally.take_plain, tally.answers.append, tally.chunks.append
        before, after = self._template
        for data, stamp in zip(datas, stamps, strict=True):
            fast = self._fast
            if fast == _CHUNK:
                start = self._starts.get(len(data))
                if start is None:
                    start = self._start_of(len(data))
                if start and data.startswith(start):
                    skip = len(start) - 1
                    if after and data.endswith(after) and data.startswith(before, skip):
                        raw = data[skip + len(before) : -len(after)]
                        # No quote, backslash, control character or broken UTF-8: as it stands it is what the JSON string says.
                        if raw and 34 not in raw and 92 not in raw:
                            try:
                                text = raw.decode()
                            except UnicodeDecodeError:
                                text = _UNPRINTABLE
                            if text.isprintable():
                                add_chunk(stamp)
                                add_text(text)
                                continue
                    if data.endswith(b"}\n\n\r\n") and (taken := take(data[skip:-4], stamp)):
                        if taken == OUTPUT and self._learns:
                            before, after = self._learn(data[skip:-4])
                        continue
            # The read that ends the body is left to the parser of the framing.
            elif fast == _EVENT and len(data) < http.left and data.startswith(b"data: {") and data.endswith(b"}\n\n"):
                rest = http.left - len(data)
                if take(data[6:-2], stamp):
                    http.left = rest
                    continue
            self._feed_general(data, stamp)
        tally.compact()

    def _start_of(self, size: int) -> bytes:
        if size not in self._starts:
            self._starts[size] = _chunk_start(size, self._http.chunk_digits)
        return self._starts[size]

    def _take_whole(self, head: Head, events: list[bytes], stamp: int) -> None:
        """A response that came in one read."""
        self._http.end_with(head)
        self._sink = "sse"
        self.headers_ns = self._data_ns = self._ended_ns = stamp
        self._take_payloads([(b"", event) for event in events], stamp)

    def _learn(self, payload: bytes) -> tuple[bytes, bytes]:
        """The ends of the events to come, if they are like this one: `payload` was taken as output. An attempt that brings little is not
        repeated for ever: a stream whose events all differ is read as JSON.
        """
        chunks = len(self.tally.chunks)
        if chunks - self._learnt_at < _WORTH_LEARNING:
            self._learns -= 1
        self._learnt_at = chunks
        found = learn(payload) if self.tally.counts_chunks else None
        self._template = (found.before, found.after + b"\n\n\r\n") if found is not None else _NO_TEMPLATE
        return self._template

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
        self._starts = _CHUNK_STARTS.setdefault(self._http.chunk_digits, {})
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
