"""The API as vLLM's clients see it, through plain HTTP."""

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

from loadcell.sim import tokens
from loadcell.sim.inprocess import RunningEngine, running_engine
from loadcell.sim.spec import SimSpec

Talk = Callable[..., Any]
FAST = {"ttft_ms": 10.0, "itl_ms": 2.0}


@pytest.fixture(scope="module")
def engine() -> Iterator[RunningEngine]:
    with running_engine(SimSpec(**FAST, max_model_len=1000, api_key=None)) as running:  # type: ignore[arg-type]
        yield running


def deltas(answer: Any) -> list[dict[str, Any]]:
    return [event["choices"][0]["delta"] for event in answer.events[:-1] if event["choices"]]


def test_a_chat_stream_is_role_tokens_reason_usage_done(engine: RunningEngine, chat: Talk) -> None:
    answer = chat(engine, stream_options={"include_usage": True})
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["transfer-encoding"] == "chunked"
    events = answer.events
    assert events[-1] == "[DONE]"
    assert [event["object"] for event in events[:-1]] == ["chat.completion.chunk"] * 7
    assert deltas(answer)[0] == {"role": "assistant", "content": ""}
    assert [set(delta) for delta in deltas(answer)[1:]] == [{"content"}] * 5
    assert [event["choices"][0]["finish_reason"] for event in events[:6]] == [None] * 5 + ["length"]
    prompt_tokens = len(tokens.encode("Hello there")) + 3
    assert events[-2]["choices"] == []
    assert events[-2]["usage"] == {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + 5, "completion_tokens": 5}
    assert len({event["id"] for event in events[:-1]}) == 1


def test_without_the_option_there_is_no_usage(engine: RunningEngine, chat: Talk) -> None:
    assert not any("usage" in event for event in chat(engine).events[:-1])


def test_usage_can_come_with_every_chunk(engine: RunningEngine, chat: Talk) -> None:
    events = chat(engine, stream_options={"include_usage": True, "continuous_usage_stats": True}).events
    assert [event["usage"]["completion_tokens"] for event in events[1:-1]] == [1, 2, 3, 4, 5, 5]


def test_the_text_has_as_many_tokens_as_usage_says(engine: RunningEngine, chat: Talk) -> None:
    whole = chat(engine, stream=False, max_tokens=50)
    text = whole.json["choices"][0]["message"]["content"]
    assert len(tokens.encode(text)) == whole.json["usage"]["completion_tokens"] == 50
    streamed = "".join(delta["content"] for delta in deltas(chat(engine, max_tokens=50)))
    assert streamed == text


def test_an_answer_that_ends_by_itself_has_an_end_token(engine: RunningEngine, chat: Talk) -> None:
    answer = chat(engine, ignore_eos=None, max_tokens=900, stream_options={"include_usage": True})
    said = [event for event in answer.events[:-2] if event["choices"][0]["delta"].get("content")]
    last = answer.events[-3]["choices"][0]
    assert (last["delta"]["content"], last["finish_reason"]) == ("", "stop")
    assert answer.events[-2]["usage"]["completion_tokens"] == len(said) + 1
    again = chat(engine, ignore_eos=None, max_tokens=900, stream=False)
    assert again.json["usage"]["completion_tokens"] == len(said) + 1


def test_min_tokens_and_max_completion_tokens(engine: RunningEngine, chat: Talk) -> None:
    long = chat(engine, ignore_eos=None, min_tokens=400, max_tokens=900, stream=False)
    assert long.json["usage"]["completion_tokens"] > 400
    short = chat(engine, max_tokens=50, max_completion_tokens=3, stream=False)
    assert (short.json["usage"]["completion_tokens"], short.json["choices"][0]["finish_reason"]) == (3, "length")


def test_completions_stream_and_whole(engine: RunningEngine, talk: Talk) -> None:
    body = {"prompt": "one two three", "max_tokens": 3, "ignore_eos": True}
    whole = talk(engine, "POST", "/v1/completions", body)
    assert whole.json["object"] == "text_completion"
    streamed = talk(engine, "POST", "/v1/completions", {**body, "stream": True})
    texts = [event["choices"][0]["text"] for event in streamed.events[:-1]]
    assert "".join(texts) == whole.json["choices"][0]["text"]
    assert len(texts) == 3
    ids = talk(engine, "POST", "/v1/completions", {**body, "prompt": tokens.encode("one two three")})
    assert ids.json["usage"] == whole.json["usage"]
    assert talk(engine, "POST", "/v1/completions", {"prompt": "a", "ignore_eos": True}).json["usage"]["completion_tokens"] == 16


