"""Reads that are alike but for their text -> their texts. Most of a stream is such reads, and they are looked at nowhere else.

Twice: `_alike.c`, where it could be compiled, and `take_in_python`. They are the same function.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import msgspec

from loadcell.wire.openai import NOT_PLAIN

_MAX_CHUNK: Final = 8_192
_MAX_LEAST_DIGITS: Final = 4
# What stands between the quotes of a JSON string without `\u`.
_INSIDE: Final = re.compile(rb'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])+')
_decode_string: Final = msgspec.json.Decoder(str).decode

Take = Callable[[Sequence[bytes], int, bytes, bytes, int], tuple[int, str]]
"""(reads, start, before, after, digits) -> (stop, the texts of reads[start:stop] one after the other). Read `stop` is the first that is not
one whole chunk that begins with `before` and ends with `after`, its own line end included, with the inside of a JSON string between.
`before` begins with `data: {`. `digits`: to how many the server pads its chunk sizes (0: not at all)."""


class ChunkStarts(dict[int, bytes]):
    """By total size of a read that is exactly one chunk with one event of JSON: the bytes it begins with, chunk size and `data: {` included;
    b"" where that is impossible. There is one such beginning for each size, so that one look-up and one comparison replace the parsing.
    """

    __slots__ = ("_digits",)

    def __init__(self, digits: int) -> None:
        self._digits = digits

    def __missing__(self, size: int) -> bytes:
        digits = self._digits
        self[size] = b""
        for width in (digits,) if digits else range(1, _MAX_LEAST_DIGITS + 1):
            body = size - width - 4
            if 0 < body < _MAX_CHUNK and len(b"%0*x" % (width, body)) == width and (digits or len(b"%x" % body) == width):
                self[size] = b"%0*x\r\ndata: {" % (width, body)
        return self[size]


@cache
def chunk_starts(digits: int) -> ChunkStarts:
    return ChunkStarts(digits)


def take_in_python(reads: Sequence[bytes], start: int, before: bytes, after: bytes, digits: int) -> tuple[int, str]:
    starts, framed = chunk_starts(digits), len(b"data: {")
    texts: list[str] = []
    for at in range(start, len(reads)):
        read = reads[at]
        begin = starts[len(read)]
        skip = len(begin) - framed
        if not (begin and read.startswith(begin) and read.endswith(after) and read.startswith(before, skip)):
            break
        text = _said(read[skip + len(before) : -len(after)])
        if not text:
            break
        texts.append(text)
    return start + len(texts), "".join(texts)


def _said(inside: bytes) -> str | None:
    r"""What the inside of a JSON string says; null where it is none or holds `\u`."""
    try:
        # No quote, backslash or control character: as it stands it is what the string says.
        if 34 not in inside and 92 not in inside and (text := inside.decode()).isprintable():
            return text
        return _decode_string(b'"%b"' % inside) if _INSIDE.fullmatch(inside) else None
    except NOT_PLAIN:
        return None


def _compiled() -> Take | None:
    try:
        from loadcell.wire import _alike
    except ImportError:  # installed where there was no compiler
        return None
    return _alike.take


COMPILED: Final = _compiled()
TAKE: Final = COMPILED or take_in_python
