import pytest

from loadcell.errors import UserError
from loadcell.wire.http1 import ResponseParser, bearer, host_header, request_head


def parsed(data: bytes, step: int = 1 << 30) -> tuple[ResponseParser, bytes]:
    parser, body = ResponseParser(), b""
    for at in range(0, len(data), step):
        body += parser.feed(data[at : at + step])
    return parser, body


def test_request_head() -> None:
    head = request_head("POST", "/v1/chat/completions", "h", 8000, "http", [("X-Team", "a b")], content_length=12)
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/chat/completions HTTP/1.1"
    assert lines[-2:] == ["", ""]
    assert {"Host: h:8000", "Content-Length: 12", "Content-Type: application/json", "X-Team: a b", "Accept-Encoding: identity"} <= set(
        lines
    )
    assert not any(line.lower().startswith("authorization") for line in lines)


def test_a_get_has_no_length() -> None:
    assert b"content" not in request_head("GET", "/health", "h", 80, "http").lower()


def test_headers_of_the_user_replace_ours_whatever_their_case() -> None:
    head = request_head("POST", "/", "h", 80, "http", [("USER-AGENT", "mine"), ("host", "virtual"), ("x-a", "1"), ("x-a", "2")], 0)
    assert head.lower().count(b"user-agent:") == 1
    assert b"USER-AGENT: mine\r\n" in head
    assert head.lower().count(b"host:") == 1
    assert head.count(b"x-a:") == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X\r\nY", "1"),
        ("X Y", "1"),
        ("", "1"),
        ("X:", "1"),
        ("é", "1"),
        ("X", "a\r\nEvil: 1"),
        ("X", "a\nb"),
        ("X", "a\0"),
        ("content-length", "5"),
    ],
)
def test_a_header_that_would_break_the_message_is_refused(name: str, value: str) -> None:
    with pytest.raises(UserError, match="--header"):
        request_head("POST", "/", "h", 80, "http", [(name, value)])


def test_a_refused_value_is_not_repeated() -> None:
    with pytest.raises(UserError) as caught:
        request_head("POST", "/", "h", 80, "http", [("Authorization", "Bearer s3cret\n"), ("X", "s3cret\nmore")])
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("target", ["", "/a b", "/a\r\nHost: evil", "/\x7f"])
def test_a_bad_request_path_is_refused(target: str) -> None:
    with pytest.raises(UserError, match="request path"):
        request_head("GET", target, "h", 80, "http")


@pytest.mark.parametrize(
    ("key", "expected"),
    [(None, ()), ("", ()), ("  ", ()), ("k", (("Authorization", "Bearer k"),)), (" k\n", (("Authorization", "Bearer k"),))],
)
def test_no_key_no_authorization(key: str | None, expected: tuple[tuple[str, str], ...]) -> None:
    assert bearer(key) == expected


