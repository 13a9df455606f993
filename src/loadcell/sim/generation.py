"""One answer on its way: tokens of the model in, chunks on the wire and one access-log line out."""

from typing import Final, Protocol

from loadcell.clock import MonotonicClock
from loadcell.sim import frames
from loadcell.sim.accesslog import AccessLine, Outcome, gaps_us
from loadcell.sim.answers import RING, RING_TEXT
from loadcell.sim.asks import Ask
from loadcell.sim.connection import Connection, HttpRequest
from loadcell.sim.faults import Fault
from loadcell.sim.sequence import Sequence
from loadcell.sim.spec import SimSpec

_MASK: Final = RING - 1
_now_ns: Final = MonotonicClock.now_ns
_NEVER: Final = 1 << 62
ENGINE_DIED: Final = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class Owner(Protocol):
    """Who started the generation and is told of its end."""

    def ended(self, generation: "Generation", outcome: Outcome, reason: str) -> None: ...
    def strike(self, fault: Fault) -> None:
        """The fault ends the process."""
        ...


class Generation:
    """Streams or collects one answer. `deliver` is the hot path: one call per token of every stream."""

    def __init__(
        self,
        *,
        owner: Owner,
        connection: Connection,
        request: HttpRequest,
        ask: Ask,
        seq: Sequence,
        finish: str,
        fault: Fault | None,
        spec: SimSpec,
        response_id: str,
        created: int,
    ) -> None:
        self.seq = seq
        self.ask = ask
        self.request = request
        self.connection = connection
        self.response_id = response_id
        self.chunk_ns: list[int] = []
        self.chunk_tokens: list[int] = []
        self.struck: Fault | None = None
        self.rank = 0
        self._owner = owner
        self._finish = finish
        self._fault = fault
        self._spec = spec
        self._created = created
        self._sent = 0
        self._pending = 0
        self._stamp_ns = 0
        self._body_ns: int | None = None
        self._limit = _NEVER if fault is None else fault.tokens or 0
        self._chunked = request.version != "1.0"
        self._reasoning = spec.reasoning_tokens if ask.chat else 0
        self._frames = frames.StreamFrames(
            chat=ask.chat, response_id=response_id, created=created, model=ask.model, reasoning_field=spec.reasoning_field
        )
        self._prefix, self._suffix = self._frames.plain(len(RING_TEXT[0]))
        # Tokens with numbers in [from, to) are one plain chunk each: not the first, not the last, nothing special about them.
        plain = ask.stream and self._chunked and spec.stream_interval == 1 and not ask.continuous_usage
        self._plain_from = max(1, self._reasoning)
        self._plain_to = min(seq.target - 1, self._limit) if plain else 0

    def begin(self) -> None:
        """Send the head of a streamed answer at once, as vLLM does; the first token comes later."""
        if self.ask.stream:
            close = not self._chunked or not self.request.keep_alive
            framing = "transfer-encoding: chunked\r\n" if self._chunked else ""
            self.connection.send(frames.stream_head(framing, close, self._id_header()))

    def deliver(self, tokens: int) -> None:
        """The model has `tokens` more for this answer."""
        sent = self._sent
        if tokens == 1 and self._plain_from <= sent < self._plain_to:
            data = self._prefix + RING_TEXT[(self.seq.answer_start + sent) & _MASK] + self._suffix
            self._sent = sent + 1
            self.chunk_ns.append(_now_ns())
            self.connection.send(data)
            return
        self._pending += tokens
        self._deliver_any()

    def _deliver_any(self) -> None:
        seq = self.seq
        ready = self._sent + self._pending
        struck = ready > self._limit
        if struck:
            self._pending = self._limit - self._sent
        done = ready >= seq.target and not struck
        if not self.ask.stream:
            self._collect(done, struck)
            return
        if self._pending and (done or struck or not self._sent or self._pending >= self._spec.stream_interval):
            self._emit(done)
        if struck:
            self._strike()
        elif done:
            self._owner.ended(self, "finished", self._finish)
            self.connection.answered(close=not self._chunked)

    def _emit(self, done: bool) -> None:
        """Send what is pending: reasoning and answer apart; the last chunk carries the reason, then usage and [DONE] follow."""
        first, end = self._sent, self._sent + self._pending
        with_text = end - 1 if done and self._finish == "stop" else end
        parts: list[bytes] = []
        if not first and self.ask.chat:
            parts.append(self._frames.role())
        carried: list[int] = []
        position = first
        while position < end:
            upto = min(self._reasoning, end) if position < self._reasoning else end
            finish = self._finish if done and upto == end else None
            visible = min(upto, with_text) - position
            counts = self._usage(upto) if self.ask.continuous_usage else None
            parts.append(
                self._frames.text(self._text(position, visible), reasoning=position < self._reasoning, finish=finish, counts=counts)
            )
            if visible > 0:
                carried.append(upto - position if upto < end or not done else visible)
            position = upto
        if done:
            if self.ask.include_usage:
                parts.append(self._frames.usage(self._usage(end)))
            parts.append(frames.DONE)
        data = b"".join(map(frames.chunked, parts) if self._chunked else parts)
        if done and self._chunked:
            data += frames.LAST_CHUNK
        if any(n != 1 for n in carried) and not self.chunk_tokens:
            self.chunk_tokens = [1] * len(self.chunk_ns)
            self._plain_to = 0  # from here on every chunk's count is written down
        if self._plain_to == 0:
            self.chunk_tokens += carried
        self._sent, self._pending = end, 0
        now_ns = _now_ns()
        self.chunk_ns += [now_ns] * len(carried)
        self.connection.send(data)

    def _collect(self, done: bool, struck: bool) -> None:
        """A non-streamed answer: remember when the tokens came, send the body at the end."""
        self._sent += self._pending
        if self._pending:
            self.chunk_ns.append(_now_ns())
        self._pending = 0
        if struck:
            self._strike()
        elif done:
            body = self._body()
            head = frames.head(200, "application/json", length=len(body), keep_alive=self.request.keep_alive, extra=self._id_header())
            self._body_ns = _now_ns()
            self.connection.send(head + body)
            self._owner.ended(self, "finished", self._finish)
            self.connection.answered()

    def _body(self) -> bytes:
        end = self._sent - 1 if self._finish == "stop" else self._sent
        thought = min(self._reasoning, end)
        return frames.whole_answer(
            chat=self.ask.chat,
            response_id=self.response_id,
            created=self._created,
            model=self.ask.model,
            text=self._text(thought, end - thought).decode(),
            reasoning=self._text(0, thought).decode() if thought else None,
            reasoning_field=self._spec.reasoning_field,
            finish=self._finish,
            counts=self._usage(self._sent),
        )

    def _strike(self) -> None:
        """The planned fault, now that its tokens are out."""
        fault = self.struck = self._fault
        assert fault is not None
        connection, kind = self.connection, fault.kind
        if kind in ("crash", "exit", "oom_load"):
            self._owner.strike(fault)
        elif kind == "stall":
            self._owner.ended(self, "error", "error")
            connection.on_gone = None
        elif kind == "stream_error":
            self.fail(ENGINE_DIED)
        elif kind == "reset":
            self._owner.ended(self, "error", "error")
            connection.reset()
        elif self.ask.stream and fault.how == "clean":
            connection.send(frames.LAST_CHUNK if self._chunked else b"")
            self._owner.ended(self, "error", "error")
            connection.answered(close=not self._chunked)
        else:
            if not self.ask.stream:
                body = self._body()
                connection.send(frames.head(200, "application/json", length=len(body), keep_alive=True) + body[: len(body) // 2])
            self._owner.ended(self, "error", "error")
            connection.close()

    def fail(self, message: str) -> None:
        """End with an error: an event in the stream and [DONE], as vLLM does, or a 500."""
        error = frames.error_body(message, "InternalServerError", 500)
        if self.ask.stream:
            parts = (frames.event(error), frames.DONE)
            data = b"".join(map(frames.chunked, parts)) + frames.LAST_CHUNK if self._chunked else b"".join(parts)
            self.connection.send(data)
        else:
            self.connection.send(frames.json_response(500, error, keep_alive=self.request.keep_alive))
        self._owner.ended(self, "error", "error")
        self.connection.answered(close=not self._chunked)

    def line(self, outcome: Outcome, reason: str) -> AccessLine:
        """The truth about this answer, for the access log."""
        streamed = self.chunk_ns if self.ask.stream else []
        last_ns = streamed[-1] if streamed else self._body_ns
        status: int | None = 200 if self.ask.stream or self._body_ns is not None else None
        if status is None and self.struck is not None and self.struck.kind == "stream_error":
            status = 500
        return AccessLine(
            method=self.request.method,
            path=self.request.path,
            client=self.connection.peer,
            arrival_ns=self.request.arrival_ns,
            end_ns=_now_ns(),
            status=status,
            outcome=outcome,
            request_id=self.request.header(b"x-request-id"),
            response_id=self.response_id,
            model=self.ask.model,
            stream=self.ask.stream,
            prompt_head=self.ask.prompt_head,
            prompt_tokens=self.seq.prompt_tokens,
            engine_cached_tokens=self.seq.cached,
            output_tokens=self._sent,
            finish_reason=reason,
            first_token_ns=streamed[0] if streamed else None,
            last_token_ns=last_ns,
            gaps_us=gaps_us(streamed),
            chunk_tokens=tuple(self.chunk_tokens) if any(n != 1 for n in self.chunk_tokens) else (),
            fault=None if self.struck is None else self.struck.kind,
        )

    @property
    def sent(self) -> int:
        """Tokens delivered to the client so far."""
        return self._sent

    def _text(self, first: int, count: int) -> bytes:
        start = self.seq.answer_start
        return b"".join([RING_TEXT[(start + i) & _MASK] for i in range(first, first + max(0, count))])

    def _usage(self, tokens: int) -> dict[str, object]:
        cached = self.seq.cached if self._spec.enable_prompt_tokens_details else None
        return frames.usage(self.seq.prompt_tokens, tokens, cached)

    def _id_header(self) -> str:
        request_id = self.request.header(b"x-request-id")
        return f"x-request-id: {request_id}\r\n" if request_id else ""
