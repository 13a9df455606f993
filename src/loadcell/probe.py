"""The light GET: endpoint + path + deadline -> what came back. For health, models and metrics; it never makes a server generate.

One connection per question, closed afterwards, so that no probe ever uses (or keeps) a connection of the load. The deadline is total:
a server that trickles bytes cannot stretch it. What the world does wrong stands in `ProbeResult.error`; nothing is raised for it.
"""

import base64
import functools
import socket
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct

from loadcell.clock import NS_PER_S, Clock, MonotonicClock
from loadcell.errors import EnvironmentFailure, UserError
from loadcell.records import Address, Endpoint
from loadcell.wire.http1 import ResponseParser

if TYPE_CHECKING:
    import ssl  # takes a while to load, and many a run speaks no TLS

Headers = Sequence[tuple[str, str]]
Answer = TypeVar("Answer")

BODY_CAP: Final = 16 << 20  # bytes; a /metrics page with many label values reaches a few MB
_READ_SIZE: Final = 1 << 16
_POLL_NS: Final = NS_PER_S // 2


class ProbeResult(Struct, frozen=True):
    """`status` null: no whole answer in time, and `error` says why. `at_ns`: CLOCK_MONOTONIC when it began; `seconds`: how long it took."""

    status: int | None
    body: bytes
    seconds: float
    error: str | None
    at_ns: int


class Get(Protocol):
    """The seam: `get` below, or a fake."""

    def __call__(
        self, endpoint: Endpoint, path: str, timeout_s: float, headers: Headers = (), tls: "ssl.SSLContext | None" = None
    ) -> ProbeResult: ...


def get(endpoint: Endpoint, path: str, timeout_s: float, headers: Headers = (), tls: "ssl.SSLContext | None" = None) -> ProbeResult:
    """GET `path` (absolute) of `endpoint`, at most `timeout_s` seconds from connect to the last byte. No redirect is followed.

    `tls` null: the system's trusted authorities. A body beyond `BODY_CAP` is cut there.
    """
    clock = MonotonicClock()
    began_ns = clock.now_ns()
    deadline = _Deadline(clock, began_ns + round(timeout_s * NS_PER_S))
    status, body, error = None, b"", None
    try:
        status, body = _exchange(endpoint, path, headers, tls, deadline)
    except TimeoutError:
        error = f"no answer in {timeout_s:g} s"
    except ConnectionRefusedError:
        error = "connection refused"
    except OSError as failure:  # ssl.SSLError is one
        error = failure.strerror or str(failure) or type(failure).__name__
    except ValueError as failure:
        error = f"no HTTP answer ({failure})"
    return ProbeResult(status, body, (clock.now_ns() - began_ns) / NS_PER_S, error, began_ns)


class _Deadline:
    """One moment for a whole exchange; each socket call gets what is left of it."""

    def __init__(self, clock: Clock, at_ns: int) -> None:
        self._clock = clock
        self._at_ns = at_ns

    def arm(self, connection: socket.socket, share: int = 1) -> None:
        """Give the next call on `connection` what is left, or its `share`-th part. Raises TimeoutError when nothing is left."""
        left_s = (self._at_ns - self._clock.now_ns()) / NS_PER_S
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s / share)


def _exchange(endpoint: Endpoint, path: str, headers: Headers, tls: "ssl.SSLContext | None", deadline: _Deadline) -> tuple[int, bytes]:
    proxy = None if is_loopback(endpoint.host) else endpoint.proxy
    with _connect(_proxy_addresses(proxy) if proxy else endpoint.addresses, deadline) as bare:
        connection = bare
        if endpoint.scheme == "https":
            if proxy:
                _tunnel(bare, endpoint, proxy, deadline)
            deadline.arm(bare)
            connection = (tls or _system_tls()).wrap_socket(bare, server_hostname=endpoint.host.strip("[]"))
        with connection:
            absolute = proxy is not None and endpoint.scheme == "http"
            target = f"http://{_authority(endpoint)}{path}" if absolute else path
            own = [("Proxy-Authorization", auth)] if absolute and (auth := _proxy_authorization(proxy or "")) else []
            _send(connection, "GET", target, [("Host", _authority(endpoint)), *own, ("Accept", "*/*"), *headers], deadline)
            return _receive(connection, deadline)


