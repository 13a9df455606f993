"""A server that replays prepared bytes: what `loadcell doctor` measures this machine's client against.

No model and no JSON while it runs: every event is rendered once, before the first request, and is the same for all streams.
Streams stand on a wheel of slots and all of a slot are served in one go, so that one Python process on one core outpaces a client.
It logs when each request arrived and when each of its events was sent; the request's number is told as `usage.prompt_tokens`, by
which a client's records are joined with that log.

    python -m loadcell.sim.replay '{"ttft_ms": 20, "itl_ms": 20, "tokens": 50, "log": "/tmp/sent.bin"}'

prints its port, runs until its standard input closes, then writes the log and prints a `ReplayFacts`.
The log holds native 64-bit integers, per request: [number, received, n, sent × n], stamps in ns of CLOCK_MONOTONIC.
"""

import ctypes
import os
import select
import socket
import sys
import time
from array import array
from typing import Final

import msgspec
from msgspec import Struct

from loadcell.sim.timerfd import TimerFd

_NS_PER_MS: Final = 1_000_000
_PR_SET_TIMERSLACK: Final = 29
_HEAD: Final = b"HTTP/1.1 200 OK\r\nserver: replay\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT: Final = (
    b'data: {"id":"chatcmpl-replay","object":"chat.completion.chunk","created":1700000000,"model":"replay","choices":[%b]%b}\n\n'
)


class ReplaySpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Every answer has `tokens` events of one token: the first `ttft_ms` after its request, then one every `itl_ms`.

    `itl_ms` is rounded to whole slots of `slot_ms`. `spread` puts requests that come together on slots one after another, which
    delays a first event by up to `itl_ms` more: an even load. `ttft_ms` 0 sends the first event with the reading of the request.
    `cpu` is the one that the server's process moves to.
    """

    ttft_ms: float = 20.0
    itl_ms: float = 20.0
    tokens: int = 50
    slot_ms: float = 1.0
    spread: bool = True
    port: int = 0
    cpu: int | None = None
    log: str | None = None


class ReplayFacts(Struct, frozen=True):
    """What the server says of itself. `late`: how far behind its own schedule slots were served. `blocked`: sends that a full
    socket refused in part, which then carry a later stamp's data.
    """

    requests: int
    events: int
    blocked: int
    late_mean_us: float
    late_max_us: float
    cpu_s: float


class Prepared(Struct, frozen=True):
    """The bytes of an answer: `events[i]` for token i, all but the last complete; `ending` takes the request's number twice (%)."""

    events: tuple[bytes, ...]
    ending: bytes


def prepare(tokens: int) -> Prepared:
    """Renders the answer of `tokens` tokens; the number is padded with spaces, which JSON allows, so that sizes stay fixed."""
    role = _event(b'{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}')
    token = _event(b'{"index":0,"delta":{"content":" load"},"finish_reason":null}')
    last = _event(b'{"index":0,"delta":{"content":" load"},"finish_reason":"length"}')
    events = [token] * (tokens - 1) + [last]
    events[0] = _HEAD + role + events[0]
    usage = _EVENT % (b"", b',"usage":{"prompt_tokens":%%10d,"completion_tokens":%d,"total_tokens":%%10d}' % tokens)
    size = len(usage % (0, 0))
    return Prepared(tuple(events), b"%x\r\n%b\r\n%b0\r\n\r\n" % (size, usage, _chunk(b"data: [DONE]\n\n")))


def _event(choice: bytes) -> bytes:
    return _chunk(_EVENT % (choice, b""))


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


class _Stream:
    """One connection. `at` is the next event of the present answer; `owed` what a full socket has not taken yet."""

    __slots__ = ("at", "incoming", "number", "owed", "received_ns", "sent_ns", "socket")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.incoming = b""
        self.owed = b""
        self.at = 0
        self.number = 0
        self.received_ns = 0
        self.sent_ns = array("q")


