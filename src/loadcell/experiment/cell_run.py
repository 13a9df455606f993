"""One cell: its flags and the services as they are now -> a run's folder, and how it ended. A cell that fails is a result, not an exception."""

import contextlib
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadcell.errors import EnvironmentFailure, LoadcellError, UserError
from loadcell.experiment.matrix import Cell
from loadcell.experiment.measure import Measured, measure
from loadcell.experiment.services import Now, Services, on_last_cpu
from loadcell.experiment.state import EndState
from loadcell.flags.resolve import scenario_from_flags, with_api_key
from loadcell.fleet.monitor import FleetEvent
from loadcell.load.prepare import refuse_too_many_connections
from loadcell.load.runner import Relay, Run, Watcher
from loadcell.load.snapshot import Snapshot
from loadcell.metrics.facts import RunFacts
from loadcell.metrics.summary import Summary
from loadcell.scenario import Scenario

_FAILED_STOPS: Final = ("max_failures", "patience", "fatal", "worker_lost")
_HARMLESS: Final = ("resumed", "host reachable")
_GONE: Final = "no process of any service is left"


class CellEnd(Struct, frozen=True):
    """`signal`: of the user, who wants the experiment to end. `events`: what happened to services meanwhile. `left`: to be raised again."""

    state: EndState
    cause: str | None = None
    measured: Measured | None = None
    signal: int | None = None
    events: tuple[FleetEvent, ...] = ()
    left: BaseException | None = None


def scenario_of(cell: Cell, now: Now, model: str | None, environment: Mapping[str, str]) -> Scenario:
    """The cell's flags with what only the running services tell: their URLs, their model's name, their devices."""
    flags = {**cell.flags, "base_url": list(now.base_urls)}
    if model and not {"model", "served_model_name"} & flags.keys():
        flags["model"] = model
    if now.devices and "devices" not in flags:
        flags["devices"] = now.devices
    return with_api_key(scenario_from_flags(flags)[0], environment)


def refuse_too_large(scenarios: Iterable[tuple[str, Scenario]]) -> None:
    """Cells by name. UserError for one whose connections this machine cannot have open at once."""
    for name, scenario in scenarios:
        try:
            refuse_too_many_connections(scenario)
        except UserError as wrong:
            raise UserError(f"in scenario {name}: {wrong}") from None


class _WhileServed(Relay):
    """Calls the load off when nobody is left to answer it: its patience would find nobody else."""

    def __init__(self, inner: Watcher, services: Services) -> None:
        super().__init__(inner)
        self._services = services

    def show(self, snapshot: Snapshot) -> None:
        super().show(snapshot)
        if self._services.gone():
            self._call_off(_GONE)


def run_cell(
    cell: Cell,
    services: Services,
    folder: Path,
    run_id: str,
    environment: Mapping[str, str],
    watcher: Watcher,
    *,
    apart: bool,
    percentiles: Sequence[float] = (),
) -> CellEnd:
    """Load, measure, report. `folder` exists and is empty; one in which nothing was recorded is removed. `apart`: the client keeps to the last CPU.
    `percentiles`: further ones.
    """
    events: list[FleetEvent] = []

    def execute() -> RunFacts:
        with on_last_cpu() if apart else contextlib.nullcontext(), services.serving(events.append):
            facts = run.execute()
        return _with_events(facts, now, events)

    try:
        now = services.now()
        if not now.base_urls:
            raise EnvironmentFailure(f"no service is ready: {'; '.join(now.missing) or 'there is none'}")
        run = Run(scenario_of(cell, now, services.model, environment), folder, run_id, _WhileServed(watcher, services))
        end = ended(measure(execute, folder, percentiles))
    except LoadcellError as failure:
        end = CellEnd("failed", str(failure))
    except (KeyboardInterrupt, SystemExit) as left:
        end = CellEnd("interrupted", "interrupted before its first request", left=left)
    except Exception as bug:  # noqa: BLE001 - the supervisor's edge: whatever breaks a cell does not end the matrix
        (folder / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
        end = CellEnd("failed", f"{type(bug).__name__}: {bug} (see error.txt in its folder)")
    with contextlib.suppress(OSError):  # it holds something
        folder.rmdir()
    return replace(end, events=tuple(events), cause=_with_losses(end, events))


def ended(measured: Measured) -> CellEnd:
    """How a load that ran has ended, by its summary."""
    summary = measured.summary
    if summary.stop_signal is not None:
        return CellEnd("interrupted", f"{Signals(summary.stop_signal).name} ended it before its time", measured, summary.stop_signal)
    if summary.stop_reason in _FAILED_STOPS or summary.lost_workers or summary.stop_detail == _GONE:
        return CellEnd("failed", summary.stop_detail or summary.stop_reason, measured)
    if not summary.whole.counts.ok:
        return CellEnd("failed", _why_nothing_was_ok(summary), measured)
    return CellEnd("done", None, measured)


def _why_nothing_was_ok(summary: Summary) -> str:
    counts = summary.whole.counts
    told = [f"{number} × {outcome}: {summary.errors.get(outcome, outcome)}" for outcome, number in counts.by_outcome.items() if number]
    return f"none of {counts.offered} requests was ok ({'; '.join(told) or 'none was made'})"


def _with_losses(end: CellEnd, events: list[FleetEvent]) -> str | None:
    """Why a cell failed, by what its services went through first: requests that nobody answers are what follows."""
    lost = [f"{event.service} {_said(event)}" for event in events if event.event not in _HARMLESS]
    return "; ".join([*lost, end.cause]) if end.state == "failed" and end.cause and lost else end.cause


def _with_events(facts: RunFacts, now: Now, events: list[FleetEvent]) -> RunFacts:
    """The run's facts with what its fleet went through: it stands in the run's own report too."""
    told = [f"{event.service} {_said(event)}" for event in events]
    lost = [text for event, text in zip(events, told, strict=True) if event.event not in _HARMLESS]
    return replace(facts, lost_services=(*now.missing, *lost), notices=(*facts.notices, *told))


def _said(event: FleetEvent) -> str:
    word = event.event.replace("_", " ")
    return word if not event.cause else event.cause if event.cause.startswith(word) else f"{word}: {event.cause}"
