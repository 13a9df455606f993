"""Bytes <-> HTTP/1.1 messages (RFC 9112): request heads out, one response in, incrementally.

`ResponseParser` turns reads into a `Head` and body bytes, whatever the split. It knows nothing of sockets, of time, or of
what the body means. What a server does wrong ends up in `invalid` as one line; nothing here raises on received bytes.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Literal

from msgspec import Struct

from loadcell.errors import UserError

Framing = Literal["chunked", "length", "close", "none"]

MAX_HEADER_BYTES: Final = 65_536
MAX_LINE_BYTES: Final = 16_384
MAX_INTERIM: Final = 32
_ENDLESS: Final = 1 << 62

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([0-9]) ([1-9][0-9]{2})(?: [^\r\n]*)?[ \t]*\Z")
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_HEAD, _BODY, _SIZE, _DATA, _DATA_END, _TRAILER = range(6)
_ZERO: Final = ord("0")
_HEX: Final = b"0123456789abcdefABCDEF"
_CODINGS: Final = frozenset({"", "identity"})


class InvalidResponseError(Exception):
    """The bytes are not the HTTP/1 response they claim to be. Never leaves this room."""


class Head(Struct, frozen=True):
    """The final (not 1xx) response head. Header names are lower case; values keep their bytes as latin-1.

    `length` is the Content-Length of a length-framed body, 0 where there is no body, else null.
    `content_type` and `coding` (the first Content-Encoding that is none of ours) are lower case, "" when absent.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    keep_alive: bool
    framing: Framing
    length: int | None = None
    content_type: str = ""
    coding: str = ""

    def get(self, name: str) -> str | None:
        """All values of `name` (lower case) joined by ", ", as RFC 9110 5.2 combines them; null when absent."""
        values = [value for key, value in self.headers if key == name]
        return ", ".join(values) if values else None


def request_head(
    method: str,
    target: str,
    host: str,
    port: int,
    scheme: str,
    headers: Iterable[tuple[str, str]] = (),
    content_length: int | None = None,
) -> bytes:
    """The head of one request, ending in the blank line.

    `headers` replace ours of the same name, whatever its case. Authorization is sent only if it is among them.
    Raises UserError for a header that would break the message (CR, LF, NUL, a bad name, or one that fixes the framing).
    """
    ours = {"host": ("Host", host_header(host, port, scheme)), "user-agent": ("User-Agent", "loadcell")}
    ours["accept"] = ("Accept", "text/event-stream, application/json")
    # A compressed stream could not be stamped token by token; a server that compresses anyway is refused by name.
    ours["accept-encoding"] = ("Accept-Encoding", "identity")
    if content_length is not None:
        ours["content-type"] = ("Content-Type", "application/json")
    lines = [b"%b %b HTTP/1.1" % (method.encode("ascii"), _request_target(target))]
    theirs: list[bytes] = []
    for name, value in headers:
        theirs.append(_header_line(name, value))
        ours.pop(name.lower(), None)
    lines += [_header_line(name, value) for name, value in ours.values()]
    lines += theirs
    if content_length is not None:
        lines.append(b"Content-Length: %d" % content_length)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def host_header(host: str, port: int, scheme: str) -> str:
    """Host header value: brackets around IPv6, no zone, no default port."""
    shown = f"[{host.partition('%')[0]}]" if ":" in host else host
    return shown if port == {"http": 80, "https": 443}.get(scheme) else f"{shown}:{port}"


def bearer(key: str | None) -> tuple[tuple[str, str], ...]:
    """The Authorization header for `key`; none at all for a key that is null or blank."""
    key = (key or "").strip()
    return (("Authorization", f"Bearer {key}"),) if key else ()


def _request_target(target: str) -> bytes:
    raw = target.encode("utf-8")
    if not raw or any(byte <= 0x20 or byte == 0x7F for byte in raw):
        raise UserError(f"request path {target!r} is empty or holds a space or control character: percent-encode it")
    return raw


