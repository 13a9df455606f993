"""Bytes -> server-sent events (WHATWG HTML, 9.2.6), whatever the split into reads.

Works on bytes throughout: a character cut in two between reads is whole again before anything is decoded, and U+2028 is
data. Knows nothing of HTTP or JSON. Lines have no length limit; memory is that of one event.
"""

from typing import Final

BOM: Final = b"\xef\xbb\xbf"

SseEvent = tuple[bytes, bytes]
"""(event name, b"" when unnamed; data, its lines joined by LF)"""


class SseParser:
    """One stream. `feed` gives the events that a read completes, `finish` what an end of the body leaves unterminated."""

    __slots__ = ("_after_cr", "_data", "_fresh", "_line", "_name")

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._name = b""
        self._after_cr = False
        self._fresh = True

    @property
    def at_boundary(self) -> bool:
        """Whether nothing is pending, so that the next byte begins an event."""
        return self._idle and not self._fresh

    @property
    def _idle(self) -> bool:
        return not (self._line or self._data or self._name or self._after_cr)

    def feed(self, data: bytes) -> list[SseEvent]:
        events: list[SseEvent] = []
        if not data:
            return events
        # A CR ends its line at once; the LF of a CRLF that was cut in two is then swallowed here.
        if self._after_cr and data[:1] == b"\n":
            data = data[1:]
            self._after_cr = False
        if data:
            self._after_cr = data.endswith(b"\r")
        if data.startswith(b"data: ") and data.endswith(b"\n\n") and self._idle and b"\r" not in data:
            # Whole events of one data line each, as most reads hold: one split instead of a look at every line.
            payloads = data[6:-2].split(b"\n\ndata: ")
            if data.count(b"\n") == 2 * len(payloads):
                self._fresh = False
                return [(b"", payload) for payload in payloads]
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._line:
            self._line.append(lines[0])
            lines[0] = b"".join(self._line)
            self._line.clear()
        for line in lines:
            # An event of one data line, in full: what `_take_line` does with anything, without the calls.
            if line[:6] == b"data: " and not self._fresh:
                self._data.append(line[6:])
            elif not line and len(self._data) == 1:
                events.append((self._name, self._data.pop()))
                self._name = b""
            else:
                self._take_line(line, events)
        if rest:
            self._line.append(rest)
        return events

    def finish(self) -> SseEvent | None:
        """The event that the end of the body left without its blank line; null when there is none.

        The specification drops it; servers that end with `data: [DONE]` and no line end are common, so the caller decides.
        """
        if self._line:
            self._take_line(b"".join(self._line), [])
            self._line.clear()
        if not self._data:
            return None
        event = (self._name, b"\n".join(self._data))
        self._data.clear()
        self._name = b""
        return event

    def _take_line(self, line: bytes, events: list[SseEvent]) -> None:
        if self._fresh:
            line = line.removeprefix(BOM)
            self._fresh = False
        if not line:
            if self._data:
                events.append((self._name, self._data[0] if len(self._data) == 1 else b"\n".join(self._data)))
                self._data.clear()
            self._name = b""
        elif line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        else:
            self._take_field(line)

    def _take_field(self, line: bytes) -> None:
        """Any line but `data:`; comments, `id` and `retry` mean nothing to a measurement."""
        field, _, value = line.partition(b":")
        if field == b"event":
            self._name = value.removeprefix(b" ")
        elif line == b"data":
            self._data.append(b"")
