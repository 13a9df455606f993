"""Reads that are alike: which are taken, what they say, and that compiled and Python code are the same function."""

import gc
import json
import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadcell.wire import alike
from loadcell.wire.alike import Take, take_in_python
from loadcell.wire.answer import AnswerReader

BEFORE, AFTER = b'data: {"choices":[{"delta":{"content":"', b'"}}]}\n\n\r\n'


def read_of(inside: bytes, size: bytes = b"%x") -> bytes:
    event = BEFORE + inside + AFTER[:-2]
    return size % len(event) + b"\r\n" + event + b"\r\n"


TAKEN = {
    b" token": " token",
    b"x" * 700: "x" * 700,
    "é中€😀".encode(): "é中€😀",
    "\u2028\u2029\x85\ufeff".encode(): "\u2028\u2029\x85\ufeff",
    b"\x7f": "\x7f",
    rb"\n\r\t\b\f\"\\\/": '\n\r\t\b\f"\\/',
    rb"\\": "\\",
    rb"\\n": "\\n",
    "é\\n中".encode(): "é\n中",
    rb"\"}}]}": '"}}]}',
}
LEFT = [
    b"",
    b"\\",
    rb"a\\" + b"\\",
    rb"\u0041",
    rb"\ud83d\ude00",
    rb"\ud83d",
    rb"\x41",
    b"\\\n",
    b"\\\x00",
    b'"',
    b'a"b',
    b'","content":"',
    b"\n",
    b"\r",
    b"\x00",
    b"\x1f",
    b"\xff",
    b"\x80",
    b"\xc3",
    b"\xc3\\n",
    b"\xc0\xaf",
    b"\xe0\x80\xaf",
    b"\xf0\x80\x80\xaf",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80",
    b"x" * 9_000,
]


@pytest.mark.parametrize("inside", TAKEN)
def test_the_inside_of_a_json_string_is_taken(take: Take, inside: bytes) -> None:
    assert json.loads(b'"%b"' % inside, strict=False) == TAKEN[inside]
    assert take([read_of(inside)], 0, BEFORE, AFTER, 0) == (1, TAKEN[inside])


@pytest.mark.parametrize("inside", LEFT)
def test_anything_else_is_left(take: Take, inside: bytes) -> None:
    assert take([read_of(b"a"), read_of(inside), read_of(b"b")], 0, BEFORE, AFTER, 0) == (1, "a")


def test_two_halves_of_a_character_are_no_character(take: Take) -> None:
    assert take([read_of(b"\xc3"), read_of(b"\xa9")], 0, BEFORE, AFTER, 0) == (0, "")
    assert take([read_of(b"a\xc3"), read_of(b"\xa9")], 0, BEFORE, AFTER, 0) == (0, "")


def test_it_begins_where_it_is_told_to(take: Take) -> None:
    reads = [b"", read_of(b"a"), read_of(b"b"), b"", read_of(b"c")]
    assert [take(reads, start, BEFORE, AFTER, 0) for start in range(7)] == [
        (0, ""),
        (3, "ab"),
        (3, "b"),
        (3, ""),
        (5, "c"),
        (5, ""),
        (6, ""),
    ]
    assert take(tuple(reads), 1, BEFORE, AFTER, 0) == (3, "ab")


@pytest.mark.parametrize(
    ("size", "digits", "taken"),
    [
        (b"%x", 0, True),
        (b"%x", 2, True),
        (b"%04x", 4, True),
        (b"%016x", 16, True),
        (b"%x", 4, False),
        (b"%04x", 0, False),
        (b"%04x", 3, False),
        (b"%04x", 5, False),
        (b"%X", 0, False),
        (b"%04X", 4, False),
        (b"%x ", 0, False),
        (b"%x;a=b", 0, False),
        (b"0x%x", 0, False),
        (b" %x", 0, False),
        (b"%d", 0, False),
        (b"%x\r", 0, False),
    ],
)
def test_how_a_chunk_size_is_written(take: Take, size: bytes, digits: int, taken: bool) -> None:
    inside = b"x" * (0x6B - len(BEFORE + AFTER) + 2)  # 6b, which is upper case too
    assert take([read_of(inside, size)], 0, BEFORE, AFTER, digits)[0] == taken