def _connect(addresses: Sequence[Address], deadline: _Deadline) -> socket.socket:
    """To the first address that answers; each gets an equal part of the time that is left, so that a dead one leaves some to the others."""
    failure: OSError = OSError("the name does not resolve")
    for position, address in enumerate(addresses):
        connection = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            deadline.arm(connection, share=len(addresses) - position)
            connection.connect((address.host, address.port))
        except OSError as refused:
            connection.close()
            failure = refused
        else:
            return connection
    raise failure


def _tunnel(connection: socket.socket, endpoint: Endpoint, proxy: str, deadline: _Deadline) -> None:
    """CONNECT through the proxy (RFC 9110, 9.3.6)."""
    authority = f"{_bracketed(endpoint.host)}:{endpoint.port}"
    auth = _proxy_authorization(proxy)
    _send(connection, "CONNECT", authority, [("Host", authority), *([("Proxy-Authorization", auth)] if auth else [])], deadline)
    status, _ = _receive(connection, deadline, head_only=True)
    if status != 200:
        raise OSError(f"the proxy answered {status} to CONNECT")


def _send(connection: socket.socket, method: str, target: str, headers: Headers, deadline: _Deadline) -> None:
    given = {name.lower(): (name, value) for name, value in [*headers, ("Connection", "close")]}  # a later one of the same name wins
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in given.values())]
    deadline.arm(connection)
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())


def _receive(connection: socket.socket, deadline: _Deadline, *, head_only: bool = False) -> tuple[int, bytes]:
    """Status and body of one response; of a tunnel's, the status alone. Raises OSError, ValueError where it is no HTTP or ends early."""
    parser, body = ResponseParser(), bytearray()
    while not parser.complete and not (head_only and parser.head) and len(body) < BODY_CAP:
        deadline.arm(connection)
        data = connection.recv(_READ_SIZE)
        if not data:
            if parser.head is None:
                raise OSError("the server closed the connection without an answer")
            parser.eof()
            if not parser.complete:
                raise OSError("the answer ended early")
        body += parser.feed(data)
        if parser.head is not None and parser.head.coding:
            return parser.head.status, b""  # compressed although nobody asked for that: the status is all that it tells
        if parser.invalid is not None:
            raise ValueError(parser.invalid)
    assert parser.head is not None
    return parser.head.status, bytes(body[:BODY_CAP])


def _authority(endpoint: Endpoint) -> str:
    default = 443 if endpoint.scheme == "https" else 80
    host = _bracketed(endpoint.host)
    return host if endpoint.port == default else f"{host}:{endpoint.port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def is_loopback(host: str) -> bool:
    """Whether `host` (a name or an address) is this machine's loopback, which no proxy is ever asked for."""
    bare = host.strip("[]").lower()
    if bare == "localhost" or bare.endswith(".localhost"):  # RFC 6761, 6.3
        return True
    try:
        return ip_address(bare).is_loopback
    except ValueError:
        return False


@functools.cache
def _proxy_addresses(proxy: str) -> tuple[Address, ...]:
    """Resolved at the first use and kept."""
    parts = urlsplit(proxy)
    found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    return tuple(Address(family, str(where[0]), int(where[1])) for family, _, _, _, where in found)


def _proxy_authorization(proxy: str) -> str | None:
    parts = urlsplit(proxy)
    if parts.username is None:
        return None
    return "Basic " + base64.b64encode(f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()).decode()


@functools.cache
def _system_tls() -> "ssl.SSLContext":
    import ssl

    return ssl.create_default_context()


class _Model(Struct):
    id: str


class _ModelList(Struct):
    data: list[_Model]


class Models(Struct, frozen=True):
    """The ids that an endpoint lists, in its order. Null: it told none, and `error` says why; `status` is null when it did not answer."""

    ids: tuple[str, ...] | None
    status: int | None
    error: str | None


