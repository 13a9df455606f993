"""`loadcell init`: a commented specification to start from."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; - prints it.")] = Path("experiment.toml"),
    engine: Annotated[str, typer.Option(help="vllm, sglang, mindie, simulated or command.")] = "simulated",
) -> None:
    """Write a commented specification of an experiment. A file that exists is never replaced."""
    from loadcell.errors import EnvironmentFailure, UserError
    from loadcell.experiment.init import ENGINE_NAMES, template

    if engine not in ENGINE_NAMES:
        raise UserError(f"--engine {engine}: choose one of {', '.join(ENGINE_NAMES)}")
    if str(path) == "-":
        sys.stdout.write(template(engine))
        return
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template(engine))
    except FileExistsError:
        raise UserError(f"{path} exists and is not replaced: give another name") from None
    except OSError as error:
        raise EnvironmentFailure(f"cannot write {path}: {error.strerror or error}") from error
    print(f"{path} is written. Next: loadcell check {path}")
