"""Signals that ask for the end, for the length of a block. What is then done is the business of who asks: a load drains, a fleet is stopped.

Only the main thread gets signals from Python; elsewhere these do nothing.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def handled(numbers: Sequence[signal.Signals], handler: Callable[[int], None]) -> Iterator[None]:
    """Call `handler` with the number of each such signal inside the block; afterwards they do what they did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda number, _: handler(number)) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


def leave(number: int) -> BaseException:
    """What to raise to leave on a signal: the exit code is 130 for Ctrl-C, else 128 + number."""
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
