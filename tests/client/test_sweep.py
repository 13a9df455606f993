"""The compiled sweep and that in Python are the same, whatever comes; neither loses a reference."""

import errno
import gc
import select
import socket
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadcell.client import sweep
from loadcell.client.drain import Drain
from loadcell.client.exchange import CHUNKED, ENDLESS, Exchange
from loadcell.client.sweep import BIG_READ, hot_stream, sweep_in_python
from loadcell.testing.replies import DONE, LAST_CHUNK, chat_event, chunk, head

from .driving import asking, endpoint_of

EVENT_STREAM = ("Content-Type", "text/event-stream")
TOKEN = chunk(chat_event("a"))
GONE, CUT = "closed by the peer", "reset by the peer"

pieces = st.sampled_from(
    [
        *(TOKEN, TOKEN + TOKEN, chunk(DONE), chunk(DONE) + LAST_CHUNK, LAST_CHUNK, b"0\r\n\r", b"\n", b"\r\n", b"\r\n\r\n", b"data"),
        *(b"x" * size for size in (3, 4, BIG_READ, BIG_READ + 1, 20_000)),
        *(b"x" * (size - 4) + b"\r\n\r\n" for size in (BIG_READ, BIG_READ + 1)),
        *(GONE, CUT),
    ]
)
framings = st.sampled_from([CHUNKED, CHUNKED, ENDLESS, 1, 200, 5_000])
# Round by round: what comes at which stream; the last one is none that streams.
rounds = st.lists(st.lists(st.tuples(st.integers(0, 3), pieces), max_size=6), min_size=1, max_size=8)


def exchange_of(left: int) -> Exchange:
    exchange = Exchange(asking(), endpoint_of("http://127.0.0.1:1/v1"), b"", 0, False, None)
    framing = {CHUNKED: [("Transfer-Encoding", "chunked")], ENDLESS: []}.get(left, [("Content-Length", str(left))])
    exchange.reader.feed(head(200, [EVENT_STREAM, *framing]), 0)
    exchange.left, exchange.stage = left, "body"
    return exchange


def played(script: list[list[tuple[int, Any]]], lefts: tuple[int, ...], compiled: bool) -> dict[str, Any]:
    """All that a drain makes of a script. Socket pairs have what is sent as soon as it is sent, and no stamps."""
    told: list[Any] = []
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(len(lefts) + 1)]
        for end in (end for pair in pairs for end in pair):
            stack.enter_context(end)
        exchanges = [exchange_of(left) for left in lefts]

        def on_event(fd: int) -> None:
            at = next(at for at, pair in enumerate(pairs) if pair[0].fileno() == fd)
            try:
                told.append((at, pairs[at][0].recv(65_536)))
            except OSError as error:
                told.append((at, error.errno))
            if told[-1][1] in (b"", errno.ECONNRESET):
                drain.remove(fd)

        def on_lost(exchange: Exchange, error: OSError | None) -> None:
            at = exchanges.index(exchange)
            told.append((at, type(error), error and error.errno, error and error.strerror))
            drain.remove(pairs[at][0].fileno())
            drain.hot.pop(pairs[at][0].fileno())
            drain.finish(exchange)

        drain = Drain(on_event, on_lost, kernel_stamps=True, compiled=compiled)
        stack.callback(drain.close)
        for at, (ours, _) in enumerate(pairs):
            ours.setblocking(False)
            drain.add(ours.fileno())
            if at < len(lefts):
                drain.stream(ours.fileno(), ours.recvmsg, exchanges[at])
                exchanges[at].connection = type("Connection", (), {"fd": ours.fileno()})()
        for steps in script:
            for at, what in steps:
                ours, theirs = pairs[at]
                if theirs.fileno() < 0:
                    continue
                if what is CUT:
                    ours.send(b"never read")
                if what in (GONE, CUT):
                    theirs.close()
                else:
                    theirs.sendall(what)
            drain.wait(0)
        before = time.monotonic_ns()
        assert all(list(exchange.stamps) == sorted(exchange.stamps) and max(exchange.stamps, default=0) <= before for exchange in exchanges)
        streams = [
            (exchange.stage, exchange.left, exchange.datas, exchange.clock_reads, len(exchange.stamps), exchange.reader.clock_stamps)
            for exchange in exchanges
        ]
        return {
            "told": told,
            "finished": [exchanges.index(exchange) for exchange in drain.finished],
            "streams": streams,
            "hot": [at for at, (ours, _) in enumerate(pairs) if ours.fileno() in drain.hot],
            "counts": (drain.polls, drain.kernel_reads, drain.clock_reads, drain._reads),
        }


