"""`loadcell report DIR`: make the reports again from what was recorded, also from a run that was cut short.

DIR is a run of `loadcell bench`, an experiment of `loadcell run`, a study of `loadcell tune`, or a folder with the multi-service bench client's `raw_outputs/*.jsonl`.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from loadcell.report.experiment import ExperimentResults


def report(
    run_dir: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="The folder that `loadcell bench` or `loadcell run` printed, or one that holds raw_outputs.",
            show_default=False,
        ),
    ],
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="LIMIT", help="For raw_outputs, which hold no limits of their own: 'ttft p95 <= 200ms'. Repeat it."),
    ] = None,
) -> None:
    """Make the reports of a run again from its records. The records are never changed."""
    from loadcell.errors import UserError
    from loadcell.experiment.folder import is_experiment
    from loadcell.report.raw_outputs import is_raw_outputs, open_raw_outputs

    if _is_study(run_dir):
        if slo:
            raise UserError(f"--slo {slo[0]}: a study is held against its own limits; this flag is for folders of raw_outputs")
        from loadcell.cli.study import show

        show(run_dir)
        return
    experiment = is_experiment(run_dir)
    if not experiment and is_raw_outputs(run_dir):
        from loadcell.metrics.slo import parse_slo

        _experiment(run_dir, open_raw_outputs(run_dir, [parse_slo(text) for text in slo or ()]))
        return
    if slo:
        raise UserError(f"--slo {slo[0]}: a run is held against its own limits; this flag is for folders of raw_outputs")
    if experiment:
        from loadcell.experiment.folder import experiment_folder
        from loadcell.experiment.results import report_again

        results, remarks = report_again(run_dir)
        _say(remarks)
        _experiment(experiment_folder(run_dir), results)
    else:
        _run(run_dir)


def _is_study(given: Path) -> bool:
    from loadcell.tune.study_folder import is_study

    return is_study(given)


def _run(run_dir: Path) -> None:
    from loadcell.metrics.summarize import summarize
    from loadcell.report.files import write_derived
    from loadcell.report.run_folder import open_run
    from loadcell.report.terminal import show

    run = open_run(run_dir)
    _say(run.remarks)
    summary = summarize(run.facts, run.records)
    paths = write_derived(run.folder, summary)
    show(summary, sys.stdout)
    print(f"\n{paths[1]}")


def _experiment(folder: Path, results: "ExperimentResults") -> None:
    from loadcell.report.experiment_terminal import show
    from loadcell.report.files import write_results

    paths = write_results(folder, results)
    show(results, sys.stdout)
    print(f"\n{paths[1]}")


def _say(remarks: list[str]) -> None:
    for remark in remarks:
        print(f"loadcell: {remark}", file=sys.stderr)
