"""The server's tokenizer against scripted servers: what it asks, what it takes for an answer, and how it fails."""

import json
import ssl

import pytest

from loadcell.client.tokenize import ServerTokenizer
from loadcell.errors import EnvironmentFailure
from loadcell.records import Address, Endpoint
from loadcell.testing.certificate import self_made_certificate
from loadcell.testing.replies import CLOSE, HANG, error_reply, head, json_reply, plain
from loadcell.testing.scripted_server import Received, ScriptedServer, by_path
from loadcell.workload import WorkloadSpec, open_workload


def endpoint(server: ScriptedServer, root: str = "", **fields) -> Endpoint:
    family = 10 if ":" in server.host else 2
    stated = {
        "index": 0,
        "name": server.name,
        "base_url": server.base_url,
        "scheme": server.root_url.split(":")[0],
        "host": server.host,
        "port": server.port,
        "target": "/v1/chat/completions",
        "models_target": "/v1/models",
        "root": root,
        "addresses": (Address(family, server.host, server.port),),
    }
    return Endpoint(**{**stated, **fields})


def ids_of(text: str) -> list[int]:
    return [hash(word) for word in text.replace(" ", "\n ").split("\n") if word]


def tokenizing(request: Received):
    """As vLLM: one token a word and one for each space alone, and a BOS (id 1) unless it is told not to."""
    question = json.loads(request.body)
    if request.path.endswith("/detokenize"):
        return [(0.0, json_reply({"prompt": f"{len(question['tokens'])} tokens"}))]
    ids = ids_of(question["prompt"])
    if question.get("add_special_tokens", True):
        ids = [1, *ids]
    return [(0.0, json_reply({"count": len(ids), "max_model_len": 4096, "tokens": ids}))]


def test_it_asks_as_vllm_wants_to_be_asked_over_one_connection():
    with (
        ScriptedServer(tokenizing) as server,
        ServerTokenizer(endpoint(server, root="/gw"), "m", headers=[("Authorization", "Bearer k")]) as tokenizer,
    ):
        assert tokenizer.answers()
        assert tokenizer.specials == 1
        assert tokenizer.counts(["one two three", "one"]) == [3, 1]
        assert tokenizer.decode([4, 5]) == "2 tokens"
    assert {request.path for request in server.requests} == {"/gw/tokenize", "/gw/detokenize"}
    assert all(request.headers["authorization"] == "Bearer k" for request in server.requests)
    assert server.requests[0].headers["host"] == server.name
    assert json.loads(server.requests[0].body) == {"model": "m", "prompt": "a b", "add_special_tokens": False}
    assert json.loads(server.requests[-1].body) == {"model": "m", "tokens": [4, 5]}
    assert server.accepted == 1


def test_a_server_that_refuses_the_field_is_asked_without_it():
    def reply(request: Received):
        return [(0.0, error_reply(400, "extra field"))] if b"add_special" in request.body else tokenizing(request)

    with ScriptedServer(reply) as server, ServerTokenizer(endpoint(server), "m") as tokenizer:
        assert tokenizer.answers()
        assert tokenizer.count("one two") == 3
        assert tokenizer.specials == 0  # they are in every count
    assert sum(b"add_special" in request.body for request in server.requests) == 1


@pytest.mark.parametrize(
    "script",
    [
        [(0.0, error_reply(404, "Not Found"))],
        [(0.0, error_reply(500, "boom"))],
        [(0.0, plain(b"hello"))],
        [(0.0, json_reply([1, 2]))],
        [(0.0, json_reply({"count": 2}))],
        [(0.0, json_reply({"tokens": ["a"]}))],
        [(0.0, json_reply({"tokens": []}))],
        [(0.0, plain(b"\xff", content_type="application/json"))],
        [(0.0, b"not http at all\r\n\r\n"), (0.0, CLOSE)],
        [(0.0, CLOSE)],
        [(0.0, head(200, [("Content-Length", "50")]) + b'{"tokens"'), (0.0, CLOSE)],
    ],
    ids=["404", "500", "text", "list", "no-ids", "strings", "empty", "not-utf8", "garbage", "closed", "cut"],
)
def test_whatever_else_comes_back_is_no_tokenizer(script):
    with ScriptedServer(script) as server:
        assert not ServerTokenizer(endpoint(server), "m").answers()


