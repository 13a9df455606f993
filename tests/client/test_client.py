"""Connections kept, replayed, cut and cancelled, against scripted servers."""

import os
import resource
import socket
import time
from collections import Counter
from pathlib import Path

import pytest

from loadcell.client.limits import Timeouts
from loadcell.client.stamps import kernel_stamps_work
from loadcell.clock import realtime_offset_ns
from loadcell.testing.replies import (
    CLOSE,
    DONE,
    HANG,
    LAST_CHUNK,
    RESET,
    Step,
    chat_event,
    chat_reply,
    chat_stream,
    chunk,
    error_reply,
    head,
    sse,
    usage_event,
)
from loadcell.testing.scripted_server import Received, ScriptedServer

from .driving import OPTIONS, S, ask, attempts, client_of, ended, endpoint_of, poll_until, start

STREAM = chat_stream("a", "b", "c")
FDS = Path("/proc/self/fd")


@pytest.fixture(autouse=True)
def _both_ways(compiled, monkeypatch):
    monkeypatch.setitem(OPTIONS, "compiled", compiled)


def open_descriptors() -> int:
    return len(list(FDS.iterdir()))


def test_one_connection_carries_many_requests():
    with ScriptedServer(STREAM) as server, client_of(server, keep_text=True) as client:
        answers = [ask(client, body=b'{"n":%d}' % n) for n in range(5)]
    assert [answer.outcome for answer in answers] == ["ok"] * 5
    assert [answer.text for answer in answers] == ["abc"] * 5
    assert server.accepted == 1
    assert [request.body for request in server.requests] == [b'{"n":%d}' % n for n in range(5)]
    assert answers[0].connected_ns is not None
    assert all(answer.connected_ns is None for answer in answers[1:])
    assert all(answer.stale_replays == 0 for answer in answers)


def test_a_record_holds_every_stamp_in_its_order():
    with ScriptedServer(chat_stream("a", "b", "c", first_ms=5, every_ms=3)) as server, client_of(server) as client:
        answer = ask(client)
    stamps = [answer.dispatched_ns, answer.connected_ns, answer.sent_ns, answer.headers_ns, answer.first_event_ns]
    stamps += [answer.first_token_ns, answer.last_token_ns, answer.done_ns]
    assert stamps == sorted(stamps)
    assert answer.first_token_ns == answer.first_answer_ns
    assert answer.first_token_ns - answer.sent_ns >= 5_000_000
    assert len(answer.chunk_us) == 3
    assert answer.chunk_us[0] == answer.first_token_ns // 1000
    assert sum(answer.chunk_us) == answer.last_token_ns // 1000
    assert (answer.output_tokens, answer.output_source, answer.input_tokens) == (3, "usage", 4)


@pytest.mark.parametrize("parting", [CLOSE, RESET])
def test_a_request_lost_to_a_stale_connection_is_replayed_once(parting):
    """The server closes a kept connection as the next request comes in on it."""

    def reply(request: Received):
        return [(0.0, parting)] if request.nth == 1 else STREAM

    with ScriptedServer(reply) as server, client_of(server) as client:
        first, second = ask(client), ask(client)
    assert (first.outcome, second.outcome) == ("ok", "ok")
    assert (first.stale_replays, second.stale_replays) == (0, 1)
    assert second.connected_ns is not None
    assert second.sent_ns > second.connected_ns
    assert server.accepted == 2


def test_a_fresh_connection_that_is_closed_is_a_failure_and_not_replayed():
    with ScriptedServer([(0.0, CLOSE)]) as server, client_of(server) as client:
        answer = ask(client)
    assert (answer.outcome, answer.stale_replays) == ("connection_reset", 0)
    assert len(server.requests) == 1


def test_the_replay_itself_is_not_replayed():
    def reply(request: Received):
        return STREAM if request.number == 0 else [(0.0, CLOSE)]

    with ScriptedServer(reply) as server, client_of(server) as client:
        assert ask(client).outcome == "ok"
        answer = ask(client)
    assert (answer.outcome, answer.stale_replays) == ("connection_reset", 1)
    assert len(server.requests) == 3


@pytest.mark.parametrize("begun", [b"H", b"HTTP/1.1 200 OK\r\n"])
def test_nothing_is_replayed_once_a_byte_of_the_response_was_seen(begun):
    def reply(request: Received):
        return STREAM if request.nth == 0 else [(0.0, begun), (20.0, CLOSE)]

    with ScriptedServer(reply) as server, client_of(server) as client:
        ask(client)
        answer = ask(client)
    assert answer.outcome == "connection_reset"
    assert answer.stale_replays == 0
    assert len(server.requests) == 2


