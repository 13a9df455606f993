"""What is there already under a name that a report is to have. Asked before a run, so it loads nothing that makes reports."""

import stat
from pathlib import Path

from loadcell.errors import UserError


def refuse_existing(path: str | Path, flag: str, remedy: str) -> None:
    """UserError when `path` is there already. Call it before the run: nobody should learn of it an hour later.

    `-` (standard output) and devices or pipes are always fine.
    """
    if is_stream(path) or not Path(path).exists():
        return
    raise UserError(f"{flag} {path}: the file exists and is not overwritten; {remedy}")


def is_stream(path: str | Path) -> bool:
    """Standard output, or something that is no regular file (a pipe, /dev/null): nothing to overwrite there."""
    if str(path) == "-":
        return True
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)
