"""`loadcell fleet up|status|logs|down SPEC`: services by hand. They stay when the command ends, and only recorded ones are ever stopped."""

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from loadcell.experiment.spec import ExperimentSpec
    from loadcell.fleet.detached import Found
    from loadcell.fleet.registry import Entry, Registry
    from loadcell.fleet.spec import FleetSpec

Action = Literal["up", "status", "logs", "down"]


def fleet(
    action: Annotated[Action, typer.Argument(help="What to do.", show_default=False)],
    spec_file: Annotated[
        Path,
        typer.Argument(metavar="SPEC", help="The file of an experiment or a study, or one with nothing but [fleet].", show_default=False),
    ],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="logs: of this service alone.", show_default=False)] = None,
    lines: Annotated[int, typer.Option(metavar="N", help="logs: the last N lines.")] = 40,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="logs: go on until the service ends.")] = False,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="up: say a key otherwise: fleet.replicas=2. Repeat it.")
    ] = None,
    env_file: Annotated[Path | None, typer.Option(metavar="FILE", help="up: KEY=value lines that ${KEY} in the file stands for.")] = None,
) -> int:
    """Start, look at, read and stop the services of a specification, by hand.

    `up` returns when every service is ready, and leaves them running; `down` stops exactly those. A load against them is
    `loadcell bench --base-url ...` or `loadcell run SPEC --skip-fleet`. `status` and `logs` also show services of a `loadcell run` or
    `loadcell tune` of SPEC that is under way. What they and `down` need to know stands in the services' records: SPEC is read by `up` alone.
    """
    from loadcell.cli.state import fleet_registry
    from loadcell.experiment.places import refusals_placed
    from loadcell.experiment.read import text_of
    from loadcell.fleet.detached import recorded

    registry = fleet_registry(os.environ, _note)
    folder = _folder(registry, spec_file)
    entries = recorded(registry, str(folder), str(spec_file.resolve()))
    if action == "up":
        experiment, spec = _read(spec_file, sets or (), env_file)
        with refusals_placed(experiment.origins):
            return _up(spec, experiment.name, folder, registry, [entry for entry in entries if entry.made_by == "up"], spec_file)
    if not entries:
        text_of(spec_file)  # a file that is not there is a mistake
        print(f"no services of {spec_file} are recorded")
        return 1 if action == "status" else 0
    if action == "logs":
        return _logs(entries, name, lines, follow=follow)
    return _status(entries) if action == "status" else _down(registry, entries, spec_file)


def _note(text: str) -> None:
    print(f"loadcell: {text}", file=sys.stderr)


def _folder(registry: "Registry", spec_file: Path) -> Path:
    """One per specification file, beside the records: logs and events of its services."""
    path = spec_file.resolve()
    return registry.folder.parent / "fleets" / f"{path.stem}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def _read(spec_file: Path, sets: Sequence[str], env_file: Path | None) -> "tuple[ExperimentSpec, FleetSpec]":
    from loadcell.errors import UserError
    from loadcell.experiment.read import read_experiment

    experiment = read_experiment(spec_file, sets=sets, env_file=env_file, environment=os.environ, note=_note)
    if experiment.fleet is None:
        raise UserError(f"{spec_file} has no [fleet]: there is nothing to start or stop")
    return experiment, experiment.fleet


def _up(spec: "FleetSpec", title: str, folder: Path, registry: "Registry", entries: "Sequence[Entry]", spec_file: Path) -> int:
    from loadcell.errors import EnvironmentFailure
    from loadcell.fleet.fleet import Fleet

    if entries:
        names = ", ".join(entry.service for entry in entries)
        raise EnvironmentFailure(f"{names} of {spec_file} are up already, or their records are: `loadcell fleet down {spec_file}` first")
    with Fleet(spec, folder, registry, name=title, made_by="up", note=_note) as services:
        services.start()
        _table(
            [
                (one.name, one.state, one.base_url or "-", str(one.pid or "-"), _devices(one.devices), "fleet up", one.log)
                for one in services.status()
            ]
        )
        urls = " ".join(services.base_urls)
        _note(f"all are ready; load them with: loadcell bench --model {services.model} --base-url {urls}")
    return 0


def _status(entries: "Sequence[Entry]") -> int:
    """Exit code 0 when every one that serves is ready."""
    from loadcell.fleet.detached import look_at

    found = look_at(entries)
    _table([_row(one) for one in found])
    for text in dict.fromkeys(_run_line(entry) for entry in entries if entry.made_by == "run"):
        print(text)
    return 0 if all(one.state == "ready" or (one.state == "running" and one.entry.base_url is None) for one in found) else 1


def _row(one: "Found") -> tuple[str, ...]:
    from loadcell.fleet.detached import owner_word

    state, entry = f"{one.state} ({one.detail})" if one.detail else one.state, one.entry
    return entry.service, state, entry.base_url or "-", str(one.pid or "-"), _devices(entry.devices), owner_word(entry), entry.log


def _run_line(entry: "Entry") -> str:
    """Which run it is that services are of, and who stops them."""
    from loadcell.fleet.detached import owner_word, under_way

    what = "under way, and stops its services itself" if under_way(entry) else "gone: `loadcell fleet down`, or the next start, stops these"
    return f"{owner_word(entry)}: a run of loadcell in {entry.folder}, {what}"


def _devices(devices: Sequence[int]) -> str:
    return ",".join(map(str, devices)) or "-"


def _down(registry: "Registry", entries: "Sequence[Entry]", spec_file: Path) -> int:
    from loadcell.clock import MonotonicClock
    from loadcell.errors import EnvironmentFailure
    from loadcell.fleet.detached import down, under_way

    theirs = [entry for entry in entries if under_way(entry)]
    mine = [entry for entry in entries if entry not in theirs]
    for text in down(registry, mine, MonotonicClock()):
        print(text)
    if theirs:
        names = ", ".join(entry.service for entry in theirs)
        pids = " ".join(dict.fromkeys(str(entry.owner.pid) for entry in theirs))
        folders = ", ".join(dict.fromkeys(entry.folder for entry in theirs))
        raise EnvironmentFailure(
            f"{names} of {spec_file}: not stopped: a run of loadcell is under way with them (process {pids}, folder {folders}): "
            f"end it, with Ctrl-C or `kill {pids}`, and it stops them itself"
        )
    left = {entry.marker for entry in registry.entries()}
    return 1 if any(entry.marker in left for entry in mine) else 0


def _logs(entries: "Sequence[Entry]", name: str | None, lines: int, *, follow: bool) -> int:
    from loadcell.clock import MonotonicClock
    from loadcell.errors import UserError
    from loadcell.fleet.detached import log_lines, named

    chosen = named(entries, name)
    if follow and len(chosen) > 1:
        raise UserError(f"--follow: name one service: {', '.join(entry.service for entry in chosen)}")
    for entry in chosen:
        if len(chosen) > 1:
            print(f"==> {entry.service}: {entry.log} on {entry.host.name} <==")
        for text in log_lines(entry, lines, MonotonicClock(), follow=follow):
            print(text, end="" if text.endswith("\n") or follow else "\n", flush=follow)
    return 0


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    titled = [("service", "state", "base url", "pid", "devices", "started by", "log"), *rows]
    widths = [max(len(row[column]) for row in titled) for column in range(len(titled[0]))]
    for row in titled:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
