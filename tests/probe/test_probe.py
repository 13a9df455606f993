"""The light GET against a real server that misbehaves in every way a probe can meet."""

import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.probe import ProbeResult, discover_model, get, is_loopback, list_models, scrape, wait_ready
from loadcell.records import Address, Endpoint
from loadcell.testing.certificate import self_made_certificate
from loadcell.testing.fake_clock import FakeClock
from loadcell.testing.replies import CLOSE, HANG, RESET, Script, chunk, error_reply, head, json_reply, models_reply, plain
from loadcell.testing.scripted_server import ScriptedServer, by_path

OK = [(0, plain(b"fine"))]


def endpoint(port: int, host: str = "127.0.0.1", *, scheme: str = "http", addresses: Sequence[str] | None = None, **more: str) -> Endpoint:
    families = {True: 10, False: 2}
    reached = tuple(Address(families[":" in address], address, port) for address in (addresses or ["127.0.0.1"]))
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Endpoint(
        index=0,
        name=name,
        base_url=f"{scheme}://{name}/v1",
        scheme="https" if scheme == "https" else "http",
        host=host,
        port=port,
        target="/v1/chat/completions",
        models_target="/v1/models",
        root="",
        addresses=reached,
        proxy=more.get("proxy"),
    )


def closed_port() -> int:
    with ScriptedServer(OK) as server:
        return server.port


def test_an_answer_and_the_request_as_sent() -> None:
    with ScriptedServer(OK) as server:
        result = get(endpoint(server.port, "bench.test"), "/health?a=1", 5, headers=[("Authorization", "Bearer k"), ("Host", "other")])
        sent = server.requests[0]
    assert (result.status, result.body, result.error) == (200, b"fine", None)
    assert 0 < result.seconds < 5
    assert (sent.method, sent.path, sent.body) == ("GET", "/health?a=1", b"")
    assert sent.headers == {"host": "other", "accept": "*/*", "authorization": "Bearer k", "connection": "close"}


def test_the_host_header_keeps_the_name_and_brackets() -> None:
    with ScriptedServer(OK, host="::1") as server:
        get(endpoint(server.port, "::1", addresses=["::1"]), "/health", 5)
        get(endpoint(server.port, "bench.test", addresses=["::1"]), "/health", 5)
        assert [sent.headers["host"] for sent in server.requests] == [f"[::1]:{server.port}", f"bench.test:{server.port}"]


def test_the_next_address_is_tried() -> None:
    with ScriptedServer(OK) as server:
        assert get(endpoint(server.port, "localhost", addresses=["::1", "127.0.0.1"]), "/health", 5).status == 200


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ([(0, HANG)], "no answer in 0.2 s"),
        ([(0, head(200)), (0, HANG)], "no answer in 0.2 s"),
        ([(0, head(200, [("Content-Length", "99")])), *[(20, b"x")] * 99], "no answer in 0.2 s"),  # the deadline is total
        ([(0, RESET)], "Connection reset by peer"),
        ([(0, CLOSE)], "closed the connection"),
        ([(0, b"\x15\x03\x01\x00\x02\x02"), (0, CLOSE)], "no HTTP answer"),
        ([(0, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), (0, CLOSE)], "no HTTP answer"),
        ([(0, head(200, [("Content-Length", "9")]) + b"half"), (0, CLOSE)], "ended early"),
        ([(0, b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000 + b"\r\n"), (0, CLOSE)], "no HTTP answer"),
    ],
)
def test_what_goes_wrong_is_a_value(script: Script, error: str) -> None:
    with ScriptedServer(script) as server:
        result = get(endpoint(server.port), "/health", 0.2 if "0.2" in error else 5)
    assert (result.status, result.body) == (None, b"")
    assert result.error is not None
    assert error in result.error


def test_refused_and_unresolved() -> None:
    assert get(endpoint(closed_port()), "/health", 5).error == "connection refused"
    nowhere = Endpoint(0, "no.test:1", "http://no.test:1/v1", "http", "no.test", 1, "/v1/chat/completions", "/v1/models", "")
    assert get(nowhere, "/health", 5).error == "the name does not resolve"


def test_redirects_and_errors_are_answers() -> None:
    for status in (302, 404, 503):
        with ScriptedServer([(0, plain(b"", status, headers=[("Location", "/elsewhere")]))]) as server:
            assert get(endpoint(server.port), "/health", 5).status == status
            assert len(server.requests) == 1


def test_a_body_that_is_compressed_unasked_leaves_the_status() -> None:
    with ScriptedServer([(0, plain(b"\x1f\x8b", headers=[("Content-Encoding", "gzip")]))]) as server:
        result = get(endpoint(server.port), "/health", 5)
    assert (result.status, result.body, result.error) == (200, b"", None)


def test_a_chunked_body_is_put_together() -> None:
    with ScriptedServer([(0, head(200, [("Transfer-Encoding", "chunked")])), (0, chunk(b"ab") + chunk(b"c") + chunk(b""))]) as server:
        assert get(endpoint(server.port), "/metrics", 5).body == b"abc"


def test_https_trusted_or_not(tmp_path: Path) -> None:
    certificate = self_made_certificate(tmp_path)
    with ScriptedServer(OK, tls=certificate.server) as server:
        there = endpoint(server.port, scheme="https")
        assert get(there, "/health", 5, tls=ssl.create_default_context(cafile=str(certificate.ca_file))).status == 200
        refused = get(there, "/health", 5)
    assert refused.status is None
    assert "certificate verify failed" in (refused.error or "")


