"""An experiment from start to end: services up, one cell after the other, services down; after every cell all that is known is on the disk.

A cell that fails does not end it. A first Ctrl-C or SIGTERM lets the cell that runs drain, then the services are stopped and the results stand as
they are; a second one leaves at once, the services still being stopped.
"""

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from loadcell.clock import NS_PER_S, anchor
from loadcell.errors import LoadcellError
from loadcell.experiment.cell_run import CellEnd, run_cell
from loadcell.experiment.folder import RAW, RunFolder
from loadcell.experiment.matrix import Cell
from loadcell.experiment.results import PlannedCell, cell_result, fleet_events, results_before, scenarios, shared_flags, verdict_of
from loadcell.experiment.services import Services
from loadcell.experiment.state import Attempt, Began, Closed, Ended
from loadcell.fleet.health import Health
from loadcell.load.runner import Watcher
from loadcell.load.signals import catching
from loadcell.report import files
from loadcell.report.experiment import CellResult, ExperimentResults, FleetFacts, RunState
from loadcell.signals import handled, leave

LOW_DISK: Final = 64 << 20
"""Bytes that must be free before a cell is begun: its records, and the results of all."""


class ExperimentWatcher:
    """What an experiment tells while it goes on. Override what is of interest."""

    def note(self, text: str) -> None:
        """Something that a person wants to know."""

    def health(self, at: str, health: Health) -> None:
        """The services, asked after a cell."""

    def cell(self, cell: Cell, position: int, of: int) -> Watcher:  # noqa: ARG002 - for who overrides it
        """A cell begins: who is told of its run."""
        return Watcher()

    def cell_ended(self, result: CellResult) -> None:
        """With what it gave."""


class Setting(Struct, frozen=True):
    """What a run of cells is given. `cells`: in the order in which they run; `planned`: as the results show them. `environment`: variables that
    may hold keys. `apart`: the client keeps to the last CPU. `facts`: of host and versions, for the report. `notices`: for it, too.
    """

    name: str
    cells: tuple[Cell, ...]
    planned: tuple[PlannedCell, ...]
    spec: dict[str, Any]
    environment: Mapping[str, str]
    facts: dict[str, Any]
    apart: bool = False
    notices: tuple[str, ...] = ()