def test_nobody_there_is_no_tokenizer():
    with ScriptedServer(tokenizing) as server:
        gone = endpoint(server)
    assert not ServerTokenizer(gone, "m").answers()
    assert not ServerTokenizer(endpoint(server, addresses=()), "m").answers()


@pytest.mark.parametrize(
    "steps", [[(0.0, HANG)], [(0.0, b"HTTP/1.1 200 OK\r\n"), *[(30.0, b"x: y\r\n")] * 100]], ids=["silent", "dripping"]
)
def test_a_call_ends_at_its_deadline_however_the_answer_drips(steps):
    late = pytest.raises(EnvironmentFailure, match=r"--tokenizer server: 127.0.0.1:\d+/tokenize: ")
    with ScriptedServer(steps) as server, ServerTokenizer(endpoint(server), "m", timeout_s=0.15) as tokenizer, late:
        tokenizer.count("a")


def test_a_kept_connection_that_the_server_closed_is_replaced():
    def reply(request: Received):
        script = tokenizing(request)
        return [*script, (0.0, CLOSE)] if request.connection == 0 else script

    with ScriptedServer(reply) as server, ServerTokenizer(endpoint(server), "m") as tokenizer:
        assert [tokenizer.count("a b") for _ in range(3)] == [2, 2, 2]
    assert server.accepted == 2


def test_a_failure_in_the_middle_says_what_to_do():
    with ScriptedServer(by_path({"/tokenize": tokenizing})) as server, ServerTokenizer(endpoint(server), "m") as tokenizer:
        assert tokenizer.count("a") == 1
        with pytest.raises(EnvironmentFailure, match=r"/detokenize: HTTP 404.*use --tokenizer PATH or words"):
            tokenizer.decode([1])


def test_https_is_verified(tmp_path):
    certificate = self_made_certificate(tmp_path)
    with ScriptedServer(tokenizing, tls=certificate.server) as server:
        trusting = ssl.create_default_context(cafile=str(certificate.ca_file))
        with ServerTokenizer(endpoint(server), "m", tls=trusting) as tokenizer:
            assert tokenizer.count("a b") == 2
        assert not ServerTokenizer(endpoint(server), "m").answers()


def test_ipv6_is_reached_by_its_address():
    with ScriptedServer(tokenizing, host="::1") as server, ServerTokenizer(endpoint(server), "m") as tokenizer:
        assert tokenizer.count("a b") == 2
    assert server.requests[0].headers["host"] == server.name


def test_the_environments_proxies_are_never_used(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with ScriptedServer(tokenizing) as server, ServerTokenizer(endpoint(server), "m") as tokenizer:
        assert tokenizer.answers()


def test_a_proxy_that_is_asked_for_gets_the_whole_url():
    with ScriptedServer(tokenizing) as proxy:
        through = endpoint(proxy, host="model.example", port=8000, proxy=proxy.root_url)
        with ServerTokenizer(through, "m") as tokenizer:
            assert tokenizer.count("a b") == 2
    assert proxy.requests[0].path == "http://model.example:8000/tokenize"


def test_random_prompts_are_exact_and_cost_one_question_each():
    with ScriptedServer(tokenizing) as server, ServerTokenizer(endpoint(server), "m") as tokenizer:
        workload = open_workload(WorkloadSpec(input_len=100), tokenizer, chat=False)
        learning = len(server.requests)
        prompts = [workload.prompt(index, "measure") for index in range(30)]
        assert len(server.requests) - learning == 30
    assert learning < 60
    assert all(len(ids_of(prompt.text)) == 99 and prompt.input_tokens == 100 for prompt in prompts)
