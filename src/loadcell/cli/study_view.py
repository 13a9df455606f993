"""A study's news -> the terminal: a line per trial as it ends; below, where a terminal is, a display of the trial that runs and of the whole study.

Elsewhere than on a terminal there are only lines: as a trial begins, and as it ends, with how the study stands.
"""

import shutil
from typing import TYPE_CHECKING, Final, TextIO

from loadcell.clock import NS_PER_S, MonotonicClock
from loadcell.load.runner import Watcher
from loadcell.load.snapshot import Snapshot
from loadcell.report import study_terminal
from loadcell.report.figures import one_line
from loadcell.report.files import REPORT_NAME
from loadcell.report.study import StudyResults
from loadcell.report.study_tables import AS_IT_IS, duration, figure, second_text, shown, value_text
from loadcell.report.terminal import WIDTH
from loadcell.tune.events import Began
from loadcell.tune.objective import UNITS
from loadcell.tune.outcome import MEASURED, TrialPhase, TrialResult
from loadcell.tune.prepare import Prepared, Watching
from loadcell.tune.reporting import BEST
from loadcell.tune.spec import objectives
from loadcell.tune.standing import SECOND, Spent, front, incumbent, seconds_of

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from loadcell.tune.events import Closed

_WIDTH: Final = 160
_NOTHING: Final = "nothing within the limits yet"
_PHASES: Final[dict[TrialPhase, str]] = {
    "plan": "planning",
    "launch": "starting",
    "warmup": "warming up",
    "measure": "measuring",
    "stop": "stopping",
    "report": "reporting",
}


