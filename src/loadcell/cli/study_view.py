"""A study's news -> the terminal: a line per trial as it ends; below, where a terminal is, a display of the trial that runs and of the whole study.

Elsewhere than on a terminal there are only lines: as a trial begins, and as it ends.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TextIO

from loadcell.load.runner import Watcher
from loadcell.load.snapshot import Snapshot
from loadcell.report.figures import one_line
from loadcell.report.files import REPORT_NAME
from loadcell.report.study import StudyResults
from loadcell.report.study_tables import binding_lines
from loadcell.tune.events import Began
from loadcell.tune.objective import UNITS
from loadcell.tune.outcome import MEASURED, TrialPhase, TrialResult
from loadcell.tune.prepare import Prepared, Watching
from loadcell.tune.reporting import BEST
from loadcell.tune.standing import Spent, incumbent, seconds_of

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from loadcell.tune.events import Closed

_WIDTH: Final = 160


class StudyView(Watching):
    """Progress on `err`, the answer on `out`. `quiet`: only what went wrong."""

    def __init__(self, out: TextIO, err: TextIO, *, quiet: bool) -> None:
        self._out, self._err, self._quiet = out, err, quiet
        self._ready: Prepared | None = None
        self._live: Live | None = None
        self._began: Began | None = None
        self._phase: TrialPhase = "plan"
        self._snapshot: Snapshot | None = None
        self._unit = ""
        self._said: set[str] = set()

    def opening(self, ready: Prepared) -> None:
        """What is about to happen, before the first service starts."""
        spec, space = ready.spec, ready.study.space
        per = " per device" if spec.objective.per == "device" else ""
        self._ready, self._unit = ready, UNITS[spec.objective.metric] + per
        size = space.size()
        many = "more configurations than can be counted" if size is None else f"{size} configurations"
        known = len(ready.record.results)
        self._say(
            f"loadcell: {spec.study.name}: {len(space.searched)} parameters, {many}; {_budget(ready)}; folder {ready.folder}"
            + (f"; {known} trials are known" if known else "")
        )
        if self._quiet or not self._err.isatty():
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._err, highlight=False)
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
        self._say(f"loadcell: {text}")

    def began(self, began: Began) -> None:
        self._began, self._phase, self._snapshot = began, "plan", None
        self._say(f"loadcell: trial {began.number} ({began.kind}): {shown(began.configuration)}")

    def phase(self, number: int, phase: TrialPhase) -> None:  # noqa: ARG002
        self._phase = phase

    def load(self, number: int) -> Watcher:  # noqa: ARG002
        return _Load(self)

    def snapshot(self, snapshot: Snapshot) -> None:
        """How far the load of the trial is."""
        self._snapshot = snapshot

    def ended(self, result: TrialResult, spent: Spent) -> None:
        self._began = None
        line = f"loadcell: trial {result.number}: {trial_line(result, self._unit)}"
        if self._ready is not None and result.kind not in ("confirm", "revert"):
            best = incumbent(self._ready.record.searching())
            line += f" · best {best.objective:,.4g} (trial {best.number})" if best is not None else " · nothing within the limits yet"
        self._say(f"{line} · {_left(self._ready, spent)}" if self._ready is not None else line)

    def note(self, text: str) -> None:
        if text in self._said:  # what is true of every trial is said once
            return
        self._said.add(text)
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(Text(one_line(f"loadcell: {text}", 400)))
        else:
            self._err.write(f"loadcell: {one_line(text, 400)}\n")
            self._err.flush()

    def stop(self) -> None:
        """Give the terminal back."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def answer(self, ready: Prepared, closed: "Closed") -> None:
        """The end, in a few lines."""
        default = ready.study.space.default()
        lines = [f"{_HEADS[closed.announced] if closed.state == 'complete' else closed.state}: {closed.text}"]
        if closed.best is not None and closed.best != default:
            changed = {name: value for name, value in closed.best.items() if default.get(name) != value}
            lines += [f"  {name}: {default.get(name, 'not set')} -> {value}" for name, value in changed.items()]
        spent = ready.study.spent()
        lines.append(
            f"{len(ready.record.results)} trials, {spent.launches} launches in {_time(spent.elapsed_s)}: "
            f"{_time(spent.launch_s)} starting, {_time(spent.measure_s)} measuring, {_time(spent.lost_s)} lost to trials that failed"
        )
        reported = ready.study.reported
        if isinstance(reported, StudyResults):
            lines += binding_lines(reported)
            lines.append(f"report: {ready.folder / REPORT_NAME}" + (f", {ready.folder / BEST}" if reported.best is not None else ""))
        else:
            lines.append(f"folder: {ready.folder}")
        self._out.write("\n".join(lines) + "\n")
        self._out.flush()

    def _say(self, line: str) -> None:
        if self._quiet:
            return
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(Text(line))
            return
        self._err.write(line + "\n")
        self._err.flush()

    def _drawing(self) -> "RenderableType":
        from rich.text import Text

        if self._ready is None:
            return Text("")
        spent, best = self._ready.study.spent(), incumbent(self._ready.record.searching())
        text = Text(no_wrap=True, overflow="ellipsis")
        if self._began is not None:
            text.append(f"trial {self._began.number} ({self._began.kind}), {self._phase}", style="bold")
            if self._snapshot is not None and self._phase in ("warmup", "measure"):
                one = self._snapshot
                text.append(f": {one.done}/{one.planned or '?'} requests, {one.in_flight} in flight, {one.tokens_per_s:,.0f} tok/s")
        text.append(
            "\nbest: " + (f"{best.objective:,.4g} {self._unit}, trial {best.number}: {shown(best.configuration)}" if best else "none yet")
        )
        text.append(
            f"\ntime: {_time(spent.launch_s)} starting, {_time(spent.measure_s)} measuring, {_time(spent.lost_s)} lost · {_left(self._ready, spent)}"
        )
        return text


