import threading
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 30.0


def until(condition: Callable[[], Any]) -> None:
    """Look until it holds; yields the processor in between."""
    give_up = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < give_up, "it never came"
        pause.wait(0.01)
