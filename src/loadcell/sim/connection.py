"""One client connection: HTTP/1.x requests in, bytes out at a known moment.

Writes go straight to the socket, so that the clock read before a write is the time of the send; the transport's own buffer
takes over only while the socket is full (and for TLS, always).
"""

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from loadcell.clock import MonotonicClock
from loadcell.sim import frames


class HttpRequest:
    """A request that is wholly read. Header names are lower case; `path` has no query."""

    __slots__ = ("arrival_ns", "body", "headers", "keep_alive", "method", "path", "version")

    def __init__(
        self, method: str, target: bytes, headers: dict[bytes, bytes], body: bytes, version: str, keep_alive: bool, at_ns: int
    ) -> None:
        self.method = method
        self.path = target.partition(b"?")[0].decode("latin-1")
        self.headers = headers
        self.body = body
        self.version = version
        self.keep_alive = keep_alive
        self.arrival_ns = at_ns

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


class Application(Protocol):
    """What answers. `handle` may answer at once or later, by `connection.send` and at last `connection.answered`."""

    def opened(self, connection: "Connection") -> None: ...
    def closed(self, connection: "Connection") -> None: ...
    def handle(self, connection: "Connection", request: HttpRequest) -> None: ...


class Connection(asyncio.Protocol):
    """asyncio.Protocol of one connection. `on_gone` is called once when the client leaves before its answer ended."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[HttpRequest] = deque()
        self._busy = False
        self._keep_alive = True
        self._received_ns = 0
        self._blocked = False
        self._direct = False
        self._fd = -1
        self.open = False
        self.peer = ""
        self.on_gone: Callable[[], None] | None = None

    # --- asyncio
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's transports are not its subclasses
        self._direct = transport.get_extra_info("sslcontext") is None
        self._blocked = not self._direct
        sock = transport.get_extra_info("socket")
        if sock is not None:
            self._fd = sock.fileno()
        name = transport.get_extra_info("peername")
        self.peer = f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
        self.open = True
        self._application.opened(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        self.open = False
        self._fd = -1
        gone, self.on_gone = self.on_gone, None
        if gone is not None:
            gone()
        self._application.closed(self)

    def data_received(self, data: bytes) -> None:
        self._received_ns = MonotonicClock.now_ns()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the request itself was delivered; another protocol is not spoken
        except httptools.HttpParserError:
            self.send(frames.head(400, "text/plain; charset=utf-8", length=0, keep_alive=False))
            self._transport.close()

    # --- httptools
    def on_message_begin(self) -> None:
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._headers.get(b"expect", b"").lower() == b"100-continue":
            self.send(frames.CONTINUE)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        parser = self._parser
        request = HttpRequest(
            parser.get_method().decode("latin-1"),
            self._target,
            self._headers,
            b"".join(self._body),
            parser.get_http_version(),
            parser.should_keep_alive(),
            self._received_ns,
        )
        if self._busy:
            self._queue.append(request)
        else:
            self._begin(request)

    # --- answering
    def _begin(self, request: HttpRequest) -> None:
        self._busy = True
        self._keep_alive = request.keep_alive
        self._application.handle(self, request)

    def send(self, data: bytes) -> None:
        """Put bytes on the wire now, or behind those that the socket could not take."""
        if self._blocked:
            if not self._direct or self._transport.get_write_buffer_size():
                self._transport.write(data)
                return
            self._blocked = False
        if self._fd < 0:
            return
        try:
            sent = os.write(self._fd, data)
        except BlockingIOError:
            sent = 0
        except OSError:  # the client is gone; connection_lost follows
            self._transport.abort()
            return
        if sent != len(data):
            self._blocked = True
            self._transport.write(data[sent:])

    def answered(self, *, close: bool = False) -> None:
        """The answer is complete: close, or go on with what the client has sent meanwhile."""
        self._busy = False
        self.on_gone = None
        if close or not self._keep_alive:
            self._transport.close()
        elif self._queue and self.open:
            self._begin(self._queue.popleft())

    def close(self) -> None:
        """End the connection in order (FIN), after what was sent."""
        self.on_gone = None
        self._transport.close()

    def reset(self) -> None:
        """End the connection with a RST: nothing lingers."""
        self.on_gone = None
        if self._fd >= 0:
            with socket.socket(fileno=os.dup(self._fd)) as twin:
                twin.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    @property
    def idle(self) -> bool:
        return not self._busy