def test_an_idle_connection_that_the_server_closes_is_let_go():
    with ScriptedServer([*STREAM, (0.0, CLOSE)]) as server, client_of(server) as client:
        for _ in range(3):
            assert ask(client).outcome == "ok"
    assert server.accepted == 3


def test_bytes_that_nobody_asked_for_end_an_idle_connection():
    late = [*STREAM, (20.0, b"HTTP/1.1 408 Request Timeout\r\n\r\n")]
    with ScriptedServer(late) as server, client_of(server) as client:
        assert ask(client).outcome == "ok"
        deadline = time.monotonic_ns() + S
        while client._idle_by_fd and time.monotonic_ns() < deadline:
            client.poll(time.monotonic_ns() + S // 100)
        assert not client._idle_by_fd
        assert ask(client).outcome == "ok"
    assert server.accepted == 2


def test_a_large_body_is_sent_in_as_many_pieces_as_it_takes():
    body = b'{"prompt":"' + b"x" * 16_000_000 + b'"}'
    with ScriptedServer(STREAM) as server, client_of(server) as client:
        answer = ask(client, body=body)
    assert answer.outcome == "ok"
    assert server.requests[0].body == body
    assert server.requests[0].headers["content-length"] == str(len(body))
    # `sent` belongs to the last byte: the server cannot have had the whole before.
    assert answer.sent_ns <= server.requests[0].arrived_ns
    assert answer.sent_ns - answer.connected_ns > 1_000_000


def test_a_response_that_comes_before_the_body_is_read_is_still_read():
    """413 and close while the request is half sent: some servers answer by the Content-Length alone."""
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, client_of(endpoint_of(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")) as client:
        exchange = start(client, body=b"x" * 30_000_000)
        poll_until(client, lambda: exchange.stage == "sending")
        peer, _ = listener.accept()
        with peer:
            peer.recv(100)
            peer.sendall(error_reply(413, "too long"))
            (again,) = ended(client)
    (answer,) = attempts([again])
    assert (answer.outcome, answer.status, answer.error) == ("http_4xx", 413, "too long")


def test_a_refused_connection_is_told_at_once():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with client_of(f"http://127.0.0.1:{port}/v1") as client:
        began = time.monotonic_ns()
        start(client)
        found = client.poll(began + 60 * S)
        took_ns = time.monotonic_ns() - began
    (answer,) = attempts(found)
    assert answer.outcome == "connect_error"
    assert "refused" in answer.error
    assert answer.sent_ns is None
    assert took_ns < S


def test_a_name_that_does_not_resolve_is_a_dns_error():
    with ScriptedServer(STREAM) as server, client_of(endpoint_of(server, addresses=())) as client:
        answer = ask(client)
    assert answer.outcome == "dns_error"
    assert "does not resolve" in answer.error


def test_a_server_that_does_not_accept_costs_the_connect_timeout():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, socket.create_connection(listener.getsockname()):
        port = listener.getsockname()[1]
        with client_of(f"http://127.0.0.1:{port}/v1", timeouts=Timeouts(connect_s=3)) as client:
            exchange = start(client)
            assert client.poll(time.monotonic_ns()) == []
            client.scan(exchange.dispatched_ns + 3 * S - 1)
            assert exchange.stage == "connecting"
            client.scan(exchange.dispatched_ns + 3 * S)
            (answer,) = attempts(client.poll(0))
    assert answer.outcome == "connect_error"
    assert "within 3 s (--connect-timeout)" in answer.error


def test_headers_do_not_end_the_wait_for_the_first_output():
    script = sse(chat_event("", role="assistant"), (0.0, b": waiting\n\n"), HANG)
    with ScriptedServer(script) as server, client_of(server, timeouts=Timeouts(first_output_s=7)) as client:
        exchange = start(client)
        poll_until(client, lambda: exchange.last_output_ns() is None and exchange.reader.tally.first_event_ns)
        client.scan(exchange.sent_ns + 7 * S - 1)
        assert exchange.stage == "body"
        client.scan(exchange.sent_ns + 7 * S)
        (answer,) = attempts(client.poll(0))
    assert answer.outcome == "first_byte_timeout"
    assert answer.headers_ns is not None
    assert answer.first_event_ns is not None
    assert answer.first_token_ns is None


def test_comments_do_not_put_off_the_idle_timeout():
    pings: list[Step] = [(10.0, chunk(b": ping\n\n")) for _ in range(10)]
    script = [*sse(chat_event("a"), HANG)[:-1], *pings, (0.0, HANG)]
    with ScriptedServer(script) as server, client_of(server, timeouts=Timeouts(idle_s=2)) as client:
        exchange = start(client)
        poll_until(client, lambda: len(exchange.datas) > 8)
        newest_read = exchange.stamps[-1]
        last = exchange.last_output_ns()
        assert newest_read - last > S // 20
        client.scan(last + 2 * S - 1)
        assert exchange.stage == "body"
        client.scan(last + 2 * S)
        (answer,) = attempts(client.poll(0))
    assert answer.outcome == "idle_timeout"
    assert len(answer.chunk_us) == 1


def test_a_stream_that_never_ends_meets_the_total_timeout():
    script = sse(*[chat_event("a")] * 20, HANG)
    with ScriptedServer(script) as server, client_of(server, timeouts=Timeouts(total_s=5)) as client:
        exchange = start(client)
        poll_until(client, exchange.last_output_ns)
        client.scan(exchange.dispatched_ns + 5 * S)
        (answer,) = attempts(client.poll(0))
    assert answer.outcome == "total_timeout"
    assert "within 5 s (--total-timeout)" in answer.error


def test_an_answer_that_is_not_streamed_is_its_own_first_output():
    with (
        ScriptedServer([(0.0, HANG)]) as server,
        client_of(server, timeouts=Timeouts(first_output_s=3, idle_s=1, total_s=9)) as client,
    ):
        exchange = start(client, stream=False)
        poll_until(client, lambda: exchange.stage == "head")
        client.scan(exchange.sent_ns + 3 * S - 1)
        assert exchange.stage == "head"
        client.scan(exchange.sent_ns + 3 * S)
        (answer,) = attempts(client.poll(0))
    assert answer.outcome == "first_byte_timeout"


def test_a_plain_answer_is_read_by_its_length():
    with ScriptedServer([(0.0, chat_reply("hello", prompt=7, completion=3))]) as server, client_of(server, keep_text=True) as client:
        answers = [ask(client, stream=False) for _ in range(2)]
    assert [answer.outcome for answer in answers] == ["ok", "ok"]
    assert (answers[0].text, answers[0].input_tokens, answers[0].output_tokens) == ("hello", 7, 3)
    assert answers[0].first_token_ns is None
    assert answers[0].last_token_ns == answers[0].done_ns
    assert server.accepted == 1


def test_cancelling_gives_everything_back_and_closes_the_connections():
    script = sse(chat_event("a"), HANG)
    with ScriptedServer(script) as server, client_of(server) as client:
        exchanges = [start(client) for _ in range(5)]
        poll_until(client, lambda: all(exchange.last_output_ns() for exchange in exchanges))
        client.cancel_all("cancelled", "stopped by the end of the run", time.monotonic_ns())
        answers = attempts(client.poll(0))
        assert not client.active
        assert client.drain.impatient == 0
        poll_until(client, lambda: server.hangups == 5)
    assert Counter(answer.outcome for answer in answers) == {"cancelled": 5}
    assert all(answer.error == "stopped by the end of the run" and len(answer.chunk_us) == 1 for answer in answers)


def test_a_stream_that_had_ended_before_it_was_cancelled_is_ok():
    """Cancelling finds reads that nobody has parsed yet; what they say counts."""
    script = [(0.0, head(200, [("Content-Type", "text/event-stream"), ("Connection", "close")]))]
    script += [(0.0, chat_event("a")), (0.0, chat_event(finish_reason="stop")), (0.0, usage_event(4, 1)), (0.0, DONE), (0.0, HANG)]
    with ScriptedServer(script) as server, client_of(server) as client:
        exchange = start(client)
        poll_until(client, lambda: b"[DONE]" in b"".join(exchange.datas) or exchange.reader.saw_done)
        client.cancel_all("cancelled", "end of the run", time.monotonic_ns())
        (answer,) = attempts(client.poll(0))
    assert (answer.outcome, answer.error, answer.output_tokens) == ("ok", None, 1)


def test_a_body_that_does_not_end_after_done_is_let_go():
    script = [*sse(chat_event("a"), chat_event(finish_reason="stop"), DONE)[:-1], (0.0, HANG)]
    with ScriptedServer(script) as server, client_of(server) as client:
        exchange = start(client)
        poll_until(client, lambda: exchange.last_output_ns() and exchange.reader.saw_done)
        client.scan(exchange.reader.done_ns + S)
        assert exchange.stage == "body"
        client.scan(exchange.reader.done_ns + S + 1)
        (answer,) = attempts(client.poll(0))
        assert answer.outcome == "ok"
        assert not client._idle_by_fd


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_the_end_of_a_chunked_body_is_seen_however_it_is_cut(pieces):
    whole = chunk(chat_event("a")) + chunk(chat_event(finish_reason="stop")) + chunk(DONE) + LAST_CHUNK
    tail = whole[-5:]
    script = [(0.0, head(200, [("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked")])), (0.0, whole[:-5])]
    step = -(-len(tail) // pieces)
    script += [(5.0, tail[at : at + step]) for at in range(0, len(tail), step)]
    with ScriptedServer(script) as server, client_of(server) as client:
        assert [ask(client).outcome for _ in range(3)] == ["ok"] * 3
    assert server.accepted == 1


def test_two_hundred_streams_at_once_and_again_over_the_same_connections():
    offset_ns = realtime_offset_ns()
    with ScriptedServer(chat_stream(*"abcdefgh", first_ms=200, every_ms=4)) as server, client_of(server) as client:
        for _ in range(2):
            for _ in range(200):
                start(client)
            answers = attempts(ended(client, 200))
            assert Counter(answer.outcome for answer in answers) == {"ok": 200}
            assert {len(answer.chunk_us) for answer in answers} == {8}
        # Of 3,200 reads. A host that steps the wall clock meanwhile takes the kernel's stamps away.
        stepped = abs(realtime_offset_ns() - offset_ns) > 100_000
        assert client.drain.clock_reads <= 32 or stepped or not kernel_stamps_work()
    assert server.accepted == 200
    assert server.peak_requests == 200


@pytest.mark.parametrize("headers", [(), (("Connection", "close"),)])
def test_five_hundred_refusals_with_large_bodies_leave_no_descriptor_open(headers):
    refusal = error_reply(503, "overloaded " + "x" * 200_000, headers=headers)
    with ScriptedServer([(0.0, refusal)]) as server, client_of(server) as client:
        assert ask(client).outcome == "http_5xx"
        opened = open_descriptors()
        for _ in range(50):
            for _ in range(10):
                start(client)
            for answer in attempts(ended(client, 10)):
                assert (answer.outcome, answer.status) == ("http_5xx", 503)
                assert len(answer.error) < 2_000
        # The server is in this process too: both ends of ten connections at the most.
        assert open_descriptors() <= opened + 2 * 10
    assert len(server.requests) == 501
    assert open_descriptors() < opened


def test_no_free_descriptor_is_said_as_such():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ScriptedServer(STREAM) as server, client_of(server) as client:
        client.poll(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(fd.name) for fd in FDS.iterdir()), limits[1]))
        try:
            held = []
            try:
                while True:
                    held.append(os.dup(0))
            except OSError:
                pass
            start(client)
            found = client.poll(0)
        finally:
            for fd in held:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    (answer,) = attempts(found)
    assert answer.outcome == "no_local_port"
    assert "descriptor" in answer.error


def test_headers_are_sent_with_every_request_and_nothing_else_is_added():
    with ScriptedServer(STREAM) as server, client_of(server, headers=[("Authorization", "Bearer k"), ("X-Team", "é")]) as client:
        ask(client)
    (request,) = server.requests
    assert request.headers["authorization"] == "Bearer k"
    assert request.headers["host"] == server.name
    assert request.headers["accept-encoding"] == "identity"
    assert request.path == "/v1/chat/completions"


def test_a_flood_of_events_is_not_kept_raw():
    flood = b"".join(part for _, part in sse(*[chat_event("a" * 100)] * 4_000) if isinstance(part, bytes))
    with ScriptedServer([(0.0, flood), (0.0, HANG)]) as server, client_of(server) as client:
        exchange = start(client)
        raw = []
        while len(exchange.reader.tally.chunks) < 2_000 and exchange.stage != "ended":
            client.poll(time.monotonic_ns() + S // 50)
            raw.append(sum(map(len, exchange.datas)))
        assert max(raw) <= 32 * 4_096
