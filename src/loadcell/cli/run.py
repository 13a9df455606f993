"""`loadcell run SPEC`: start the services, run the matrix, stop them, report. What is done is `loadcell.experiment`'s business; here it is told."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

if TYPE_CHECKING:
    from loadcell.experiment.prepare import Prepared


def run(
    spec_file: Annotated[
        Path | None, typer.Argument(metavar="[SPEC]", help="The experiment's file. With --resume: that run's own.", show_default=False)
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Say a key otherwise: fleet.replicas=2. Repeat it.")
    ] = None,
    env_file: Annotated[Path | None, typer.Option(metavar="FILE", help="KEY=value lines that ${KEY} in the file stands for.")] = None,
    output_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of this run; must be empty. [default: runs/<time>-<name>]")
    ] = None,
    skip_fleet: Annotated[
        bool, typer.Option("--skip-fleet", help="The services run already: start and stop nothing. Also SKIP_MANAGE_SERVER=1.")
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with this run: what was measured to its end is kept, the rest is run.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Run only the cells of these names. Repeat it.")] = None,
    gate: Annotated[bool, typer.Option("--gate", help="Exit with 3 when any limit is missed.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 when a cell is SUSPECT, too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no table; what went wrong is told all the same.")] = False,
) -> int:
    """Run an experiment: start its services, load them scenario by scenario, stop them, and report.

    Ctrl-C lets the cell that runs drain and stops the services; `--resume` goes on later. All that was measured is in the run's folder.
    """
    from loadcell.cli.experiment_view import ExperimentView
    from loadcell.cli.lasting import lasting
    from loadcell.cli.state import fleet_registry
    from loadcell.experiment.prepare import Asked, prepared
    from loadcell.experiment.run import exit_code
    from loadcell.fleet.interrupts import leaving
    from loadcell.load.signals import ignored

    err = lasting(sys.stderr)
    view = ExperimentView(lasting(sys.stdout), err, quiet=quiet)
    asked = Asked(
        spec=spec_file,
        sets=tuple(sets or ()),
        env_file=env_file,
        output_dir=output_dir,
        skip_fleet=skip_fleet or os.environ.get("SKIP_MANAGE_SERVER") == "1",
        resume=resume,
        only=tuple(only or ()),
        gate=gate,
    )
    _refuse_together(asked.resume, output_dir)
    with leaving(), prepared(asked, os.environ, fleet_registry(os.environ, view.note), view) as ready:
        view.opening(ready)
        try:
            results = ready.run.execute()
        finally:
            view.stop()
            if ready.run.signal is not None:
                ignored()  # one more Ctrl-C must not take the report from who has just asked for it
            _where(ready, quiet=quiet, out=err)
    if not quiet:
        view.table(results)
    return exit_code(results, ready.gates, signal_number=ready.run.signal, strict=strict, gate=gate)


def _refuse_together(resume: Path | None, output_dir: str | None) -> None:
    from loadcell.errors import UserError

    if resume is not None and output_dir is not None:
        raise UserError(f"--output-dir {output_dir} with --resume {resume}: a run goes on in its own folder; leave one out")


def _where(ready: "Prepared", *, quiet: bool, out: TextIO) -> None:
    """Where it stands, however it ended; and how to go on, where there is something left."""
    from loadcell.report.files import REPORT_NAME

    if not quiet:
        print(f"loadcell: report: {ready.folder / REPORT_NAME}", file=out)
    if ready.run.unfinished:
        print(
            f"loadcell: {ready.run.unfinished} of {len(ready.cells)} cells are left; go on with: loadcell run --resume {ready.folder}",
            file=out,
        )