REFUSALS: list[tuple[dict[str, Any], int, str, str]] = [
    ({"model": "other"}, 404, "NotFoundError", "The model `other` does not exist."),
    ({"messages": None}, 400, "BadRequestError", "messages"),
    ({"messages": []}, 400, "BadRequestError", "messages"),
    ({"max_tokens": 0}, 400, "BadRequestError", "max_tokens must be at least 1, got 0."),
    ({"max_tokens": 5000}, 400, "BadRequestError", "'max_tokens' or 'max_completion_tokens' is too large: 5000."),
    ({"messages": [{"role": "user", "content": "word " * 1000}]}, 400, "BadRequestError", "maximum context length is 1000 tokens. However"),
    ({"min_tokens": 9}, 400, "BadRequestError", "min_tokens must be less than or equal to max_tokens=5, got 9."),
    ({"temperature": -1}, 400, "BadRequestError", "temperature must be non-negative, got -1."),
    ({"stream": False, "stream_options": {"include_usage": True}}, 400, "BadRequestError", "only be defined when `stream=True`"),
    ({"max_tokens": "five"}, 400, "BadRequestError", "max_tokens"),
    ({"stream": "yes"}, 400, "BadRequestError", "stream"),
    ({"n": 2}, 400, "BadRequestError", "n must be 1"),
]


@pytest.mark.parametrize(("fields", "status", "kind", "words"), REFUSALS)
def test_refusals(engine: RunningEngine, chat: Talk, fields: dict[str, Any], status: int, kind: str, words: str) -> None:
    answer = chat(engine, **fields)
    error = answer.json["error"]
    assert (answer.status, error["code"], error["type"]) == (status, status, kind)
    assert words in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/v1/chat/completions", 405), ("DELETE", "/health", 405)]
)
def test_unknown_paths_and_methods(engine: RunningEngine, talk: Talk, method: str, path: str, status: int) -> None:
    assert talk(engine, method, path).status == status


def test_a_body_that_is_no_json(engine: RunningEngine, talk: Talk) -> None:
    answer = talk(engine, "POST", "/v1/chat/completions", b"{")
    assert (answer.status, answer.json["error"]["type"]) == (400, "BadRequestError")


def test_models_version_health(engine: RunningEngine, talk: Talk) -> None:
    model = talk(engine, "GET", "/v1/models").json["data"][0]
    assert (model["id"], model["max_model_len"], model["object"]) == ("tiny", 1000, "model")
    assert "version" in talk(engine, "GET", "/version").json
    health = talk(engine, "GET", "/health?x=1")
    assert (health.status, health.body) == (200, b"")


def test_tokenize_and_back(engine: RunningEngine, talk: Talk) -> None:
    text = "Grüße, 東京! Some words\nand\ttabs"
    told = talk(engine, "POST", "/tokenize", {"model": "tiny", "prompt": text}).json
    assert told["count"] == len(told["tokens"])
    assert told["max_model_len"] == 1000
    assert talk(engine, "POST", "/detokenize", {"tokens": told["tokens"]}).json == {"prompt": text}
    messages = [{"role": "user", "content": text}]
    assert talk(engine, "POST", "/tokenize", {"messages": messages}).json["count"] == told["count"] + 3
    assert talk(engine, "POST", "/detokenize", {"tokens": [10**9]}).status == 400
    assert talk(engine, "POST", "/tokenize", {"prompt": "a", "model": "other"}).status == 404


