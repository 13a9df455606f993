"""The run folder of an experiment -> its results: what happened to each cell, with what its run's summary says. Reads; changes nothing.

A cell's summary is made once, when it ends; here it is read back, or made again from the records (`again`).
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from loadcell.errors import LoadcellError, UserError
from loadcell.experiment.folder import STATE, experiment_folder, in_use, read_history, read_plan
from loadcell.experiment.state import Attempt, History
from loadcell.fleet.events import EVENTS_FILE
from loadcell.fleet.monitor import FleetEvent
from loadcell.metrics.summary import Summary, VerdictWord
from loadcell.report.experiment import CellResult, ExperimentResults, FleetEventSeen, FleetFacts, RunState, ScenarioResult
from loadcell.report.experiment_cells import measured_cell, with_spread, worst
from loadcell.report.files import RESULTS_NAME, SUMMARY_NAME
from loadcell.report.run_folder import open_run

if TYPE_CHECKING:
    from loadcell.experiment.matrix import Cell


_ROUTINE: Final = ("started", "ready", "stopped")
CUT_OFF: Final = "loadcell itself was ended in the middle of it (killed, or the machine went down)"


class PlannedCell(Struct, frozen=True):
    """A cell as `spec.json` keeps it: `flags` without secrets."""

    name: str
    scenario: str
    repeat: int
    hash: str
    flags: dict[str, Any] = {}

    @classmethod
    def of(cls, cell: "Cell", flags: dict[str, Any]) -> "PlannedCell":
        return cls(cell.name, cell.scenario, cell.repeat, cell.hash, flags)


def cell_result(folder: Path, cell: PlannedCell, attempts: Sequence[Attempt], *, again: bool = False, reused: bool = False) -> CellResult:
    """What is known of a cell: its finished attempt, else the last one; with the folders of the others."""
    finished = next((one for one in reversed(attempts) if one.state == "done" and one.began.hash == cell.hash), None)
    shown = finished or next((one for one in reversed(attempts) if one.began.hash == cell.hash), None)
    earlier = [one.began.folder for one in attempts if one is not shown and (folder / one.began.folder).exists()]
    result = CellResult(name=cell.name, scenario=cell.scenario, repeat=cell.repeat, state="not_run", hash=cell.hash, earlier=earlier)
    if shown is None:
        return result
    at, ended = folder / shown.began.folder, shown.ended
    result = replace(
        result,
        state=shown.state,
        cause=CUT_OFF if ended is None else ended.cause,
        folder=shown.began.folder if at.exists() else None,
        raw_output=ended.raw_output if ended else None,
        began=shown.began.at,
        ended=ended.at if ended else None,
        health=ended.health if ended else None,
        reused=reused,
    )
    summary = read_summary(at, again=again)
    if summary is None and result.state == "done":
        return replace(result, state="failed", cause=f"it was measured, but nothing of that can be read any more in {shown.began.folder}")
    return result if summary is None else measured_cell(result, summary)


def read_summary(run: Path, *, again: bool) -> Summary | None:
    """The summary of a run's folder; null where there is nothing to sum up."""
    if not again:
        try:
            return msgspec.json.decode((run / SUMMARY_NAME).read_bytes(), type=Summary)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            pass  # its records may still be there
    from loadcell.metrics.summarize import summarize

    try:
        stored = open_run(run)
        return summarize(stored.facts, stored.records)
    except LoadcellError:
        return None


def scenarios(cells: Iterable[CellResult], flags: dict[str, dict[str, Any]]) -> list[ScenarioResult]:
    """Grouped, in the order in which scenarios first come; repeats in theirs."""
    grouped: dict[str, list[CellResult]] = {}
    for cell in cells:
        grouped.setdefault(cell.scenario, []).append(cell)
    return [
        with_spread(ScenarioResult(name=name, flags=flags.get(name, {}), cells=sorted(found, key=lambda cell: cell.repeat)))
        for name, found in grouped.items()
    ]


