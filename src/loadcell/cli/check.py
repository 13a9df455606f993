"""`loadcell check SPEC`: what `loadcell run` would run. Starts nothing, writes nothing."""

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from loadcell.experiment.spec import ExperimentSpec
    from loadcell.fleet.spec import ServicePlan


def check(
    spec_file: Annotated[Path, typer.Argument(metavar="SPEC", help="The experiment's file.", show_default=False)],
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Say a key otherwise: fleet.replicas=2. Repeat it.")
    ] = None,
    env_file: Annotated[Path | None, typer.Option(metavar="FILE", help="KEY=value lines that ${KEY} in the file stands for.")] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Show only the cells of these names. Repeat it.")] = None,
    skip_fleet: Annotated[
        bool, typer.Option("--skip-fleet", help="The services run already: look at no machine. Also SKIP_MANAGE_SERVER=1.")
    ] = False,
) -> None:
    """Say what would run: services with their command lines, cells with their requests and limits, settings with their origin.

    Machines are looked at (model, program, devices, ports), and what would be refused at the start is refused here.
    """
    from loadcell.errors import LoadcellError
    from loadcell.experiment import matrix
    from loadcell.experiment.cell_run import refuse_too_large
    from loadcell.experiment.check import report, scenario_of
    from loadcell.experiment.read import read_experiment
    from loadcell.fleet.cpus import told

    spec = read_experiment(spec_file, sets=sets or (), env_file=env_file, environment=os.environ, note=_say)
    cells = matrix.only(matrix.matrix(spec), only or ())
    skipped = skip_fleet or os.environ.get("SKIP_MANAGE_SERVER") == "1"
    plans, refusal, cpus = None, None, None
    if spec.fleet is not None and not skipped:
        try:
            plans = _plans(spec)
        except LoadcellError as error:
            plans, refusal = _unseen(spec), error
        cpus = told(spec.fleet, sorted(os.sched_getaffinity(0)))
    print("\n".join(report(spec, cells, plans, cpus=cpus)))
    if refusal is not None:
        raise refusal
    if not skipped:
        refuse_too_large((cell.scenario, scenario_of(spec, cell)) for cell in cells)


def _say(text: str) -> None:
    print(f"loadcell: {text}", file=sys.stderr)


def _unseen(spec: "ExperimentSpec") -> "tuple[ServicePlan, ...] | None":
    """The plan as far as the file alone gives it: to read on one machine what is for another. Null where the machines have to tell more."""
    from loadcell.errors import LoadcellError
    from loadcell.fleet.plan import HostFound, hosts_of, plan_services, ports_wanted

    assert spec.fleet is not None
    ports = (0,) * ports_wanted(spec.fleet)
    found = {host.name: HostFound(address=host.address or host.ssh or "127.0.0.1", free_ports=ports) for host in hosts_of(spec.fleet)}
    try:
        return plan_services(spec.fleet, found)
    except LoadcellError:
        return None


def _plans(spec: "ExperimentSpec") -> "tuple[ServicePlan, ...]":
    from loadcell.cli.state import fleet_registry
    from loadcell.experiment.places import refusals_placed
    from loadcell.fleet.fleet import Fleet

    assert spec.fleet is not None
    with (
        tempfile.TemporaryDirectory(prefix="loadcell-check-") as folder,
        Fleet(spec.fleet, Path(folder), fleet_registry(os.environ), name=spec.name, note=_say) as fleet,
        refusals_placed(spec.origins),
    ):
        return fleet.check()