@pytest.mark.parametrize("off", [-1, 1, 16, -16])
def test_a_wrong_chunk_size_is_left(take: Take, off: int) -> None:
    event = BEFORE + b"token" + AFTER
    assert take([b"%x\r\n" % (len(event) - 2 + off) + event], 0, BEFORE, AFTER, 0) == (0, "")


def test_a_read_of_several_chunks_or_a_part_of_one_is_left(take: Take) -> None:
    whole = read_of(b"token")
    for read in (whole + whole, whole + b"0\r\n\r\n", b"\r\n" + whole, *(whole[:at] for at in range(len(whole)))):
        assert take([read], 0, BEFORE, AFTER, 0) == (0, "")


def test_the_ends_do_not_overlap(take: Take) -> None:
    before, after = b'data: {"a":"', b'":"\n\n\r\n'
    event = b'data: {"a":"\n\n'
    assert take([b"%x\r\n%b\r\n" % (len(event), event)], 0, before, after, 0) == (0, "")


insides = st.one_of(
    st.sampled_from([*TAKEN, *LEFT]),
    st.text(max_size=6).map(lambda text: json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "surrogatepass")),
    st.binary(max_size=4),
    st.lists(st.sampled_from([b"\\", b'"', b"n", b"u0041", b"\xc3", b"\xa9", b"a", b"\xed\xa0\x80"]), max_size=5).map(b"".join),
)
sizes = st.sampled_from([b"%x"] * 6 + [b"%04x"] * 3 + [b"%X", b"%05x", b"%x;e"])
noise = st.one_of(st.binary(max_size=8), st.just(b"0\r\n\r\n"), st.just(b"4\r\n\n\n\r\n"))
reads = st.lists(st.one_of(*[st.builds(read_of, insides, sizes)] * 5, noise), max_size=8)


@settings(max_examples=1_000)
@given(reads, st.integers(0, 3), st.sampled_from([0, 0, 4, 2]))
def test_compiled_or_not_it_is_the_same_function(reads: list[bytes], start: int, digits: int) -> None:
    if alike.COMPILED is None:
        pytest.skip("loadcell.wire._alike is not built")
    assert alike.COMPILED(reads, start, BEFORE, AFTER, digits) == take_in_python(reads, start, BEFORE, AFTER, digits)


@settings(max_examples=300)
@given(st.lists(insides, min_size=1, max_size=12), st.lists(st.integers(1, 12), min_size=1, max_size=12))
def test_a_stream_taken_together_is_as_one_read_as_json(take: Take, insides: list[bytes], batches: list[int]) -> None:
    """Held against a reader that never sees two chunks that are alike: each with an extension of its own."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    texts = [b"first", b"second", *insides, b"last"]
    together, apart = AnswerReader(keep_text=True), AnswerReader(keep_text=True)
    reads = [head, *map(read_of, texts), b"0\r\n\r\n"]
    for at in range(0, len(reads), batches[0]):
        together.feed_many(reads[at : at + batches[0]], range(at, at + len(reads[at : at + batches[0]])))
    for at, read in enumerate([head, *(read_of(text, b"%%x;n=%d" % n) for n, text in enumerate(texts)), b"0\r\n\r\n"]):
        apart.feed_many([read], [at])
    assert together.result() == apart.result()


def test_what_is_no_read_is_refused() -> None:
    take = alike.COMPILED
    if take is None:
        pytest.skip("loadcell.wire._alike is not built")
    with pytest.raises(TypeError):
        take([read_of(b"a"), "text"], 0, BEFORE, AFTER, 0)  # type: ignore[list-item]
    with pytest.raises(TypeError):
        take(None, 0, BEFORE, AFTER, 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        take([], 0, BEFORE, "text", 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        take([], 0)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="start"):
        take([], -1, BEFORE, AFTER, 0)


def test_nothing_is_held_on_to(take: Take) -> None:
    reads = [*map(read_of, [b"a", "é".encode(), rb"\n", b"x" * 700, b"\xc3"])]
    held = (reads, BEFORE, AFTER, *reads)

    def run(times: int) -> tuple[int, list[int]]:
        for _ in range(times):
            for start in range(len(reads) + 1):
                take(reads, start, BEFORE, AFTER, 0)
        gc.collect()
        return tracemalloc.get_traced_memory()[0], [sys.getrefcount(item) for item in held]

    tracemalloc.start()
    try:
        size, counts = run(100)
        later, counts_later = run(5_000)
    finally:
        tracemalloc.stop()
    assert counts_later == counts
    assert later - size < 10_000
