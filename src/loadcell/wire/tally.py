"""Events of one answer -> what they delivered: texts, arrivals, tokens, usage, the end, an error.

Works on the data of whole events, stamped by the caller; knows neither HTTP nor how a stream is cut into reads.
`take_plain` is the hot path: one typed decode and two appends for an ordinary token event.
"""

from array import array
from typing import Any, Final

from loadcell.wire.apierror import ApiError, stream_error
from loadcell.wire.openai import NOT_PLAIN, MalformedError, Piece, PlainUsage, Usage, choices_of, decode, decode_event, usage_of

NOT_TAKEN, SILENT, OUTPUT = 0, 1, 2
FAILED_FINISH: Final = frozenset({"abort", "error"})
_MAX_PIECES: Final = 1_024
_NO_USAGE: Final = Usage()
_MARK_ROOM: Final = 64  # more white space around `[DONE]` than this is not looked through


class Tally:
    """What was delivered so far. Stamps are ns; null until seen.

    `chunks` holds the arrival of every output event. Texts are lists in order of arrival, to be joined once.
    `pending_ids` are tokens told by ids that no output event has carried yet.
    """

    __slots__ = (
        "_counted",
        "_finished",
        "_others",
        "_tokens",
        "_top_index",
        "answers",
        "chunks",
        "done_ns",
        "error",
        "finish_reason",
        "first_answer_ns",
        "first_event_ns",
        "first_text",
        "first_token_ns",
        "last_event_ns",
        "malformed_events",
        "pending_ids",
        "reasonings",
        "saw_done",
        "tools",
        "usage",
    )

    def __init__(self) -> None:
        self.chunks: array[int] = array("q")
        self.first_event_ns: int | None = None
        self.first_token_ns: int | None = None
        self.first_answer_ns: int | None = None
        self.last_event_ns: int | None = None
        self.done_ns: int | None = None
        self.saw_done = False
        self.answers: list[str] = []
        self.reasonings: list[str] = []
        self.tools: list[str] = []
        self.first_text: str | None = None
        self.usage = _NO_USAGE
        self.pending_ids = 0
        self.finish_reason: str | None = None
        self.error: ApiError | None = None
        self.malformed_events = 0
        # Answers of choices beyond the first stand apart, so that two texts are not woven into one.
        self._others: dict[int, list[str]] = {}
        # Tokens of each output event, as long as the server tells them; null from the first event that does not.
        self._tokens: array[int] | None = array("q")
        self._counted = 0
        self._top_index = -1
        self._finished: set[int] = set()

    @property
    def finished(self) -> bool:
        """The answer itself says that it is whole: `[DONE]`, or a finish_reason for every choice."""
        return self.saw_done or (bool(self._finished) and len(self._finished) > self._top_index)

    @property
    def has_output(self) -> bool:
        return bool(self.answers or self.reasonings or self.tools or self._others)

    @property
    def chunk_tokens(self) -> "array[int] | None":
        """Tokens of each output event; null unless the server told them all."""
        return self._tokens if self._tokens and len(self._tokens) == len(self.chunks) else None

    @property
    def counts_chunks(self) -> bool:
        """Each output event is one chunk and nothing more is to be known of it: the server does not tell its tokens."""
        return self._tokens is None

    def answer_text(self) -> str:
        """The answer; those of several choices one after another."""
        return "".join(self.answers) + "".join(text for index in sorted(self._others) for text in self._others[index])

    def compact(self) -> None:
        """Join the texts when they are many: small strings cost ten times their text."""
        if len(self.answers) > _MAX_PIECES:
            self.answers[:] = ["".join(self.answers)]
        if len(self.reasonings) > _MAX_PIECES:
            self.reasonings[:] = ["".join(self.reasonings)]

    def take_plain(self, payload: bytes, stamp: int) -> int:
        """Take one event if it is one of those that most are: OUTPUT, or SILENT; NOT_TAKEN (nothing done) if it is not."""
        # A line end inside would make it several lines of SSE, though it may be one piece of JSON.
        if 10 in payload or 13 in payload:
            return NOT_TAKEN
        try:
            event = decode_event(payload)
        except NOT_PLAIN:
            return NOT_TAKEN
        choices, usage = event.choices, event.usage
        if len(choices) != 1:
            return NOT_TAKEN if choices or usage is None else self._take_aside(usage, None, stamp)
        choice = choices[0]
        delta = choice.delta
        if delta is None:
            text, thought = choice.text, None
        else:
            text, thought = delta.content, delta.reasoning_content or delta.reasoning
        if text:
            if thought:
                return NOT_TAKEN
            self.answers.append(text)
            if self.first_answer_ns is None:
                self.first_answer_ns = stamp
        elif thought:
            self.reasonings.append(thought)
        else:
            return self._take_aside(usage, choice.finish_reason, stamp)
        if self.first_token_ns is None:
            self.first_token_ns = stamp
            self.first_text = text or thought
        self.chunks.append(stamp)
        if self._tokens is not None:
            self._count_chunk(None, None if usage is None else usage.completion_tokens)
        if usage is not None or choice.finish_reason is not None:
            self._take_aside(usage, choice.finish_reason, stamp)
        return OUTPUT

    def take_event(self, name: bytes, payload: bytes, stamp: int) -> bool:
        """Take one whole event of any kind; whether it was output. Nothing counts after `[DONE]`."""
        if self.first_event_ns is None:
            self.first_event_ns = stamp
        if self.saw_done:
            return False
        if len(payload) < _MARK_ROOM and payload.strip() == b"[DONE]":
            self.saw_done = True
            self.last_event_ns = self.done_ns = stamp
            return False
        taken = NOT_TAKEN if name else self.take_plain(payload, stamp)
        if taken != NOT_TAKEN:
            return taken == OUTPUT
        self.last_event_ns = stamp
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

    def take_whole(self, fields: dict[str, Any]) -> bool:
        """Take an answer that came as one JSON object: no arrivals. False when it holds neither choices nor an error."""
        self.error = stream_error(fields)
        self.usage = usage_of(fields) or self.usage
        pieces = choices_of(fields)
        for piece in pieces:
            self._take_piece(piece)
            # Whole JSON is its own end, finish_reason or not.
            self._finished.add(piece.index)
        return bool(pieces) or self.error is not None

    def _take_aside(self, usage: PlainUsage | None, finish_reason: str | None, stamp: int) -> int:
        """What an event tells besides output."""
        self.last_event_ns = stamp
        if usage is not None:
            self.usage = self.usage.largest(usage.counts())
        if finish_reason:
            self._finish(0, finish_reason)
        return SILENT

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
        self.pending_ids += piece.tokens or 0
        if piece.answer:
            (self._others.setdefault(piece.index, []) if piece.index else self.answers).append(piece.answer)
        if piece.reasoning:
            self.reasonings.append(piece.reasoning)
        if piece.tool:
            self.tools.append(piece.tool)
        if piece.finish_reason is not None:
            self._finish(piece.index, piece.finish_reason)

    def _finish(self, index: int, reason: str) -> None:
        self._top_index = max(self._top_index, index)
        self._finished.add(index)
        if self.finish_reason not in FAILED_FINISH:
            self.finish_reason = reason

    def _take_output(self, output: list[Piece], usage: Usage | None, stamp: int) -> None:
        if self.first_token_ns is None:
            self.first_token_ns = stamp
            self.first_text = "".join(piece.reasoning + piece.answer + piece.tool for piece in output)
        if self.first_answer_ns is None and any(piece.answer for piece in output):
            self.first_answer_ns = stamp
        self.chunks.append(stamp)
        told = all(piece.tokens is not None for piece in output)
        self._count_chunk(self.pending_ids if told else None, usage.output if usage is not None else None)

    def _count_chunk(self, ids: int | None, running: int | None) -> None:
        """Tokens of the output event just taken: by its token ids, else by how far the running usage went on; else never again."""
        if self._tokens is None:
            return
        if ids is not None:
            tokens, self.pending_ids = ids, 0
        elif running is not None and running >= self._counted and self._top_index <= 0:
            tokens = running - self._counted
        else:
            self._tokens = None
            return
        self._counted += tokens
        self._tokens.append(tokens)
