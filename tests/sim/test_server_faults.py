"""Each planned fault as a client meets it."""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadcell.errors import EnvironmentFailure
from loadcell.sim.inprocess import RunningEngine, running_engine

Talk = Callable[..., Any]
FAST = {"ttft_ms": 5.0, "itl_ms": 1.0}


def raw_stream(engine: RunningEngine, max_tokens: int = 50, seconds: float = 10.0) -> tuple[bytes, str]:
    """What a streamed request gets, and how it ends: "fin", "reset" or "silence"."""
    body = json.dumps(
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    ).encode()
    seen = b""
    with socket.create_connection(("127.0.0.1", engine.port), timeout=seconds) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        try:
            while data := sock.recv(65536):
                seen += data
        except ConnectionResetError:
            return seen, "reset"
        except TimeoutError:
            return seen, "silence"
    return seen, "fin"


def contents(seen: bytes) -> int:
    return seen.count(b'"content":" ')


def test_refusals_with_and_without_retry_after(chat: Talk) -> None:
    with running_engine(**FAST, fault=("reject,status=429,retry_after=2,every=2",)) as engine:
        answers = [chat(engine) for _ in range(4)]
        lines = engine.generations(4)
    assert [answer.status for answer in answers] == [200, 429, 200, 429]
    assert answers[1].headers["retry-after"] == "2"
    assert answers[1].json["error"]["code"] == 429
    assert [line.fault for line in lines] == [None, "reject", None, "reject"]


def test_default_refusal_is_a_bare_503(chat: Talk) -> None:
    with running_engine(**FAST, fault=("reject,after_requests=1",)) as engine:
        assert chat(engine).status == 200
        refused = chat(engine)
    assert refused.status == 503
    assert "retry-after" not in refused.headers


def test_hang_accepts_and_says_nothing_while_health_is_well(talk: Talk) -> None:
    with running_engine(**FAST, fault=("hang",)) as engine:
        assert raw_stream(engine, seconds=0.2) == (b"", "silence")
        assert talk(engine, "GET", "/health").status == 200
        (line,) = engine.generations(1)
    assert (line.status, line.outcome, line.fault) == (None, "aborted", "hang")


def test_stall_stops_in_the_middle() -> None:
    with running_engine(**FAST, fault=("stall,tokens=3",)) as engine:
        seen, end = raw_stream(engine, seconds=0.3)
        (line,) = engine.generations(1)
    assert (contents(seen), end) == (3, "silence")
    assert (line.output_tokens, line.outcome, line.fault) == (3, "error", "stall")


def test_an_error_event_ends_the_stream() -> None:
    with running_engine(**FAST, fault=("stream_error,tokens=3",)) as engine:
        seen, end = raw_stream(engine)
        (line,) = engine.generations(1)
    assert contents(seen) == 3
    assert b'data: {"error":{"message":"EngineCore encountered an issue.' in seen
    assert seen.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert (end, line.outcome, line.finish_reason) == ("fin", "error", "error")


def test_an_error_without_streaming_is_a_500(chat: Talk) -> None:
    with running_engine(**FAST, fault=("stream_error",)) as engine:
        assert chat(engine, stream=False).status == 500


def test_truncation_by_fin_and_by_a_clean_end() -> None:
    with running_engine(**FAST, fault=("truncate,tokens=3,every=2", "truncate,tokens=4,how=clean")) as engine:
        clean, cut = raw_stream(engine), raw_stream(engine)
    assert (contents(clean[0]), clean[0].endswith(b"\r\n0\r\n\r\n"), b"[DONE]" in clean[0], clean[1]) == (4, True, False, "fin")
    assert (contents(cut[0]), cut[0].endswith(b"0\r\n\r\n"), b"[DONE]" in cut[0], cut[1]) == (3, False, False, "fin")


def test_truncation_of_a_whole_answer(chat: Talk) -> None:
    with running_engine(**FAST, fault=("truncate",)) as engine, pytest.raises(http.client.IncompleteRead):
        chat(engine, stream=False)


def test_reset_before_and_within_an_answer() -> None:
    with running_engine(**FAST, fault=("reset,tokens=3,every=2", "reset")) as engine:
        before, within = raw_stream(engine), raw_stream(engine)
        lines = engine.generations(2)
    assert before == (b"", "reset")
    assert within[1] == "reset"
    assert contents(within[0]) <= 3
    assert [line.outcome for line in lines] == ["error", "error"]


@pytest.mark.parametrize(
    ("fault", "code"), [("crash,after=0.1", 1), ("crash,after=0.1,code=-9", -9), ("exit,after=0.1", 0), ("crash,after=0.1,code=-11", -11)]
)
def test_the_process_ends_at_its_moment(fault: str, code: int) -> None:
    with running_engine(ttft_ms=0.0, itl_ms=50.0, fault=(fault,)) as engine:
        with contextlib.suppress(ConnectionResetError):
            raw_stream(engine, max_tokens=1000)
        assert engine.process.wait(5) == code
        (line,) = engine.generations(1)
    assert line.outcome == "error"


