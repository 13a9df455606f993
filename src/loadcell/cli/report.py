"""`loadcell report RUN`: make summary.json and report.md again from a run's records, also from a run that was cut short."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder, as `loadcell bench` printed it.", show_default=False)],
) -> None:
    """Make the reports of a run again from its records. The records are never changed."""
    from loadcell.metrics.summarize import summarize
    from loadcell.report.files import write_derived
    from loadcell.report.run_folder import open_run
    from loadcell.report.terminal import show

    run = open_run(run_dir)
    for remark in run.remarks:
        print(f"loadcell: {remark}", file=sys.stderr)
    summary = summarize(run.facts, run.records)
    paths = write_derived(run.folder, summary)
    show(summary, sys.stdout)
    print(f"\n{paths[1]}")