class ExperimentRun:
    """`execute` once. `folder` is held for as long as it takes."""

    def __init__(
        self,
        setting: Setting,
        folder: RunFolder,
        services: Services,
        watcher: ExperimentWatcher,
        *,
        free: Callable[[Path], int] | None = None,
    ) -> None:
        self._setting, self._folder, self._services, self._watcher = setting, folder, services, watcher
        self._free = free or (lambda path: shutil.disk_usage(path).free)
        self._history = folder.history()
        self._began = self._history.opened[0].at
        self._cells = {cell.name: self._known(cell) for cell in setting.planned}
        before = results_before(folder.path)
        self._notices = [*(_told_before(before) if before else ()), *setting.notices, *self._history.remarks]
        self._signal: int | None = None
        self._may_leave = False
        self._stopped: str | None = None
        # What a resumed run knows of its services holds for the cells that it keeps, until services are started again.
        known = before.fleet if before else FleetFacts(managed=services.managed)
        self._fleet = replace(known, managed=services.managed, engine=services.engine, model=services.model or known.model, leftovers=[])

    @property
    def signal(self) -> int | None:
        """The first that asked for the end."""
        return self._signal

    @property
    def managed(self) -> bool:
        """Whether this run starts the services and stops them."""
        return self._services.managed

    @property
    def unfinished(self) -> int:
        """Cells that were asked for and are not measured to their end."""
        return sum(self._cells[cell.name].state != "done" for cell in self._setting.cells)

    def execute(self) -> ExperimentResults:
        """Run what is left of the matrix. Raises LoadcellError for services that do not start or a disk that is full: the results are written before."""
        failure: LoadcellError | None = None
        with hang_ups_are_terms(), catching(self._on_signal):
            try:
                self._write("running")
                if any(self._cells[cell.name].state != "done" for cell in self._setting.cells) and self._room():
                    self._with_services()
            except (KeyboardInterrupt, SystemExit) as left:
                self._signal = self._signal or _number_of(left)
            except LoadcellError as wrong:
                failure, self._stopped = wrong, str(wrong)
            except BaseException as bug:
                self._stopped = f"{type(bug).__name__}: {bug}"
                self._close()
                raise
            results = self._close(quietly=failure is not None)
        if failure is not None and self._signal is None:
            raise failure
        return results

    # --- services and cells

    def _with_services(self) -> None:
        self._may_leave = True
        try:
            with self._services:
                self._may_leave = False
                self._fleet = replace(self._fleet, services=self._services.facts(), model=self._services.model)
                self._write("running")
                try:
                    self._matrix()
                finally:
                    self._fleet = replace(self._fleet, services=self._services.facts())
        finally:
            self._may_leave = False
            self._fleet = replace(self._fleet, leftovers=list(self._services.leftovers))

    def _matrix(self) -> None:
        todo = [cell for cell in self._setting.cells if self._cells[cell.name].state != "done"]
        for position, cell in enumerate(todo, 1):
            if position > 1 and self._room():
                self._revive()
            if not self._room():
                return
            end = self._cell(cell, position, len(todo))
            if end.left is not None:
                raise end.left
            self._signal = self._signal or end.signal

    def _room(self) -> bool:
        """Whether there is disk enough to go on, and nobody has asked for the end."""
        free = self._free(self._folder.path)
        if free < LOW_DISK and self._stopped is None:
            self._stopped = (
                f"{free >> 20} MiB are free on the disk of {self._folder.path}, less than {LOW_DISK >> 20}: make room, then --resume"
            )
            self._watcher.note(self._stopped)
        return free >= LOW_DISK and self._signal is None

    def _revive(self) -> None:
        for text in self._services.revive():
            self._notices.append(text)
            self._watcher.note(text)

    def _cell(self, cell: Cell, position: int, of: int) -> CellEnd:
        at = self._folder.cell_folder(cell.name)
        began = Began(now_text(), cell.name, cell.hash, self._folder.relative(at))
        self._folder.append(began)
        watcher = self._watcher.cell(cell, position, of)
        run_id = f"{self._folder.path.resolve().name}/{at.name}"
        end = run_cell(cell, self._services, at, run_id, self._setting.environment, watcher, apart=self._setting.apart)
        raw = self._raw_output(at, end)
        health = self._health() if end.signal is None and end.left is None else None
        ended = Ended(
            at=now_text(),
            cell=cell.name,
            hash=cell.hash,
            folder=began.folder,
            state=end.state,
            cause=end.cause,
            raw_output=raw,
            health=health,
        )
        self._folder.append(ended)
        self._cells[cell.name] = self._result(cell.name, Attempt(began, ended))
        told = end.measured.facts.run.model if end.measured is not None else None
        self._fleet = replace(self._fleet, services=self._services.facts(), model=self._fleet.model or told)
        self._write("running")
        self._watcher.cell_ended(self._cells[cell.name])
        if health is not None:
            self._watcher.health(ended.at, self._last_health)
        return end

    def _health(self) -> str:
        self._last_health = self._services.health()
        return self._last_health.line

    def _raw_output(self, at: Path, end: CellEnd) -> str | None:
        """The bench client's format, for a cell that was measured to its end."""
        if end.measured is None or end.state == "interrupted":
            return None
        path = self._folder.path / RAW / f"{self._services.engine or 'openai'}_{at.name}.jsonl"
        try:
            files.write_seed(path, end.measured.log, end.measured.facts)
        except LoadcellError as failure:
            self._notices.append(f"{at.name}: {failure}; its records are kept")
            return None
        return self._folder.relative(path)

    # --- what is known

    def _known(self, cell: PlannedCell) -> CellResult:
        return cell_result(self._folder.path, cell, self._history.attempts.get(cell.name, ()), reused=True)

    def _result(self, name: str, attempt: Attempt) -> CellResult:
        planned = next(cell for cell in self._setting.planned if cell.name == name)
        return cell_result(self._folder.path, planned, [*self._history.attempts.get(name, ()), attempt])

    def _close(self, *, quietly: bool = False) -> ExperimentResults:
        """The last word: results, and a line in the state. `quietly`: what went wrong is told already, and may well be why this cannot be written."""
        state: RunState = "interrupted" if self._signal is not None else "stopped" if self._stopped is not None else "complete"
        if self._signal is not None:
            self._stopped = f"{signal.Signals(self._signal).name} came" + (f"; {self._stopped}" if self._stopped else "")
        with contextlib.suppress(*((LoadcellError,) if quietly else ())):
            self._folder.append(Closed(now_text(), state, self._stopped))
            self._write(state)
        return self._results(state)

    def _write(self, state: RunState) -> None:
        files.write_results(self._folder.path, self._results(state))

    def _results(self, state: RunState) -> ExperimentResults:
        found = scenarios(self._cells.values(), shared_flags(self._setting.planned))
        return ExperimentResults(
            name=self._setting.name,
            run_id=self._folder.path.resolve().name,
            state=state,
            cause=self._stopped,
            began=self._began,
            ended=None if state == "running" else now_text(),
            verdict=verdict_of(found),
            environment=self._setting.facts,
            fleet=replace(self._fleet, events=fleet_events(self._folder.path)),
            scenarios=found,
            notices=list(dict.fromkeys(self._notices)),
            spec=self._setting.spec,
        )

    def _on_signal(self, number: int) -> None:
        """Where no cell runs: leave, if that is safe there; else the loop sees it."""
        self._signal = self._signal or number
        if self._may_leave:
            raise leave(number)