def test_a_proxy_is_used_when_asked_for_and_never_for_loopback() -> None:
    with ScriptedServer(OK) as proxy:
        url = f"http://user:p%40ss@{proxy.name}"
        assert get(endpoint(80, "bench.test", addresses=["192.0.2.1"], proxy=url), "/health", 5).status == 200
        sent = proxy.requests[0]
        assert (sent.path, sent.headers["host"]) == ("http://bench.test/health", "bench.test")
        assert sent.headers["proxy-authorization"] == "Basic dXNlcjpwQHNz"
        with ScriptedServer(OK) as server:
            assert get(endpoint(server.port, proxy=url), "/health", 5).status == 200
        assert len(proxy.requests) == 1


def test_https_goes_through_a_tunnel() -> None:
    with ScriptedServer([(0, plain(b"", 407))]) as proxy:
        far = endpoint(443, "bench.test", scheme="https", addresses=["192.0.2.1"], proxy=f"http://{proxy.name}")
        assert get(far, "/health", 5, headers=[("Authorization", "Bearer k")]).error == "the proxy answered 407 to CONNECT"
        sent = proxy.requests[0]
    assert (sent.method, sent.path) == ("CONNECT", "bench.test:443")
    assert "authorization" not in sent.headers


@pytest.mark.parametrize(
    ("host", "loop"), [("localhost", True), ("a.localhost", True), ("127.9.9.9", True), ("[::1]", True), ("::1", True)]
)
def test_loopback(host: str, loop: bool) -> None:
    assert is_loopback(host) is loop


@pytest.mark.parametrize("host", ["10.0.0.1", "localhost.test", "2001:db8::1"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("answer", "ids", "error"),
    [
        (models_reply("m", "lora"), ("m", "lora"), None),
        (models_reply(), (), "the model list is empty"),
        (json_reply({"models": []}), None, "the answer is no model list"),
        (plain(b"\xff<html>"), None, "the answer is no model list"),
        (error_reply(401), None, "status 401"),
    ],
)
def test_model_lists(answer: bytes, ids: tuple[str, ...] | None, error: str | None) -> None:
    with ScriptedServer([(0, answer)]) as server:
        models = list_models(endpoint(server.port), 5)
    assert (models.ids, models.error) == (ids, error)


def test_discovery_uses_whoever_answers() -> None:
    dead = endpoint(closed_port())
    with ScriptedServer([(0, models_reply("b", "a"))]) as one, ScriptedServer([(0, models_reply("a", "b"))]) as two:
        assert discover_model([dead, endpoint(one.port), endpoint(two.port)], 5) == "b"


def test_discovery_refuses_lists_that_differ_and_names_them() -> None:
    with (
        ScriptedServer([(0, models_reply("a"))]) as one,
        ScriptedServer([(0, models_reply("b", "c"))]) as two,
        pytest.raises(UserError) as raised,
    ):
        discover_model([endpoint(one.port), endpoint(two.port)], 5)
    for part in (f"{one.name}: a", f"{two.name}: b, c", "--model"):
        assert part in str(raised.value)


def test_discovery_without_an_answer_names_the_flag() -> None:
    dead = endpoint(closed_port())
    with pytest.raises(EnvironmentFailure, match=r"no endpoint answers.*connection refused.*--ready-check-timeout-sec"):
        discover_model([dead], 5)
    with ScriptedServer([(0, error_reply(404))]) as server, pytest.raises(UserError, match=r"status 404.*--model"):
        discover_model([dead, endpoint(server.port)], 5)


def test_scrape() -> None:
    with ScriptedServer(by_path({"/metrics": [(0, plain("x 1 é\n".encode()))]})) as server:
        assert scrape(endpoint(server.port), 5) == "x 1 é\n"
        assert scrape(endpoint(server.port), 5, path="/none") is None


class FakeGet:
    """Answers by (endpoint, path): a list of statuses, the last of which repeats; None is no answer."""

    def __init__(self, answers: dict[tuple[str, str], list[int | None]]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str]] = []

    def __call__(
        self, endpoint: Endpoint, path: str, timeout_s: float, headers: object = (), tls: ssl.SSLContext | None = None
    ) -> ProbeResult:
        self.asked.append((endpoint.name, path))
        statuses = self.answers[endpoint.name, path]
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        return ProbeResult(status, b"", 0.1, None if status else "connection refused", 0)


def test_ready_when_all_answer_and_only_the_late_are_asked_again() -> None:
    clock = FakeClock()
    ask = FakeGet({("127.0.0.1:1", "/health"): [200], ("127.0.0.1:2", "/health"): [None, 503, 200]})
    wait_ready([endpoint(1), endpoint(2)], 60, clock, ask=ask)
    assert sorted(ask.asked) == [("127.0.0.1:1", "/health"), *[("127.0.0.1:2", "/health")] * 3]
    assert clock.now_ns() == 1_000_000_000


def test_ready_by_the_models_where_there_is_no_health() -> None:
    ask = FakeGet({("127.0.0.1:1", "/health"): [404], ("127.0.0.1:1", "/v1/models"): [503, 404]})
    wait_ready([endpoint(1)], 60, FakeClock(), ask=ask)
    assert len(ask.asked) == 4


def test_who_is_not_ready_is_named() -> None:
    clock = FakeClock()
    ask = FakeGet({("127.0.0.1:1", "/health"): [200], ("127.0.0.1:2", "/health"): [503], ("127.0.0.1:3", "/health"): [None]})
    with pytest.raises(EnvironmentFailure, match=r"after 30 s \(127\.0\.0\.1:2: status 503; 127\.0\.0\.1:3: connection refused\)"):
        wait_ready([endpoint(1), endpoint(2), endpoint(3)], 30, clock, ask=ask)
    assert clock.now_ns() <= 30_000_000_000


def test_a_health_answer_of_more_than_a_second_is_in_time() -> None:
    with ScriptedServer([(1200, plain(b""))]) as server:
        assert get(endpoint(server.port), "/health", 5).status == 200
