"""A read that is a whole streamed response -> its head and the data of its events. That is how short answers come, thousands a second.

Anything that is not exactly the ordinary form (one chunked 200 of events with one data line each, all ended) is null here, and is read
by the general parsers, which say the same of what this takes.
"""

from functools import lru_cache
from typing import Final

from loadcell.wire.http1 import Head, InvalidResponseError, parse_head

_END: Final = b"\r\n0\r\n\r\n"
_MAX_DIGITS: Final = 8


def whole_stream(read: bytes) -> tuple[Head, list[bytes]] | None:
    """(head, data of the events in order), or null."""
    if not read.endswith(_END):
        return None
    body_at = read.find(b"\r\n\r\n") + 4
    head = _stream_head(read[:body_at])
    if head is None:
        return None
    # Size, data, size, data, …, "0", "", "": a line end inside a chunk's data makes a size wrong, and the general parser's work.
    frames = read[body_at:].split(b"\r\n")
    del frames[-3:]
    chunks = frames[1::2]
    if list(map(_size, frames[::2])) != list(map(len, chunks)):
        return None
    body = b"".join(chunks)
    if not body.startswith(b"data: ") or not body.endswith(b"\n\n") or b"\r" in body:
        return None
    events = body[6:-2].split(b"\n\ndata: ")
    return (head, events) if body.count(b"\n") == 2 * len(events) else None


@lru_cache(maxsize=64)
def _stream_head(block: bytes) -> Head | None:
    """The head, if it announces a chunked stream of events. Cached: a server repeats its head byte by byte, the date apart."""
    try:
        head = parse_head(block)
    except InvalidResponseError:
        return None
    is_stream = head.status == 200 and head.framing == "chunked" and not head.coding and "event-stream" in head.content_type
    return head if is_stream else None


@lru_cache(maxsize=4096)
def _size(text: bytes) -> int:
    """A chunk's size, without extensions; -1 for anything else. Zero is not a chunk of data."""
    if not text.isalnum() or len(text) > _MAX_DIGITS:
        return -1
    try:
        return int(text, 16) or -1
    except ValueError:
        return -1