def _told_before(before: ExperimentResults) -> list[str]:
    return [*before.notices, *(f"left behind by an earlier part of this run: {text}" for text in before.fleet.leftovers)]


@contextmanager
def hang_ups_are_terms() -> Iterator[None]:
    """A terminal that goes away ends the experiment as SIGTERM does; `nohup` is honoured."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    with handled(() if ignored else (signal.SIGHUP,), lambda _: os.kill(os.getpid(), signal.SIGTERM)):
        yield


def _number_of(left: BaseException) -> int:
    if not isinstance(left, SystemExit) or not isinstance(left.code, int) or left.code <= 128:
        return int(signal.SIGINT)
    number = left.code - 128
    return int(signal.SIGTERM) if number == signal.SIGHUP else number


def now_text() -> str:
    """The time of day as the bench scripts print it: `2026-07-10T08:45:00+00:00`."""
    return datetime.fromtimestamp(anchor().wall_ns / NS_PER_S, UTC).isoformat(timespec="seconds")


def exit_code(results: ExperimentResults, gates: Sequence[str], *, signal_number: int | None, strict: bool, gate: bool) -> int:
    """130 or 143 after a signal; 1 for a cell that failed, was not run or is invalid (suspect: under `strict`), and for services that left
    something behind when they were stopped; 3 for a limit that was missed where a gate was asked for (`gates`: cells that ask for it
    themselves); else 0.
    """
    if signal_number is not None:
        return 128 + signal_number
    cells = results.cells
    bad = ("invalid", "suspect") if strict else ("invalid",)
    if results.state != "complete" or results.fleet.leftovers or any(cell.state != "done" or cell.verdict in bad for cell in cells):
        return 1
    held = [cell for cell in cells if cell.slos and (gate or cell.name in gates)]
    return 3 if any(cell.slos_met is not True for cell in held) else 0
