"""Signals while services are started or stopped. Before anything of ours runs, one leaves at once; from then on it is taken note of, what runs
is stopped in good order, and then the program leaves as it was asked to. A further one makes that quicker, never less complete.

Only the main thread gets signals from Python; elsewhere these do nothing.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Flag:
    """Raised once, never lowered. A signal's handler may raise it wherever it strikes: unlike an Event, it holds no lock. `above` raises it too."""

    def __init__(self, above: "Flag | None" = None) -> None:
        self._raised, self._above = False, above

    def set(self) -> None:
        self._raised = True

    def is_set(self) -> bool:
        return self._raised or (self._above is not None and self._above.is_set())


@contextmanager
def leaving() -> Iterator[None]:
    """Each raises KeyboardInterrupt or SystemExit(128 + number) where the block stands."""
    with _handled(lambda number, _: _leave(number)):
        yield


@contextmanager
def deferring(first: Callable[[], None], further: Callable[[], None]) -> Iterator[None]:
    """The first calls `first`, each later one `further`. After the block it is left as by `leaving`, however the block ended."""
    numbers: list[int] = []

    def asked(number: int, _: FrameType | None) -> None:
        numbers.append(number)
        (first if len(numbers) == 1 else further)()

    try:
        with _handled(asked):
            yield
    finally:
        if numbers:
            _leave(numbers[0])


def _leave(number: int) -> None:
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


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
            signal.signal(number, signal.SIG_DFL if old is None else old)
