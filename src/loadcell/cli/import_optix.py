"""`loadcell import-optix CONFIG`: a configuration of optix as a study of ours. Starts nothing."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer


def import_optix(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="optix's config.toml, as it is.", show_default=False)],
    engine: Annotated[
        str, typer.Option("--engine", "-e", metavar="ENGINE", help="vllm, mindie, multihost_infer, or one with a table of its own.")
    ] = "vllm",
    benchmark: Annotated[
        str | None,
        typer.Option(
            "--benchmark-policy",
            "--benchmark_policy",
            "-b",
            metavar="BENCH",
            help="vllm_benchmark, evalscopeperf or ais_bench run the real command; without it our own client loads.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Where the study goes; - is standard output.")] = "-",
    load_breakpoint: Annotated[
        bool,
        typer.Option("--load-breakpoint", "--load_breakpoint", "-lb", help="Name optix's newest history as trials that are known already."),
    ] = False,
) -> None:
    """Write a configuration of optix as the file of a study: `loadcell tune` runs it.

    Penalties become limits, the swarm's size a budget. What is taken otherwise than it is written is said on standard error.
    """
    from loadcell.errors import UserError
    from loadcell.tune.optix.read import read_optix
    from loadcell.tune.write import to_toml

    spec = read_optix(config, engine, benchmark, load_breakpoint=load_breakpoint, environment=os.environ, note=_say)
    text = to_toml(
        spec, f"Made by `loadcell import-optix` from {config.name}. loadcell tune FILE runs it; docs/study.md explains every key."
    )
    if output == "-":
        print(text, end="")
        return
    path = Path(output)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"--output {output} exists: name another file, or remove it") from None
    except OSError as error:
        raise UserError(f"--output {output}: {error.strerror}") from None
    _say(f"written: {output}; start it with: loadcell tune {output}")


def _say(text: str) -> None:
    print(f"loadcell: {text}", file=sys.stderr)
