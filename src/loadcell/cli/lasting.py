"""Where a long command tells of its progress: a stream whose reader may leave (`2>&1 | head`, a terminal that is gone) without ending what goes on."""

import contextlib
import os
from typing import Any, TextIO, cast


class Lasting:
    """Writes as long as anybody reads. All else is the stream's own; null (closed from the start) is a reader who left before."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._left_alone():
            if self._stream is not None:
                return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._left_alone():
            if self._stream is not None:
                self._stream.flush()

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _left_alone(self) -> Any:
        try:
            yield
        except (OSError, ValueError):  # the reader left, or somebody closed it
            # What is still in its buffer goes nowhere, so that the flush at the interpreter's exit finds a reader.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), cast(TextIO, self._stream).fileno())
            self._stream = None


def lasting(stream: TextIO | None) -> TextIO:
    return cast(TextIO, Lasting(stream))