def metrics(talk: Talk, engine: RunningEngine) -> dict[str, float]:
    """Sample name and distinguishing label -> value."""
    page = talk(engine, "GET", "/metrics").body.decode()
    return {
        sample.name + "".join(sample.labels.get(label, "") for label in ("finished_reason", "le")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_metrics_count_what_was_served(chat: Talk, talk: Talk) -> None:
    words = "the same long prompt again and again " * 20
    with running_engine(**FAST) as engine:
        for _ in range(3):
            chat(engine, messages=[{"role": "user", "content": words}])
        told = metrics(talk, engine)
        prompt_tokens = engine.generations(3)[0].prompt_tokens
    assert prompt_tokens is not None
    assert told["vllm:request_success_totallength"] == 3
    assert told["vllm:generation_tokens_total"] == 15
    assert told["vllm:prompt_tokens_total"] == told["vllm:prefix_cache_queries_total"] == 3 * prompt_tokens
    assert told["vllm:prefix_cache_hits_total"] == 2 * ((prompt_tokens - 1) // 16 * 16)
    assert told["vllm:num_requests_running"] == told["vllm:num_requests_waiting"] == told["vllm:kv_cache_usage_perc"] == 0
    assert told["vllm:time_to_first_token_seconds_count"] == 3
    assert told["vllm:inter_token_latency_seconds_count"] == 12
    assert told["vllm:e2e_request_latency_seconds_bucket+Inf"] == 3
    assert 0.03 <= told["vllm:time_to_first_token_seconds_sum"] < 2


def test_metrics_during_a_run(talk: Talk) -> None:
    with running_engine(ttft_ms=0.0, itl_ms=5.0, max_num_seqs=1) as engine:
        sockets = [stream_socket(engine, max_tokens=1000) for _ in range(2)]
        sockets[0].recv(100)
        while metrics(talk, engine)["vllm:generation_tokens_total"] < 3:
            pass
        told = metrics(talk, engine)
        assert (told["vllm:num_requests_running"], told["vllm:num_requests_waiting"]) == (1, 1)
        for sock in sockets:
            sock.close()
        while metrics(talk, engine)["vllm:request_success_totalabort"] < 2:
            pass
        assert metrics(talk, engine)["vllm:num_requests_running"] == 0


def stream_socket(engine: RunningEngine, **fields: Any) -> socket.socket:
    """A connection with a streamed chat request under way."""
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "stream": True, "ignore_eos": True, **fields}).encode()
    sock = socket.create_connection(("127.0.0.1", engine.port), timeout=10)
    sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    return sock


def test_a_client_that_leaves_is_an_aborted_line(talk: Talk) -> None:
    with running_engine(**FAST) as engine:
        sock = stream_socket(engine, max_tokens=4000)
        seen = b""
        while seen.count(b"data:") < 5:
            seen += sock.recv(65536)
        sock.close()
        (line,) = engine.generations(1)
    assert (line.outcome, line.finish_reason, line.status) == ("aborted", "abort", 200)
    assert line.output_tokens is not None
    assert 4 <= line.output_tokens < 500
    assert len(line.token_ns) == line.output_tokens


def test_the_log_says_when_each_token_was_sent() -> None:
    with running_engine(ttft_ms=30.0, itl_ms=10.0) as engine:
        begin_ns = time.monotonic_ns()
        sock = stream_socket(engine, max_tokens=20)
        arrivals: list[int] = []
        seen = b""
        while b"[DONE]" not in seen:
            data = sock.recv(65536)
            arrivals += [time.monotonic_ns()] * data.count(b'"content":" ')
            seen += data
        sock.close()
        (line,) = engine.generations(1)
    sent = line.token_ns
    assert len(sent) == len(arrivals) == 20
    assert begin_ns < line.arrival_ns < begin_ns + 1_000_000_000
    late = sorted(at - told for at, told in zip(arrivals, sent, strict=True))
    assert late[0] > -1000  # the log is true to a microsecond
    assert late[10] < 20_000_000
    assert 30 <= (line.first_token_ns - line.arrival_ns) / 1e6 < 300  # type: ignore[operator]
    assert sorted(b - a for a, b in pairwise(sent))[9] == pytest.approx(10_000_000, rel=0.3)


def test_every_request_has_its_line(engine: RunningEngine, talk: Talk, chat: Talk) -> None:
    before = len(engine.access_log())
    chat(engine, headers={"X-Request-Id": "mine-1"}, messages=[{"role": "user", "content": "x" * 60}])
    talk(engine, "GET", "/v1/models")
    chat(engine, model="other")
    want = before + 3
    while len(lines := engine.access_log()) < want:
        pass
    made, models, refused = lines[before:]
    assert (made.request_id, made.response_id, made.prompt_head) == ("mine-1", "chatcmpl-mine-1", "x" * 40)
    assert (made.model, made.output_tokens, made.finish_reason, made.stream) == ("tiny", 5, "length", True)
    assert (models.method, models.path, models.status, models.is_generation) == ("GET", "/v1/models", 200, False)
    assert (refused.status, refused.is_generation, refused.model) == (404, True, None)
    assert made.arrival_ns < made.first_token_ns <= made.last_token_ns <= made.end_ns  # type: ignore[operator]


def test_keep_alive_pipelining_and_old_http(engine: RunningEngine) -> None:
    get = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", engine.port), timeout=10) as sock:
        sock.sendall(get + get + b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert read_all(sock).count(b"HTTP/1.1 200 OK") == 3
    body = b'{"messages":[{"role":"user","content":"a"}],"max_tokens":2,"ignore_eos":true,"stream":true}'
    with socket.create_connection(("127.0.0.1", engine.port), timeout=10) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        told = read_all(sock)
    assert b"transfer-encoding" not in told
    assert told.endswith(b"data: [DONE]\n\n")


def test_a_body_in_chunks_after_expect_100(engine: RunningEngine) -> None:
    body = b'{"prompt":"a b c"}'
    with socket.create_connection(("127.0.0.1", engine.port), timeout=10) as sock:
        sock.sendall(
            b"POST /tokenize HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        for byte in body:
            sock.sendall(b"1\r\n%c\r\n" % byte)
        sock.sendall(b"0\r\n\r\n")
        assert b'"count":3' in read_all(sock)


def test_nonsense_is_a_400(engine: RunningEngine) -> None:
    with socket.create_connection(("127.0.0.1", engine.port), timeout=10) as sock:
        sock.sendall(b"\x16\x03\x01 what is this\r\n\r\n")
        assert read_all(sock).startswith(b"HTTP/1.1 400")


def read_all(sock: socket.socket) -> bytes:
    data = b""
    while more := sock.recv(65536):
        data += more
    return data


def test_reasoning_comes_first_under_its_own_name(chat: Talk, talk: Talk) -> None:
    with running_engine(**FAST, reasoning_tokens=3) as engine:
        answer = chat(engine, max_tokens=5)
        whole = chat(engine, max_tokens=5, stream=False).json
        body = {"prompt": "a", "max_tokens": 5, "ignore_eos": True}
        plain = talk(engine, "POST", "/v1/completions", body).json
    assert [next(iter(delta)) for delta in deltas(answer)] == ["role"] + ["reasoning_content"] * 3 + ["content"] * 2
    assert len(tokens.encode(whole["choices"][0]["message"]["reasoning_content"])) == 3
    assert whole["usage"]["completion_tokens"] == 5
    assert len(tokens.encode(plain["choices"][0]["text"])) == 5


def test_several_tokens_a_chunk(chat: Talk) -> None:
    with running_engine(**FAST, stream_interval=4) as engine:
        answer = chat(engine, max_tokens=10)
        (line,) = engine.generations(1)
    assert [len(tokens.encode(delta["content"])) for delta in deltas(answer)[1:]] == [1, 4, 4, 1]
    assert line.chunk_tokens == (1, 4, 4, 1)
    assert len(line.token_ns) == line.output_tokens == 10
    assert len(line.chunk_ns) == 4


def test_speculation_streams_what_was_accepted(chat: Talk) -> None:
    with running_engine(num_speculative_tokens=3, speculative_acceptance=1.0) as engine:
        answer = chat(engine, max_tokens=10)
        (line,) = engine.generations(1)
    assert [len(tokens.encode(delta["content"])) for delta in deltas(answer)[1:]] == [1, 4, 4, 1]
    assert (line.chunk_tokens, line.output_tokens) == ((1, 4, 4, 1), 10)


def test_keys_names_refused_fields_and_root_path(chat: Talk, talk: Talk) -> None:
    changes = {"api_key": "k", "served_model_name": ("a", "b"), "refuse_field": ("ignore_eos",), "root_path": "/gw/v2"}
    with running_engine(**FAST, **changes) as engine:
        assert engine.base_url.endswith("/gw/v2/v1")
        key = {"Authorization": "Bearer k"}
        assert chat(engine).status == 401
        assert talk(engine, "GET", "/v1/models", headers={"Authorization": "Bearer no"}).status == 401
        assert [m["id"] for m in talk(engine, "GET", "/v1/models", headers=key).json["data"]] == ["a", "b"]
        refused = chat(engine, headers=key)
        assert (refused.status, refused.json["error"]["param"]) == (400, "ignore_eos")
        assert chat(engine, headers=key, ignore_eos=None, model="b").events[0]["model"] == "b"
        assert talk(engine, "GET", "/gw/v2/models", headers=key).status == 200
        assert talk(engine, "GET", "/gw/v2/models").status == 401
        assert talk(engine, "GET", "/gw/v2/health").status == 200


def test_cached_tokens_stand_in_usage_where_asked_for(chat: Talk) -> None:
    with running_engine(**FAST, enable_prompt_tokens_details=True) as engine:
        message = [{"role": "user", "content": "word " * 100}]
        first, second = (chat(engine, messages=message, stream=False).json["usage"] for _ in range(2))
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["prompt_tokens_details"]["cached_tokens"] == (second["prompt_tokens"] - 1) // 16 * 16


def test_tls_and_ipv6(tmp_path: Path) -> None:
    ca = trustme.CA()
    certificate = ca.issue_cert("localhost", "::1")
    pem = tmp_path / "server.pem"
    certificate.private_key_and_cert_chain_pem.write_to_path(pem)
    context = ssl.create_default_context()
    ca.configure_trust(context)
    with running_engine(**FAST, host="::1", ssl_certfile=str(pem)) as engine:
        assert engine.base_url.startswith("https://[::1]:")
        connection = http.client.HTTPSConnection("::1", engine.port, context=context, timeout=10)
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "stream": True}
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        told = connection.getresponse().read()
        connection.close()
        (line,) = engine.generations(1)
    assert told.endswith(b"data: [DONE]\n\n")
    assert line.client.startswith("[::1]:")


def test_data_parallel_ranks_share_the_load(talk: Talk) -> None:
    with running_engine(ttft_ms=0.0, itl_ms=20.0, data_parallel_size=2, max_num_seqs=1) as engine:
        sockets = [stream_socket(engine, max_tokens=1000) for _ in range(2)]
        for sock in sockets:
            while b'"content":" ' not in sock.recv(65536):
                pass
        page = talk(engine, "GET", "/metrics").body.decode()
        for sock in sockets:
            sock.close()
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 1.0' in page
    assert 'vllm:num_requests_running{engine="1",model_name="tiny"} 1.0' in page


def test_many_at_once_each_with_their_own(tmp_path: Path) -> None:
    with running_engine(**FAST) as one, running_engine(**FAST, access_log=str(tmp_path / "kept.jsonl")) as other:
        assert one.port != other.port
        sockets = [stream_socket(other, max_tokens=20) for _ in range(200)]
        for sock in sockets:
            seen = b""
            while b"[DONE]" not in seen:
                seen += sock.recv(65536)
            sock.close()
        lines = other.generations(200)
    assert len(lines) == 200
    assert all(len(line.token_ns) == 20 for line in lines)
    assert (tmp_path / "kept.jsonl").exists()


def test_it_ends_with_its_owner_and_writes_what_was_unfinished(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with running_engine(ttft_ms=0.0, itl_ms=1000.0, access_log=str(log)) as engine:
        sock = stream_socket(engine, max_tokens=100)
        while b'"content":" ' not in sock.recv(65536):
            pass
        assert engine.process.stdin is not None
        engine.process.stdin.close()
        assert engine.process.wait(5) == 0
        sock.close()
        (line,) = engine.generations(1)
    assert (line.outcome, line.output_tokens) == ("aborted", 1)


def test_sigterm_and_a_taken_port() -> None:
    with running_engine(**FAST) as engine:
        command = [sys.executable, "-m", "loadcell.sim", "--port", str(engine.port)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
        second = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=10, check=False)
        assert second.returncode == 1
        assert f"--port {engine.port}" in second.stderr
        engine.process.send_signal(signal.SIGTERM)
        assert engine.process.wait(5) == 0