def list_models(endpoint: Endpoint, timeout_s: float, headers: Headers = (), tls: "ssl.SSLContext | None" = None, ask: Get = get) -> Models:
    """GET the model list (`endpoint.models_target`)."""
    result = ask(endpoint, endpoint.models_target, timeout_s, headers, tls)
    if result.status != 200:
        return Models(None, result.status, result.error or f"status {result.status}")
    try:
        listed = msgspec.json.decode(result.body, type=_ModelList)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Models(None, result.status, "the answer is no model list")
    return Models(tuple(model.id for model in listed.data), result.status, None if listed.data else "the model list is empty")


def discover_model(
    endpoints: Sequence[Endpoint], timeout_s: float, headers: Headers = (), tls: "ssl.SSLContext | None" = None, ask: Get = get
) -> str:
    """The first model that the endpoints serve. All are asked at once; those that do not answer are left out.

    Raises UserError when the lists differ or none names a model, EnvironmentFailure when nobody answered.
    """
    answers = ask_all(endpoints, lambda endpoint: list_models(endpoint, timeout_s, headers, tls, ask))
    lists = {endpoint.name: models.ids for endpoint, models in zip(endpoints, answers, strict=True) if models.ids}
    if not lists:
        said = "; ".join(f"{endpoint.name}: {models.error}" for endpoint, models in zip(endpoints, answers, strict=True))
        if all(models.status is None for models in answers):
            raise EnvironmentFailure(f"no endpoint answers ({said}); start the service, or wait for it with --ready-check-timeout-sec")
        raise UserError(f"no endpoint names a model ({said}); name it with --model")
    if len({frozenset(ids) for ids in lists.values()}) > 1:
        said = "; ".join(f"{name}: {', '.join(ids)}" for name, ids in lists.items())
        raise UserError(f"the endpoints serve different models ({said}); name one that all serve with --model")
    return next(iter(lists.values()))[0]


def scrape(
    endpoint: Endpoint, timeout_s: float, headers: Headers = (), tls: "ssl.SSLContext | None" = None, path: str = "/metrics", ask: Get = get
) -> str | None:
    """The text of the endpoint's metrics page; null when it gives none."""
    result = ask(endpoint, endpoint.root + path, timeout_s, headers, tls)
    return result.body.decode("utf-8", "replace") if result.status == 200 else None


def wait_ready(
    endpoints: Sequence[Endpoint],
    timeout_s: float,
    clock: Clock,
    *,
    health_path: str = "/health",
    probe_timeout_s: float = 5.0,
    headers: Headers = (),
    tls: "ssl.SSLContext | None" = None,
    ask: Get = get,
) -> None:
    """Return when every endpoint answers light GETs; poll twice a second. A 5xx (503: still loading) is not ready.

    Each is asked for its health, or for its models where it has no health path. Raises EnvironmentFailure, naming those that are not ready.
    """
    deadline_ns = clock.now_ns() + round(timeout_s * NS_PER_S)
    waiting = list(endpoints)
    while True:
        began_ns = clock.now_ns()
        limit_s = min(probe_timeout_s, max(0.1, (deadline_ns - began_ns) / NS_PER_S))

        def not_ready(endpoint: Endpoint, limit_s: float = limit_s) -> str | None:
            result = ask(endpoint, endpoint.root + health_path, limit_s, headers, tls)
            if result.status in (404, 405, 501):
                result = ask(endpoint, endpoint.models_target, limit_s, headers, tls)
            if result.status is not None and result.status < 500:
                return None
            return result.error or f"status {result.status}"

        reasons = ask_all(waiting, not_ready)
        late = [(endpoint, reason) for endpoint, reason in zip(waiting, reasons, strict=True) if reason is not None]
        if not late:
            return
        if began_ns + _POLL_NS >= deadline_ns:
            said = "; ".join(f"{endpoint.name}: {reason}" for endpoint, reason in late)
            raise EnvironmentFailure(f"not ready after {timeout_s:g} s ({said}); start them, or wait longer with --ready-check-timeout-sec")
        waiting = [endpoint for endpoint, _ in late]
        clock.sleep_until(began_ns + _POLL_NS)


def ask_all(endpoints: Sequence[Endpoint], ask: Callable[[Endpoint], Answer]) -> list[Answer]:
    """Ask all endpoints at once; answers in their order."""
    if len(endpoints) == 1:
        return [ask(endpoints[0])]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=max(1, len(endpoints)), thread_name_prefix="probe") as pool:
        return list(pool.map(ask, endpoints))
