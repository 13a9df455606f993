"""Which services a run loads: its own fleet, checked and not yet started, or services that run already, and where those are.

Engines and hosts are loaded only where they are asked: a run on services that run already has no use for most of them.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from loadcell.errors import EnvironmentFailure, LoadcellError, UserError
from loadcell.experiment.cell_run import scenario_of
from loadcell.experiment.matrix import Cell
from loadcell.experiment.places import refusals_placed
from loadcell.experiment.secrets import Hider
from loadcell.experiment.services import Now, OwnFleet, RunningServices, Services
from loadcell.experiment.spec import ExperimentSpec
from loadcell.fleet.registry import Registry
from loadcell.fleet.spec import FleetSpec
from loadcell.scenario import TargetSpec

if TYPE_CHECKING:
    import ssl

_LOOPBACK: Final = "127.0.0.1"
SOMEWHERE: Final = Now((f"http://{_LOOPBACK}:1",), None)
"""Stands for services whose addresses are known when they are ready."""


def own_fleet(
    spec: ExperimentSpec,
    source: Path,
    folder: Path,
    registry: Registry,
    note: Callable[[str], None],
    headers: Sequence[tuple[str, str]],
    hider: Hider,
) -> OwnFleet:
    """Checked against the machines. Raises UserError, EnvironmentFailure."""
    from loadcell.fleet.fleet import Fleet

    assert spec.fleet is not None
    fleet = Fleet(spec.fleet, folder, registry, name=spec.name, note=note, headers=headers, source=source)
    try:
        with refusals_placed(spec.origins):
            fleet.check()
    except BaseException:
        fleet.release()
        raise
    return OwnFleet(fleet, hider)


def running_services(spec: ExperimentSpec, first: Cell, target: TargetSpec, registry: Registry) -> RunningServices:
    """Of `[target]`, of `fleet up`, or at the fleet's ports; `first`: the first cell, `target`: whom and with what it asks. Raises UserError."""
    from loadcell.fleet.engines import ENGINES
    from loadcell.fleet.terms import served_name

    fleet, urls = spec.fleet, running_urls(spec, registry)
    by_engine = None if fleet is None else ENGINES[fleet.engine].health_path if fleet.health_path is None else fleet.health_path
    return RunningServices(
        urls,
        engine=fleet.engine if fleet else None,
        model=served_name(fleet) if fleet else None,
        health_path=str(first.flags.get("health_path") or by_engine or "/health"),
        headers=target.headers,
        devices=_devices(fleet, len(urls)),
        proxy=target.proxy,
        tls=_tls(target) if any(url.startswith("https") for url in urls) else None,
    )


def _tls(target: TargetSpec) -> "ssl.SSLContext":
    from loadcell.client import tls  # OpenSSL takes a while to load

    return tls.context(target.ca_file, target.insecure)


def refuse_silent(services: Services, todo: Sequence[Cell], environment: Mapping[str, str]) -> None:
    """Services that somebody else was to start, and that are not there: said at once, unless the first cell is to wait for them."""
    if not isinstance(services, RunningServices) or not todo:
        return
    if scenario_of(todo[0], SOMEWHERE, None, environment).ready_check_timeout_s > 0:
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
