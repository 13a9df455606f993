"""Reads of one response -> what it delivered and when: the `AnswerReader` that a connection feeds.

Joins http1, sse and openai. Purely incremental: how a stream is cut into reads changes stamps, never meaning. Reads no clock
and never raises, whatever the bytes. `feed_many` is the hot path: an ordinary token event in a read of its own costs one
typed decode and two appends.
"""

from array import array
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal

from loadcell.records import Outcome
from loadcell.wire.apierror import ApiError, stream_error
from loadcell.wire.http1 import Head, ResponseParser
from loadcell.wire.openai import NOT_PLAIN, MalformedError, Piece, PlainUsage, Usage, choices_of, decode, decode_event, usage_of
from loadcell.wire.sse import SseParser
from loadcell.wire.verdict import FAILED_FINISH, Answer, Delivered, judge

MAX_ERROR_BODY: Final = 65_536
_MAX_FAST: Final = 8_192
_MAX_PIECES: Final = 1_024
_BLANK: Final = b" \t\r\n\xef\xbb\xbf"

# By digits of the size (0: as few as it takes), then by total size of a read that is exactly one chunk: the bytes it begins
# with, chunk size and `data: {` included. There is one such beginning for each, so that one look-up and one comparison
# replace the parsing of the size.
_CHUNK_STARTS: Final[dict[int, dict[int, bytes]]] = {}

Sink = Literal["undecided", "sse", "plain", "error"]
# Where the next read may be taken by the fast path: nowhere, at the beginning of a chunk, at the beginning of an event.
_GENERAL, _CHUNK, _EVENT = 0, 1, 2
_NOT_TAKEN, _SILENT, _OUTPUT = 0, 1, 2


def _chunk_start(size: int, digits: int) -> bytes:
    """The beginning of a `size`-byte read that is one whole chunk with one `data: {` event; b"" where that is impossible."""
    for width in (digits,) if digits else range(1, 5):
        body = size - width - 4
        if 0 < body < _MAX_FAST and len(b"%0*x" % (width, body)) == width and (digits or len(b"%x" % body) == width):
            return b"%0*x\r\ndata: {" % (width, body)
    return b""


