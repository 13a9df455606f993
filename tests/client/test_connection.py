"""TLS and proxies on the way to an endpoint, and what a kernel buffer does not take at once."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from loadcell.client import tls
from loadcell.client.connection import Connection
from loadcell.client.stamps import kernel_stamps_work
from loadcell.testing.certificate import self_made_certificate
from loadcell.testing.replies import CLOSE, chat_event, chat_stream, error_reply, sse
from loadcell.testing.scripted_server import ScriptedServer

from .driving import ask, attempts, client_of, ended, endpoint_of, start

STREAM = chat_stream("a", "b", "c")


def test_what_the_kernel_does_not_take_goes_out_behind_it_in_order():
    with ScriptedServer(STREAM) as server:
        connection = Connection(endpoint_of(server), None, kernel_stamps=False)
    connection.close()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        connection.sock = ours
        first, second = bytes(range(256)) * 8_000, b"second"
        assert not connection.send(first)
        assert 0 < len(connection.unsent) < len(first)
        assert not connection.send(second)
        theirs.setblocking(False)
        got = b""
        done = False
        while not done or len(got) < len(first) + len(second):
            with suppress(BlockingIOError):
                got += theirs.recv(1 << 20)
            done = connection.send(b"")
        assert got == first + second
        assert len(connection.unsent) == 0


def test_https_goes_through_the_same_reader_with_the_kernels_stamps(tmp_path):
    certificate = self_made_certificate(tmp_path)
    script = chat_stream(*"abcdef", first_ms=5, every_ms=5)
    with (
        ScriptedServer(script, tls=certificate.server) as server,
        client_of(server, tls=tls.context(str(certificate.ca_file), insecure=False), keep_text=True) as client,
    ):
        answers = [ask(client, body=b'{"x":"' + b"y" * 300_000 + b'"}') for _ in range(3)]
        if kernel_stamps_work():
            assert client.drain.kernel_reads > client.drain.clock_reads
    assert [(answer.outcome, answer.text, answer.output_tokens) for answer in answers] == [("ok", "abcdef", 6)] * 3
    assert server.accepted == 1
    assert len(server.requests[2].body) == 300_008
    assert answers[0].connected_ns > answers[0].dispatched_ns
    assert all(gap > 2_000 for gap in answers[1].chunk_us[1:])


def test_a_tls_stream_that_ends_with_the_connection_is_whole(tmp_path):
    certificate = self_made_certificate(tmp_path)
    script = sse(chat_event("a"), chat_event("b", finish_reason="stop"), chunked=False)
    with (
        ScriptedServer(script, tls=certificate.server) as server,
        client_of(server, tls=tls.context(str(certificate.ca_file), insecure=False)) as client,
    ):
        answers = [ask(client) for _ in range(2)]
    assert [answer.outcome for answer in answers] == ["ok", "ok"]
    assert server.accepted == 2


def test_an_authority_that_is_not_trusted_is_a_tls_error_and_says_what_to_do(tmp_path):
    certificate = self_made_certificate(tmp_path)
    with ScriptedServer(STREAM, tls=certificate.server) as server, client_of(server, tls=tls.context(None, insecure=False)) as client:
        answer = ask(client)
    assert answer.outcome == "tls_error"
    assert "certificate verification failed" in answer.error
    assert "--ca-file" in answer.error
    assert server.requests == []


def test_a_certificate_of_another_name_is_refused_and_insecure_takes_it(tmp_path):
    certificate = self_made_certificate(tmp_path, "elsewhere.example")
    with ScriptedServer(STREAM, tls=certificate.server) as server:
        with client_of(server, tls=tls.context(str(certificate.ca_file), insecure=False)) as client:
            assert ask(client).outcome == "tls_error"
        with client_of(server, tls=tls.context(None, insecure=True)) as client:
            assert ask(client).outcome == "ok"


def test_https_to_a_server_that_speaks_plain_http_is_a_tls_error():
    with ScriptedServer(STREAM, greet=lambda _: [(0.0, b"HTTP/1.1 400 Bad Request\r\n\r\n"), (0.0, CLOSE)]) as server:
        end = endpoint_of(f"https://{server.name}/v1")
        with client_of(end, tls=tls.context(None, insecure=True)) as client:
            answer = ask(client)
    assert answer.outcome == "tls_error"


def test_a_plain_proxy_is_asked_for_the_whole_url():
    with ScriptedServer(STREAM) as proxy:
        end = endpoint_of("http://model.example:8000/gw/v1", proxy=proxy.root_url)
        with client_of(end) as client:
            assert [ask(client).outcome for _ in range(2)] == ["ok", "ok"]
    assert [request.path for request in proxy.requests] == ["http://model.example:8000/gw/v1/chat/completions"] * 2
    assert proxy.requests[0].headers["host"] == "model.example:8000"
    assert proxy.accepted == 1


class Tunnel:
    """A proxy that answers CONNECT and then passes bytes on. `asked`: the first lines it got."""

    def __init__(self, target: tuple[str, int], answer: bytes) -> None:
        self.asked: list[str] = []
        self._target, self._answer = target, answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        with client:
            request = b""
            while b"\r\n\r\n" not in request:
                request += client.recv(4096)
            self.asked.append(request.split(b"\r\n")[0].decode())
            client.sendall(self._answer)
            if b" 200" not in self._answer:
                return
            with socket.create_connection(self._target) as server:
                back = threading.Thread(target=_pass_on, args=(server, client))
                back.start()
                _pass_on(client, server)
                back.join()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def tunnel(target: tuple[str, int], answer: bytes) -> Iterator[Tunnel]:
    proxy = Tunnel(target, answer)
    try:
        yield proxy
    finally:
        proxy.close()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 Connection established\r\n\r\n", b"HTTP/1.0 200 OK\r\nVia: x\r\n\r\n"])
def test_https_through_a_proxy_is_tunnelled(tmp_path, answer):
    certificate = self_made_certificate(tmp_path, "model.example")
    with (
        ScriptedServer(STREAM, tls=certificate.server) as server,
        tunnel((server.host, server.port), answer) as proxy,
        client_of(
            endpoint_of("https://model.example:8443/v1", proxy=proxy.url),
            tls=tls.context(str(certificate.ca_file), insecure=False),
            headers=[("Authorization", "Bearer secret")],
        ) as client,
    ):
        assert [ask(client).outcome for _ in range(2)] == ["ok", "ok"]
    assert proxy.asked == ["CONNECT model.example:8443 HTTP/1.1"]
    assert server.requests[0].path == "/v1/chat/completions"
    assert server.requests[0].headers["authorization"] == "Bearer secret"


def test_a_proxy_that_refuses_is_a_connect_error_with_its_words():
    refusal = error_reply(407, "who are you")
    with (
        tunnel(("127.0.0.1", 1), refusal) as proxy,
        client_of(endpoint_of("https://model.example/v1", proxy=proxy.url), tls=ssl.create_default_context()) as client,
    ):
        start(client)
        (answer,) = attempts(ended(client))
    assert answer.outcome == "connect_error"
    assert "the proxy refused: HTTP/1.1 407" in answer.error
