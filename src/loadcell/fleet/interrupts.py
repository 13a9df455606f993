"""Signals while services are started or stopped: the first leaves in good order, so that no process of ours is left; a further one hurries.

Only the main thread gets signals from Python; elsewhere these do nothing.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def leaving() -> Iterator[None]:
    """Each raises KeyboardInterrupt or SystemExit(128 + number) where the block stands."""

    def leave(number: int, _: FrameType | None) -> None:
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    with _handled(leave):
        yield


@contextmanager
def hurrying(hurry: Callable[[], None]) -> Iterator[None]:
    """Each calls `hurry`; the block runs to its end, and its caller then leaves as it was going to."""
    with _handled(lambda *_: hurry()):
        yield


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # One that is ignored stays so: `nohup` means it.
    numbers = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
