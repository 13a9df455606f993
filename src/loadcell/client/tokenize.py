"""The server's own tokenizer, over `/tokenize` and `/detokenize`: exact for the model that is measured, without its files.

Asked before the load starts and, for prompts that are made during it, once per prompt on one kept connection. It goes straight to
the endpoint's resolved address, which is a proxy's only where the endpoint names one.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from loadcell.clock import NS_PER_S, Clock, MonotonicClock
from loadcell.errors import EnvironmentFailure
from loadcell.wire.http1 import ResponseParser, host_header, request_head

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from loadcell.records import Endpoint

_LARGEST_ANSWER: Final = 64 << 20
_READ_SIZE: Final = 1 << 16


class _Refused(Exception):
    """The server answered with a status other than 200."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text[:200]}")
        self.status = status


class ServerTokenizer:
    """Counts by asking `endpoint`, whose name is resolved. `timeout_s` bounds each call as a whole, however slowly an answer drips.

    `headers` carry what the endpoint wants (Authorization); `tls` null: the system's trusted authorities. Everything but `answers`
    raises EnvironmentFailure when the server gives no tokens.
    """

    name = "server"
    exact = True

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        headers: Sequence[tuple[str, str]] = (),
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._model = model
        self._headers = tuple(headers)
        self._tls = tls
        self._timeout_s = timeout_s
        self._clock = clock or MonotonicClock()
        self._wire: _Wire | None = None
        self._takes_specials_field = True
        self._specials: int | None = None

    @property
    def specials(self) -> int:
        """Special tokens that the server adds to a plain prompt; asked once."""
        if self._specials is None:
            plain = len(self.encode("a b"))
            self._specials = max(0, len(self._ids(self._ask("/tokenize", {"prompt": "a b"}))) - plain)
        return self._specials

    def answers(self) -> bool:
        """Whether the endpoint tokenizes. False for whatever reason it does not; raises nothing."""
        try:
            if self.encode("a b"):
                return True
        except EnvironmentFailure:
            pass  # whoever insists on this tokenizer meets the reason at the first count
        self.close()
        return False

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def counts(self, texts: Sequence[str]) -> list[int]:
        return [self.count(text) for text in texts]

    def encode(self, text: str) -> list[int]:
        if self._takes_specials_field:
            try:
                return self._ids(self._ask("/tokenize", {"prompt": text, "add_special_tokens": False}, refusals=(400, 422)))
            except _Refused:
                self._takes_specials_field = False
        return self._ids(self._ask("/tokenize", {"prompt": text}))

    def decode(self, ids: Sequence[int]) -> str:
        answer = self._ask("/detokenize", {"tokens": list(ids)})
        text = answer.get("prompt", answer.get("text"))
        if not isinstance(text, str):
            raise EnvironmentFailure(f"{self._where('/detokenize')}: no 'prompt' in the answer; use --tokenizer PATH or words")
        return text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the kept connection; the next question opens another."""
        if self._wire is not None:
            self._wire.socket.close()
            self._wire = None

    def _ids(self, answer: dict[str, Any]) -> list[int]:
        ids = answer.get("tokens")
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise EnvironmentFailure(f"{self._where('/tokenize')}: no 'tokens' in the answer; use --tokenizer PATH or words")
        return ids

    def _ask(self, path: str, question: dict[str, Any], refusals: tuple[int, ...] = ()) -> dict[str, Any]:
        """The JSON answer. A kept connection that the server closed meanwhile is replaced once."""
        body = msgspec.json.encode({"model": self._model, **question})
        deadline_ns = self._clock.now_ns() + int(self._timeout_s * NS_PER_S)
        fresh = self._wire is None
        try:
            try:
                answer = self._exchange(path, body, deadline_ns)
            except ConnectionError:
                self.close()
                if fresh:
                    raise
                answer = self._exchange(path, body, deadline_ns)
            value = msgspec.json.decode(answer)
        except _Refused as refused:
            if refused.status in refusals:
                raise
            raise EnvironmentFailure(f"{self._where(path)}: {refused}; use --tokenizer PATH or words") from refused
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            self.close()
            reason = str(error) or type(error).__name__
            raise EnvironmentFailure(f"{self._where(path)}: {reason}; use --tokenizer PATH or words") from error
        if not isinstance(value, dict):
            raise EnvironmentFailure(f"{self._where(path)}: the answer is no JSON object; use --tokenizer PATH or words")
        return value

    def _exchange(self, path: str, body: bytes, deadline_ns: int) -> bytes:
        endpoint = self._endpoint
        wire = self._wire or self._connect(deadline_ns)
        self._wire = wire
        wire.deadline_ns = deadline_ns
        target = endpoint.root + path
        if endpoint.proxy is not None and endpoint.scheme == "http":
            target = f"http://{host_header(endpoint.host, endpoint.port, 'http')}{target}"
        head = request_head("POST", target, endpoint.host, endpoint.port, endpoint.scheme, self._headers, len(body))
        wire.send(head + body)
        answer, parser = wire.receive()
        if parser.surplus or parser.head is None or not parser.head.keep_alive:
            self.close()
        if parser.head is not None and parser.head.status != 200:
            raise _Refused(parser.head.status, answer.decode(errors="replace"))
        return answer

    def _connect(self, deadline_ns: int) -> _Wire:
        endpoint = self._endpoint
        if not endpoint.addresses:
            raise OSError(f"the name {endpoint.host!r} does not resolve")
        address = endpoint.addresses[0]
        wire = _Wire(socket.socket(address.family, socket.SOCK_STREAM), self._clock, deadline_ns)
        try:
            wire.arm()
            wire.socket.connect((address.host, address.port))
            wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.scheme == "https":
                self._secure(wire)
        except OSError:
            wire.socket.close()
            raise
        return wire

    def _secure(self, wire: _Wire) -> None:
        """TLS to the endpoint, through the proxy's tunnel where there is one (RFC 9110, 9.3.6)."""
        endpoint = self._endpoint
        if endpoint.proxy is not None:
            authority = host_header(endpoint.host, endpoint.port, "")
            wire.send(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode("ascii"))
            _, parser = wire.receive(head_only=True)
            if parser.head is None or parser.head.status != 200:
                raise OSError("the proxy refused the tunnel")
        wire.arm()
        import ssl

        context = self._tls or ssl.create_default_context()
        wire.socket = context.wrap_socket(wire.socket, server_hostname=endpoint.host.partition("%")[0])

    def _where(self, path: str) -> str:
        return f"--tokenizer server: {self._endpoint.name}{self._endpoint.root}{path}"


