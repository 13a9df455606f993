import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from loadcell.sim.replay import Replay, ReplaySpec, prepare


def payloads(raw: bytes) -> list[bytes]:
    """The SSE payloads of one chunked response; asserts that every chunk has the size that it says, and that it ends."""
    _, _, rest = raw.partition(b"\r\n\r\n")
    body = b""
    while True:
        size_text, _, rest = rest.partition(b"\r\n")
        size = int(size_text, 16)
        assert rest[size : size + 2] == b"\r\n"
        body += rest[:size]
        rest = rest[size + 2 :]
        if size == 0:
            assert rest == b""
            return [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event]


@contextmanager
def replaying(spec: ReplaySpec) -> Iterator[Replay]:
    replay = Replay(spec)
    stop, stopped = socket.socketpair()
    thread = threading.Thread(target=replay.run, args=(stopped.fileno(),))
    thread.start()
    try:
        yield replay
    finally:
        stop.close()
        thread.join()
        stopped.close()
        replay.close()


def connected(replay: Replay) -> socket.socket:
    return socket.create_connection(("127.0.0.1", replay.port))


def ask(connection: socket.socket, body: bytes = b'{"stream":true}') -> bytes:
    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    raw = b""
    while not raw.endswith(b"\r\n0\r\n\r\n"):
        data = connection.recv(65536)
        assert data
        raw += data
    return raw


def test_prepared_answers_have_the_asked_tokens_and_exact_sizes() -> None:
    for tokens in (1, 2, 50):
        prepared = prepare(tokens)
        events = payloads(b"".join(prepared.events) + prepared.ending % (7, 7 + tokens))
        assert events[-1] == b"[DONE]"
        assert len(events) == 1 + tokens + 2  # role, tokens, usage, [DONE]
        assert json.loads(events[-2])["usage"] == {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
        assert [json.loads(event)["choices"][0]["finish_reason"] for event in events[1:-2]] == [None] * (tokens - 1) + ["length"]


def test_answers_on_a_kept_connection_are_paced_and_logged(tmp_path: Path) -> None:
    with replaying(ReplaySpec(ttft_ms=2, itl_ms=3, tokens=4, log="yes")) as replay:
        with connected(replay) as connection:
            numbers = [json.loads(payloads(ask(connection))[-2])["usage"]["prompt_tokens"] for _ in range(2)]
        assert numbers == [1, 2]
    replay.write_log(str(tmp_path / "sent.bin"))
    words = np.fromfile(tmp_path / "sent.bin", dtype=np.int64).reshape(2, 7)
    for number, (logged, received, count, *sent) in enumerate(words.tolist(), start=1):
        assert (logged, count) == (number, 4)
        assert sent[0] - received >= 2_000_000
        assert sent == sorted(sent)
    assert (replay.facts().requests, replay.facts().events) == (2, 8)


def test_a_first_event_at_once_and_one_token_answers() -> None:
    for tokens in (1, 3):
        with replaying(ReplaySpec(ttft_ms=0, itl_ms=1, tokens=tokens)) as replay, connected(replay) as connection:
            assert len(payloads(ask(connection))) == tokens + 3


def test_a_client_that_leaves_does_not_stop_the_others() -> None:
    with replaying(ReplaySpec(ttft_ms=1, itl_ms=1, tokens=20)) as replay:
        with connected(replay) as leaver:
            leaver.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
            leaver.recv(100)
        with connected(replay) as connection:
            assert len(payloads(ask(connection))) == 23


def test_anything_but_an_inference_request_is_not_found() -> None:
    with replaying(ReplaySpec()) as replay, connected(replay) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 404 ")