def _header_line(name: str, value: str) -> bytes:
    raw_name, raw_value = name.encode("utf-8", "replace"), value.encode("utf-8", "replace").strip(b" \t")
    if not _TOKEN.match(raw_name):
        raise UserError(f"--header name {name!r} is not a header name: letters, digits and '-' only")
    if re.search(rb"[\r\n\0]", raw_value):
        # The value may be a secret: the text names the header alone.
        raise UserError(f"--header {name}: the value holds a line break or NUL: remove it")
    if name.lower() in ("content-length", "transfer-encoding"):
        raise UserError(f"--header {name} cannot be set: the length is that of the body; remove it")
    return raw_name + b": " + raw_value


class ResponseParser:
    """One response, fed read by read. `feed` gives the body bytes of a read, framing removed.

    `head` is null until the header is complete; `complete` when the framing says that the body has ended; `invalid` holds
    one line when the bytes are no valid response (nothing is read after that); `surplus` when bytes follow the body.
    `chunk_digits` is how many digits this server pads its chunk sizes to (0: none).
    `left` is what is still to come: of the whole body (framing "length"; as good as endless: "close") or of the current chunk.
    """

    __slots__ = (
        "_buffer",
        "_interim",
        "_stage",
        "_trailer_bytes",
        "chunk_digits",
        "complete",
        "head",
        "invalid",
        "left",
        "status_seen",
        "surplus",
    )

    def __init__(self) -> None:
        self.head: Head | None = None
        self.complete = False
        self.invalid: str | None = None
        self.surplus = False
        self.status_seen = False
        self.left = 0
        self.chunk_digits = 0
        self._stage = _HEAD
        self._buffer = b""
        self._interim = 0
        self._trailer_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Body bytes that this read holds (b"" while in the head, after the end, or once invalid)."""
        if self.complete or self.invalid is not None:
            self.surplus = self.surplus or bool(data)
            return b""
        try:
            if self.head is None:
                return self._read_head(data)
            return self._read_body(self.head, data)
        except InvalidResponseError as error:
            self.invalid = str(error)
            self._buffer = b""
            return b""

    @property
    def untouched(self) -> bool:
        """Whether nothing has been fed yet."""
        return self.head is None and not self._buffer and not self._interim and self.invalid is None

    def end_with(self, head: Head) -> None:
        """The whole response, `head` to the end of its body, was read elsewhere."""
        self.head = head
        self.status_seen = self.complete = True

    def eof(self) -> None:
        """The peer closed. Completes a close-delimited body; any other is left incomplete."""
        if self.head is not None and self.head.framing == "close" and self.invalid is None:
            self.complete = True

    @property
    def at_boundary(self) -> bool:
        """Whether the next byte begins a chunk (chunked) or is body (else)."""
        return not self.complete and self.invalid is None and not self._buffer and self._stage in (_SIZE, _BODY)

    def _read_head(self, data: bytes) -> bytes:
        buffer = self._buffer + data
        while True:
            # Tolerated before a status line (RFC 9112 2.2): a stray line end of the message before.
            buffer = buffer.lstrip(b"\r\n")
            self.status_seen = b"\n" in buffer and not _is_interim(buffer)
            end = _head_end(buffer)
            if end is None:
                if len(buffer) > MAX_HEADER_BYTES:
                    raise InvalidResponseError(f"response header longer than {MAX_HEADER_BYTES} bytes")
                if not b"HTTP/1.".startswith(buffer[:7]):
                    raise InvalidResponseError(f"not an HTTP/1 response: {excerpt(buffer[:40])}")
                self._buffer = buffer
                return b""
            if end > MAX_HEADER_BYTES:
                raise InvalidResponseError(f"response header longer than {MAX_HEADER_BYTES} bytes")
            head = parse_head(buffer[:end])
            buffer = buffer[end:]
            if head.status >= 200:
                break
            self._interim += 1
            if head.status == 101 or self._interim > MAX_INTERIM:
                raise InvalidResponseError(
                    "unasked protocol switch (101)" if head.status == 101 else f"more than {MAX_INTERIM} interim responses"
                )
        self._buffer = b""
        self.head = head
        self._stage = _SIZE if head.framing == "chunked" else _BODY
        self.left = _ENDLESS if head.framing == "close" else head.length or 0
        self.complete = head.framing in ("none", "length") and self.left == 0
        if head.coding and 200 <= head.status < 300 and not self.complete:
            raise InvalidResponseError(
                f"Content-Encoding {excerpt(head.coding.encode())} although identity was asked for: switch compression off"
            )
        if self.complete:
            self.surplus = bool(buffer)
            return b""
        return self._read_body(head, buffer)

    def _read_body(self, head: Head, data: bytes) -> bytes:
        if head.framing == "chunked":
            return self._read_chunked(data)
        if head.framing == "length":
            if len(data) > self.left:
                self.surplus, data = True, data[: self.left]
            self.left -= len(data)
            self.complete = self.left == 0
        return data

    def _read_chunked(self, data: bytes) -> bytes:
        parts: list[bytes] = []
        try:
            self._dechunk(data, parts)
        except InvalidResponseError as error:
            # What came before the fault is still an answer's bytes.
            self.invalid = str(error)
            self._buffer = b""
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _dechunk(self, data: bytes, parts: list[bytes]) -> None:
        at, size = 0, len(data)
        while at < size:
            if self._stage == _DATA:
                part = data[at : at + self.left]
                parts.append(part)
                at += len(part)
                self.left -= len(part)
                if self.left == 0:
                    self._stage = _DATA_END
                continue
            end = data.find(b"\n", at)
            if self._stage == _SIZE and not self._buffer and (left := _SIZES.get(data[at : end + 1])):
                # A size seen before, its chunk whole in this read: as most are.
                stop = end + 1 + left
                if data[stop : stop + 2] == b"\r\n":
                    parts.append(data[end + 1 : stop])
                    if data[at] == _ZERO:
                        self.chunk_digits = end - at - 1
                    at = stop + 2
                    continue
            if end < 0:
                self._buffer += data[at:]
                self._check_unfinished_line()
                return
            line, at = self._buffer + data[at : end + 1], end + 1
            self._buffer = b""
            if not line.endswith(b"\r\n"):
                raise InvalidResponseError("bad chunk framing: a line does not end in CRLF")
            if self._stage == _SIZE:
                self._begin_chunk(line[:-2])
                end = at + self.left
                # Most chunks lie whole in one read.
                if self.left and data[end : end + 2] == b"\r\n":
                    parts.append(data[at:end])
                    at, self.left, self._stage = end + 2, 0, _SIZE
            else:
                self._end_line(line[:-2])
                if self.complete:
                    self.surplus = at < size
                    return

    def _check_unfinished_line(self) -> None:
        if len(self._buffer) > MAX_LINE_BYTES:
            raise InvalidResponseError(f"chunk header longer than {MAX_LINE_BYTES} bytes")
        if self._stage == _DATA_END and self._buffer != b"\r":
            raise InvalidResponseError("bad chunk framing: chunk data is longer than its size")

    def _begin_chunk(self, line: bytes) -> None:
        self.left = _chunk_size(line)
        self._stage = _DATA if self.left else _TRAILER
        if line[0] == _ZERO and self.left:
            self.chunk_digits = len(line)
        if self.left and len(line) <= _KNOWN_DIGITS and len(_SIZES) < _MOST_SIZES:
            _SIZES[line + b"\r\n"] = self.left

    def _end_line(self, line: bytes) -> None:
        """The line end after a chunk's data, or a line of the trailers."""
        if self._stage == _DATA_END:
            if line:
                raise InvalidResponseError("bad chunk framing: chunk data is longer than its size")
            self._stage = _SIZE
            return
        self._trailer_bytes += len(line)
        if self._trailer_bytes > MAX_HEADER_BYTES:
            raise InvalidResponseError(f"trailers longer than {MAX_HEADER_BYTES} bytes")
        self.complete = not line


