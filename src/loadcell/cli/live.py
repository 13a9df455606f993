"""Snapshots -> what a person sees while a run goes on: a live display on a terminal, a plain line now and then elsewhere.

Reads no clock: a snapshot says when it was taken. rich is imported by `start`, which is called once the first request is on its way.
"""

import math
from typing import TYPE_CHECKING, Final, TextIO

from loadcell.load.snapshot import Snapshot
from loadcell.report.figures import MISSING, count, ms, one_line, rate

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

REFRESH_S: Final = 0.25
PLAIN_S: Final = 10.0
_MAX_ENDPOINTS: Final = 8
_BAR: Final = 30


class LiveView:
    """`start()`, then `show(snapshot)` as often as one likes, `stop()` at the end; `note(text)` says something in between.

    Not more than 4 refreshes a second are drawn; elsewhere than on a terminal a line every 10 s, and the first and the last.
    `silent` shows no progress; notes are still printed.
    """

    def __init__(self, out: TextIO, *, silent: bool = False) -> None:
        self._out = out
        self._silent = silent
        self._live: Live | None = None
        self._drawn_s = -math.inf
        self._started = False
        self._last: Snapshot | None = None
        self._pending = False

    def start(self) -> None:
        """The first request has been sent."""
        self._started = True
        if self._silent or not self._out.isatty():
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._out, highlight=False)
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._live.start()

    def show(self, snapshot: Snapshot) -> None:
        """Draw `snapshot`, or keep it as the last one when the display was just drawn."""
        self._last, self._pending = snapshot, True
        every_s = PLAIN_S if self._live is None else REFRESH_S
        if self._started and not self._silent and snapshot.elapsed_s - self._drawn_s >= every_s:
            self._draw(snapshot)

    def note(self, text: str) -> None:
        """One line above the display."""
        if self._live is None:
            self._write(one_line(text, 400))
            return
        from rich.text import Text

        self._live.console.print(Text(one_line(text, 400)))

    def stop(self) -> None:
        """Draw the last state and give the terminal back. Safe to call twice, and without a start."""
        if self._started and not self._silent and self._last is not None and self._pending:
            self._draw(self._last)
        if self._live is not None:
            self._live.stop()
            self._live = None
            if self._last is not None:
                self._write(plain_line(self._last))
        self._silent = True

    def _draw(self, snapshot: Snapshot) -> None:
        self._drawn_s, self._pending = snapshot.elapsed_s, False
        if self._live is None:
            self._write(plain_line(snapshot))
        else:
            self._live.update(_drawing(snapshot), refresh=True)

    def _write(self, line: str) -> None:
        self._out.write(line + "\n")
        self._out.flush()


def plain_line(snapshot: Snapshot) -> str:
    """`[  10 s] measure 120/640, 32 in flight, 12.00 req/s, …`: everything on one line."""
    parts = [
        f"[{snapshot.elapsed_s:5.0f} s] {snapshot.phase} {_progress(snapshot)}",
        *([f"{snapshot.failed} failed"] if snapshot.failed else []),
        f"{_in_flight(snapshot)} in flight",
        rate(snapshot.rate_rps, "req/s"),
        rate(snapshot.tokens_per_s, "tok/s"),
        f"TTFT p50 {ms(snapshot.ttft_ms_p50)}",
        f"TPOT p50 {ms(snapshot.tpot_ms_p50)}",
        f"endpoints {_health(snapshot)}",
        f"{_left(snapshot)} left",
    ]
    return ", ".join(parts)


def _drawing(snapshot: Snapshot) -> "RenderableType":
    from rich.text import Text

    share = min(1.0, snapshot.done / snapshot.planned) if snapshot.planned else _time_share(snapshot)
    full = 0 if share is None else round(_BAR * share)
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{snapshot.phase:<8}", style="bold")
    text.append("━" * full, style="green")
    text.append("━" * (_BAR - full), style="dim")
    text.append(f" {_progress(snapshot)}")
    text.append(f"  {snapshot.failed} failed" if snapshot.failed else "", style="red")
    text.append(f"  {_clock(snapshot.elapsed_s)} gone, {_left(snapshot)} left\n")
    text.append(f"{'':8}{_in_flight(snapshot)} in flight  {rate(snapshot.rate_rps, 'req/s')}  {rate(snapshot.tokens_per_s, 'tok/s')}")
    text.append(f"  TTFT p50 {ms(snapshot.ttft_ms_p50)}  TPOT p50 {ms(snapshot.tpot_ms_p50)}")
    shown = sorted(snapshot.endpoints, key=lambda one: one[1] == "healthy")[:_MAX_ENDPOINTS]
    for name, state, in_flight in shown:
        text.append(f"\n{'':8}{one_line(name, 60)}  ")
        text.append(state, style="green" if state == "healthy" else "red")
        text.append(f"  {in_flight} in flight")
    if len(snapshot.endpoints) > len(shown):
        text.append(f"\n{'':8}and {len(snapshot.endpoints) - len(shown)} more; {_health(snapshot)}")
    return text


def _progress(snapshot: Snapshot) -> str:
    return count(snapshot.done) if snapshot.planned is None else f"{count(snapshot.done)}/{count(snapshot.planned)}"


def _time_share(snapshot: Snapshot) -> float | None:
    if snapshot.left_s is None:
        return None
    whole_s = snapshot.elapsed_s + snapshot.left_s
    return snapshot.elapsed_s / whole_s if whole_s > 0 else None


def _in_flight(snapshot: Snapshot) -> str:
    return count(snapshot.in_flight) if snapshot.cap is None else f"{count(snapshot.in_flight)}/{count(snapshot.cap)}"


def _health(snapshot: Snapshot) -> str:
    healthy = sum(state == "healthy" for _, state, _ in snapshot.endpoints)
    return f"{healthy}/{len(snapshot.endpoints)} healthy"


def _left(snapshot: Snapshot) -> str:
    return MISSING if snapshot.left_s is None else _clock(snapshot.left_s)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{rest} s" if not minutes else f"{minutes}:{rest:02d} min"
