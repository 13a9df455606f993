"""`loadcell study show|export DIR`: what a study found, also while it runs or after it was killed; and its best, or any trial, to start elsewhere."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

if TYPE_CHECKING:
    from loadcell.report.study import StudyResults
    from loadcell.tune.events import Record
    from loadcell.tune.parameters import Configuration
    from loadcell.tune.reporting import Reporter

Action = Literal["show", "export"]
Format = Literal["toml", "sh", "compose", "systemd", "kubernetes", "csv", "json", "markdown"]
_OF_ALL: Final = ("csv", "json", "markdown")


def study(
    action: Annotated[Action, typer.Argument(help="What to do.", show_default=False)],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that `loadcell tune` printed.", show_default=False)],
    kind: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="export: toml (default), an experiment's file that starts and measures it; sh, systemd, compose, kubernetes; all trials as csv or json; the "
            "report as markdown.",
            show_default=False,
        ),
    ] = None,
    trial: Annotated[
        int | None, typer.Option(metavar="N", help="export: the configuration of this trial instead of the best.", show_default=False)
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="export: where it goes; - (default) is standard output.", show_default=False),
    ] = None,
) -> None:
    """Say what a study found, and write its reports again; or export its best configuration. Starts nothing, and changes no record."""
    from loadcell.errors import UserError
    from loadcell.tune.reporting import report_again

    if action == "export":
        _one_thread()
        _, record, reporter, running = report_again(folder)
        _export(reporter, record, kind or "toml", trial, output or "-", running=running)
        return
    for flag, value in (("--trial", trial), ("--format", kind), ("--output", output)):
        if value is not None:
            raise UserError(f"{flag} {value} belongs to export; show tells of all trials")
    show(folder)


def show(folder: Path) -> None:
    """What it found, on standard output; its reports are made again. Of a study that runs its own process writes them."""
    from loadcell.cli.study_view import width_of
    from loadcell.report import study_terminal
    from loadcell.tune.reporting import report_again

    _one_thread()
    path, record, reporter, running = report_again(folder)
    results = reporter.results(record, running=True) if running else reporter.write(record)
    study_terminal.show(results, sys.stdout, width_of(sys.stdout))
    print(f"\n{path / 'report.md'}")


def _export(reporter: "Reporter", record: "Record", kind: Format, trial: int | None, output: str, *, running: bool) -> None:
    from loadcell.errors import UserError

    if kind in _OF_ALL:
        if trial is not None:
            raise UserError(f"--trial {trial}: {kind} holds all trials; leave one out")
        _put(_whole(reporter.results(record, running=running), kind), output)
        return
    configuration = _configuration(record, trial)
    if kind == "toml":
        _put(reporter.best_of(configuration, record, trial), output)
        return
    _put(_launch(reporter, record, configuration, kind, trial), output)


def _configuration(record: "Record", trial: int | None) -> "Configuration":
    from loadcell.errors import UserError

    if trial is not None:
        found = next((one.configuration for one in record.numbers().values() if one.number == trial), None)
        if found is None:
            raise UserError(f"--trial {trial}: the study has no such trial; loadcell study show names them")
        return found
    if record.closed is not None and record.closed.announced == "front":
        raise UserError(
            "the study found a front, and no single best: choose one of its trials with --trial N; loadcell study show names them"
        )
    if record.closed is None or record.closed.best is None:
        raise UserError("the study has no answer yet: export one of its trials with --trial N")
    return record.closed.best


def _launch(reporter: "Reporter", record: "Record", configuration: "Configuration", kind: Format, trial: int | None) -> str:
    from loadcell.errors import UserError
    from loadcell.report.study_launch import FORMATS, fits_containers

    fingerprint = record.opened[0].fingerprint if record.opened else {}
    launch, why = reporter.launches_of(configuration, fingerprint)
    if why is None and kind in ("compose", "kubernetes"):
        why = fits_containers(launch)
    if why is not None:
        raise UserError(f"--format {kind}: {why}")
    name = reporter.spec.study.name
    head = f"Made by loadcell study export from study {name}" + (f", trial {trial}" if trial is not None else "")
    return FORMATS[kind](launch, name, f"{head}. Look at the names of images and secrets before you use it.")


def _whole(results: "StudyResults", kind: Format) -> str:
    if kind == "csv":
        from loadcell.report.study_csv import render

        return render(results)
    if kind == "json":
        import msgspec

        return msgspec.json.format(msgspec.json.encode(results), indent=2).decode() + "\n"
    from loadcell.report.study_markdown import render as markdown

    return markdown(results)


def _put(text: str, output: str) -> None:
    from loadcell.errors import EnvironmentFailure, UserError

    if output == "-":
        sys.stdout.write(text)
        return
    try:
        with Path(output).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"--output {output} exists: name another file, or remove it") from None
    except OSError as error:
        raise EnvironmentFailure(f"cannot write {output}: {error.strerror}") from error
    print(f"loadcell: written: {output}", file=sys.stderr)


def _one_thread() -> None:
    """The matrices are small: more threads only wait for each other."""
    if "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
