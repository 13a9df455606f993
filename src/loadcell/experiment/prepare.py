"""What a user asks for -> an experiment that is ready to run: specification read, folder made or taken up again, services chosen, refusals made.

Everything that can be refused is refused here, before a service is started and without leaving a folder behind.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from loadcell.errors import UserError
from loadcell.experiment import matrix
from loadcell.experiment.cell_run import refuse_too_large, scenario_of
from loadcell.experiment.choose import SOMEWHERE, own_fleet, refuse_silent, running_services
from loadcell.experiment.folder import COPY, SPEC, STATE, RunFolder
from loadcell.experiment.matrix import Cell
from loadcell.experiment.new_folder import new_folder, take_back
from loadcell.experiment.read import GATE_EXAMPLE, read_experiment, text_of
from loadcell.experiment.results import PlannedCell, cell_result
from loadcell.experiment.run import ExperimentRun, ExperimentWatcher, Setting, now_text
from loadcell.experiment.secrets import Hider
from loadcell.experiment.services import Services
from loadcell.experiment.spec import ExperimentSpec
from loadcell.experiment.state import History, Opened
from loadcell.fleet.registry import Registry
from loadcell.load.facts import host_facts, version_facts
from loadcell.load.redact import HIDDEN
from loadcell.seeds import fresh


class Asked(Struct, frozen=True):
    """The command. `spec` null: that of the run that is resumed. What a resumed run was given before still holds, unless it is given anew."""

    spec: Path | None = None
    sets: tuple[str, ...] = ()
    env_file: Path | None = None
    output_dir: str | None = None
    skip_fleet: bool = False
    resume: Path | None = None
    only: tuple[str, ...] = ()
    gate: bool = False


class Prepared(Struct, frozen=True):
    """`gates`: names of cells whose limits were made a gate in the specification."""

    run: ExperimentRun
    folder: Path
    spec: ExperimentSpec
    cells: tuple[Cell, ...]
    gates: tuple[str, ...]
    resumed: int


@contextmanager
def prepared(asked: Asked, environment: Mapping[str, str], registry: Registry, watcher: ExperimentWatcher) -> Iterator[Prepared]:
    """For the length of the block the run's folder is ours. Raises UserError, EnvironmentFailure."""
    if asked.resume is not None:
        with RunFolder.resume(asked.resume) as folder:
            yield _prepared(_as_before(asked, folder), environment, registry, watcher, lambda _: folder)
        return
    made: list[RunFolder] = []

    def make(spec: ExperimentSpec) -> RunFolder:
        made.append(RunFolder.make(new_folder(asked.output_dir or spec.output_dir, spec.name)))
        return made[0]

    try:
        ready = _prepared(asked, environment, registry, watcher, make)
    except BaseException:
        for folder in made:
            folder.close()
            _remove(folder.path)
        raise
    with made[0]:
        yield ready


def _remove(folder: Path) -> None:
    """A run that was refused leaves nothing behind."""
    if (folder / STATE).read_bytes():
        return
    for file in folder.iterdir():
        if file.is_file():
            file.unlink()
    take_back(folder)


def _as_before(asked: Asked, folder: RunFolder) -> Asked:
    """What the run was given, and over it what is given now."""
    opened = folder.history().opened
    if not opened:
        raise UserError(f"--resume {folder.path}: its state.jsonl tells of no experiment; start a new one")
    before = opened[-1]
    lost = [item for item in before.sets if HIDDEN in item and not any(_key(item) == _key(new) for new in asked.sets)]
    if lost:
        raise UserError(f"--resume {folder.path}: --set {_key(lost[0])} held a secret, which is in no file: give it again")
    given = {_key(item) for item in asked.sets}
    source = Path(before.source)
    if asked.spec is None and (not source.is_file() or source.is_relative_to("/dev")):
        raise UserError(
            f"--resume {folder.path}: its specification {source} cannot be read again: give the file, as in "
            f"`loadcell run FILE --resume {folder.path}`; {folder.path / COPY} is what it said, without secrets"
        )
    return replace(
        asked,
        spec=asked.spec or source,
        sets=(*(item for item in before.sets if _key(item) not in given), *asked.sets),
        env_file=asked.env_file or (Path(before.env_file) if before.env_file else None),
        skip_fleet=asked.skip_fleet or before.skip_fleet,
    )


def _key(item: str) -> str:
    return item.partition("=")[0].strip()