def verdict_of(results: Sequence[ScenarioResult]) -> VerdictWord | None:
    """The worst of those that came to their end; of what was cut short only where there is nothing else."""
    cells = [cell for scenario in results for cell in scenario.cells]
    return worst([cell.verdict for cell in cells if cell.state in ("done", "failed")]) or worst([cell.verdict for cell in cells])


def shared_flags(cells: Sequence[PlannedCell]) -> dict[str, dict[str, Any]]:
    """Each scenario's flags, without those that only tell its repeats apart."""
    apart = ("repeat", "name")
    return {cell.scenario: {name: value for name, value in cell.flags.items() if name not in apart} for cell in reversed(cells)}


def report_again(given: Path) -> tuple[ExperimentResults, list[str]]:
    """Results made again from the records of an experiment's folder, also of one that was cut off; and remarks. UserError for what is none."""
    folder = experiment_folder(given)
    history = read_history(folder)
    if not history.opened:
        raise UserError(f"{folder}: its state.jsonl tells of no experiment")
    opened = history.opened[-1]
    plan = read_plan(folder, opened.spec)
    remarks = list(history.remarks)
    if "cells" in plan:
        cells = msgspec.convert(plan["cells"], list[PlannedCell])
    else:
        cells = _by_history(history)
        remarks.append(f"{opened.spec} cannot be read: cells are shown as {STATE} names them, each a scenario of its own")
    found = scenarios(
        [cell_result(folder, cell, history.attempts.get(cell.name, ()), again=True) for cell in _shown(cells, history)], shared_flags(cells)
    )
    state, cause = _state(folder, history)
    if state == "running":
        remarks.append("the experiment still runs: this is what there is by now")
    before = results_before(folder)
    fleet = before.fleet if before else FleetFacts(managed=not opened.skip_fleet)
    return (
        ExperimentResults(
            name=opened.name,
            run_id=folder.resolve().name,
            state=state,
            cause=cause,
            began=history.opened[0].at,
            ended=history.closed.at if history.closed else None,
            verdict=verdict_of(found),
            environment=before.environment if before else {},
            fleet=replace(fleet, events=fleet_events(folder)),
            scenarios=found,
            notices=[*(before.notices if before else ()), *remarks],
            spec=plan.get("spec", {}),
        ),
        remarks,
    )


def _by_history(history: History) -> list[PlannedCell]:
    hashes = {name: attempts[-1].began.hash for name, attempts in history.attempts.items()}
    return [PlannedCell(name, name, 0, hashes.get(name, ""), {}) for name in dict.fromkeys((*history.opened[-1].cells, *hashes))]


def _shown(cells: Sequence[PlannedCell], history: History) -> list[PlannedCell]:
    """Those that were asked for, and those that were run before."""
    asked = set(history.opened[-1].cells)
    return [cell for cell in cells if cell.name in asked or cell.name in history.attempts]


def _state(folder: Path, history: History) -> tuple[RunState, str | None]:
    if history.closed is not None:
        return msgspec.convert(history.closed.state, RunState), history.closed.cause
    if in_use(folder):
        return "running", None
    return "interrupted", "loadcell itself was ended (killed, or the machine went down)"


def fleet_events(folder: Path) -> list[FleetEventSeen]:
    """What happened to the services besides their start and their end, from the fleet's own log; lines that cannot be read are left out."""
    try:
        lines = (folder / EVENTS_FILE).read_bytes().splitlines()
    except OSError:
        return []
    seen = []
    for line in lines:
        try:
            event = msgspec.json.decode(line, type=FleetEvent)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if event.event not in _ROUTINE:
            seen.append(FleetEventSeen(event.time, event.service, event.event, event.cause))
    return seen


def results_before(folder: Path) -> ExperimentResults | None:
    """What the run itself wrote: what cannot be made again."""
    try:
        return msgspec.json.decode((folder / RESULTS_NAME).read_bytes(), type=ExperimentResults)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
