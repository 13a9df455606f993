"""What a user asks for -> an experiment that is ready to run: specification read, folder made or taken up again, services chosen, refusals made.

Everything that can be refused is refused here, before a service is started and without leaving a folder behind.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from loadcell.errors import EnvironmentFailure, LoadcellError, UserError
from loadcell.experiment import matrix
from loadcell.experiment.cell_run import refuse_too_large, scenario_of
from loadcell.experiment.folder import COPY, SPEC, STATE, RunFolder
from loadcell.experiment.matrix import Cell
from loadcell.experiment.new_folder import new_folder, take_back
from loadcell.experiment.places import refusals_placed
from loadcell.experiment.read import read_experiment, text_of
from loadcell.experiment.results import PlannedCell
from loadcell.experiment.run import ExperimentRun, ExperimentWatcher, Setting, now_text
from loadcell.experiment.secrets import Hider
from loadcell.experiment.services import Now, OwnFleet, RunningServices, Services
from loadcell.experiment.spec import ExperimentSpec
from loadcell.experiment.state import Opened
from loadcell.fleet.registry import Registry
from loadcell.fleet.spec import FleetSpec
from loadcell.load.facts import host_facts, version_facts
from loadcell.load.redact import HIDDEN
from loadcell.scenario import TargetSpec
from loadcell.seeds import fresh

if TYPE_CHECKING:
    import ssl

_LOOPBACK: Final = "127.0.0.1"
_SOMEWHERE: Final = Now((f"http://{_LOOPBACK}:1",), None)


class Asked(Struct, frozen=True):
    """The command. `spec` null: that of the run that is resumed. What a resumed run was given before still holds, unless it is given anew."""

    spec: Path | None = None
    sets: tuple[str, ...] = ()
    env_file: Path | None = None
    output_dir: str | None = None
    skip_fleet: bool = False
    resume: Path | None = None
    only: tuple[str, ...] = ()


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
    return replace(
        asked,
        spec=asked.spec or Path(before.source),
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
    matrix.only(matrix.matrix(spec), asked.only)  # a pattern that names nothing is refused before a folder is made
    folder = folder_for(spec)
    history = folder.history()
    spec = _with_seed(spec, asked, history.opened)
    every = matrix.matrix(spec)
    cells = _asked_cells(every, asked, history.opened)
    refuse_too_large((cell.scenario, scenario_of(cell, _SOMEWHERE, None, environment)) for cell in cells)
    hider = Hider.of(msgspec.to_builtins(spec))
    services = _services(spec, cells, asked, folder.path, environment, registry, watcher, hider)
    _refuse_silent(services, [cell for cell in cells if history.finished(cell.name, cell.hash) is None], environment)
    planned = [PlannedCell.of(cell, hider.tree(msgspec.to_builtins(cell.flags))) for cell in every]
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
    resumed = sum(history.finished(cell.name, cell.hash) is not None for cell in cells)
    gates = tuple(cell.name for cell in cells if cell.gate)
    return Prepared(ExperimentRun(setting, folder, services, watcher), folder.path, spec, cells, gates, resumed)


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


def _services(
    spec: ExperimentSpec,
    cells: Sequence[Cell],
    asked: Asked,
    folder: Path,
    environment: Mapping[str, str],
    registry: Registry,
    watcher: ExperimentWatcher,
    hider: Hider,
) -> Services:
    target = scenario_of(cells[0], _SOMEWHERE, None, environment).target
    headers = target.headers
    if spec.fleet is not None and not asked.skip_fleet:
        from loadcell.fleet.fleet import Fleet  # engines and hosts, which a run on running services has no use for

        fleet = Fleet(
            spec.fleet, folder, registry, name=spec.name, note=watcher.note, headers=headers, source=asked.spec and asked.spec.resolve()
        )
        try:
            with refusals_placed(spec.origins):
                fleet.check()
        except BaseException:
            fleet.release()
            raise
        return OwnFleet(fleet, hider)
    engine = spec.fleet.engine if spec.fleet else None
    urls = running_urls(spec, registry)
    return RunningServices(
        urls,
        engine=engine,
        model=(spec.fleet.served_model_name or spec.fleet.model) if spec.fleet else None,
        health_path=str(cells[0].flags.get("health_path") or (spec.fleet.health_path if spec.fleet else None) or "/health"),
        headers=headers,
        devices=_devices(spec.fleet, len(urls)),
        proxy=target.proxy,
        tls=_tls(target) if any(url.startswith("https") for url in urls) else None,
    )


def _tls(target: TargetSpec) -> "ssl.SSLContext":
    from loadcell.client import tls  # OpenSSL takes a while to load

    return tls.context(target.ca_file, target.insecure)


def _refuse_silent(services: Services, todo: Sequence[Cell], environment: Mapping[str, str]) -> None:
    """Services that somebody else was to start, and that are not there: said at once, unless the first cell is to wait for them."""
    if not isinstance(services, RunningServices) or not todo:
        return
    if scenario_of(todo[0], _SOMEWHERE, None, environment).ready_check_timeout_s > 0:
        return
    silent = services.silent()
    if silent:
        raise EnvironmentFailure(
            f"no answer from {', '.join(silent)}: start what is to be measured, or have it waited for: [bench] ready-check-timeout-sec = 600"
        )


def _devices(fleet: FleetSpec | None, services: int) -> int | None:
    """Of services that run already, as the specification tells."""
    from loadcell.fleet.plan import devices_by_config

    each = devices_by_config(fleet) if fleet is not None else None
    return each * services if each else None


def running_urls(spec: ExperimentSpec, registry: Registry) -> tuple[str, ...]:
    """Where services that run already are: as [target] says, as `loadcell fleet up` recorded them, or at the fleet's fixed ports here."""
    if spec.target is not None:
        return spec.target.base_url
    assert spec.fleet is not None
    up = [entry for entry in registry.entries() if entry.made_by == "up" and entry.spec_name == spec.name and entry.port is not None]
    if len({entry.folder for entry in up}) > 1:
        raise UserError(f"--skip-fleet: several fleets named {spec.name} are up; give the addresses of one as [target] base_url")
    if up:
        ordered = sorted(up, key=lambda entry: (len(entry.service), entry.service))
        return tuple(_url(entry.address or _LOOPBACK, entry.port or 0) for entry in ordered)
    planned = _planned_urls(spec.fleet) if spec.fleet.port != "auto" else ()
    if planned:
        return planned
    raise UserError(
        f"--skip-fleet: where the services of {spec.name} are is not known: `loadcell fleet up` recorded none, "
        "and [fleet] gives no ports that can be told without looking; give their addresses as [target] base_url"
    )


def _planned_urls(fleet: FleetSpec) -> tuple[str, ...]:
    """Where they would be by the specification alone; empty where that depends on what is found on the machines."""
    from loadcell.fleet.hosts import open_host  # engines and hosts are loaded only where they are asked
    from loadcell.fleet.plan import HostFound, hosts_of, plan_services

    if not fleet.host and fleet.multi_host is None and isinstance(fleet.port, int):
        return tuple(_url(_LOOPBACK, fleet.port + index) for index in range(fleet.replicas))
    hosts = [open_host(spec) for spec in hosts_of(fleet)]
    try:
        plans = plan_services(fleet, {host.name: HostFound(address=host.address) for host in hosts})
    except LoadcellError:
        return ()
    finally:
        for host in hosts:
            host.close()
    return tuple(plan.base_url for plan in plans if plan.serves and plan.base_url)


def _url(address: str, port: int) -> str:
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