@pytest.mark.usefixtures("built")
@settings(max_examples=300, deadline=None)
@given(rounds, st.tuples(framings, framings, framings))
def test_compiled_or_not_the_drain_does_the_same(script: list[list[tuple[int, Any]]], lefts: tuple[int, ...]) -> None:
    assert played(script, lefts, compiled=True) == played(script, lefts, compiled=False)


@contextmanager
def swept(compiled: bool) -> Iterator[tuple[Callable[[], Any], dict[int, Any], select.epoll, Exchange, socket.socket]]:
    """(a sweep, its streams, its epoll, the exchange of a stream, the stream's peer)."""
    look = sweep.COMPILED if compiled else sweep_in_python
    assert look is not None
    ours, theirs = socket.socketpair()
    with ours, theirs, select.epoll() as epoll:
        ours.setblocking(False)
        exchange = exchange_of(CHUNKED)
        epoll.register(ours.fileno(), select.EPOLLIN)
        hot = {ours.fileno(): hot_stream(exchange, ours.recvmsg)}
        yield lambda: look(epoll, hot, 0, 0), hot, epoll, exchange, theirs


def test_what_is_left_to_the_caller(compiled):
    with swept(compiled) as (look, hot, epoll, exchange, peer):
        (fd,) = hot
        assert look() == (0, 0, 0, [])
        peer.sendall(TOKEN)
        assert look() == (1, 1, 1, [])
        peer.sendall(LAST_CHUNK)
        assert look() == (1, 1, 1, [(exchange, LAST_CHUNK)])
        assert exchange.datas == [TOKEN, LAST_CHUNK]
        epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
        assert look() == (1, 0, 0, [])  # ready, and nothing to read
        peer.close()
        assert look() == (1, 0, 0, [(exchange, 0)])
        hot.clear()
        assert look() == (1, 0, 0, [fd])
        epoll.close()
        with pytest.raises(ValueError, match="closed"):
            look()


def test_a_stream_that_breaks_is_told_with_its_error(compiled):
    with swept(compiled) as (look, hot, epoll, exchange, _):
        listener = socket.create_server(("127.0.0.1", 0))
        address = listener.getsockname()
        listener.close()
        with socket.socket() as refused:
            refused.setblocking(False)
            refused.connect_ex(address)
            epoll.register(refused.fileno(), select.EPOLLIN)
            hot[refused.fileno()] = hot_stream(exchange, refused.recvmsg)
            assert look() == (1, 0, 0, [(exchange, errno.ECONNREFUSED)])


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("stream", [None, (), (1, 2, 3, 4, 5, 6)])
def test_the_compiled_one_refuses_what_is_no_stream(stream):
    with swept(True) as (look, hot, _, _, peer):
        hot.update(dict.fromkeys(hot, stream))
        peer.sendall(TOKEN)
        with pytest.raises(TypeError, match="HotStream"):
            look()
    assert sweep.COMPILED is not None
    with pytest.raises(TypeError):
        sweep.COMPILED(1, 2)  # type: ignore[call-arg, arg-type]


def test_a_stamp_that_cannot_be_added_is_an_error_and_not_a_read(compiled):
    def refuse(stamp: int) -> None:
        raise MemoryError

    with swept(compiled) as (look, hot, _, exchange, peer):
        (fd,) = hot
        hot[fd] = (*hot[fd][:3], refuse, *hot[fd][4:])
        peer.sendall(TOKEN)
        with pytest.raises(MemoryError):
            look()
        assert exchange.datas == []


def test_nothing_is_held_on_to(compiled):
    """Reads, what may be ends, descriptors that are not hot: after thousands of each memory and references are where they were."""
    with swept(compiled) as (look, hot, epoll, exchange, peer), socket.socket() as other:
        epoll.register(other.fileno(), select.EPOLLIN)  # hung up, as no connection was made
        (stream,) = hot.values()
        held = (exchange, *stream[:-1], hot)

        def run(times: int) -> tuple[int, list[int]]:
            for _ in range(times):
                for data in (TOKEN, LAST_CHUNK, b"x" * 5_000):
                    peer.sendall(data)
                    look()
                exchange.datas.clear()
                del exchange.stamps[:]
                exchange.clock_reads.clear()
            gc.collect()
            return tracemalloc.get_traced_memory()[0], [sys.getrefcount(item) for item in held]

        tracemalloc.start()
        try:
            size, counts = run(100)
            later, counts_later = run(3_000)
        finally:
            tracemalloc.stop()
        assert counts_later == counts
        assert later - size < 10_000