class Replay:
    """Listens from its making on; `run` serves until `until_fd` becomes readable."""

    def __init__(self, spec: ReplaySpec) -> None:
        self.listener = socket.create_server(("127.0.0.1", spec.port), backlog=8192)
        self.listener.settimeout(0)
        self.port: int = self.listener.getsockname()[1]
        self._spec = spec
        self._prepared = prepare(spec.tokens)
        self._slot_ns = round(spec.slot_ms * _NS_PER_MS)
        self._wheel: list[list[_Stream]] = [[] for _ in range(max(1, round(spec.itl_ms / spec.slot_ms)))]
        self._starting: dict[int, list[_Stream]] = {}
        self._streams: dict[int, _Stream] = {}
        self._log = array("q")
        self._origin_ns = time.monotonic_ns()
        self._tick = 0  # the next slot to serve, counted from the origin
        self._active = 0
        self._requests = self._events = self._blocked = self._ticks = self._late_ns = self._late_max_ns = 0

    def run(self, until_fd: int) -> None:
        timer = TimerFd()
        try:
            with select.epoll() as poller:
                for fd in (self.listener.fileno(), timer.fd, until_fd):
                    poller.register(fd, select.EPOLLIN)
                self._serve(poller, timer, until_fd)
        finally:
            timer.close()

    def _serve(self, poller: "select.epoll", timer: TimerFd, until_fd: int) -> None:
        while True:
            for fd, _ in poller.poll(None if self._active == 0 else 1.0, 1024):
                if fd == timer.fd:
                    timer.clear()
                elif fd == until_fd:
                    return
                elif fd == self.listener.fileno():
                    self._accept(poller)
                else:
                    self._read(self._streams[fd])
            if self._active:
                self._serve_due_slots()
                timer.arm(self._origin_ns + self._tick * self._slot_ns)

    def _accept(self, poller: "select.epoll") -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except BlockingIOError:
                return
            connection.settimeout(0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._streams[connection.fileno()] = _Stream(connection)
            poller.register(connection.fileno(), select.EPOLLIN)

    def _read(self, stream: _Stream) -> None:
        try:
            data = stream.socket.recv(65536)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._hang_up(stream)
            return
        stream.incoming += data
        head, end, body = stream.incoming.partition(b"\r\n\r\n")
        if not end:
            return
        _, named, length = head.lower().partition(b"content-length:")
        size = int(length.split(b"\r\n", 1)[0]) if named else 0
        if len(body) < size:
            return
        stream.incoming = body[size:]
        if head.startswith(b"POST "):
            self._begin(stream)
        else:  # health, models, metrics: nothing of this is here
            self._send(stream, b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")

    def _begin(self, stream: _Stream) -> None:
        self._requests += 1
        stream.number = self._requests
        stream.received_ns = time.monotonic_ns()
        stream.at = 0
        stream.sent_ns = array("q")
        if self._active == 0:  # slots that passed while nothing ran are not late
            self._tick = max(self._tick, (stream.received_ns - self._origin_ns) // self._slot_ns + 1)
        self._active += 1
        first_ns = stream.received_ns + round(self._spec.ttft_ms * _NS_PER_MS)
        tick = max(self._tick, -(-(first_ns - self._origin_ns) // self._slot_ns))
        if self._spec.ttft_ms <= 0:
            if self._send_next(stream):
                return
            tick += len(self._wheel)
        if self._spec.spread:
            tick += (stream.number - tick) % len(self._wheel)
        self._starting.setdefault(tick, []).append(stream)

    def _serve_due_slots(self) -> None:
        while True:
            late_ns = time.monotonic_ns() - self._origin_ns - self._tick * self._slot_ns
            if late_ns < 0:
                return
            slot = self._wheel[self._tick % len(self._wheel)]
            slot.extend(self._starting.pop(self._tick, ()))
            if slot:
                self._ticks += 1
                self._late_ns += late_ns
                self._late_max_ns = max(self._late_max_ns, late_ns)
                slot[:] = [stream for stream in slot if not self._send_next(stream)]
            self._tick += 1

    def _send_next(self, stream: _Stream) -> bool:
        """Sends the stream's next event; true when its answer is complete or its client gone."""
        events = self._prepared.events
        at = stream.at
        if at < len(events):
            data = events[at]
            stream.at = at + 1
            if at + 1 == len(events):
                data += self._prepared.ending % (stream.number, stream.number + at + 1)
        else:
            data = b""  # only what the socket refused before
        stream.sent_ns.append(time.monotonic_ns())
        if not self._send(stream, data):
            self._active -= 1
            return True
        if stream.at < len(events) or stream.owed:
            return False
        self._events += len(events)
        self._active -= 1
        if self._spec.log is not None:
            self._log.extend((stream.number, stream.received_ns, len(events)))
            self._log.extend(stream.sent_ns[: len(events)])
        return True

    def _send(self, stream: _Stream, data: bytes) -> bool:
        """False when the client is gone."""
        if stream.owed:
            data = stream.owed + data
        try:
            sent = stream.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._hang_up(stream)
            return False
        if sent < len(data):
            self._blocked += 1
            stream.owed = data[sent:]
        elif stream.owed:
            stream.owed = b""
        return True

    def _hang_up(self, stream: _Stream) -> None:
        fd = stream.socket.fileno()
        if fd >= 0:
            del self._streams[fd]
            stream.socket.close()

    def close(self) -> None:
        self.listener.close()
        for stream in self._streams.values():
            stream.socket.close()
        self._streams.clear()

    def write_log(self, path: str) -> None:
        with open(path, "wb") as file:  # noqa: PTH123  (array.tofile wants a real file)
            self._log.tofile(file)

    def facts(self) -> ReplayFacts:
        return ReplayFacts(
            requests=self._requests,
            events=self._events,
            blocked=self._blocked,
            late_mean_us=self._late_ns / max(1, self._ticks) / 1e3,
            late_max_us=self._late_max_ns / 1e3,
            cpu_s=time.process_time(),
        )


def main(argument: str) -> None:
    spec = msgspec.json.decode(argument, type=ReplaySpec)
    replay = Replay(spec)
    if spec.cpu is not None:
        os.sched_setaffinity(0, {spec.cpu})
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    print(replay.port, flush=True)  # the parent reads it
    replay.run(until_fd=sys.stdin.fileno())
    if spec.log is not None:
        replay.write_log(spec.log)
    os.write(sys.stdout.fileno(), msgspec.json.encode(replay.facts()) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
