"""Several slow calls at once. The caller's thread stays open to signals, and every call has ended when this returns or raises."""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Calls(Generic[Result]):
    """Begun at once, one thread each. `first_failure`: the first exception of any."""

    def __init__(self, calls: Sequence[Callable[[], Result]], name: str) -> None:
        self._results: list[Result] = [None] * len(calls)  # type: ignore[list-item]  # each is set before it is read
        self.first_failure: BaseException | None = None
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._running = len(calls)
        self._threads = [threading.Thread(target=self._run, args=(at, call), name=f"{name}-{at}") for at, call in enumerate(calls)]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Until all have ended, or the first has failed."""
        with self._ended:
            while self._running and self.first_failure is None:
                self._ended.wait(1.0)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def all_results(self) -> list[Result]:
        """Once all have ended and none has failed."""
        return list(self._results)

    def _run(self, at: int, call: Callable[[], Result]) -> None:
        try:
            self._results[at] = call()
        except BaseException as failure:  # noqa: BLE001  (raised again, or told, by who began the calls)
            with self._lock:
                self.first_failure = self.first_failure or failure
        with self._ended:
            self._running -= 1
            self._ended.notify_all()


def together(calls: Sequence[Callable[[], Result]], name: str) -> list[Result]:
    """All results, in order. Raises the first failure, once all have ended."""
    running = Calls(calls, name)
    running.join()
    if running.first_failure is not None:
        raise running.first_failure
    return running.all_results()
