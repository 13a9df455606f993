"""A run's news -> the terminal."""

from typing import TextIO

from loadcell.cli.live import LiveView
from loadcell.load.runner import Watcher
from loadcell.load.snapshot import Snapshot


class TerminalWatcher(Watcher):
    """Shows progress and notes on `out`; `silent` keeps the notes. `opening` is said when the load begins: a refusal is one line alone; empty: nothing."""

    def __init__(self, out: TextIO, opening: str, *, silent: bool) -> None:
        self._view = LiveView(out, silent=silent)
        self._opening = None if silent else opening

    def started(self) -> None:
        if self._opening:
            self.note(self._opening)
        self._view.start()

    def show(self, snapshot: Snapshot) -> None:
        self._view.show(snapshot)

    def note(self, text: str) -> None:
        self._view.note(f"loadcell: {text}")

    def stop(self) -> None:
        self._view.stop()
