"""A name -> a new, empty folder for what a command leaves behind: `runs/<time>-<name>`, or the one that was asked for."""

import contextlib
import re
from datetime import datetime
from pathlib import Path
from typing import Final

from loadcell.errors import EnvironmentFailure, UserError

RUNS: Final = "runs"


def new_folder(output_dir: str | None, name: str) -> Path:
    """It exists and is empty when this returns. UserError for a folder that holds anything."""
    if output_dir is not None:
        folder = Path(output_dir)
        if folder.is_dir() and any(folder.iterdir()):
            raise UserError(f"--output-dir {folder} is not empty, and records are never overwritten: choose another folder")
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--output-dir {folder} is a file: choose a folder")
        return _made(folder, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "bench"
    stem = f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{name}"
    for number in range(1, 1000):
        folder = Path(RUNS) / (stem if number == 1 else f"{stem}-{number}")
        if not folder.exists():
            try:
                return _made(folder, exist_ok=False)
            except FileExistsError:
                continue
    raise EnvironmentFailure(f"{RUNS}/{stem}: no free folder name; use --output-dir")


def take_back(folder: Path) -> None:
    """Remove a folder that stayed empty, and `runs/` where it holds nothing else."""
    with contextlib.suppress(OSError):  # it holds a run, or its parent holds others
        folder.rmdir()
        if folder.parent == Path(RUNS):
            folder.parent.rmdir()


def _made(folder: Path, *, exist_ok: bool) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError:
        raise
    except OSError as error:
        raise UserError(f"--output-dir {folder}: cannot be made ({error.strerror})") from error
    return folder