@pytest.mark.parametrize(
    ("host", "port", "scheme", "expected"),
    [
        ("h", 80, "http", "h"),
        ("h", 443, "https", "h"),
        ("h", 443, "http", "h:443"),
        ("::1", 8000, "http", "[::1]:8000"),
        ("fe80::1%eth0", 80, "http", "[fe80::1]"),
    ],
)
def test_host_header(host: str, port: int, scheme: str, expected: str) -> None:
    assert host_header(host, port, scheme) == expected


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("data", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200\r\ncontent-length:5\r\n\r\nhello", b"hello"),
        (b"\r\nHTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", b"hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi"),
        (CHUNKED + b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (CHUNKED + b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", b"hello"),
        (CHUNKED + b"A;name=value\r\n0123456789\r\n000a \r\n0123456789\r\n0;end\r\n\r\n", b"0123456789" * 2),
        (CHUNKED + b"5\r\nhello\r\n0\r\nX-Sum: 1\r\nY: 2\r\n\r\n", b"hello"),
        (CHUNKED.replace(b"chunked", b"Chunked") + b"0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
    ],
)
def test_bodies_by_framing(data: bytes, body: bytes, step: int) -> None:
    parser, got = parsed(data, step)
    assert (got, parser.complete, parser.invalid, parser.surplus) == (body, True, None, False)
    assert parser.status_seen


@pytest.mark.parametrize("step", [1, 4, 1000])
def test_body_until_close(step: int) -> None:
    parser, body = parsed(b"HTTP/1.1 200 OK\r\n\r\nall of it", step)
    assert body == b"all of it"
    assert not parser.complete
    parser.eof()
    assert parser.complete
    assert parser.head is not None
    assert (parser.head.framing, parser.head.keep_alive) == ("close", False)


@pytest.mark.parametrize("tail", [b"5\r\nhel", b"5\r\nhello", b"5\r\nhello\r\n", b"5\r\nhello\r\n0\r\n", b"5"])
def test_a_close_inside_a_chunked_body_does_not_complete_it(tail: bytes) -> None:
    parser, _ = parsed(CHUNKED + tail)
    parser.eof()
    assert not parser.complete


@pytest.mark.parametrize(
    ("head", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive, Close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n", False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
    ],
)
def test_keep_alive(head: bytes, keep_alive: bool) -> None:
    parser, _ = parsed(head)
    assert parser.head is not None
    assert parser.head.keep_alive is keep_alive


def test_headers_fold_repeat_and_ignore_case() -> None:
    parser, _ = parsed(b"HTTP/1.1 200 OK\r\nX-A: one\r\n  two\r\nx-a: three\r\nEmpty:\r\nContent-Length: 0\r\n\r\n")
    assert parser.head is not None
    assert parser.head.get("x-a") == "one two, three"
    assert parser.head.get("empty") == ""
    assert parser.head.get("absent") is None


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"SSH-2.0-OpenSSH_9\r\n", "not an HTTP/1"),
        (b"HTTP/2 200\r\n\r\n", "not an HTTP/1"),
        (b"HTTP/1.1 2x0 OK\r\n\r\n", "status line"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "header line"),
        (b"HTTP/1.1 200 OK\r\nName : v\r\n\r\n", "header line"),
        (b"HTTP/1.1 200 OK\r\n folded: v\r\n\r\n", "folded"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n", "conflicting"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0x4\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "Transfer-Encoding"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\n", "gzip"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: BR\r\n\r\n", "br"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\n\r\n", "deflate"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "101"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 40, "interim"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000, "longer than 65536"),
        (CHUNKED + b"xyz\r\n", "chunk size"),
        (CHUNKED + b"0x5\r\nhello\r\n", "chunk size"),
        (CHUNKED + b"+5\r\nhello\r\n", "chunk size"),
        (CHUNKED + b"\r\n", "chunk size"),
        (CHUNKED + b"5\nhello\r\n", "CRLF"),
        (CHUNKED + b"5\r\nhelloX\r\n", "longer than its size"),
        (CHUNKED + b"5\r\nhelloXY", "longer than its size"),
        (CHUNKED + b"fffffffffffffffff\r\n", "chunk size"),
        (CHUNKED + b"5;" + b"e" * 20_000, "longer than 16384"),
        (CHUNKED + b"0\r\n" + b"T: v\r\n" * 20_000, "trailers"),
    ],
)
@pytest.mark.parametrize("step", [997, 1 << 30])
def test_what_is_no_response_is_named(data: bytes, named: str, step: int) -> None:
    parser, _ = parsed(data, step)
    assert parser.invalid is not None
    assert named in parser.invalid
    assert parser.feed(b"more") == b""


def test_a_status_is_known_though_the_body_is_compressed() -> None:
    parser, _ = parsed(b"HTTP/1.1 502 Bad Gateway\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b")
    assert parser.head is not None
    assert (parser.head.status, parser.head.coding, parser.complete, parser.invalid) == (502, "gzip", True, None)


@pytest.mark.parametrize("data", [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi!", CHUNKED + b"2\r\nhi\r\n0\r\n\r\n!"])
@pytest.mark.parametrize("step", [1, 1000])
def test_bytes_after_the_body_are_surplus(data: bytes, step: int) -> None:
    parser, body = parsed(data, step)
    assert (body, parser.complete, parser.surplus) == (b"hi", True, True)


def test_what_precedes_a_framing_fault_is_kept() -> None:
    parser, body = parsed(CHUNKED + b"2\r\nhi\r\nzz\r\n")
    assert body == b"hi"
    assert parser.invalid is not None
