"""Addresses as people write them: prefixes, slashes, IPv6, names with two families, addresses that are only for listening."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from loadcell.api import BenchResult
from loadcell.errors import UserError
from loadcell.recordlog import read_header
from loadcell.testing.replies import chat_stream, completion_event, json_reply, models_reply, sse, usage_event
from loadcell.testing.scripted_server import ScriptedServer, by_path

Serve = Callable[..., ScriptedServer]
Bench = Callable[..., BenchResult]

ANSWER = chat_stream("a", "b")


def _asked(server: ScriptedServer, method: str = "POST") -> set[str]:
    return {request.path for request in server.requests if request.method == method}


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("", "/v1/chat/completions"),
        ("/", "/v1/chat/completions"),
        ("/v1", "/v1/chat/completions"),
        ("/v1/", "/v1/chat/completions"),
        ("/gw/v2", "/gw/v2/chat/completions"),
        ("/gw/v2/", "/gw/v2/chat/completions"),
        ("/gw/v2//", "/gw/v2/chat/completions"),
        ("/v1beta/openai/", "/v1beta/openai/chat/completions"),
        ("/proxy/a/v1", "/proxy/a/v1/chat/completions"),
        ("/proxy/a%20b/v1", "/proxy/a%20b/v1/chat/completions"),
    ],
)
def test_exactly_the_path_of_the_base_url_is_asked(bench: Bench, path: str, asked: str) -> None:
    """The model list is not there, which matters to nobody who has named the model."""
    with ScriptedServer(by_path({asked: ANSWER})) as server:
        result = bench(server.root_url + path, num_prompts=3, concurrency=1)
    assert result.summary.whole.counts.ok == 3
    assert _asked(server) == {asked}
    assert not any("//" in asked_path for asked_path in server.paths())
    assert all("/v1" not in asked_path for asked_path in server.paths() if "/v1" not in path and path.strip("/"))


def test_the_other_paths_stand_beside_the_prefix(bench: Bench) -> None:
    with ScriptedServer(
        by_path(
            {
                "/proxy/a/v1/chat/completions": ANSWER,
                "/proxy/a/v1/models": [(0.0, models_reply("far"))],
                "/proxy/a/health": [(0.0, json_reply({}))],
                "/proxy/a/metrics": [(0.0, json_reply({}))],
            }
        )
    ) as server:
        result = bench(f"{server.root_url}/proxy/a/v1/", num_prompts=2, concurrency=1, model=None)
    assert {json.loads(request.body)["model"] for request in server.requests if request.method == "POST"} == {"far"}
    assert _asked(server, "GET") == {"/proxy/a/v1/models", "/proxy/a/health", "/proxy/a/metrics"}
    assert result.summary.endpoints[0].probes_failed == 0


@pytest.mark.parametrize(
    ("path", "endpoint", "asked"),
    [
        ("", "/v1/completions", "/v1/completions"),
        ("/gw", "/v1/completions", "/gw/v1/completions"),
        ("/gw/", "v9/completions", "/gw/v9/completions"),
        ("", "/api/completions?version=2", "/api/completions?version=2"),
    ],
)
def test_a_path_of_the_users_own_is_appended_as_it_stands(bench: Bench, path: str, endpoint: str, asked: str) -> None:
    answer = sse(completion_event("a b"), completion_event(finish_reason="stop", usage={"prompt_tokens": 1, "completion_tokens": 2}))
    with ScriptedServer(by_path({asked.partition("?")[0]: answer})) as server:
        result = bench(server.root_url + path, endpoint=endpoint, num_prompts=2, concurrency=1)
    assert _asked(server) == {asked}
    assert result.summary.whole.counts.ok == 2
    assert "prompt" in json.loads(server.requests[-1].body)


@pytest.mark.parametrize("write", ["http://[::1]:{port}", "http://[0:0:0:0:0:0:0:1]:{port}/v1", "[::1]:{port}"])
def test_an_ipv6_address_keeps_its_brackets_everywhere(serve: Serve, bench: Bench, tmp_path: Path, write: str) -> None:
    server = serve(ANSWER, host="::1")
    seed = tmp_path / "seed.jsonl"
    result = bench(write.format(port=server.port), num_prompts=2, concurrency=1, output_file=str(seed))
    name = f"[::1]:{server.port}"
    assert result.summary.whole.counts.ok == 2
    assert [endpoint.name for endpoint in result.summary.endpoints] == [name]
    assert result.summary.healthy_at_end == [name]
    assert server.requests[-1].headers["host"] == name
    assert read_header(result.folder / "records.jsonl").endpoints[0].base_url == f"http://{name}/v1"
    assert "\\[::1\\]" in result.report.read_text()
    assert result.summary.endpoints[0].figures.counts.ok == 2


@pytest.mark.parametrize(("host", "listening"), [("::1", "::1"), ("[::1]", "::1"), ("::", "::1"), ("0.0.0.0", "127.0.0.1")])
def test_host_and_port_reach_the_server(serve: Serve, bench: Bench, host: str, listening: Literal["127.0.0.1", "::1"]) -> None:
    server = serve(ANSWER, host=listening)
    result = bench(host=host, port=server.port, num_prompts=2, concurrency=1)
    assert result.summary.whole.counts.ok == 2
    assert result.summary.endpoints[0].name == server.name


@pytest.mark.parametrize(("given", "listening"), [("http://[::]:{port}", "::1"), ("http://0.0.0.0:{port}/v1", "127.0.0.1")])
def test_an_address_to_listen_on_is_asked_at_loopback_and_said(
    serve: Serve, bench: Bench, given: str, listening: Literal["127.0.0.1", "::1"]
) -> None:
    server = serve(ANSWER, host=listening)
    result = bench(given.format(port=server.port), num_prompts=2, concurrency=1)
    assert result.summary.whole.counts.ok == 2
    assert any("listen" in notice for notice in result.summary.notices)


@pytest.mark.parametrize("listening", ["127.0.0.1", "::1"])
def test_localhost_works_whichever_family_listens(serve: Serve, bench: Bench, listening: Literal["127.0.0.1", "::1"]) -> None:
    server = serve(ANSWER, {"/v1/models": [(0.0, models_reply("m"))], "/health": [(0.0, json_reply({}))]}, host=listening)
    result = bench(f"http://localhost:{server.port}", num_prompts=20, concurrency=5, model=None, ready_check_timeout_sec=2)
    header = read_header(result.folder / "records.jsonl")
    assert result.summary.whole.counts.ok == 20
    assert header.endpoints[0].addresses[0].host == listening
    assert server.requests[-1].headers["host"] == f"localhost:{server.port}"
    connect = result.summary.whole.latency.connect
    assert connect.n == 5
    assert connect.max_ms is not None
    assert connect.max_ms < 100
    assert all(len(record.attempts) == 1 for record in result.records)
    assert result.summary.endpoints[0].probes_failed == 0


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1:80",
        "http://::1:8000",
        "ftp://h",
        "http://h:99999",
        "http://h:0",
        "http://h/v1?x=1",
        "http://",
        f"http://{'h' * 64}",
        "http://a..b",
    ],
)
def test_what_is_no_address_is_refused_in_one_line(bench: Bench, url: str) -> None:
    with pytest.raises(UserError) as refused:
        bench(url, num_prompts=1)
    assert "--base-url" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_name_that_does_not_resolve_is_named_and_asked_nothing(bench: Bench) -> None:
    result = bench("http://nobody.invalid:8000", num_prompts=3, concurrency=1)
    assert result.exit_code == 1
    assert set(result.summary.whole.counts.by_outcome) <= {"dns_error", "no_endpoint"}
    assert any("nobody.invalid:8000" in notice for notice in result.summary.notices)


def test_usage_of_completions_is_read_at_its_own_path(bench: Bench) -> None:
    answer = sse(completion_event("a"), completion_event("b", finish_reason="length"), usage_event(3, 2))
    with ScriptedServer(by_path({"/v1/completions": answer})) as server:
        result = bench(server.root_url, endpoint_type="completions", num_prompts=2, concurrency=1)
    assert result.summary.whole.tokens.output_sources == {"usage": 2}
