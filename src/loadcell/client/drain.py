"""When to look at the sockets, and what follows from what was read. One epoll, one thread; `sweep` is what runs per token.

Between two looks at the sockets it sleeps a tick instead of waking for every token: the kernel has stamped each packet when it came, so
nothing is lost by reading it up to 2 ms later, and a busy core no longer shows up as server latency. A read is kept as it is; it is
parsed when there is time. Knows HTTP only by the few bytes that can end a response.
"""

import os
import select
import time
from collections.abc import Callable
from struct import Struct
from typing import Final

from loadcell.client.connection import Receive
from loadcell.client.exchange import CHUNKED, Exchange
from loadcell.client.sweep import BIG_READ, COMPILED, HotStream, hot_stream, sweep_in_python
from loadcell.clock import NS_PER_S, realtime_offset_ns

TICK_NS: Final = 2_000_000
EAGER_BELOW_NS: Final = 2_000_000  # gaps between tokens shorter than this are not worth sleeping through
EAGER_BELOW_READS_PER_S: Final = 2_000
PARSE_AT_READS: Final = 32  # raw reads that a stream may hold before it is parsed in passing
_LOOK_EVERY_POLLS: Final = 32  # how often that is looked at: a poll adds one read to a stream at most

_ADAPT_NS: Final = 50_000_000
_UNDISTURBED_NS: Final = 5_000
_STEP_NS: Final = 20_000
_NEVER_NS: Final = 1 << 62
_WAY_NS: Final = 100_000
_DONE: Final = b"data: [DONE]\n\n"
_DONE_CHUNK: Final = _DONE + b"\r\n"
_DONE_AND_END: Final = _DONE_CHUNK + b"0\r\n\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_timespec: Final = Struct("qq")


