"""Which stamps are believed, when it sleeps, and what a body's end looks like."""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from loadcell.client.connection import SO_TIMESTAMPNS
from loadcell.client.drain import EAGER_BELOW_READS_PER_S, TICK_NS, Drain
from loadcell.client.exchange import CHUNKED, ENDLESS, Exchange
from loadcell.clock import realtime_offset_ns
from loadcell.testing.replies import DONE, LAST_CHUNK, chat_event, chunk, head

from .driving import S, asking, endpoint_of, tcp_pair

HEAD = head(200, [("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked")])


class Played:
    """One hot stream of a drain. `look` sends and drains; no bytes are an end. Stamps may be shifted as by a wall clock that is off."""

    def __init__(self, drain: Drain, exchange: Exchange, peer: socket.socket) -> None:
        self.drain, self.exchange, self._peer = drain, exchange, peer

    def look(self, data: bytes) -> None:
        if data:
            self._peer.sendall(data)
        else:
            self._peer.shutdown(socket.SHUT_WR)
        self.drain.wait(time.monotonic_ns() + S)

    def shift(self, off_ns: int) -> None:
        def look_at_clocks() -> int:
            self.drain._offset_ns = realtime_offset_ns() - off_ns
            return time.monotonic_ns()

        self.drain._look_at_clocks = look_at_clocks  # type: ignore[method-assign]


@contextmanager
def streaming(compiled: bool, left: int = CHUNKED, *, stamped: bool = False) -> Iterator[Played]:
    drain = Drain(lambda _: None, lambda exchange, _: drain.finish(exchange), kernel_stamps=True, compiled=compiled)
    with tcp_pair() as (ours, theirs):
        if stamped:
            ours.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        exchange = Exchange(asking(), endpoint_of("http://127.0.0.1:1/v1"), b"", time.monotonic_ns(), False, None)
        exchange.reader.feed(HEAD, 0)
        exchange.left, exchange.stage = left, "body"
        drain.add(ours.fileno())
        drain.stream(ours.fileno(), ours.recvmsg, exchange)
        try:
            yield Played(drain, exchange, theirs)
        finally:
            drain.close()


TOKEN = chunk(chat_event("a"))


def test_a_kernel_stamp_since_the_last_poll_is_believed(compiled):
    with streaming(compiled, stamped=True) as played:
        drain, exchange = played.drain, played.exchange
        before = time.monotonic_ns()
        played.look(TOKEN)
        assert drain.kernel_reads == 1
        assert drain.clock_reads == 0
        assert before - 100_000 <= exchange.stamps[0] <= time.monotonic_ns()
        assert exchange.clock_reads == []


@pytest.mark.parametrize("off_ns", [-3600 * S, -S, S, 3600 * S])
def test_a_stamp_from_before_the_last_poll_or_from_the_future_is_not_believed(compiled, off_ns):
    """A stepped clock: the read's own time is taken instead, and counted."""
    with streaming(compiled, stamped=True) as played:
        drain, exchange = played.drain, played.exchange
        played.shift(off_ns)
        before = time.monotonic_ns()
        played.look(TOKEN)
        after = time.monotonic_ns()
        assert before <= exchange.stamps[0] <= after
        assert exchange.clock_reads == [0]
        assert (drain.kernel_reads, drain.clock_reads) == (0, 1)
        exchange.parse()
        assert exchange.reader.clock_stamps == 1


def test_a_read_without_a_stamp_takes_the_clock_and_counts_it(compiled):
    with streaming(compiled) as played:
        drain, exchange = played.drain, played.exchange
        played.look(TOKEN)
        played.look(TOKEN)
        assert list(exchange.stamps) == sorted(exchange.stamps)
        assert exchange.clock_reads == [0, 1]
        assert drain.clock_reads == 2


