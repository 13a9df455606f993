"""Appends access-log lines, at most 50 ms late, outside the path of tokens."""

import os
from asyncio import AbstractEventLoop, TimerHandle
from typing import Final

from loadcell.errors import EnvironmentFailure
from loadcell.sim.accesslog import AccessLine, encode_line

_LATEST_S: Final = 0.05


class LogWriter:
    """Buffers whole lines. Without a path it keeps nothing. Several writers may append to one file: lines stay whole."""

    def __init__(self, path: str | None, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: list[bytes] = []
        self._timer: TimerHandle | None = None
        self._fd = -1
        if path is not None:
            try:
                self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise EnvironmentFailure(f"--access-log {path}: {error.strerror}") from error

    @property
    def wanted(self) -> bool:
        return self._fd >= 0

    def write(self, line: AccessLine) -> None:
        if self._fd < 0:
            return
        self._lines.append(encode_line(line))
        if self._timer is None:
            self._timer = self._loop.call_later(_LATEST_S, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        data = memoryview(b"".join(self._lines))
        self._lines.clear()
        while data:
            data = data[os.write(self._fd, data) :]

    def close(self) -> None:
        if self._fd >= 0:
            self.flush()
            os.close(self._fd)
            self._fd = -1