# Short size lines read before -> the size; zero, which ends the body, is looked at closely each time.
_SIZES: Final[dict[bytes, int]] = {}
_KNOWN_DIGITS: Final = 4
_MOST_SIZES: Final = 1 << 12


@lru_cache(maxsize=1024)
def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].rstrip(b" \t")
    if not digits or len(digits) > 16 or digits.strip(_HEX):
        raise InvalidResponseError(f"bad chunk size {excerpt(line[:40])}")
    return int(digits, 16)


def _is_interim(buffer: bytes) -> bool:
    return buffer[:7] == b"HTTP/1." and buffer[8:10] == b" 1"


def _head_end(buffer: bytes) -> int | None:
    """Index after the blank line. A bare LF is taken as a line end here (RFC 9112 2.2 allows it)."""
    crlf, lf = buffer.find(b"\n\r\n"), buffer.find(b"\n\n")
    if crlf < 0 and lf < 0:
        return None
    return crlf + 3 if lf < 0 or 0 <= crlf < lf else lf + 2


@lru_cache(maxsize=64)
def parse_head(block: bytes) -> Head:
    """One head, status line to blank line. Cached: a server repeats its head byte by byte, the date apart.

    Raises InvalidResponseError (a line that names the fault).
    """
    first, *rest = block.rstrip(b"\r\n").replace(b"\r\n", b"\n").split(b"\n")
    matched = _STATUS_LINE.match(first)
    if matched is None:
        raise InvalidResponseError(f"not an HTTP/1 status line: {excerpt(first[:60])}")
    headers = _header_fields(rest)
    status, http11 = int(matched[2]), matched[1] != b"0"
    framing, length, sound = _framing(status, headers)
    connection = _list_of(headers, "connection")
    keep_alive = sound and framing != "close" and ("close" not in connection if http11 else "keep-alive" in connection)
    return Head(
        status=status,
        headers=headers,
        keep_alive=keep_alive,
        framing=framing,
        length=length,
        content_type=next(iter(_list_of(headers, "content-type")), ""),
        coding=next((name for name in _list_of(headers, "content-encoding") if name not in _CODINGS), ""),
    )


