"""A folder that one process holds at a time, with a file of events that is only appended to: an experiment's, a study's. `what` names which.

A line is on the disk when `append` returns, so that whatever kills the process, the file tells how far it came.
"""

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

from loadcell.errors import EnvironmentFailure, UserError

LOCK: Final = ".lock"


class HeldFile:
    """The file and the lock of its folder, until `close`. EnvironmentFailure where it cannot be opened or written, UserError where another
    process holds the folder, or a `new` file is there already. `advice` ends the line about a full disk.
    """

    def __init__(self, path: Path, what: str, *, new: bool, advice: str = "") -> None:
        self._path, self._advice = path, advice
        self._fds = [_locked(path.parent, what)]
        try:
            self._fds.append(_opened(path, os.O_CREAT | os.O_EXCL if new else 0, what))
            self.body = path.read_bytes()
        except BaseException:
            self.close()
            raise
        self._ends_whole = not self.body or self.body.endswith(b"\n")

    def append(self, line: bytes) -> None:
        """One line, on the disk when this returns. A fragment that a killed process left keeps a line of its own."""
        whole = (b"" if self._ends_whole else b"\n") + line + b"\n"
        fd = self._fds[-1]
        size = os.fstat(fd).st_size
        try:
            if os.write(fd, whole) < len(whole):
                raise OSError(errno.ENOSPC, "No space left on device")
            os.fsync(fd)
        except OSError as error:
            os.ftruncate(fd, size)
            raise EnvironmentFailure(f"cannot write {self._path}: {error.strerror}; what it held is kept{self._advice}") from error
        self._ends_whole = True

    def close(self) -> None:
        """Let go of it."""
        while self._fds:
            os.close(self._fds.pop())


def keep_copy(folder: Path, name: str, body: bytes) -> str:
    """Write `body` under `name`; where that name holds something else already, under the next free number. The name that it got."""
    stem, dot, end = name.rpartition(".")
    for number in range(1, 10_000):
        path = folder / (name if number == 1 else f"{stem}.{number}{dot}{end}")
        if path.exists():
            if path.read_bytes() == body:
                return path.name
            continue
        try:
            with path.open("xb") as out:
                out.write(body)
        except OSError as error:
            raise EnvironmentFailure(f"cannot write {path}: {error.strerror}") from error
        return path.name
    raise EnvironmentFailure(f"{folder}: no free name for {name}")


def in_use(folder: Path, what: str) -> bool:
    """Whether another process holds it now."""
    try:
        os.close(_locked(folder, what))
    except UserError:
        return True
    return False


def _opened(path: Path, more: int, what: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | more, 0o644)
    except FileExistsError:
        raise UserError(f"{path.parent} holds {what} already: use --resume {path.parent}, or choose another folder") from None
    except OSError as error:
        raise EnvironmentFailure(f"cannot open {path}: {error.strerror}") from error


def _locked(folder: Path, what: str) -> int:
    """A lock of the process, which ends with it and which no child inherits; its file is opened for nothing else."""
    fd = _opened(folder / LOCK, os.O_CREAT, what)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise UserError(f"{folder}: another loadcell works on this {what.removeprefix('an ').removeprefix('a ')} now") from None
    return fd