class Drain:
    """`wait` sleeps and drains. Exchanges whose bodies stream are in `hot`; every other event goes to `on_event(fd)`.

    `finished`: exchanges whose response has ended on the wire, oldest first (the caller empties it). `backlog`: streams with much to parse.
    `impatient` > 0: something that must not wait for a tick (a connection being made) is registered. `compiled`: read by compiled code,
    where there is any.
    """

    def __init__(
        self,
        on_event: Callable[[int], None],
        on_lost: Callable[[Exchange, OSError | None], None],
        kernel_stamps: bool,
        *,
        compiled: bool = True,
    ) -> None:
        self.kernel_stamps = kernel_stamps
        self.hot: dict[int, HotStream] = {}
        self.finished: list[Exchange] = []
        self.backlog: list[Exchange] = []
        self.impatient = 0
        self.tick_ns = 0
        self.polls = 0
        self.kernel_reads = 0
        self.clock_reads = 0
        self.late_ns = 0  # how much later than planned the last wake-up was
        self._on_event = on_event
        self._on_lost = on_lost
        self._sweep = (COMPILED if compiled else None) or sweep_in_python
        self._epoll = select.epoll()
        now = time.monotonic_ns()
        self._offset_ns = realtime_offset_ns()
        self._polled_ns = now
        self._next_tick = now
        self._adapt_at = now
        self._reads = 0

    def add(self, fd: int, *, writable: bool = False) -> None:
        self._epoll.register(fd, select.EPOLLIN | (select.EPOLLOUT if writable else 0))

    def change(self, fd: int, *, writable: bool) -> None:
        self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if writable else 0))

    def remove(self, fd: int) -> None:
        self._epoll.unregister(fd)

    def stream(self, fd: int, receive: Receive, exchange: Exchange) -> None:
        """From here on the body of `exchange` comes on `fd`; its `left` is known."""
        self.hot[fd] = hot_stream(exchange, receive)

    def close(self) -> None:
        self._epoll.close()

    def wait(self, until_ns: int) -> None:
        """Sleep to the earlier of `until_ns` and the tick, then read what has come; again, as long as that was tokens of streams and nothing
        that the caller has to act on. Without a tick: to the first event.
        """
        self.late_ns = 0
        now = time.monotonic_ns()
        while True:
            ticking = self.tick_ns and not self.impatient
            if ticking:
                target = min(until_ns, self._next_tick)
                if target > now:
                    time.sleep((target - now) / NS_PER_S)
                    now = time.monotonic_ns()
                    self.late_ns = max(self.late_ns, now - target)
                if now < self._next_tick:
                    return
                self._next_tick = max(self._next_tick + self.tick_ns, now)
            elif until_ns > now:
                # epoll_wait counts whole milliseconds; select on the epoll's own descriptor takes microseconds.
                select.select([self._epoll], [], [], (until_ns - now) / NS_PER_S)
                self.late_ns = max(self.late_ns, time.monotonic_ns() - until_ns)
            only_tokens = self._drain()
            now = time.monotonic_ns()
            if not (only_tokens and ticking) or self.finished or self.backlog or now >= until_ns:
                return

    def stamp(self, ancillary: list[tuple[int, int, bytes]]) -> tuple[int, bool]:
        """(arrival on the monotonic clock, whether it is the kernel's), for a read outside the hot path."""
        now = time.monotonic_ns()
        if ancillary:
            seconds, nanoseconds = _timespec.unpack(ancillary[0][2])
            arrived: int = seconds * NS_PER_S + nanoseconds - self._offset_ns
            if self._polled_ns <= arrived <= now:
                self.kernel_reads += 1
                return arrived, True
        self.clock_reads += 1
        return now, False

    def _drain(self) -> bool:
        """Read what is there. Whether that was nothing but parts of streams."""
        began = self._look_at_clocks()
        self.polls += 1
        ready, reads, clock_reads, rest = self._sweep(self._epoll, self.hot, self._polled_ns, self._offset_ns)
        # What came while the kernel was looking, or was stamped and still on its way to its socket, is reported by the next poll. Until
        # all is handled the old bound holds: a read outside the hot path is of the same poll.
        big: list[Exchange] = []
        for found in rest:
            if isinstance(found, int):
                self._on_event(found)
                continue
            exchange, what = found
            if exchange.stage == "ended":  # by something that stood before it
                continue
            if isinstance(what, int):
                self._on_lost(exchange, OSError(what, os.strerror(what)) if what else None)
                continue
            if len(what) > BIG_READ:
                big.append(exchange)
            self._may_have_ended(exchange, what)
        self._polled_ns = began - _WAY_NS
        self.clock_reads += clock_reads
        self.kernel_reads += reads - clock_reads
        self._reads += ready
        self._tidy(big, began)
        return not rest

    def _look_at_clocks(self) -> int:
        """Where the wall clock, which the kernel stamps with, stands against ours; the time. A machine's host may step it many times a second:
        what came around a step has no stamp that can be believed.
        """
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if after - before < _UNDISTURBED_NS:
            offset = wall - (before + after) // 2
            if abs(offset - self._offset_ns) > _STEP_NS:
                self._polled_ns = _NEVER_NS
            self._offset_ns = offset
        return after

    def _tidy(self, big: list[Exchange], now: int) -> None:
        """After the reads: what must not stay raw for long, and now and then the tick."""
        for exchange in big:
            exchange.parse()
        if self.polls % _LOOK_EVERY_POLLS == 0:
            self.backlog = [stream[0] for stream in self.hot.values() if len(stream[2]) >= PARSE_AT_READS]
        if now - self._adapt_at >= _ADAPT_NS:
            self._adapt(now)

    def _may_have_ended(self, exchange: Exchange, data: bytes) -> None:
        """Known length: count it down. Else the read may end as a chunked body would; where the stream's own end is there too nothing needs
        to be parsed to know.
        """
        if exchange.left != CHUNKED:
            exchange.left -= len(data)
            if exchange.left <= 0:
                self.finish(exchange)
            return
        if len(data) >= 4 and not data.endswith(b"\r\n\r\n"):
            return
        datas = exchange.datas
        if data.endswith(_DONE_AND_END) or (data == _LAST_CHUNK and len(datas) > 1 and datas[-2].endswith(_DONE_CHUNK)):
            self.finish(exchange)
            return
        exchange.parse()
        if exchange.reader.settled:
            self.finish(exchange)

    def finish(self, exchange: Exchange) -> None:
        """The response has ended on the wire."""
        connection = exchange.connection
        if connection is not None:
            self.hot.pop(connection.fd, None)
        exchange.stage = "ended"
        self.finished.append(exchange)

    def _adapt(self, now: int) -> None:
        """A quarter of the gap between a stream's tokens, at most 2 ms; no tick where reads are few or gaps short."""
        elapsed, reads, streams = now - self._adapt_at, self._reads, len(self.hot)
        self._adapt_at, self._reads = now, 0
        gap_ns = streams * elapsed // reads if reads else 0
        busy = reads * NS_PER_S >= EAGER_BELOW_READS_PER_S * elapsed
        before, self.tick_ns = self.tick_ns, 0
        if self.kernel_stamps and busy and gap_ns >= EAGER_BELOW_NS:
            self.tick_ns = min(TICK_NS, gap_ns // 4)
            if not before:
                self._next_tick = now + self.tick_ns
