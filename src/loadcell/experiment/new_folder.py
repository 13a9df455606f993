"""A name -> a new, empty folder for what a command leaves behind: `runs/<time>-<name>`, or the one that was asked for."""

import contextlib
import re
from datetime import datetime
from pathlib import Path
from typing import Final

from loadcell.errors import EnvironmentFailure, UserError

RUNS: Final = "runs"


def new_folder(output_dir: str | None, name: str) -> Path:
    """It exists and is empty when this returns. UserError for a folder that holds anything, or cannot be made. `~/` is the home folder."""
    if output_dir is not None:
        folder = Path(output_dir)
        folder = folder.expanduser() if folder.parts[:1] == ("~",) else folder
        try:
            return _asked(folder)
        except FileExistsError:
            raise UserError(f"--output-dir {folder}: there is a link that leads nowhere: choose another folder") from None
        except OSError as error:
            raise UserError(f"--output-dir {folder}: cannot be made, or looked into ({error.strerror}): choose another folder") from None
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "bench"
    stem = f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{name}"
    for number in range(1, 1000):
        folder = Path(RUNS) / (stem if number == 1 else f"{stem}-{number}")
        if not folder.exists():
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise UserError(f"{folder}: cannot be made ({error.strerror}): choose a folder with --output-dir") from None
            return folder
    raise EnvironmentFailure(f"{RUNS}/{stem}: no free folder name; use --output-dir")


def _asked(folder: Path) -> Path:
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"--output-dir {folder} is not empty, and records are never overwritten: choose another folder")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--output-dir {folder} is a file: choose a folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def take_back(folder: Path) -> None:
    """Remove a folder that stayed empty, and `runs/` where it holds nothing else."""
    with contextlib.suppress(OSError):  # it holds a run, or its parent holds others
        folder.rmdir()
        if folder.parent == Path(RUNS):
            folder.parent.rmdir()