def test_the_slow_path_judges_a_stamp_in_the_same_way():
    drain = Drain(lambda _: None, lambda *_: None, kernel_stamps=True)
    now = time.monotonic_ns()
    drain._polled_ns = now - S

    def stamped(at: int):
        wall = at + realtime_offset_ns()
        return drain.stamp([(socket.SOL_SOCKET, 35, struct.pack("qq", wall // S, wall % S))])

    believed, kernel = stamped(now - S // 2)
    assert kernel
    assert abs(believed - (now - S // 2)) < 1_000_000
    for wrong in (now - 2 * S, now + 60 * S):
        own, kernel = stamped(wrong)
        assert not kernel
        assert now <= own <= time.monotonic_ns()
    assert drain.stamp([])[1] is False
    assert (drain.kernel_reads, drain.clock_reads) == (1, 3)
    drain.close()


@pytest.mark.parametrize(
    ("reads", "whole"),
    [
        ([TOKEN + chunk(DONE) + LAST_CHUNK], True),
        ([TOKEN + chunk(DONE), LAST_CHUNK], True),
        ([TOKEN + chunk(DONE) + b"0\r\n\r", b"\n"], True),
        ([TOKEN + chunk(DONE) + b"0\r\nTrailer: x\r\n\r\n"], True),
        ([TOKEN + LAST_CHUNK], True),
        ([TOKEN + chunk(b"data: x\r\n\r\n")], False),
        ([chunk(chat_event("0\r\n\r\n"))], False),
        ([TOKEN + chunk(DONE)], False),
    ],
)
def test_the_end_of_a_chunked_body(compiled, reads, whole):
    with streaming(compiled) as played:
        for read in reads:
            assert played.exchange.stage == "body"
            played.look(read)
        assert (played.exchange.stage == "ended") == whole
        assert played.drain.finished == ([played.exchange] if whole else [])


def test_a_body_of_known_length_ends_with_its_last_byte(compiled):
    with streaming(compiled, left=10) as played:
        played.look(b"x" * 7)
        assert (played.exchange.stage, played.exchange.left) == ("body", 3)
        played.look(b"y" * 3)
        assert played.exchange.stage == "ended"


def test_a_body_without_an_end_of_its_own_ends_with_the_connection(compiled):
    with streaming(compiled, left=ENDLESS) as played:
        played.look(TOKEN)
        assert played.exchange.stage == "body"
        played.look(b"")
        assert played.exchange.stage == "ended"
        assert (played.drain.kernel_reads, played.drain.clock_reads) == (0, 1)  # an end is no read


def test_a_stream_that_holds_many_reads_asks_to_be_parsed(compiled):
    with streaming(compiled) as played:
        drain, exchange = played.drain, played.exchange
        while drain.polls < 64:
            played.look(TOKEN)
        read = len(exchange.datas)
        assert drain.backlog == [exchange]
        assert read >= 60
        exchange.parse()
        assert (len(exchange.datas), len(exchange.stamps), len(exchange.clock_reads)) == (0, 0, 0)
        assert len(exchange.reader.tally.chunks) == exchange.reader.clock_stamps == read


def test_it_sleeps_between_looks_only_where_many_tokens_come_slowly():
    drain = Drain(lambda _: None, lambda *_: None, kernel_stamps=True)

    def adapted(streams: int, reads: int) -> int:
        drain.hot = dict.fromkeys(range(streams))  # type: ignore[arg-type]
        drain._adapt_at, drain._reads = 0, reads
        drain._adapt(S)
        return drain.tick_ns

    assert adapted(1000, 50_000) == TICK_NS  # 20 ms between a stream's tokens
    assert adapted(100, 25_000) == 1_000_000  # 4 ms: a quarter of it
    assert adapted(10, 25_000) == 0  # 0.4 ms: not worth it
    assert adapted(10, EAGER_BELOW_READS_PER_S - 1) == 0
    assert adapted(0, 0) == 0
    drain.kernel_stamps = False
    assert adapted(1000, 50_000) == 0  # without the kernel's stamps, sleeping would be measured as latency
    drain.close()


def test_with_a_tick_it_does_not_look_before_it_and_is_never_late_for_what_is_due(compiled):
    with streaming(compiled) as played:
        drain = played.drain
        drain.tick_ns, drain._next_tick = TICK_NS, time.monotonic_ns() + S
        due = time.monotonic_ns() + 1_000_000
        drain.wait(due)
        assert due <= time.monotonic_ns()
        assert drain.polls == 0
        drain.impatient = 1
        played.look(TOKEN)
        assert drain.polls == 1
