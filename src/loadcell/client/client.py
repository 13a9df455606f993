"""Request + endpoint -> an exchange in flight, and in the end its answer. Keeps connections, sends, times out, replays what a closed one lost.

Decides nothing about retries or endpoints: it does what it is asked and says how that ended.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from loadcell.client.connection import ANCILLARY_SIZE, READ_SIZE, ConnectFailure, Connection
from loadcell.client.drain import Drain
from loadcell.client.exchange import CHUNKED, ENDLESS, Exchange
from loadcell.client.limits import Timeouts
from loadcell.records import Endpoint, Outcome, Request
from loadcell.wire.http1 import request_head

if TYPE_CHECKING:
    import ssl

_QUIET_NS: Final = 250_000_000  # a stream this long without a read is parsed, should its end have been missed
_AFTER_DONE_NS: Final = 1_000_000_000  # how long the body's own end may lag behind [DONE]
_MAX_IDLE_PER_ENDPOINT: Final = 16_384


class Client:
    """One thread's connections to all endpoints. `keep_text`: answers keep their text. `compiled`: as of Drain. Times: monotonic ns."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        timeouts: Timeouts,
        headers: Sequence[tuple[str, str]] = (),
        tls: "ssl.SSLContext | None" = None,
        *,
        kernel_stamps: bool = True,
        keep_text: bool = False,
        compiled: bool = True,
    ) -> None:
        self.endpoints = list(endpoints)
        self.timeouts = timeouts
        # No timeout but that of the connection can strike earlier than these after the request was sent.
        self._silence_ns = round(min(timeouts.first_output_s, timeouts.idle_s) * 1e9)
        self._total_ns = round(timeouts.total_s * 1e9)
        self.keep_text = keep_text
        self.active: dict[Exchange, None] = {}
        self.drain = Drain(self._on_event, self._on_lost, kernel_stamps, compiled=compiled)
        self._tls = tls
        self._kernel_stamps = kernel_stamps
        self._heads = [_head(endpoint, headers) for endpoint in self.endpoints]
        self._idle: list[list[Connection]] = [[] for _ in self.endpoints]
        self._idle_by_fd: dict[int, Connection] = {}
        self._slow: dict[int, Exchange] = {}

    def start(self, request: Request, endpoint: int, body: bytes, now_ns: int, work: Any = None) -> Exchange:
        """Send `body` to an endpoint. The exchange comes back from `poll` when it has ended, whatever happens."""
        wire_bytes = b"%b%d\r\n\r\n%b" % (self._heads[endpoint], len(body), body)
        exchange = Exchange(request, self.endpoints[endpoint], wire_bytes, now_ns, self.keep_text, work)
        self.active[exchange] = None
        idle = self._idle[endpoint]
        if idle:
            connection = idle.pop()
            del self._idle_by_fd[connection.fd]
            exchange.connection = connection
            self._send(exchange, connection)
        else:
            self._connect(exchange)
        return exchange

    def poll(self, until_ns: int) -> list[Exchange]:
        """Sleep until `until_ns` or the next tick, read; the exchanges that have ended since, in order. Parse them with `answer`."""
        # What ended outside the drain (a refused connection, a timeout) must not wait for the next answer.
        self.drain.wait(0 if self.drain.finished else until_ns)
        finished = self.drain.finished
        if finished:
            self.drain.finished = []
            for exchange in finished:
                self._release(exchange)
        return finished

    def parse_some(self, until_ns: int) -> None:
        """Parse streams that hold many raw reads, as long as there is time."""
        backlog = self.drain.backlog
        while backlog and time.monotonic_ns() < until_ns:
            backlog.pop().parse()

    def scan(self, now_ns: int) -> None:
        """Look for timeouts, and for ends that the hot path could not see. Call about ten times a second."""
        for exchange in list(self.active):
            if exchange.stage == "ended":
                continue
            if exchange.datas and now_ns - exchange.stamps[-1] > _QUIET_NS:
                exchange.parse()
                if exchange.reader.settled:
                    self.drain.finish(exchange)
                    continue
            if exchange.reader.saw_done and now_ns - (exchange.reader.done_ns or now_ns) > _AFTER_DONE_NS:
                self.drain.finish(exchange)
            elif now_ns >= exchange.check_ns:
                overdue = exchange.overdue(now_ns, self.timeouts)
                if overdue is not None:
                    self._end(exchange, overdue[0], overdue[1], now_ns)

    def newest_output_ns(self) -> list[int]:
        """When output was last seen of each endpoint's streams in flight; 0 for none. Parses the most recently read one of each."""
        newest: list[Exchange | None] = [None] * len(self.endpoints)
        times = [0] * len(self.endpoints)
        for exchange in self.active:
            stamps, endpoint = exchange.stamps, exchange.endpoint.index
            seen = stamps[-1] if stamps else exchange.output_seen_ns
            if seen > times[endpoint]:
                times[endpoint], newest[endpoint] = seen, exchange
        return [0 if exchange is None else exchange.last_output_ns() or 0 for exchange in newest]

    def cancel_all(self, outcome: Outcome, error: str, now_ns: int) -> None:
        """End everything in flight; `poll` gives it back."""
        for exchange in list(self.active):
            if exchange.stage != "ended":
                self._end(exchange, outcome, error, now_ns)

    def close(self) -> None:
        for connection in self._idle_by_fd.values():
            connection.close()
        for exchange in self.active:
            if exchange.connection is not None:
                exchange.connection.close()
        self.drain.close()

    def _connect(self, exchange: Exchange) -> None:
        try:
            connection = Connection(exchange.endpoint, self._tls, self._kernel_stamps)
        except ConnectFailure as failure:
            self._fail(exchange, failure.outcome, str(failure))
            return
        exchange.connection = connection
        exchange.stage = "connecting"
        self._slow[connection.fd] = exchange
        self.drain.add(connection.fd, writable=True)
        connection.wants_write = True
        self.drain.impatient += 1
        self._advance(exchange, connection)

    def _advance(self, exchange: Exchange, connection: Connection) -> None:
        try:
            ready = connection.advance()
        except ConnectFailure as failure:
            self._end(exchange, failure.outcome, str(failure), time.monotonic_ns())
            return
        except OSError as error:
            self._end(exchange, "connect_error", str(error), time.monotonic_ns())
            return
        if ready:
            self.drain.impatient -= 1
            exchange.connected_ns = time.monotonic_ns()
            self._send(exchange, connection)
        elif connection.stage != "connecting":
            self._want_write(connection, bool(connection.unsent))

    def _send(self, exchange: Exchange, connection: Connection) -> None:
        exchange.stage = "sending"
        self._slow[connection.fd] = exchange
        data: bytes = exchange.wire_bytes
        try:
            if connection.tls is not None:
                connection.tls.write(data)
                data = connection.tls.pending()
            exchange.sent_ns = time.monotonic_ns()
            self._sent(exchange, connection, connection.send(data))
        except OSError as error:
            if connection.tls is not None and connection.tls.is_broken(error):
                self._on_lost(exchange, error)
                return
            # No more of the request is taken; why not (413, 401) may have been said before.
            self._read(exchange, connection)

    def _sent(self, exchange: Exchange, connection: Connection, everything: bool) -> None:
        if everything:
            exchange.stage = "head"
            exchange.check_ns = min((exchange.sent_ns or 0) + self._silence_ns, exchange.dispatched_ns + self._total_ns)
        self._want_write(connection, not everything)

    def _want_write(self, connection: Connection, wanted: bool) -> None:
        if connection.wants_write != wanted:
            connection.wants_write = wanted
            self.drain.change(connection.fd, writable=wanted)

    def _on_event(self, fd: int) -> None:
        """Anything but a streaming body: a connection being made, a request half sent, a response's head, TLS, an idle connection."""
        exchange = self._slow.get(fd)
        if exchange is None:
            connection = self._idle_by_fd.pop(fd, None)
            if connection is not None:
                # Bytes or an end that nobody asked for: the server has closed it, or it is out of step.
                self._idle[connection.endpoint.index].remove(connection)
                self._discard(connection)
            return
        connection = exchange.connection
        assert connection is not None
        if exchange.stage == "connecting":
            self._advance(exchange, connection)
            return
        if connection.unsent:
            try:
                if exchange.stage == "sending":
                    exchange.sent_ns = time.monotonic_ns()
                done = connection.send(b"")
            except OSError:
                self._read(exchange, connection)  # as in `_send`
                return
            if exchange.stage == "sending":
                self._sent(exchange, connection, done)
            else:
                self._want_write(connection, not done)
        self._read(exchange, connection)

    def _read(self, exchange: Exchange, connection: Connection) -> None:
        try:
            data, ancillary, _, _ = connection.sock.recvmsg(READ_SIZE, ANCILLARY_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            self._on_lost(exchange, error)
            return
        stamp, kernel = self.drain.stamp(ancillary)
        if connection.tls is not None:
            closed = not data
            try:
                connection.tls.receive(data)
                data = connection.tls.read()
                connection.send(connection.tls.pending())
            except OSError as error:  # a broken TLS record is one
                self._on_lost(exchange, error)
                return
            if not data and not closed:
                return
        if not data:
            self._on_lost(exchange, None)
            return
        reader = exchange.reader
        reader.feed(data, stamp, kernel)
        exchange.bytes_seen = True
        if reader.settled:
            self.drain.finish(exchange)
        elif exchange.stage == "head" and reader.head is not None and connection.tls is None:
            exchange.stage = "body"
            left = reader.body_remaining()
            exchange.left = left if left is not None else ENDLESS if reader.head.framing == "close" else CHUNKED
            del self._slow[connection.fd]
            self.drain.stream(connection.fd, connection.sock.recvmsg, exchange)

    def _on_lost(self, exchange: Exchange, error: OSError | None) -> None:
        """The peer closed (no error) or the connection broke."""
        now = time.monotonic_ns()
        connection = exchange.connection
        exchange.parse()
        untouched = not exchange.bytes_seen and not exchange.reader.headers_ns
        if connection is not None and connection.served and untouched:
            # The server closed an idle connection just as we took it up again: the request never reached it. One replay.
            self._drop(exchange, connection)
            exchange.stale_replays += 1
            exchange.sent_ns = None
            self._connect(exchange)
            return
        if error is None:
            exchange.reader.eof(now)
            reset = exchange.reader.head is None
            self._end(exchange, "connection_reset" if reset else None, "closed by the server before any response" if reset else None, now)
        else:
            text = "reset by the server" if isinstance(error, ConnectionResetError) else error.strerror or str(error)
            self._end(exchange, "connection_reset", text, now)

    def _end(self, exchange: Exchange, outcome: Outcome | None, error: str | None, now_ns: int) -> None:
        """Stop reading; the connection is of no more use."""
        if exchange.connection is not None:
            self._drop(exchange, exchange.connection)
        if exchange.ended_ns is None:
            exchange.ended_ns = now_ns
        exchange.ended, exchange.error = outcome, error
        self.drain.finish(exchange)

    def _fail(self, exchange: Exchange, outcome: Outcome, error: str) -> None:
        exchange.ended, exchange.error, exchange.ended_ns = outcome, error, time.monotonic_ns()
        self.drain.finish(exchange)

    def _drop(self, exchange: Exchange, connection: Connection) -> None:
        if exchange.stage == "connecting":
            self.drain.impatient -= 1
        self.drain.hot.pop(connection.fd, None)
        self._slow.pop(connection.fd, None)
        exchange.connection = None
        self._discard(connection)

    def _discard(self, connection: Connection) -> None:
        self.drain.remove(connection.fd)
        connection.close()

    def _release(self, exchange: Exchange) -> None:
        """After the end: keep the connection where both sides can, else close it."""
        self.active.pop(exchange, None)
        connection = exchange.connection
        if connection is None:
            return
        exchange.connection = None
        self._slow.pop(connection.fd, None)
        connection.served += 1
        head = exchange.reader.head
        unread = bool(exchange.datas)  # ended by bytes that leave no doubt, to be parsed later
        reusable = head is not None and head.keep_alive and (unread or exchange.reader.reusable)
        idle = self._idle[exchange.endpoint.index]
        if reusable and not connection.unsent and len(idle) < _MAX_IDLE_PER_ENDPOINT:
            idle.append(connection)
            self._idle_by_fd[connection.fd] = connection
        else:
            self._discard(connection)


def _head(endpoint: Endpoint, headers: Sequence[tuple[str, str]]) -> bytes:
    """Everything up to the value of Content-Length, which is the last header. A proxy is asked for the whole URL, except through a tunnel."""
    target = endpoint.target
    if endpoint.proxy is not None and endpoint.scheme == "http":
        shown = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        target = f"http://{shown}:{endpoint.port}{target}"
    head = request_head("POST", target, endpoint.host, endpoint.port, endpoint.scheme, headers, content_length=0)
    return head.removesuffix(b"0\r\n\r\n")