def test_a_crash_in_the_middle_of_an_answer() -> None:
    with running_engine(**FAST, fault=("crash,after_requests=1,tokens=3",)) as engine:
        assert raw_stream(engine)[1] == "fin"
        seen, end = raw_stream(engine)
        assert engine.process.wait(5) == 1
        lines = engine.generations(2)
    assert contents(seen) == 3
    assert end in ("fin", "reset")
    assert [line.outcome for line in lines] == ["finished", "error"]


def test_out_of_memory_under_load(capfd: pytest.CaptureFixture[str]) -> None:
    with running_engine(ttft_ms=0.0, itl_ms=20.0, fault=("oom_load,running=2",)) as engine:
        body = json.dumps({"prompt": "a", "max_tokens": 500, "ignore_eos": True, "stream": True}).encode()
        request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        with socket.create_connection(("127.0.0.1", engine.port), timeout=10) as first:
            first.sendall(request)
            seen = first.recv(65536)
            with socket.create_connection(("127.0.0.1", engine.port), timeout=10) as second:
                second.sendall(request)
                assert engine.process.wait(5) == 1
            with contextlib.suppress(ConnectionResetError):
                while data := first.recv(65536):
                    seen += data
    assert b'{"error":{"message":"EngineCore encountered an issue.' in seen
    assert "CUDA out of memory" in capfd.readouterr().err


def test_a_device_too_full_dies_of_a_large_step(capfd: pytest.CaptureFixture[str], talk: Talk) -> None:
    full = {"profile": "h100:llama-3.1-8b", "max_model_len": 32768, "max_num_batched_tokens": 16384, "gpu_memory_utilization": 0.98}
    with running_engine(**full) as engine:
        small = {"prompt": "a b c", "max_tokens": 2, "ignore_eos": True}
        assert talk(engine, "POST", "/v1/completions", small).status == 200
        large = talk(engine, "POST", "/v1/completions", {**small, "prompt": " abc" * 20_000})
        assert large.status == 500
        assert engine.process.wait(5) == 1
    assert "CUDA out of memory" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fault": ("oom_start",)}, "torch.OutOfMemoryError: CUDA out of memory"),
        ({"profile": "h100:llama-3.3-70b"}, "torch.OutOfMemoryError: CUDA out of memory"),
        ({"profile": "l4:llama-3.1-8b"}, "estimated maximum model length"),
    ],
)
def test_a_failed_start_has_vllms_words_and_code(changes: dict[str, Any], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EnvironmentFailure, match="exit code 1"), running_engine(**changes):
        pass
    told = capfd.readouterr().err
    assert words in told
    assert told.rstrip().endswith("Engine core initialization failed. See root cause above. Failed core proc(s): {}")


def test_slow_and_failing_health(talk: Talk) -> None:
    with running_engine(**FAST, fault=("slow_health,delay=0.3,every=2", "fail_health,after_requests=2,status=500")) as engine:
        moments, told = [], []
        for _ in range(3):
            begin = time.monotonic()
            told.append(talk(engine, "GET", "/health").status)
            moments.append(time.monotonic() - begin)
    assert told == [200, 200, 500]
    assert moments[0] < 0.3 <= moments[1]


def test_a_probe_that_gives_up_on_slow_health_is_logged() -> None:
    with running_engine(**FAST, fault=("slow_health,delay=60",)) as engine:
        with socket.create_connection(("127.0.0.1", engine.port)) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            sock.settimeout(0.1)
            with pytest.raises(TimeoutError):
                sock.recv(100)
        while not (lines := engine.access_log()):
            pass
    assert (lines[0].status, lines[0].outcome, lines[0].fault) == (None, "aborted", "slow_health")


def test_loading_answers_503_then_serves(talk: Talk, chat: Talk) -> None:
    with running_engine(**FAST, fault=("slow_start,delay=0.4",)) as engine:
        assert talk(engine, "GET", "/health").status == 503
        assert chat(engine).status == 503
        while talk(engine, "GET", "/health").status == 503:
            pass
        assert chat(engine).status == 200


def test_loading_can_refuse_connections(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "loadcell.sim", "--port", str(port), "--fault", "slow_start,delay=0.5,how=refused"]
    source = str(Path(__file__).parents[2] / "src")
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}) as process:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=1)
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"loadcell simulate: serving tiny on http://127.0.0.1:")
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        process.terminate()


def test_idle_connections_are_closed_without_a_word() -> None:
    with running_engine(**FAST, fault=("close",)) as engine, socket.create_connection(("127.0.0.1", engine.port), timeout=5) as sock:
        sock.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        seen = b""
        while data := sock.recv(65536):
            seen += data
    assert seen.startswith(b"HTTP/1.1 200")
    assert b"connection: close" not in seen


def test_a_late_close_spares_a_connection_that_is_used() -> None:
    with running_engine(**FAST, fault=("close,delay=0.3",)) as engine:
        connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=5)
        for _ in range(2):
            connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 2, "ignore_eos": True}))
            assert connection.getresponse().read()
        sock = connection.sock
        begin = time.monotonic()
        assert sock.recv(10) == b""
        assert 0.2 < time.monotonic() - begin < 2
        connection.close()
