"""One connection to one endpoint: connect, TLS, a proxy's tunnel, send. Non-blocking; who waits for what is the client's business."""

import errno
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

from loadcell.records import Endpoint, Outcome
from loadcell.wire.http1 import host_header

if TYPE_CHECKING:  # OpenSSL takes a while to load: only where an endpoint speaks TLS
    import ssl

    from loadcell.client.tls import TlsStream

SO_TIMESTAMPNS: Final = 35  # <asm/socket.h>; Python's socket module does not name it
READ_SIZE: Final = 65_536
ANCILLARY_SIZE: Final = socket.CMSG_SPACE(16)

Receive = Callable[[int, int], tuple[bytes, list[tuple[int, int, bytes]], int, Any]]
"""A socket's `recvmsg`: (bytes, ancillary bytes) to read at most -> data, ancillary data, flags, address."""

Stage = Literal["connecting", "tunnel", "handshake", "ready"]

_NO_PORT = {errno.EADDRNOTAVAIL, errno.EADDRINUSE}


class ConnectFailure(Exception):
    """This connection cannot be had: the outcome that it gives its request, and why."""

    def __init__(self, outcome: Outcome, text: str) -> None:
        super().__init__(text)
        self.outcome: Outcome = outcome


class Connection:
    """`stage` says what it waits for; `served` counts the requests that it has carried; `unsent` is what the kernel did not take yet."""

    __slots__ = ("_context", "_tunnel_reply", "endpoint", "fd", "served", "sock", "stage", "tls", "unsent", "wants_write")

    def __init__(self, endpoint: Endpoint, context: "ssl.SSLContext | None", kernel_stamps: bool) -> None:
        self.endpoint = endpoint
        self._context = context if endpoint.scheme == "https" else None
        self._tunnel_reply = b""
        self.served = 0
        self.tls: TlsStream | None = None
        self.unsent: bytes | memoryview = b""
        self.wants_write = False
        self.stage: Stage = "connecting"
        self.sock = self._open(kernel_stamps)
        self.fd = self.sock.fileno()

    def _open(self, kernel_stamps: bool) -> socket.socket:
        if not self.endpoint.addresses:
            raise ConnectFailure("dns_error", f"the name {self.endpoint.host!r} does not resolve")
        address = self.endpoint.addresses[0]
        try:
            sock = socket.socket(address.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            raise _connect_failure(error.errno or errno.EMFILE) from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if kernel_stamps:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        code = sock.connect_ex((address.host, address.port))
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            raise _connect_failure(code)
        return sock

    def advance(self) -> bool:
        """Take the connection as far as it goes now; true once it is ready for a request. Raises ConnectFailure."""
        if self.stage == "connecting":
            code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise _connect_failure(code)
            try:
                self.sock.getpeername()
            except OSError:
                return False
            self._after_connect()
        if self.stage == "tunnel" and not self._tunnelled():
            return False
        if self.stage == "handshake" and not self._shaken():
            return False
        return self.stage == "ready"

    def _after_connect(self) -> None:
        if self._context is None:
            self.stage = "ready"
        elif self.endpoint.proxy is not None:
            where = host_header(self.endpoint.host, self.endpoint.port, "")
            self.send(f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode("ascii"))
            self.stage = "tunnel"
        else:
            self._begin_tls(self._context)

    def _begin_tls(self, context: "ssl.SSLContext") -> None:
        from loadcell.client.tls import TlsStream

        self.tls = TlsStream(context, self.endpoint.host.partition("%")[0])
        self.stage = "handshake"

    def _tunnelled(self) -> bool:
        raw = self._receive_raw("connect_error", "the proxy closed the connection")
        if raw is None:
            return False
        self._tunnel_reply += raw
        head, end, rest = self._tunnel_reply.partition(b"\r\n\r\n")
        if not end:
            return False
        status = head.split(b"\r\n", 1)[0]
        if b" 200" not in status[:13] or self._context is None:
            raise ConnectFailure("connect_error", f"the proxy refused: {status.decode('latin-1')[:100]}")
        self._begin_tls(self._context)
        if rest and self.tls is not None:
            self.tls.receive(rest)
        return True

    def _shaken(self) -> bool:
        import ssl

        assert self.tls is not None
        try:
            while not self.tls.handshake():
                self.send(self.tls.pending())
                raw = self._receive_raw("tls_error", "closed by the server during the TLS handshake")
                if raw is None:
                    return False
                self.tls.receive(raw)
        except ssl.SSLCertVerificationError as error:
            raise ConnectFailure(
                "tls_error",
                f"certificate verification failed: {error.verify_message} (--ca-file FILE trusts it, --insecure skips the check)",
            ) from error
        except ssl.SSLError as error:
            raise ConnectFailure("tls_error", f"TLS: {error.reason or error}") from error
        self.send(self.tls.pending())
        self.stage = "ready"
        return True

    def _receive_raw(self, outcome: Outcome, closed: str) -> bytes | None:
        try:
            raw = self.sock.recv(READ_SIZE)
        except BlockingIOError:
            return None
        except OSError as error:
            raise ConnectFailure(outcome, error.strerror or str(error)) from error
        if not raw:
            raise ConnectFailure(outcome, closed)
        return raw

    def send(self, data: bytes | memoryview) -> bool:
        """Hand bytes to the kernel behind what is still unsent; true when it has taken all. Raises OSError."""
        if self.unsent:
            data = bytes(self.unsent) + data
        while data:
            try:
                taken = self.sock.send(data)
            except BlockingIOError:
                self.unsent = data
                return False
            data = memoryview(data)[taken:] if taken < len(data) else b""
        self.unsent = b""
        return True

    def close(self) -> None:
        self.sock.close()


def _connect_failure(code: int) -> ConnectFailure:
    if code in _NO_PORT:
        return ConnectFailure("no_local_port", "no free local port: too many connections were opened and closed (see ip_local_port_range)")
    if code in (errno.EMFILE, errno.ENFILE):
        return ConnectFailure("no_local_port", "no free file descriptor: raise `ulimit -n`")
    if code == errno.ECONNRESET:
        # A port that nobody listens on refuses. This one had taken the connection (an overflowing accept queue lets go of some) and cut it.
        return ConnectFailure("connection_reset", "reset by the server before the request was sent")
    return ConnectFailure("connect_error", errno.errorcode.get(code, str(code)) + ": " + _text(code))


def _text(code: int) -> str:
    return {errno.ECONNREFUSED: "connection refused", errno.EHOSTUNREACH: "no route to host", errno.ETIMEDOUT: "timed out"}.get(
        code, os.strerror(code)
    )
