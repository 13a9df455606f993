"""Signals while services are started or stopped. Before anything of ours runs, one leaves at once; from then on it is taken note of, what runs
is stopped in good order, and then the program leaves as it was asked to. A further one makes that quicker, never less complete.

Only the main thread gets signals from Python; elsewhere these do nothing.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from loadcell.signals import handled, leave

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
    with handled(_numbers(), _leave):
        yield


@contextmanager
def deferring(first: Callable[[], None], further: Callable[[], None]) -> Iterator[None]:
    """The first calls `first`, each later one `further`. After the block it is left as by `leaving`, however the block ended."""
    numbers: list[int] = []

    def asked(number: int) -> None:
        numbers.append(number)
        (first if len(numbers) == 1 else further)()

    try:
        with handled(_numbers(), asked):
            yield
    finally:
        if numbers:
            _leave(numbers[0])


def _leave(number: int) -> None:
    raise leave(number)


def _numbers() -> list[signal.Signals]:
    """One that is ignored stays so: `nohup` means it."""
    return [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
