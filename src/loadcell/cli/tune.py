"""`loadcell tune FILE`: the best parameters of a service within its limits, proven. What is done is `loadcell.tune`'s business; here it is told."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from loadcell.cli.study_view import StudyView
    from loadcell.tune.events import FromOptix
    from loadcell.tune.prepare import Asked


def tune(
    spec_file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="The study's file. With --resume: that study's own.", show_default=False)
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with this study: no trial that ended is measured again.", show_default=False)
    ] = None,
    output_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of this study; must be empty. [default: runs/<time>-<name>]")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Say a key otherwise: study.budget.trials=50. Repeat it.")
    ] = None,
    env_file: Annotated[Path | None, typer.Option(metavar="FILE", help="KEY=value lines that ${KEY} in the file stands for.")] = None,
    sampler: Annotated[
        str | None, typer.Option(metavar="NAME", help="model (default), tpe, gp, nsga2, cmaes, qmc, random, grid, pso.", show_default=False)
    ] = None,
    from_optix: Annotated[
        Path | None, typer.Option("--from-optix", metavar="CONFIG", help="optix's config.toml, as it is.", show_default=False)
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", "-e", metavar="ENGINE", help="With --from-optix: vllm (default), mindie, …", show_default=False),
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            "--benchmark-policy",
            "--benchmark_policy",
            "-b",
            metavar="BENCH",
            help="With --from-optix: vllm_benchmark, evalscopeperf or ais_bench run the real command; without it our own client loads.",
            show_default=False,
        ),
    ] = None,
    backup: Annotated[bool, typer.Option("--backup", help="With --from-optix: accepted; everything is kept anyway.")] = False,
    load_breakpoint: Annotated[
        bool, typer.Option("--load-breakpoint", "--load_breakpoint", "-lb", help="With --from-optix: learn from optix's newest history.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the answer, and what went wrong.")] = False,
) -> int:
    """Find the parameters of a service that give the most within its limits, in few launches, and prove that they beat the default.

    Ctrl-C ends the trial that runs and stops its services; `--resume` goes on later. All that was measured is in the study's folder.
    """
    _refuse_together(spec_file, from_optix, resume, output_dir)
    optix = _optix(from_optix, engine, benchmark, backup=backup, load_breakpoint=load_breakpoint)
    _one_thread()
    from loadcell.cli.study_view import StudyView
    from loadcell.tune.prepare import Asked

    asked = Asked(
        source=spec_file or from_optix,
        optix=optix,
        sets=tuple(sets or ()),
        env_file=env_file,
        output_dir=output_dir,
        resume=resume,
        sampler=sampler,
    )
    return _run(asked, StudyView(sys.stdout, sys.stderr, quiet=quiet))


def _run(asked: "Asked", view: "StudyView") -> int:
    from loadcell.cli.state import fleet_registry
    from loadcell.experiment.run import hang_ups_are_terms
    from loadcell.fleet.interrupts import leaving
    from loadcell.load.signals import catching, ignored
    from loadcell.tune.prepare import prepared
    from loadcell.tune.standing import exit_code

    with leaving(), prepared(asked, os.environ, fleet_registry(os.environ, view.note), view) as ready:
        view.opening(ready)
        try:
            with hang_ups_are_terms(), catching(ready.study.on_signal):
                closed = ready.study.execute()
        finally:
            view.stop()
            if ready.study.signal is not None:
                ignored()  # one more Ctrl-C must not take the answer from who has just asked for it
            if ready.record.closed is None or ready.record.closed.state != "complete":
                view.note(f"go on with: loadcell tune --resume {ready.folder}")
        view.answer(ready, closed)
    return exit_code(closed, ready.study.signal)


def _one_thread() -> None:
    """numpy and scipy loaded so that they calculate in one thread: the matrices are small, and the processors are the load's. The services, which
    inherit the environment, see nothing of it.
    """
    name = "OPENBLAS_NUM_THREADS"
    if name in os.environ or "numpy" in sys.modules:
        return
    os.environ[name] = "1"
    try:
        import numpy  # noqa: F401, ICN001 - its library reads the variable as it is loaded
        import scipy.linalg  # noqa: F401
    finally:
        del os.environ[name]


def _optix(
    config: Path | None, engine: str | None, benchmark: str | None, *, backup: bool, load_breakpoint: bool
) -> "FromOptix | None":  # fmt: skip
    from loadcell.errors import UserError

    if config is None:
        given = {"-e": engine, "-b": benchmark, "--backup": backup, "--load-breakpoint": load_breakpoint}
        first = next((flag for flag, value in given.items() if value), None)
        if first is not None:
            raise UserError(f"{first} belongs to --from-optix CONFIG; a study's file says it by itself, and --set says it otherwise")
        return None
    from loadcell.tune.events import FromOptix

    return FromOptix(engine or "vllm", benchmark, backup, load_breakpoint)


def _refuse_together(spec_file: Path | None, from_optix: Path | None, resume: Path | None, output_dir: str | None) -> None:
    from loadcell.errors import UserError

    if resume is not None and output_dir is not None:
        raise UserError(f"--output-dir {output_dir} with --resume {resume}: a study goes on in its own folder; leave one out")
    if spec_file is not None and from_optix is not None:
        raise UserError(f"{spec_file} with --from-optix {from_optix}: which of them is the study? Leave one out")
