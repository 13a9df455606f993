"""Keys, certificates and proxies: what is sent, what is trusted, who stands in between, and what of it is written down."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from loadcell.api import BenchResult
from loadcell.errors import UserError
from loadcell.recordlog import read_header
from loadcell.testing.certificate import self_made_certificate
from loadcell.testing.replies import (
    DONE,
    Script,
    chat_event,
    chat_stream,
    error_event,
    error_reply,
    json_reply,
    models_reply,
    sse,
    usage_event,
)
from loadcell.testing.scripted_server import Received, ScriptedServer, by_path

Serve = Callable[..., ScriptedServer]
Bench = Callable[..., BenchResult]
Command = Callable[..., "subprocess.CompletedProcess[str]"]

ANSWER = chat_stream("a", "b")
SECRET = "sk-verysecretvalue0123456789"
DEAD_PROXIES = dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"), "http://127.0.0.1:9") | {
    "ALL_PROXY": "socks5://127.0.0.1:9",
    "all_proxy": "socks5://127.0.0.1:9",
}


def _no_key_wanted(request: Received) -> Script:
    return [(0.0, error_reply(401, "no key is wanted here"))] if "authorization" in request.headers else ANSWER


@pytest.mark.parametrize("key", [None, "", "  "])
@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "MY_KEY"])
def test_without_a_key_there_is_no_header(
    serve: Serve, bench: Bench, monkeypatch: pytest.MonkeyPatch, key: str | None, variable: str
) -> None:
    if key is not None:
        monkeypatch.setenv(variable, key)
    server = serve(_no_key_wanted)
    result = bench(server, num_prompts=3, concurrency=1, api_key_env=variable)
    assert result.summary.whole.counts.ok == 3
    assert not any("authorization" in request.headers for request in server.requests)


def _everything_wants_the_key(answer: Script) -> Callable[[Received], Script]:
    def reply(request: Received) -> Script:
        if request.headers.get("authorization") != f"Bearer {SECRET}":
            return [(0.0, error_reply(401, "no key"))]
        routes = {"/v1/models": [(0.0, models_reply("m"))], "/health": [(0.0, json_reply({}))], "/v1/chat/completions": answer}
        return routes.get(request.path, [(0.0, error_reply(404))])

    return reply


def test_the_key_goes_with_every_request_and_into_no_file(command: Command, tmp_path: Path) -> None:
    with ScriptedServer(_everything_wants_the_key(ANSWER)) as server:
        words = ["--base-url", server.base_url, "--num-prompts", "4", "--concurrency", "2", "--output-len", "2"]
        words += ["--input-len", "8", "--save-result", "--output-file", "seed.jsonl", "--save-text", "--metadata", "place=lab"]
        words += ["--header", f"X-Other={SECRET}-other", "--extra-body", f'{{"api_key": "{SECRET}"}}']
        done = command("bench", *words, env={"OPENAI_API_KEY": SECRET})
    assert done.returncode == 0, done.stderr
    assert all(request.headers["authorization"] == f"Bearer {SECRET}" for request in server.requests)
    assert {request.headers.get("x-other") for request in server.requests if request.method == "POST"} == {f"{SECRET}-other"}
    _assert_untold(tmp_path, done.stdout + done.stderr)


@pytest.mark.parametrize(
    "answer",
    [
        [(0.0, error_reply(400, f"Incorrect API key provided: {SECRET}"))],
        [(0.0, error_reply(401, f"bad credentials: Bearer {SECRET}"))],
        [(0.0, error_reply(500, f"headers were Authorization: Bearer {SECRET}"))],
        sse(chat_event("a"), error_event(f"key {SECRET} has no money left"), DONE),
    ],
)
def test_a_server_that_repeats_the_key_does_not_get_it_into_a_file(command: Command, tmp_path: Path, answer: Script) -> None:
    with ScriptedServer(_everything_wants_the_key(answer)) as server:
        words = [
            "--base-url",
            server.base_url,
            "--num-prompts",
            "2",
            "--concurrency",
            "1",
            "--input-len",
            "8",
            "--output-file",
            "seed.jsonl",
        ]
        done = command("bench", *words, env={"OPENAI_API_KEY": SECRET})
    assert done.returncode == 1, done.stderr
    _assert_untold(tmp_path, done.stdout + done.stderr)


def _assert_untold(folder: Path, said: str) -> None:
    assert SECRET not in said
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 4
    assert [path.name for path in files if SECRET.encode() in path.read_bytes()] == []


def test_a_header_of_the_users_own_wins_over_the_key(serve: Serve, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    server = serve(ANSWER)
    bench(server, num_prompts=1, header=["authorization: Basic abc"])
    assert {request.headers.get("authorization") for request in server.requests if request.method == "POST"} == {"Basic abc"}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_private_certificate_is_refused_unless_it_is_trusted(serve: Serve, bench: Bench, tmp_path: Path, host: str) -> None:
    certificate = self_made_certificate(tmp_path)
    server = serve(ANSWER, {"/health": [(0.0, json_reply({}))]}, host=host, tls=certificate.server)

    plain = bench(server, num_prompts=20, concurrency=4)
    assert plain.exit_code == 1
    assert set(plain.summary.whole.counts.by_outcome) == {"tls_error"}
    assert "certificate verif" in plain.summary.errors["tls_error"]
    assert plain.summary.whole.window.duration_s is not None
    assert plain.summary.whole.window.duration_s < 5
    assert not any(request.method == "POST" for request in server.requests)

    trusting = bench(server, num_prompts=20, concurrency=4, ca_file=str(certificate.ca_file))
    assert trusting.summary.whole.counts.by_outcome == {"ok": 20}
    assert trusting.summary.endpoints[0].probes_sent >= 1
    assert trusting.summary.endpoints[0].probes_failed == 0
    assert not any("verified" in notice for notice in trusting.summary.notices)

    careless = bench(server, num_prompts=20, concurrency=4, insecure=True)
    assert careless.summary.whole.counts.by_outcome == {"ok": 20}
    assert any("not verified" in notice for notice in careless.summary.notices)
    assert "not verified" in careless.report.read_text()
    assert careless.summary.run.spec["target"]["insecure"] is True


def test_a_certificate_for_another_name_is_refused(serve: Serve, bench: Bench, tmp_path: Path) -> None:
    certificate = self_made_certificate(tmp_path, "model.example")
    server = serve(ANSWER, tls=certificate.server)
    result = bench(server, num_prompts=2, concurrency=1, ca_file=str(certificate.ca_file))
    assert result.summary.whole.counts.by_outcome == {"tls_error": 2}
    assert "certificate verif" in result.summary.errors["tls_error"]


def test_a_model_list_behind_a_private_certificate_names_the_certificate(serve: Serve, bench: Bench, tmp_path: Path) -> None:
    server = serve(ANSWER, tls=self_made_certificate(tmp_path).server)
    with pytest.raises(Exception, match=r"(?i)certificate verif"):
        bench(server, num_prompts=2, model=None)


@pytest.mark.slow
def test_plain_http_to_an_https_port_is_a_failure_with_a_cause(serve: Serve, bench: Bench, tmp_path: Path) -> None:
    server = serve(ANSWER, tls=self_made_certificate(tmp_path).server)
    result = bench(f"http://{server.name}", num_prompts=2, concurrency=1)
    assert result.exit_code == 1
    plain = serve(ANSWER)
    other = bench(f"https://{plain.name}", num_prompts=2, concurrency=1, connect_timeout=0.5)
    assert set(other.summary.whole.counts.by_outcome) <= {"tls_error", "connection_reset", "connect_error"}
    assert other.summary.errors


def test_a_missing_file_of_authorities_is_refused(bench: Bench, tmp_path: Path) -> None:
    for content in (None, "no certificate"):
        path = tmp_path / "ca.pem"
        if content:
            path.write_text(content)
        with pytest.raises(UserError, match="--ca-file"):
            bench("https://127.0.0.1:1", num_prompts=1, ca_file=str(path))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_proxies_of_the_environment_never_touch_loopback(serve: Serve, bench: Bench, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    for name, value in DEAD_PROXIES.items():
        monkeypatch.setenv(name, value)
    server = serve(
        ANSWER,
        {"/v1/models": [(0.0, models_reply("m"))], "/health": [(0.0, json_reply({}))], "/metrics": [(0.0, json_reply({}))]},
        host=host,
    )
    for url in (server.base_url, *([f"http://localhost:{server.port}"] if host == "127.0.0.1" else [])):
        result = bench(url, num_prompts=10, concurrency=2, model=None, ready_check_timeout_sec=2)
        assert result.summary.whole.counts.by_outcome == {"ok": 10}
        assert result.summary.endpoints[0].probes_failed == 0


def test_a_proxy_asked_for_is_not_asked_for_loopback(serve: Serve, bench: Bench) -> None:
    server = serve(ANSWER)
    result = bench(server, num_prompts=5, concurrency=1, proxy="http://127.0.0.1:9")
    assert result.summary.whole.counts.by_outcome == {"ok": 5}
    assert not any("proxy" in notice for notice in result.summary.notices)


def test_the_command_line_is_deaf_to_proxies_too(serve: Serve, command: Command) -> None:
    server = serve(ANSWER)
    done = command("bench", "--base-url", server.base_url, "--model", "m", "--num-prompts", "3", "--input-len", "8", env=DEAD_PROXIES)
    assert "3 ok" in done.stdout, done.stderr
    assert "NO_PROXY" not in os.environ


def _proxied(answer: Script) -> dict[str, Script]:
    return {"http://model.test:8000/v1/chat/completions": answer, "http://model.test:8000/health": [(0.0, json_reply({}))]}


def test_a_proxy_that_is_asked_for_is_used_printed_and_stored(bench: Bench) -> None:
    with ScriptedServer(by_path(_proxied(ANSWER))) as proxy:
        result = bench("http://model.test:8000", num_prompts=4, concurrency=2, proxy=proxy.root_url)
    assert result.summary.whole.counts.by_outcome == {"ok": 4}
    assert result.summary.endpoints[0].name == "model.test:8000"
    assert all(request.headers["host"] == "model.test:8000" for request in proxy.requests)
    assert read_header(result.folder / "records.jsonl").endpoints[0].proxy == proxy.root_url
    assert any(proxy.root_url in notice for notice in result.summary.notices)
    assert f"127.0.0.1:{proxy.port}" in result.report.read_text()


def test_a_stream_that_comes_in_clumps_is_flagged(bench: Bench) -> None:
    """What a buffering proxy does: everything was made token by token, and arrives in a few pieces."""
    tokens = [chat_event(f"t{at}") for at in range(10)]
    clumped = sse((20.0, b"".join(tokens[:5])), (50.0, b"".join(tokens[5:])), chat_event(finish_reason="stop"), usage_event(4, 10), DONE)
    with ScriptedServer(by_path(_proxied(clumped))) as proxy:
        result = bench("http://model.test:8000", num_prompts=10, concurrency=2, output_len=10, proxy=proxy.root_url)
    share = result.summary.whole.stamps.coalesced_share
    assert share is not None
    assert share >= 0.8
    assert any("shared a read" in notice for notice in result.summary.notices)


def test_a_proxy_with_a_password_is_refused_without_repeating_it(bench: Bench) -> None:
    with pytest.raises(UserError) as refused:
        bench("http://model.test:8000", num_prompts=1, proxy=f"http://me:{SECRET}@proxy:3128")
    assert SECRET not in str(refused.value)