class AnswerReader:
    """One response on one connection. Stamps are ns of the caller's clock; null until seen.

    `head` is null until the header is complete; `complete`: the framing says that the body has ended; `saw_done`: the
    stream's `[DONE]` was read. `chunks` holds the arrival of every output event, `coalesced` how many of them shared
    a read with a later event, `clock_stamps` how many were not stamped by the kernel.
    """

    __slots__ = (
        "_answers",
        "_body",
        "_closed",
        "_counted",
        "_data_ns",
        "_fast",
        "_finished",
        "_first_text",
        "_http",
        "_last_event_ns",
        "_others",
        "_pending_ids",
        "_prefix",
        "_reasonings",
        "_sink",
        "_sse",
        "_starts",
        "_tokens",
        "_tools",
        "_top_index",
        "chunks",
        "clock_stamps",
        "coalesced",
        "done_ns",
        "error",
        "finish_reason",
        "first_answer_ns",
        "first_event_ns",
        "first_token_ns",
        "headers_ns",
        "keep_text",
        "malformed_events",
        "saw_done",
        "streaming_asked",
        "usage",
    )

    def __init__(self, streaming_asked: bool = True, keep_text: bool = False) -> None:
        self.streaming_asked = streaming_asked
        self.keep_text = keep_text
        self.headers_ns: int | None = None
        self.first_event_ns: int | None = None
        self.first_token_ns: int | None = None
        self.first_answer_ns: int | None = None
        self.done_ns: int | None = None
        self.chunks: array[int] = array("q")
        self.coalesced = 0
        self.clock_stamps = 0
        self.malformed_events = 0
        self.usage = Usage()
        self.saw_done = False
        self.finish_reason: str | None = None
        self.error: ApiError | None = None
        self._http = ResponseParser()
        self._sse = SseParser()
        self._sink: Sink = "undecided"
        self._fast = _GENERAL
        self._starts: dict[int, bytes] = {}
        self._closed = False
        self._data_ns: int | None = None
        self._last_event_ns: int | None = None
        self._prefix = b""
        self._body = bytearray()
        # Texts in order of arrival; those of choices beyond the first stand apart.
        self._answers: list[str] = []
        self._reasonings: list[str] = []
        self._tools: list[str] = []
        self._others: dict[int, list[str]] = {}
        self._first_text: str | None = None
        # Tokens of each output event, as long as the server tells them; null from the first event that does not.
        self._tokens: array[int] | None = array("q")
        self._counted = 0
        self._pending_ids = 0
        self._top_index = -1
        self._finished: set[int] = set()

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
    def last_output_ns(self) -> int | None:
        return self.chunks[-1] if self.chunks else None

    @property
    def last_token_ns(self) -> int | None:
        """Last output event; for an answer that was not streamed, its end."""
        return self.done_ns if self._sink == "plain" else self.last_output_ns

    def body_remaining(self) -> int | None:
        """Bytes of a length-framed body still to come, for a caller that counts reads and feeds them later; null elsewhere."""
        head = self._http.head
        return self._http.left if head is not None and head.framing == "length" else None

    def may_end(self, read: bytes) -> bool:
        """Whether a not yet fed `read` could hold the end of the response, framing "length" aside (see `body_remaining`).

        False is certain; true means: feed what is waiting and look at `complete`. A chunked body ends in an empty line, and
        only a read of fewer than four bytes can hide that.
        """
        head = self._http.head
        if head is None or head.framing == "length":
            return True
        return head.framing == "chunked" and (len(read) < 4 or read.endswith(b"\r\n\r\n"))

    def feed(self, data: bytes, stamp_ns: int, kernel: bool = True) -> None:
        """One read and its stamp. `kernel`: the stamp is the kernel's."""
        self.feed_many((data,), (stamp_ns,), () if kernel else (0,))

    def feed_many(self, datas: Sequence[bytes], stamps: Sequence[int], clock_reads: Collection[int] = ()) -> None:
        """Reads in order and their stamps, of equal length. `clock_reads`: indexes of those not stamped by the kernel."""
        if not clock_reads or len(clock_reads) == len(datas):
            before = len(self.chunks)
            self._feed_all(datas, stamps)
            self.clock_stamps += len(self.chunks) - before if clock_reads else 0
            return
        for at, (data, stamp) in enumerate(zip(datas, stamps, strict=True)):
            self.feed_many((data,), (stamp,), (0,) if at in clock_reads else ())

    def eof(self, stamp_ns: int) -> None:
        """The peer closed its side."""
        if self._closed:
            return
        self._closed = True
        self._http.eof()
        self._flush()
        if self.done_ns is None:
            self.done_ns = stamp_ns

    def result(self, ended: Outcome | None = None) -> Answer:
        """The verdict. `ended`: the outcome by which the caller stopped reading; it counts unless the answer had ended before."""
        self._flush()
        told = self._tokens if self._tokens is not None and len(self._tokens) == len(self.chunks) else None
        delivered = Delivered(
            head=self._http.head,
            invalid=self._http.invalid,
            complete=self._http.complete,
            plain=self._sink == "plain",
            streaming_asked=self.streaming_asked,
            keep_text=self.keep_text,
            body=bytes(self._body),
            headers_ns=self.headers_ns,
            first_event_ns=self.first_event_ns,
            first_token_ns=self.first_token_ns,
            first_answer_ns=self.first_answer_ns,
            last_event_ns=self._last_event_ns,
            done_ns=self.done_ns,
            chunks=self.chunks,
            chunk_tokens=told or None,
            pending_tokens=self._pending_ids,
            coalesced=self.coalesced,
            clock_stamps=self.clock_stamps,
            malformed_events=self.malformed_events,
            saw_done=self.saw_done,
            all_finished=bool(self._finished) and len(self._finished) > self._top_index,
            finish_reason=self.finish_reason,
            error=self.error,
            usage=self.usage,
            answer=self._answers + [text for index in sorted(self._others) for text in self._others[index]],
            reasoning=self._reasonings,
            tool=self._tools,
            first_chunk_text=self._first_text,
            reusable=self.reusable,
        )
        return judge(delivered, ended)

    def _feed_all(self, datas: Sequence[bytes], stamps: Sequence[int]) -> None:
        http, take = self._http, self._take_plain
        for data, stamp in zip(datas, stamps, strict=True):
            fast = self._fast
            if fast == _CHUNK:
                start = self._starts.get(len(data))
                if start is None:
                    start = self._starts[len(data)] = _chunk_start(len(data), http.chunk_digits)
                if start and data.startswith(start) and data.endswith(b"}\n\n\r\n") and take(data[len(start) - 1 : -4], stamp):
                    continue
            # The read that ends the body is left to the parser of the framing.
            elif fast == _EVENT and len(data) < http.left and data.startswith(b"data: {") and data.endswith(b"}\n\n"):
                rest = http.left - len(data)
                if take(data[6:-2], stamp):
                    http.left = rest
                    continue
            self._feed_general(data, stamp)
        if len(self._answers) + len(self._reasonings) > _MAX_PIECES:
            # Small strings cost ten times their text.
            self._answers, self._reasonings = ["".join(self._answers)], ["".join(self._reasonings)]

    def _take_plain(self, payload: bytes, stamp: int) -> int:
        """Take one event if it is one of those that most are: _OUTPUT, or _SILENT; _NOT_TAKEN (nothing done) if it is not."""
        # A line end inside would make it several lines of SSE, though it may be one piece of JSON.
        if 10 in payload or 13 in payload:
            return _NOT_TAKEN
        try:
            event = decode_event(payload)
        except NOT_PLAIN:
            return _NOT_TAKEN
        choices, usage = event.choices, event.usage
        if len(choices) != 1:
            return _NOT_TAKEN if choices or usage is None else self._take_aside(usage, None, stamp)
        choice = choices[0]
        delta = choice.delta
        if delta is None:
            text, thought = choice.text, None
        else:
            text, thought = delta.content, delta.reasoning_content or delta.reasoning
        tokens = self._tokens
        if text:
            if thought:
                return _NOT_TAKEN
            self._answers.append(text)
            if self.first_answer_ns is None:
                self.first_answer_ns = stamp
        elif thought:
            self._reasonings.append(thought)
        else:
            return self._take_aside(usage, choice.finish_reason, stamp)
        if self.first_token_ns is None:
            self.first_token_ns = stamp
            self._first_text = text or thought
        self.chunks.append(stamp)
        if tokens is not None:
            self._count_chunk(None, None if usage is None else usage.completion_tokens)
        if usage is not None or choice.finish_reason is not None:
            self._take_aside(usage, choice.finish_reason, stamp)
        return _OUTPUT

    def _take_aside(self, usage: PlainUsage | None, finish_reason: str | None, stamp: int) -> int:
        """What an event tells besides output."""
        self._last_event_ns = stamp
        if usage is not None:
            self.usage = self.usage.largest(usage.counts())
        if finish_reason:
            self._finish_choice(0, finish_reason)
        return _SILENT

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
            self._flush()
            if self.done_ns is None:
                self.done_ns = stamp
        self._fast = self._fast_mode()

    def _fast_mode(self) -> int:
        begun = self.first_event_ns is not None and self._sink == "sse" and not self.saw_done
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
            self._take_events(body, stamp)
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

    def _take_events(self, body: bytes, stamp: int) -> None:
        before, count, last_is_output = len(self.chunks), 0, False
        for name, payload in self._sse.feed(body):
            last_is_output = self._take_event(name, payload, stamp)
            count += 1
        if count > 1:
            self.coalesced += len(self.chunks) - before - last_is_output

    def _take_event(self, name: bytes, payload: bytes, stamp: int) -> bool:
        """One whole event; whether it was output. Nothing counts after `[DONE]`."""
        if self.first_event_ns is None:
            self.first_event_ns = stamp
        if self.saw_done:
            return False
        if payload.strip() == b"[DONE]":
            self.saw_done = True
            self._last_event_ns = self.done_ns = stamp
            return False
        taken = _NOT_TAKEN if name else self._take_plain(payload, stamp)
        if taken != _NOT_TAKEN:
            return taken == _OUTPUT
        self._last_event_ns = stamp
        if not payload.strip():
            return False
        try:
            obj = decode(payload)
        except MalformedError:
            obj = payload.decode("utf-8", "replace")
            self.malformed_events += name != b"error"
        error = stream_error(obj, name)
        if error is not None:
            self.error = self.error or error
            return False
        return self._take_object(obj, stamp) if isinstance(obj, dict) else False

    def _take_object(self, obj: dict[str, Any], stamp: int) -> bool:
        usage = usage_of(obj)
        if usage is not None:
            self.usage = self.usage.largest(usage)
        pieces = choices_of(obj)
        output = [piece for piece in pieces if piece.is_output]
        for piece in pieces:
            self._take_piece(piece)
        if output:
            self._take_output(output, usage, stamp)
        return bool(output)

    def _take_piece(self, piece: Piece) -> None:
        self._top_index = max(self._top_index, piece.index)
        self._pending_ids += piece.tokens or 0
        if piece.answer:
            (self._others.setdefault(piece.index, []) if piece.index else self._answers).append(piece.answer)
        if piece.reasoning:
            self._reasonings.append(piece.reasoning)
        if piece.tool:
            self._tools.append(piece.tool)
        if piece.finish_reason is not None:
            self._finish_choice(piece.index, piece.finish_reason)

    def _finish_choice(self, index: int, reason: str) -> None:
        self._top_index = max(self._top_index, index)
        self._finished.add(index)
        if self.finish_reason not in FAILED_FINISH:
            self.finish_reason = reason

    def _take_output(self, output: list[Piece], usage: Usage | None, stamp: int) -> None:
        if not self.chunks:
            self.first_token_ns = stamp
            self._first_text = "".join(piece.reasoning + piece.answer + piece.tool for piece in output)
        if self.first_answer_ns is None and any(piece.answer for piece in output):
            self.first_answer_ns = stamp
        self.chunks.append(stamp)
        told = all(piece.tokens is not None for piece in output)
        self._count_chunk(self._pending_ids if told else None, usage.output if usage is not None else None)

    def _count_chunk(self, ids: int | None, running: int | None) -> None:
        """Tokens of the output event just taken: by its token ids, else by how far the running usage went on; else never again."""
        if self._tokens is None:
            return
        if ids is not None:
            tokens, self._pending_ids = ids, 0
        elif running is not None and running >= self._counted and self._top_index <= 0:
            tokens = running - self._counted
        else:
            self._tokens = None
            return
        self._counted += tokens
        self._tokens.append(tokens)

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
        self._take_event(name, payload, self._data_ns)