class StudyView(Watching):
    """Progress on `err`, the answer on `out`. `quiet`: only what went wrong. What the display shows is kept as it changes: another thread draws it."""

    def __init__(self, out: TextIO, err: TextIO, *, quiet: bool) -> None:
        self._out, self._err, self._quiet = out, err, quiet
        self._clock = MonotonicClock()
        self._ready: Prepared | None = None
        self._live: Live | None = None
        self._began: Began | None = None
        self._began_ns = 0
        self._phase: TrialPhase = "plan"
        self._snapshot: Snapshot | None = None
        self._spent = Spent()
        self._spent_ns = 0
        self._best = self._done = ""
        self._in_search = True
        self._said: set[str] = set()

    def opening(self, ready: Prepared) -> None:
        """What is about to happen, before the first service starts."""
        spec, space = ready.spec, ready.study.space
        self._ready = ready
        self._stands(ready.study.spent())
        size, count = space.size(), len(space.searched)
        many = "more configurations than can be counted" if size is None else f"{size} configurations"
        known = len(ready.record.results)
        self._say(
            f"loadcell: {spec.study.name}: {count} parameter{'' if count == 1 else 's'}, {many}; budget {_budget(ready)}; folder {ready.folder}"
            + (f"; {known} trials are known" if known else "")
        )
        if self._quiet or not self._err.isatty():
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._err, highlight=False)
        if console.is_dumb_terminal:
            return
        self._live = Live(
            console=console,
            refresh_per_second=2,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            get_renderable=self._drawing,
        )
        self._live.start()

    def stage(self, text: str) -> None:
        self._in_search = text == "search"
        self._say(f"loadcell: {text}")

    def began(self, began: Began) -> None:
        self._phase, self._snapshot, self._began_ns = "plan", None, self._clock.now_ns()
        self._began = began
        if self._live is None:
            self._say(f"loadcell: {label(began)}: {self._shown(began)}")

    def phase(self, number: int, phase: TrialPhase) -> None:  # noqa: ARG002
        self._phase = phase

    def load(self, number: int) -> Watcher:  # noqa: ARG002
        return _Load(self)

    def snapshot(self, snapshot: Snapshot) -> None:
        """How far the load of the trial is."""
        self._snapshot = snapshot

    def ended(self, result: TrialResult, spent: Spent) -> None:
        began, self._began = self._began, None
        self._stands(spent)
        told = trial_line(result, self._values(result))
        if self._live is not None and began is not None:  # the display has the rest
            self._say(f"{label(began)}: {told}: {self._shown(began)}{_why(result)}")
            return
        best = f" · {self._best}" if result.kind not in ("confirm", "revert") else ""
        left = self._left()
        self._say(f"loadcell: trial {result.number}: {told}{_why(result)}{best}" + (f" · {left} left" if left else ""))

    def note(self, text: str) -> None:
        if text in self._said:  # what is true of every trial is said once
            return
        self._said.add(text)
        self._write(one_line(f"loadcell: {text}", 400))

    def stop(self) -> None:
        """Give the terminal back."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def answer(self, ready: Prepared, closed: "Closed") -> None:
        """The end, as `loadcell study show` tells it."""
        reported = ready.study.reported
        if isinstance(reported, StudyResults):
            study_terminal.show(reported, self._out, width_of(self._out))
            best = f", {ready.folder / BEST}" if reported.best is not None else ""
            self._out.write(f"\nreport: {ready.folder / REPORT_NAME}{best}\n")
        else:
            self._out.write(f"{closed.state}: {closed.text}\nfolder: {ready.folder}\n")
        self._out.flush()

    # --- what is shown

    def _say(self, line: str) -> None:
        if not self._quiet:
            self._write(line)

    def _write(self, line: str) -> None:
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(Text(line))
            return
        self._err.write(line + "\n")
        self._err.flush()

    def _stands(self, spent: Spent) -> None:
        """How the study stands, between two trials."""
        assert self._ready is not None
        self._spent, self._spent_ns = spent, self._clock.now_ns()
        searching = self._ready.record.searching()
        within = sum(one.feasible for one in searching)
        missed = sum(one.outcome in MEASURED and not one.feasible for one in searching)
        self._done = f"{within} within the limits, {missed} not, {len(searching) - within - missed} failed"
        if self._ready.spec.objective.pareto is not None:
            numbers = [str(one.number) for one in front(searching, lambda one: one.figures.get(SECOND))]
            self._best = f"front: trial{'' if len(numbers) == 1 else 's'} {', '.join(numbers)}" if numbers else _NOTHING
            return
        best = incumbent(searching)
        self._best = f"best {self._values(best)} (trial {best.number})" if best is not None else _NOTHING

    def _values(self, result: TrialResult) -> str:
        """`4,210 tokens/s`, and the second objective of a front; empty where nothing was measured."""
        assert self._ready is not None
        if result.objective is None:
            return ""
        metric, second = objectives(self._ready.spec.objective)
        text = figure(result.objective, UNITS[metric] + (" per device" if self._ready.spec.objective.per == "device" else ""))
        load = self._ready.spec.load
        if load.mode == "capacity" and load.knob in result.load:
            text += f" at a {load.knob.replace('_', ' ')} of {result.load[load.knob]:g}"
        value = result.figures.get(SECOND)
        return text if second is None or not value else f"{text}, {second} {second_text(second, value)}"

    def _shown(self, began: Began) -> str:
        """Of another than the default what differs from it."""
        assert self._ready is not None
        default = self._ready.study.space.default()
        if began.kind == "default":
            return shown(began.configuration) or AS_IT_IS
        changed = {name: began.configuration.get(name) for name in {**default, **began.configuration}}
        changed = {name: value for name, value in changed.items() if default.get(name) != value}
        return " ".join(f"{name}={value_text(value)}" for name, value in changed.items()) or "as the default"

    def _left(self) -> str:
        """Of the budget; trials only while there are any to come."""
        assert self._ready is not None
        budget, spent = self._ready.budget, self._spent
        elapsed_s = spent.elapsed_s + (self._clock.now_ns() - self._spent_ns) / NS_PER_S
        parts = [
            *([f"{max(0, budget.trials - spent.trials)} trials"] if budget.trials is not None and self._in_search else []),
            *([f"{max(0, budget.launches - spent.launches)} launches"] if budget.launches is not None else []),
            *([duration(max(0.0, budget.wall_s - elapsed_s))] if budget.wall_s is not None else []),
        ]
        return ", ".join(parts)

    def _drawing(self) -> "RenderableType":
        from rich.text import Text

        began, one, spent = self._began, self._snapshot, self._spent
        text = Text(no_wrap=True, overflow="ellipsis")
        if began is None:
            text.append("between two trials\n\n", style="bold")
        else:
            took = duration((self._clock.now_ns() - self._began_ns) / NS_PER_S)
            text.append(f"{label(began)}, {_PHASES[self._phase]}, {took}", style="bold")
            if one is not None and self._phase in ("warmup", "measure"):
                text.append(f": {one.done}/{one.planned or '?'} requests, {one.in_flight} in flight, {one.tokens_per_s:,.0f} tok/s")
            text.append(f"\n  {self._shown(began)}\n")
        text.append(f"{self._best}\ntrials: {self._done}\n")
        text.append(
            f"time: {duration(spent.launch_s)} starting, {duration(spent.measure_s)} measuring, {duration(spent.lost_s)} lost to failures\n"
        )
        text.append(f"left: {self._left() or 'what the confirmation needs'}")
        return text


class _Load(Watcher):
    def __init__(self, view: StudyView) -> None:
        self._view = view

    def show(self, snapshot: Snapshot) -> None:
        self._view.snapshot(snapshot)

    def note(self, text: str) -> None:
        self._view.note(text)


def width_of(out: TextIO) -> int:
    """Of the lines of an answer: no wider than the terminal that it goes to."""
    return min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns) if out.isatty() else WIDTH


def label(began: Began) -> str:
    """`trial 14 (confirm, round 2: candidate 1)`, `trial 20 (revert of block_size)`."""
    what, *rest = began.tag.split("/")
    said: str = began.kind
    if what in ("confirm", "final"):
        who = "the default" if rest[1] == "0" else f"candidate {rest[1]}" if what == "confirm" else "what is left"
        said = f"confirm, round {int(rest[0]) + 1}: {who}"
    elif what == "revert":
        said = f"revert of {rest[0]}"
    return f"trial {began.number} ({said}{', again' if rest[-1:] == ['again'] else ''})"


def trial_line(result: TrialResult, values: str) -> str:
    """`ok, 4,210 tokens/s, 62 s`."""
    words = [result.outcome.replace("_", " "), *([values] if values else [])]
    missed = [text for text, value in result.violations.items() if value is not None and value > 0]
    if missed:
        words.append("missed " + ", ".join(missed))
    return ", ".join([*words, duration(seconds_of(result))])


def _why(result: TrialResult) -> str:
    """Of one that failed."""
    return f" · {one_line(result.evidence, _WIDTH)}" if result.outcome not in MEASURED and result.evidence else ""


def _budget(ready: Prepared) -> str:
    budget = ready.budget
    parts = [
        *([f"{budget.trials} trials"] if budget.trials is not None else []),
        *([f"{budget.launches} launches"] if budget.launches is not None else []),
        *([duration(budget.wall_s)] if budget.wall_s is not None else []),
    ]
    return ", ".join(parts)
