"""A client driven as a worker drives it, without a worker."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from loadcell.client.client import Client
from loadcell.client.exchange import Exchange, attempt_of
from loadcell.client.limits import Timeouts
from loadcell.client.resolve import resolve
from loadcell.records import Attempt, Endpoint, Request
from loadcell.testing.scripted_server import ScriptedServer
from loadcell.wire.url import parse_endpoint

S = 1_000_000_000
PATIENCE_NS = 20 * S
OPTIONS: dict[str, Any] = {}  # what every client is made with


def endpoint_of(server: ScriptedServer | str, index: int = 0, **changes: Any) -> Endpoint:
    """The endpoint of a server, or of a base URL, with its addresses."""
    url = server if isinstance(server, str) else server.base_url
    proxy = changes.pop("proxy", None)
    return replace(resolve(parse_endpoint(url, "chat", None, index, proxy)), **changes)


def asking(index: int = 0, stream: bool = True) -> Request:
    return Request(index=index, body=b"{}", stream=stream)


@contextmanager
def client_of(*servers: ScriptedServer | Endpoint | str, timeouts: Timeouts | None = None, **options: Any) -> Iterator[Client]:
    ends = [server if isinstance(server, Endpoint) else endpoint_of(server, index) for index, server in enumerate(servers)]
    client = Client(ends, timeouts or Timeouts(), **(OPTIONS | options))
    try:
        yield client
    finally:
        client.close()


@contextmanager
def tcp_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of one connection; what is sent leaves at once, and the first never waits."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield ours, theirs


def start(client: Client, endpoint: int = 0, body: bytes = b"{}", stream: bool = True) -> Exchange:
    return client.start(asking(stream=stream), endpoint, body, time.monotonic_ns())


def ended(client: Client, count: int = 1) -> list[Exchange]:
    """Poll and scan until `count` exchanges have ended."""
    found: list[Exchange] = []
    give_up = time.monotonic_ns() + PATIENCE_NS
    while len(found) < count:
        now = time.monotonic_ns()
        assert now < give_up, f"{count - len(found)} exchange(s) never ended"
        found += client.poll(now + S // 20)
        client.scan(time.monotonic_ns())
    return found


def attempts(exchanges: Sequence[Exchange]) -> list[Attempt]:
    return [attempt_of(exchange, exchange.answer(), 0, keep_text=True) for exchange in exchanges]


def ask(client: Client, endpoint: int = 0, body: bytes = b"{}", stream: bool = True) -> Attempt:
    """One request from start to end."""
    start(client, endpoint, body, stream)
    (exchange,) = ended(client)
    return attempts([exchange])[0]


def poll_until(client: Client, condition: Any) -> None:
    give_up = time.monotonic_ns() + PATIENCE_NS
    while not condition():
        now = time.monotonic_ns()
        assert now < give_up, "it never came"
        assert client.poll(now + S // 50) == []