class _Load(Watcher):
    def __init__(self, view: StudyView) -> None:
        self._view = view

    def show(self, snapshot: Snapshot) -> None:
        self._view.snapshot(snapshot)

    def note(self, text: str) -> None:
        self._view.note(text)


_HEADS: Final = {
    "winner": "better than the default",
    "default_fails": "within the limits",
    "no_reliable_improvement": "the default stays",
    "not_confirmed": "the default stays",
    "front": "front",
    "none": "no answer",
}


def trial_line(result: TrialResult, unit: str) -> str:
    """`ok, 4,210 tokens/s, 62 s`; of one that failed, why."""
    words = [result.outcome.replace("_", " ")]
    if result.objective is not None:
        words.append(f"{result.objective:,.4g} {unit}".strip())
    missed = [text for text, value in result.violations.items() if value is not None and value > 0]
    if missed:
        words.append("missed " + ", ".join(missed))
    if result.outcome not in MEASURED and result.evidence:
        words.append(one_line(result.evidence, _WIDTH))
    words.append(_time(seconds_of(result)))
    return ", ".join(words)


def shown(configuration: Mapping[str, Any]) -> str:
    """`max_num_seqs=128 block_size=16`."""
    return " ".join(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in configuration.items())


def _budget(ready: Prepared) -> str:
    budget = ready.budget
    parts = [
        *([f"{budget.trials} trials"] if budget.trials is not None else []),
        *([f"{budget.launches} launches"] if budget.launches is not None else []),
        *([_time(budget.wall_s)] if budget.wall_s is not None else []),
    ]
    return "budget " + ", ".join(parts)


def _left(ready: Prepared, spent: Spent) -> str:
    budget = ready.budget
    parts = [
        *([f"{max(0, budget.trials - spent.trials)} trials"] if budget.trials is not None else []),
        *([f"{max(0, budget.launches - spent.launches)} launches"] if budget.launches is not None else []),
        *([_time(max(0.0, budget.wall_s - spent.elapsed_s))] if budget.wall_s is not None else []),
    ]
    return ", ".join(parts) + " left"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
