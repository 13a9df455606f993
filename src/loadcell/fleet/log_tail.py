"""Follows a service's log through its host: the lines that are new, and the last ones for an error. Knows nothing of what they mean.

Progress bars end their lines with a carriage return; each is a line here too, so that a slow load shows as life.
"""

import re
from collections import deque
from typing import Final

from loadcell.fleet.hosts.host import Host

_READ: Final = 1 << 20
_BEHIND: Final = 8 << 20
_LINE_CAP: Final = 8_192
_KEPT: Final = 40
_ENDS: Final = re.compile(rb"[\r\n]+")


class LogTail:
    """Begins at the log's present end: what an earlier start wrote there is not this one's."""

    def __init__(self, host: Host, path: str) -> None:
        self._host = host
        self.path = path
        self.last: deque[str] = deque(maxlen=_KEPT)
        self.offset = host.read_log(path, -1)[0]
        self._part = b""

    def new_lines(self, size: int) -> list[str]:
        """The lines since the last call. `size`: bytes ever written to the log. Raises HostUnreachable.

        At most 1 MiB is read, so that a flood delays nothing; where it is far ahead, the bytes between are left out.
        """
        if size - self.offset > _BEHIND:
            self.offset, self._part = size - _READ, b""
        self.offset, data = self._host.read_log(self.path, self.offset, _READ)
        *whole, rest = _ENDS.split(self._part + data)
        if len(rest) > _LINE_CAP:
            whole, rest = [*whole, rest], b""
        self._part = rest
        lines = [_text(line) for line in whole if line.strip()]
        self.last.extend(lines)
        return lines

    def rest(self, size: int) -> list[str]:
        """After the end: what has come since, and the last line although nothing ends it."""
        lines = self.new_lines(size)
        while self.offset < size:
            before = self.offset
            lines += self.new_lines(size)
            if self.offset == before:
                break
        if self._part.strip():
            lines.append(_text(self._part))
            self.last.append(lines[-1])
        self._part = b""
        return lines


def _text(line: bytes) -> str:
    return "".join(char if char.isprintable() or char == "\t" else "�" for char in line[:_LINE_CAP].decode("utf-8", "replace")).rstrip()