class _Wire:
    """A connected socket whose every wait ends at `deadline_ns`."""

    def __init__(self, connection: socket.socket, clock: Clock, deadline_ns: int) -> None:
        self.socket = connection
        self.deadline_ns = deadline_ns
        self._clock = clock

    def arm(self) -> None:
        """Let the next call wait for what is left of the time, and no longer."""
        left_ns = self.deadline_ns - self._clock.now_ns()
        if left_ns <= 0:
            raise TimeoutError("no answer in time")
        self.socket.settimeout(left_ns / NS_PER_S)

    def send(self, data: bytes) -> None:
        self.arm()
        self.socket.sendall(data)

    def receive(self, *, head_only: bool = False) -> tuple[bytes, ResponseParser]:
        """One response. Raises OSError when it is not HTTP, too large, cut short, or late; ConnectionError when nothing came at all."""
        parser = ResponseParser()
        body = bytearray()
        while not parser.complete and not (head_only and parser.head):
            self.arm()
            data = self.socket.recv(_READ_SIZE)
            if not data:
                if not parser.status_seen and parser.head is None:
                    raise ConnectionResetError("the server closed the connection without an answer")
                parser.eof()
                if not parser.complete:
                    raise OSError("the answer was cut short")
            body += parser.feed(data)
            if parser.invalid is not None:
                raise OSError(parser.invalid)
            if len(body) > _LARGEST_ANSWER:
                raise OSError(f"the answer is larger than {_LARGEST_ANSWER >> 20} MiB")
        return bytes(body), parser
