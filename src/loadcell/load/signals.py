"""Ctrl-C and SIGTERM while a load runs: the first ends it gently, the second at once. What that means is the caller's business."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from loadcell.signals import handled, leave

__all__ = ["catching", "held_back", "ignored", "leave"]

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def catching(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Call `on_signal` with the number of each such signal inside the block. Outside the main thread Python gives us none."""
    with handled(_ENDING, on_signal):
        yield


@contextmanager
def held_back() -> Iterator[None]:
    """Neither is delivered inside the block: processes that are started there inherit that, and let them in when they are ready."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignored() -> None:
    """For a worker, whose end is control's decision; whatever was held back is forgotten."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
