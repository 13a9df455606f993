"""The scripted server is itself held to its word: bytes, times, faults, and what it says it received."""

import socket
import ssl
import threading
import time
from pathlib import Path

import pytest

from loadcell.clock import MonotonicClock
from loadcell.testing.certificate import self_made_certificate
from loadcell.testing.replies import CLOSE, HANG, RESET, chat_stream, json_reply, mock_steps, plain, sse
from loadcell.testing.scripted_server import Received, ScriptedServer, by_path, in_order

GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"


def dial(server: ScriptedServer) -> socket.socket:
    return socket.create_connection((server.host, server.port), timeout=10)


def ask(server: ScriptedServer, request: bytes = GET, until: bytes = b"") -> bytes:
    """Send one request on a fresh connection; read to the end of the connection or to `until`."""
    with dial(server) as connection:
        connection.sendall(request)
        return read(connection, until)


def read(connection: socket.socket, until: bytes = b"") -> bytes:
    data = b""
    while not (until and data.endswith(until)):
        more = connection.recv(65536)
        if not more:
            break
        data += more
    return data


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_sends_exactly_the_script_and_records_the_request(host: str) -> None:
    body = b'{"x": 1}'
    post = b"POST /v1/chat/completions?a=b HTTP/1.1\r\nHost: x\r\nX-Key:  v \r\nContent-Length: %d\r\n\r\n" % len(body)
    with ScriptedServer([(0, b"raw "), (0, b"bytes"), (0, CLOSE)], host=host) as server:  # type: ignore[arg-type]
        assert ask(server, post + body) == b"raw bytes"
        received = server.requests[0]
        assert server.base_url == f"http://{server.name}/v1"
    assert (received.method, received.path, received.body) == ("POST", "/v1/chat/completions?a=b", body)
    assert received.headers == {"host": "x", "x-key": "v", "content-length": "8"}
    assert (received.number, received.connection, received.nth) == (0, 0, 0)


def test_a_connection_is_kept_and_a_split_request_put_together() -> None:
    answer = plain(b"ok")
    with ScriptedServer([(0, answer)]) as server, dial(server) as connection:
        for part in (GET[:7], GET[7:] + GET[:3], GET[3:]):
            connection.sendall(part)
        assert read(connection, answer + answer) == answer + answer
        connection.sendall(GET)
        assert read(connection, answer) == answer
        assert [(r.connection, r.nth) for r in server.requests] == [(0, 0), (0, 1), (0, 2)]
        assert server.accepted == 1


def test_delays_are_kept() -> None:
    with ScriptedServer([(30, b"a"), (30, b"b"), (0, CLOSE)]) as server:
        before_ns = MonotonicClock.now_ns()
        assert ask(server) == b"ab"
        assert MonotonicClock.now_ns() - before_ns >= 60_000_000


def test_reset_is_a_reset() -> None:
    with ScriptedServer([(0, RESET)]) as server, pytest.raises(ConnectionResetError):
        ask(server)


def test_greeting_is_played_before_anything_is_read() -> None:
    with ScriptedServer([(0, plain(b"ok"))], greet=lambda number: [(0, RESET)] if number == 0 else None) as server:
        with dial(server) as connection, pytest.raises(ConnectionResetError):
            connection.recv(1)
        assert ask(server, until=b"ok").endswith(b"ok")
        assert len(server.requests) == 1


def test_hang_ends_when_the_client_leaves_and_when_the_server_closes() -> None:
    with ScriptedServer([(0, b"x"), (0, HANG)]) as server:
        ask(server, until=b"x")
        seen_by = time.monotonic() + 10
        while server.hangups == 0 and time.monotonic() < seen_by:
            ask(server, until=b"x")  # a round trip, after which the one before has been noticed at the latest some time
        hangups = server.hangups
        assert hangups >= 1
        with dial(server) as left_open:
            left_open.sendall(GET)
            assert left_open.recv(1) == b"x"
            server.close()
            assert left_open.recv(1) == b""


def test_a_closed_server_refuses() -> None:
    server = ScriptedServer([(0, b"x")])
    server.close()
    with pytest.raises(ConnectionRefusedError):
        dial(server)


def test_replies_by_path_and_in_order() -> None:
    def echo(request: Received) -> list[tuple[float, bytes]]:
        return [(0, json_reply({"n": request.number}))]

    routes = by_path({"/v1/models": in_order([(0, b"first"), (0, CLOSE)], [(0, b"then"), (0, CLOSE)]), "/echo": echo})
    with ScriptedServer(routes) as server:
        assert [ask(server) for _ in range(3)] == [b"first", b"then", b"then"]
        assert ask(server, b"GET /echo?q HTTP/1.1\r\n\r\n", until=b"}").endswith(b'{"n": 3}')
        assert ask(server, b"GET /none HTTP/1.1\r\n\r\n", until=b"}}").startswith(b"HTTP/1.1 404 Not Found\r\n")
        assert server.paths() == ["/v1/models"] * 3 + ["/echo?q", "/none"]


def test_peak_counts_requests_that_overlap_only() -> None:
    answer = plain(b"ok")
    with ScriptedServer([(20, answer)]) as server:
        threads = [threading.Thread(target=ask, args=(server, GET, answer)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 1 < server.peak_requests <= 8
        assert server.peak_connections <= 8
    with ScriptedServer([(0, answer)]) as server:
        for _ in range(50):
            ask(server, GET, answer)
        assert server.peak_requests == 1


def test_serves_https_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    certificate = self_made_certificate(tmp_path)
    with ScriptedServer([(0, plain(b"secret"))], tls=certificate.server) as server:
        trusting = ssl.create_default_context(cafile=str(certificate.ca_file))
        with dial(server) as bare, trusting.wrap_socket(bare, server_hostname=server.host) as connection:
            connection.sendall(GET)
            assert read(connection, b"secret").endswith(b"\r\n\r\nsecret")
        with dial(server) as bare, pytest.raises(ssl.SSLCertVerificationError):
            ssl.create_default_context().wrap_socket(bare, server_hostname=server.host)
        assert server.base_url.startswith("https://127.0.0.1:")


def test_streams_are_framed() -> None:
    assert sse(b"data: 1\n\n", (5, b"data: 2\n\n"), first_ms=3)[1:] == [
        (3, b"9\r\ndata: 1\n\n\r\n"),
        (5, b"9\r\ndata: 2\n\n\r\n"),
        (0, b"0\r\n\r\n"),
    ]
    assert sse(b"a", chunked=False)[1:] == [(0, b"a"), (0, CLOSE)]
    assert sse(b"a", RESET, b"never", every_ms=7)[1:] == [(0, b"1\r\na\r\n"), (7, RESET)]
    whole = b"".join(what for _, what in chat_stream("hi", "you") if isinstance(what, bytes))
    assert whole.count(b"data: ") == 6
    assert b'"completion_tokens": 2' in whole
    assert whole.endswith(b"0\r\n\r\n")


def test_mock_steps_read_text_hex_and_times() -> None:
    steps = [{"after_ms": 0, "text": "é"}, {"after_ms": 5, "hex": "ff00"}, {"after_ms": 0, "text": "x", "times": 3}]
    assert mock_steps(steps) == [(0, "é".encode()), (5, b"\xff\x00"), (0, b"xxx")]
