"""An experiment's news -> the terminal: a line per cell as it begins and ends, the services' health as the bench scripts print it, a table at the end."""

import os
from typing import TYPE_CHECKING, Final, TextIO

from loadcell.cli.watch import TerminalWatcher
from loadcell.experiment.matrix import Cell
from loadcell.experiment.run import ExperimentWatcher
from loadcell.fleet.cpus import told
from loadcell.fleet.health import Health
from loadcell.load.runner import Watcher
from loadcell.report.experiment import CellResult, ExperimentResults
from loadcell.report.figures import count, ms, one_line, rate

if TYPE_CHECKING:
    from loadcell.experiment.prepare import Prepared

_WIDTH: Final = 200


class ExperimentView(ExperimentWatcher):
    """Progress on `err`, results on `out`. `quiet`: only what went wrong."""

    def __init__(self, out: TextIO, err: TextIO, *, quiet: bool) -> None:
        self._out, self._err, self._quiet = out, err, quiet
        self._load: TerminalWatcher | None = None

    def opening(self, ready: "Prepared") -> None:
        """What is about to happen, before the first service starts."""
        if self._quiet:
            return
        fleet = ready.spec.fleet
        managed = fleet is not None and ready.run.managed
        services = f"{fleet.replicas} × {fleet.engine}" if fleet is not None and managed else "services that run already"
        cpus = told(fleet, sorted(os.sched_getaffinity(0))) if fleet is not None and managed else None
        kept = f", {ready.resumed} of them measured before and kept" if ready.resumed else ""
        cells = f"{len(ready.cells)} cell{'' if len(ready.cells) == 1 else 's'}"
        self._say(f"loadcell: {ready.spec.name}: {cells}{kept}; {services}; folder {ready.folder}")
        if ready.run.managed and ready.resumed < len(ready.cells):
            self._say("loadcell: starting the services" + (f"; {cpus}" if cpus else ""))

    def note(self, text: str) -> None:
        if self._load is not None:
            self._load.note(text)
        else:
            self._say(f"loadcell: {text}")

    def cell(self, cell: Cell, position: int, of: int) -> Watcher:
        self.stop()
        if not self._quiet:
            self._say(f"loadcell: [{position}/{of}] {cell.name}")
        self._load = TerminalWatcher(self._err, "", silent=self._quiet)
        return self._load

    def cell_ended(self, result: CellResult) -> None:
        self.stop()
        if not self._quiet or result.state == "failed":
            self._say(f"loadcell: {result.name}: {cell_line(result)}")

    def health(self, at: str, health: Health) -> None:
        if not self._quiet:
            self._say(f"[{at}] {health.line}")
        if health.warning is not None:
            self._say(f"[{at}] {health.warning}" + (f" ({one_line('; '.join(health.reasons))})" if health.reasons else ""))

    def stop(self) -> None:
        """No cell runs any more."""
        if self._load is not None:
            self._load.stop()
            self._load = None

    def table(self, results: ExperimentResults) -> None:
        """The end: the verdict, its reasons, and one row per cell."""
        from loadcell.report.experiment_terminal import show

        show(results, self._out)

    def _say(self, line: str) -> None:
        self._err.write(line + "\n")
        self._err.flush()


def cell_line(result: CellResult) -> str:
    """`VALID, limits met: 640 ok, 0 failed, 51.88 req/s, 13,281 tok/s, TTFT p95 62.3 ms`."""
    if result.figures is None:
        return f"{result.state.replace('_', ' ')}: {one_line(result.cause or 'cause unknown', _WIDTH)}"
    whole = result.figures.all
    why = f" ({', '.join(reason.rule for reason in result.reasons)})" if result.reasons else ""
    words = [(result.verdict or "").upper() + why, *([result.state.replace("_", " ")] if result.state != "done" else [])]
    if result.slos:
        words.append({True: "limits met", False: "limits MISSED", None: "limits not judged"}[result.slos_met])
    figures = [
        f"{count(whole.ok)} ok",
        f"{count(whole.failed)} failed",
        rate(whole.requests_per_s, "req/s"),
        rate(whole.output_tokens_per_s, "tok/s"),
        f"TTFT p95 {ms(whole.ttft.percentiles_ms.get('p95'))}",
        f"TPOT mean {ms(whole.tpot.mean_ms)}",
    ]
    cause = f" ({one_line(result.cause, _WIDTH)})" if result.cause else ""
    return f"{', '.join(words)}: {', '.join(figures)}{cause}"