def _header_fields(lines: list[bytes]) -> tuple[tuple[str, str], ...]:
    fields: list[tuple[str, str]] = []
    for line in lines:
        if line[:1] in (b" ", b"\t"):
            if not fields:
                raise InvalidResponseError("response header begins with a folded line")
            name, value = fields.pop()
            folded = line.strip(b" \t").decode("latin-1")
            fields.append((name, f"{value} {folded}".strip()))
            continue
        raw_name, colon, raw_value = line.partition(b":")
        if not colon or not _TOKEN.match(raw_name):
            raise InvalidResponseError(f"bad response header line: {excerpt(line[:60])}")
        fields.append((raw_name.decode("ascii").lower(), raw_value.strip(b" \t").decode("latin-1")))
    return tuple(fields)


def _list_of(headers: tuple[tuple[str, str], ...], name: str) -> list[str]:
    return [part.strip().lower() for key, value in headers if key == name for part in value.split(",")]


def _framing(status: int, headers: tuple[tuple[str, str], ...]) -> tuple[Framing, int | None, bool]:
    """RFC 9112 6.3: (framing, length, whether the connection may be used again)."""
    if status < 200 or status in (204, 304):
        return "none", 0, True
    codings = [name for name in _list_of(headers, "transfer-encoding") if name not in _CODINGS]
    lengths = set(_list_of(headers, "content-length"))
    if codings:
        if codings != ["chunked"]:
            raise InvalidResponseError(f"Transfer-Encoding {excerpt(', '.join(codings).encode())} is not understood")
        # Both lengths are given: chunked counts, and the connection is not trusted again.
        return "chunked", None, not lengths
    if not lengths:
        return "close", None, False
    if len(lengths) > 1:
        raise InvalidResponseError("conflicting Content-Length values")
    (text,) = lengths
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidResponseError(f"bad Content-Length {excerpt(text.encode())}")
    return "length", int(text), True


def excerpt(raw: bytes) -> str:
    """Received bytes as a short, printable, one-line quotation."""
    return repr(raw.decode("utf-8", "replace"))