def _prepared(
    asked: Asked,
    environment: Mapping[str, str],
    registry: Registry,
    watcher: ExperimentWatcher,
    folder_for: Callable[[ExperimentSpec], RunFolder],
) -> Prepared:
    if asked.spec is None:
        raise UserError("SPEC: give the experiment's file, or --resume RUN; `loadcell init` writes one to begin with")
    spec = read_experiment(asked.spec, sets=asked.sets, env_file=asked.env_file, environment=environment, note=watcher.note)
    if not matrix.matrix(spec):
        raise UserError(
            f"{asked.spec}: there is no [bench] and no [[scenario]], so there is nothing to run; `loadcell fleet up` starts services alone"
        )
    named = matrix.only(matrix.matrix(spec), asked.only)  # a pattern that names nothing is refused before a folder is made
    if asked.gate and not any(cell.slos for cell in named):
        raise UserError(f"--gate: {asked.spec} has no limit to hold these cells to: give it one, as in {GATE_EXAMPLE}")
    folder = folder_for(spec)
    history = folder.history()
    spec = _with_seed(spec, asked, history.opened)
    every = matrix.matrix(spec)
    cells = _asked_cells(every, asked, history.opened)
    refuse_too_large((cell.scenario, scenario_of(cell, SOMEWHERE, None, environment)) for cell in cells)
    hider = Hider.of(msgspec.to_builtins(spec))
    target = scenario_of(cells[0], SOMEWHERE, None, environment).target
    services: Services = (
        own_fleet(spec, asked.spec, folder.path, registry, watcher.note, target.headers, hider)
        if spec.fleet is not None and not asked.skip_fleet
        else running_services(spec, cells[0], target, registry)
    )
    planned = [PlannedCell.of(cell, hider.tree(msgspec.to_builtins(cell.flags))) for cell in every]
    left = [cell for cell, plan in zip(every, planned, strict=True) if cell in cells and not _measured(folder, plan, history)]
    refuse_silent(services, left, environment)
    shown = _redacted(spec, asked.spec, hider)
    _write_down(asked, spec, folder, planned, cells, shown, hider, resumed=bool(history.opened))
    known = {cell.name for cell in cells} | history.attempts.keys()
    setting = Setting(
        name=spec.name,
        cells=cells,
        planned=tuple(cell for cell in planned if cell.name in known),
        spec=shown,
        environment=environment,
        facts={"host": host_facts(), "versions": version_facts()},
        apart=spec.fleet is not None and spec.fleet.cpus == "apart",
        notices=() if services.managed else ("the services ran already: this run did not start them, and does not stop them",),
    )
    gates = tuple(cell.name for cell in cells if cell.gate)
    return Prepared(ExperimentRun(setting, folder, services, watcher), folder.path, spec, cells, gates, len(cells) - len(left))


def _measured(folder: RunFolder, cell: PlannedCell, history: History) -> bool:
    return cell_result(folder.path, cell, history.attempts.get(cell.name, ())).state == "done"


def _with_seed(spec: ExperimentSpec, asked: Asked, opened: Sequence[Opened]) -> ExperimentSpec:
    """A resumed run goes on with its own. Services that outlive a run have seen its prompts: a run on such draws new ones, unless told which."""
    if spec.seed is not None:
        return spec
    if opened:
        return replace(spec, seed=opened[-1].seed)
    return replace(spec, seed=fresh()) if spec.fleet is None or asked.skip_fleet else spec


def _asked_cells(every: Sequence[Cell], asked: Asked, opened: Sequence[Opened]) -> tuple[Cell, ...]:
    """By --only; a resumed run without it goes on with what it was asked for before."""
    before = set(opened[-1].cells) if opened else set()
    if not asked.only and before & {cell.name for cell in every}:
        return tuple(cell for cell in every if cell.name in before)
    return matrix.only(every, asked.only)


def _redacted(spec: ExperimentSpec, path: Path, hider: Hider) -> dict[str, Any]:
    """The same however the file's path was written: a resumed run that says nothing new writes nothing new."""
    origins = {key: origin.replace(str(path), path.name) for key, origin in spec.origins.items()}
    shown: dict[str, Any] = hider.tree(msgspec.to_builtins(replace(spec, origins=origins)))
    return shown


def _write_down(
    asked: Asked,
    spec: ExperimentSpec,
    folder: RunFolder,
    planned: Sequence[PlannedCell],
    cells: Sequence[Cell],
    shown: dict[str, Any],
    hider: Hider,
    *,
    resumed: bool,
) -> None:
    assert asked.spec is not None
    folder.keep_copy(COPY, hider.toml(text_of(asked.spec)).encode())
    plan = msgspec.json.format(msgspec.json.encode({"spec": shown, "cells": planned}), indent=2) + b"\n"
    folder.append(
        Opened(
            at=now_text(),
            name=spec.name,
            seed=spec.seed,
            source=str(asked.spec.absolute()),
            spec=folder.keep_copy(SPEC, plan),
            sets=[hider.toml(item) for item in asked.sets],
            env_file=str(asked.env_file.absolute()) if asked.env_file else None,
            skip_fleet=asked.skip_fleet,
            cells=[cell.name for cell in cells],
            resumed=resumed,
        )
    )
