"""Any split of a stream into socket reads gives the same record, and no bytes whatever raise out of the client."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from loadcell.client.client import Client
from loadcell.client.exchange import attempt_of
from loadcell.recordlog import encode_record
from loadcell.records import Attempt, Outcome, RequestRecord
from loadcell.testing.replies import DONE, chat_event, chat_reply, error_event, error_reply, usage_event

from .driving import S, client_of, ended, start

STAMPS = {name for name in Attempt.__struct_fields__ if name.endswith("_ns")} | {"chunk_us", "coalesced", "clock_stamps"}

texts = st.sampled_from(["a", " token", "中文", "\u2028", '"}\n\n', "x" * 700, "data: [DONE]", "0\r\n\r\n"])
events = st.one_of(
    st.builds(chat_event, texts),
    st.builds(lambda text: chat_event(text).replace(b"\n\n", b"\r\n\r\n"), texts),
    st.builds(lambda text: chat_event(reasoning=text), texts),
    st.sampled_from([chat_event("", role="assistant"), b": ping\n\n", chat_event(finish_reason="stop"), error_event(), usage_event(3, 9)]),
)


@st.composite
def responses(draw: st.DrawFn) -> tuple[bytes, bool]:
    """(a whole valid response, whether the connection ends with it)."""
    parts = [*draw(st.lists(events, max_size=10)), *draw(st.sampled_from([[], [DONE], [usage_event(3, 5), DONE]]))]
    framing = draw(st.sampled_from(["chunked", "chunked", "length", "close"]))
    body = b"".join(parts)
    kind = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    if framing == "close":
        return kind + b"Connection: close\r\n\r\n" + body, True
    if framing == "length":
        return kind + b"Content-Length: %d\r\n\r\n" % len(body) + body, False
    return kind + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(
        b"%x\r\n%b\r\n" % (len(part), part) for part in parts
    ) + b"0\r\n\r\n", False


class Peer:
    """The server's side, played by hand: one connection at a time."""

    def __init__(self, listener: socket.socket, client: Client) -> None:
        self._listener, self._client = listener, client
        self._connection: socket.socket | None = None

    def answer(self, reads: list[bytes], closes: bool) -> Attempt:
        """Send an answer piece by piece, each of them read before the next is sent."""
        client = self._client
        exchange = start(client)
        client.poll(0)
        if exchange.connected_ns is not None and exchange.stale_replays == 0 and exchange.connection.served == 0:
            self._accept()
        assert self._connection is not None
        assert self._connection.recv(65536)
        found: list[Any] = []
        for piece in reads:
            if found:
                break
            self._connection.sendall(piece)
            client.drain.tick_ns = 0
            found = client.poll(time.monotonic_ns() + S)
        if closes and not found:
            self._connection.shutdown(socket.SHUT_WR)
        found = found or ended(client)
        assert found == [exchange]
        if closes or not client._idle_by_fd:
            self.leave()
        return attempt_of(exchange, exchange.answer(), 0, keep_text=True)

    def _accept(self) -> None:
        self.leave()
        self._connection, _ = self._listener.accept()
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@contextmanager
def peer(compiled: bool = True) -> Iterator[Peer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        with client_of(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", keep_text=True, compiled=compiled) as client:
            made = Peer(listener, client)
            try:
                yield made
            finally:
                made.leave()


def meaning(attempt: Attempt) -> dict[str, Any]:
    return {name: value for name, value in asdict(attempt).items() if name not in STAMPS} | {"chunks": len(attempt.chunk_us)}


@settings(max_examples=120, deadline=None)
@given(st.lists(responses(), min_size=1, max_size=3), st.lists(st.integers(0, 5_000), max_size=12), st.booleans())
def test_any_split_into_socket_reads_gives_the_same_record(answers: list[tuple[bytes, bool]], cuts: list[int], compiled: bool) -> None:
    with peer(compiled) as server:
        for data, closes in answers:
            whole = meaning(server.answer([data], closes))
            at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
            split = server.answer([data[a:b] for a, b in pairwise(at)], closes)
            assert meaning(split) == whole
            stamps = [split.sent_ns, split.headers_ns, split.first_event_ns, split.first_token_ns, split.last_token_ns, split.done_ns]
            seen = [stamp for stamp in stamps if stamp is not None]
            assert seen == sorted(seen)
            assert all(gap >= 0 for gap in split.chunk_us[1:])


seeds = st.one_of(
    responses().map(lambda response: response[0]),
    st.sampled_from(
        [chat_reply("hello"), error_reply(500), error_reply(429, headers=[("Retry-After", "1e999")]), b"HTTP/1.1 100 \r\n\r\n"]
    ),
    st.binary(max_size=300),
)
edits = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "insert"]), st.integers(0, 5_000), st.binary(min_size=1, max_size=9)), max_size=5
)


def mutated(data: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    for kind, where, noise in changes:
        at = where % (len(data) + 1)
        after = {"flip": at + len(noise), "cut": at + 3 * len(noise), "insert": at}[kind]
        data = data[:at] + (b"" if kind == "cut" else noise) + data[after:]
    return data


@settings(max_examples=250, deadline=None)
@given(seeds, edits, st.lists(st.integers(0, 5_000), max_size=4))
def test_a_fuzzed_response_never_raises_out_of_the_client(data: bytes, changes: list[tuple[str, int, bytes]], cuts: list[int]) -> None:
    data = mutated(data, changes)
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    with peer() as server:
        attempt = server.answer([data[a:b] for a, b in pairwise(at) if a < b], closes=True)
    assert attempt.outcome in get_args(Outcome)
    assert (attempt.outcome == "ok") == (attempt.error is None)
    line = encode_record(RequestRecord(index=0, scheduled_ns=0, outcome=attempt.outcome, attempts=[attempt]))
    assert json.loads(line)["outcome"] == attempt.outcome
