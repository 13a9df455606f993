import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadcell.wire.sse import SseEvent, SseParser


def events_of(data: bytes, step: int = 1 << 30) -> list[SseEvent]:
    parser, events = SseParser(), []
    for at in range(0, len(data), step):
        events += parser.feed(data[at : at + step])
    return events


@pytest.mark.parametrize("step", [1, 2, 3, 1000])
@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"data: a\n\n", [(b"", b"a")]),
        (b"data:a\n\ndata:b\n\n", [(b"", b"a"), (b"", b"b")]),
        (b"data:  a \n\n", [(b"", b" a ")]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [(b"", b"a"), (b"", b"b")]),
        (b"data: a\r\rdata: b\r\r", [(b"", b"a"), (b"", b"b")]),
        (b"data: a\r\n\ndata: b\n\r\n", [(b"", b"a"), (b"", b"b")]),
        (b"data: a\ndata: b\ndata\ndata:\n\n", [(b"", b"a\nb\n\n")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(b"", b"a")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n", [(b"", b"b")]),
        (b":\n\n: keep-alive\n\ndata: a\n\n", [(b"", b"a")]),
        (b"retry: 1000\nid: 7\nevent: message\ndata:a\n\n", [(b"message", b"a")]),
        (b"event: error\ndata: a\n\ndata: b\n\n", [(b"error", b"a"), (b"", b"b")]),
        (b"event: error\n\ndata: b\n\n", [(b"", b"b")]),
        (b"nonsense\ndata: a\n\n", [(b"", b"a")]),
        (b"data : a\n\n", []),
        (b"data\n\n", [(b"", b"")]),
        ("data: \u4e2d\u2028\u6587\n\n".encode(), [(b"", "\u4e2d\u2028\u6587".encode())]),
        (b"\n\n\n\ndata: a\n\n\n\n", [(b"", b"a")]),
        (b"data: a\n\ndata: cut", [(b"", b"a")]),
    ],
)
def test_events(data: bytes, events: list[SseEvent], step: int) -> None:
    assert events_of(data, step) == events


@pytest.mark.parametrize(
    ("data", "left"),
    [
        (b"data: [DONE]", (b"", b"[DONE]")),
        (b"data: [DONE]\n", (b"", b"[DONE]")),
        (b"data: a\r", (b"", b"a")),
        (b"event: error\ndata: a\ndata: b", (b"error", b"a\nb")),
        (b"data: a\n\n", None),
        (b": comment", None),
        (b"event: x", None),
        (b"", None),
    ],
)
def test_what_the_end_leaves_unterminated(data: bytes, left: SseEvent | None) -> None:
    parser = SseParser()
    parser.feed(data)
    assert parser.finish() == left
    assert parser.finish() is None


def test_a_line_has_no_limit() -> None:
    long = b"x" * 1_000_000
    assert events_of(b"data: " + long + b"\n\n", 1_500) == [(b"", long)]


lines = st.sampled_from([b"data: a", b"data:b", b"data", b": c", b"event: error", b"id: 1", b"", b"", "data: 中".encode(), b"\xef\xbb\xbf"])


@given(st.lists(st.tuples(lines, st.sampled_from([b"\n", b"\r", b"\r\n"]))), st.lists(st.integers(1, 9), min_size=1))
def test_any_split_gives_the_same_events(parts: list[tuple[bytes, bytes]], steps: list[int]) -> None:
    data = b"".join(line + end for line, end in parts)
    whole, cut, events, at = SseParser(), SseParser(), [], 0
    expected = whole.feed(data)
    while at < len(data):
        for step in steps:
            events += cut.feed(data[at : at + step])
            at += step
    assert events == expected
    assert cut.finish() == whole.finish()
