"""A real TCP server that plays byte scripts: any fault a server can have, sent exactly as the test writes it.

    with ScriptedServer(chat_stream("a", "b")) as server:
        ...  # ask server.base_url
    assert server.requests[0].path == "/v1/chat/completions"

One thread per connection. It parses only as much of HTTP as it needs to know where a request ends, and sends what the script says.
"""

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Literal, Self

from msgspec import Struct

from loadcell.clock import NS_PER_S, MonotonicClock
from loadcell.testing.replies import Action, Script, error_reply


class Received(Struct, frozen=True):
    """One request as it arrived. `number` counts requests over the whole server, `nth` those of this connection, both from 0.

    `path` is the target as sent, header names are lower case. `arrived_ns`: CLOCK_MONOTONIC after the request's last byte was read.
    """

    number: int
    connection: int
    nth: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    arrived_ns: int


Reply = Callable[[Received], Script]


def in_order(*scripts: Script) -> Reply:
    """The n-th request (over the whole server) gets the n-th script; later ones the last."""
    return lambda request: scripts[min(request.number, len(scripts) - 1)]


def by_path(routes: Mapping[str, Script | Reply], default: Script | Reply | None = None) -> Reply:
    """Choose by the path without its query; a path that is not there gets `default`, else a 404."""
    fallback = [(0.0, error_reply(404, "Not Found", "NotFoundError"))] if default is None else default

    def reply(request: Received) -> Script:
        route = routes.get(request.path.partition("?")[0], fallback)
        return route(request) if callable(route) else route

    return reply


class ScriptedServer:
    """Plays `reply` (one script for all, or a function of the request) to every request.

    `greet` is asked at each accept with the connection's number: a script is played before anything is read, None goes on as usual.
    `tls` serves https. `requests` holds what arrived, in order; `peak_requests` / `peak_connections` the most at one time;
    `hangups` counts scripts that the client cut short by leaving.
    """

    def __init__(
        self,
        reply: Script | Reply,
        *,
        host: Literal["127.0.0.1", "::1"] = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        greet: Callable[[int], Script | None] | None = None,
        backlog: int = 4096,
    ) -> None:
        self._reply: Reply = reply if callable(reply) else lambda _: reply
        self._greet = greet
        self._tls = tls
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._connections: dict[int, socket.socket] = {}
        self._threads: list[threading.Thread] = []
        self._busy: set[int] = set()
        self.requests: list[Received] = []
        self.accepted = 0
        self.hangups = 0
        self.peak_requests = 0
        self.peak_connections = 0
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=backlog)
        self.host: str = host
        self.port: int = self._listener.getsockname()[1]
        self.name = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self.root_url = f"{'https' if tls else 'http'}://{self.name}"
        self.base_url = self.root_url + "/v1"
        self._acceptor = threading.Thread(target=self._accept, name=f"scripted {self.name}", daemon=True)
        self._acceptor.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, cut every connection, wait for the threads. The port then refuses."""
        self._closing.set()
        _shut(self._listener)  # wakes accept(), which close() alone does not
        self._acceptor.join()
        self._listener.close()
        with self._lock:
            for connection in self._connections.values():
                _shut(connection)
        for thread in self._threads:
            thread.join()

    def paths(self) -> list[str]:
        """The paths asked so far, in order of arrival."""
        return [request.path for request in self.requests]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                number, self.accepted = self.accepted, self.accepted + 1
                self._connections[number] = connection
                self.peak_connections = max(self.peak_connections, len(self._connections))
            thread = threading.Thread(target=self._serve, args=(connection, number), name=f"scripted {self.name} #{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        try:
            greeting = self._greet(number) if self._greet else None
            if greeting is not None and not self._play(connection, greeting, number):
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection = self._encrypt(connection, number, self._tls)
            self._converse(connection, number)
        except OSError:  # the client left, or close() cut us: both end this conversation
            pass
        finally:
            with self._lock:
                self._connections.pop(number, None)
                self._busy.discard(number)
            connection.close()

    def _encrypt(self, connection: socket.socket, number: int, tls: ssl.SSLContext) -> socket.socket:
        secured = tls.wrap_socket(connection, server_side=True)
        with self._lock:
            self._connections[number] = secured
        return secured

    def _converse(self, connection: socket.socket, number: int) -> None:
        buffer = bytearray()
        nth = 0
        while (request := self._receive(connection, buffer, number, nth)) is not None:
            script = self._reply(request)
            try:
                if not self._play(connection, script, number):
                    return
            except OSError:
                if not self._closing.is_set():
                    with self._lock:
                        self.hangups += 1
                return
            nth += 1

    def _receive(self, connection: socket.socket, buffer: bytearray, number: int, nth: int) -> Received | None:
        """Read one request with its Content-Length body; None when the client has closed between requests."""
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            if not _read_more(connection, buffer):
                return None
        first, *lines = buffer[:end].decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        method, _, rest = first.partition(" ")
        whole = end + 4 + int(headers.get("content-length", "0"))
        while len(buffer) < whole:
            if not _read_more(connection, buffer):
                return None
        body = bytes(buffer[end + 4 : whole])
        del buffer[:whole]
        with self._lock:
            self._busy.add(number)
            self.peak_requests = max(self.peak_requests, len(self._busy))
            arrived_ns = MonotonicClock.now_ns()
            request = Received(len(self.requests), number, nth, method, rest.rpartition(" ")[0], headers, body, arrived_ns)
            self.requests.append(request)
        return request

    def _play(self, connection: socket.socket, script: Script, number: int) -> bool:
        """Play one script; False when it ended the connection. Delays are absolute, so that many steps do not drift.

        Raises OSError when the client has gone.
        """
        due_ns = MonotonicClock.now_ns()
        parting = _parting_step(script)
        for step, (after_ms, what) in enumerate(script):
            due_ns += round(after_ms * 1_000_000)
            if after_ms and self._closing.wait(max(0.0, (due_ns - MonotonicClock.now_ns()) / NS_PER_S)):
                return False
            if step == parting:
                with self._lock:
                    self._busy.discard(number)
            if isinstance(what, Action):
                _ACTIONS[what](connection)
                return False
            connection.sendall(what)
        return True


def _parting_step(script: Script) -> int:
    """The step before which a request stops counting as in progress: its last bytes, for then the client may ask again at once."""
    kinds = [what for _, what in script]
    sends = [step for step, what in enumerate(kinds) if isinstance(what, bytes)]
    return len(kinds) if Action.HANG in kinds or not sends else sends[-1]


def _read_more(connection: socket.socket, buffer: bytearray) -> bool:
    data = connection.recv(65536)
    buffer += data
    return bool(data)


def _close(connection: socket.socket) -> None:
    """FIN now. The descriptor itself is closed by the thread's end."""
    _shut(connection)


def _reset(connection: socket.socket) -> None:
    """SO_LINGER with zero seconds turns close() into a RST (RFC 9293, 3.10.4 ABORT)."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _hang(connection: socket.socket) -> None:
    """Read and drop until the client leaves; a client that leaves raises, as it does for a script that still sends."""
    while connection.recv(65536):
        pass
    raise ConnectionAbortedError("the client left")


_ACTIONS: Mapping[Action, Callable[[socket.socket], None]] = {Action.CLOSE: _close, Action.RESET: _reset, Action.HANG: _hang}


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # not connected any more
        connection.shutdown(socket.SHUT_RDWR)
