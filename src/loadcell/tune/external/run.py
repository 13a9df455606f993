"""An external benchmark as a process group of ours: started, watched with the service that it loads, ended by a deadline, a hang, a death or a signal.

We don't see its tokens. So the server's own counter of output tokens is read now and then (a light GET; it makes nobody generate): standing still
while requests run is a hang. What it wrote is told from what was there before.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from loadcell.clock import NS_PER_S, Clock
from loadcell.fleet.events import now_text
from loadcell.fleet.hosts.local import LocalHost
from loadcell.fleet.interrupts import Flag
from loadcell.fleet.monitor import exit_text, living
from loadcell.fleet.registry import Entry, Registry, new_marker, this_process
from loadcell.fleet.spec import HostSpec
from loadcell.fleet.stopping import stop_group
from loadcell.load.signals import catching
from loadcell.metrics.exposition import Scrape
from loadcell.tune.external.told import Command

How = Literal["done", "failed", "deadline", "hung", "service", "signal"]

_LOOK_NS: Final = NS_PER_S // 5
_GRACE_S: Final = 10.0
_LINES: Final = 5
_TAIL: Final = 1 << 14
_LONGEST: Final = 1000
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_WRONG: Final = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Exit)\b|.*\b(?:[Ee]rror|ERROR|[Ff]atal|FATAL)\b\W* \w")
"""`ValueError: …`, `vllm: error: …`, `- ERROR: …`."""


class Ended(Struct, frozen=True):
    """`text`: why, where it is not `done`. `files`: what is new below its results. `signal`: of the user."""

    how: How
    text: str
    seconds: float
    code: int | None = None
    files: tuple[Path, ...] = ()
    signal: int | None = None


class Limits(Struct, frozen=True):
    """Seconds. `every`: between two looks at the server's counter."""

    deadline_s: float
    hang_s: float
    every_s: float = 5.0


class Stillness:
    """Since when the server's counter has stood still while requests run. Fed with scrapes; pure."""

    def __init__(self) -> None:
        self._count: float | None = None
        self._since_ns: int | None = None

    def still_s(self, scrapes: Sequence[Scrape | None], now_ns: int) -> float:
        """0 while it moves, nothing runs, or it cannot be told."""
        known = [one for one in scrapes if one is not None and one.generated is not None and one.running is not None]
        count = sum(one.generated or 0.0 for one in known)
        runs = any((one.running or 0.0) > 0 for one in known)
        if not known or len(known) < len(scrapes) or not runs or count != self._count:
            self._count, self._since_ns = (count, now_ns) if runs else (None, None)
            return 0.0
        return 0.0 if self._since_ns is None else (now_ns - self._since_ns) / NS_PER_S


def run(
    command: Command,
    log: Path,
    limits: Limits,
    registry: Registry,
    scrape: Callable[[], Sequence[Scrape | None]],
    trouble: Callable[[], str | None],
    clock: Clock,
    *,
    name: str,
) -> Ended:
    """`trouble`: what has happened to the service, null as long as nothing has. The group is gone when this returns, and however it is left."""
    host, before, began_ns = LocalHost(), _files(command.results), clock.now_ns()
    signals: list[int] = []
    with catching(signals.append), _recorded(registry, log, name) as marker:
        group = host.start(command.argv, env=command.env, cwd=None, log=str(log), marker=marker)
        registry.complete(marker, group)
        still, asked_ns = Stillness(), began_ns
        try:
            while (look := host.look(group)).alive:
                now_ns = clock.now_ns()
                elapsed_s = (now_ns - began_ns) / NS_PER_S
                if signals:
                    return Ended("signal", "interrupted", elapsed_s, signal=signals[0])
                told = trouble()
                if told is not None:
                    return Ended("service", told, elapsed_s)
                if elapsed_s > limits.deadline_s:
                    return Ended("deadline", f"it had not ended after {elapsed_s:.0f} s (benchmark.timeout)", elapsed_s)
                if now_ns - asked_ns >= limits.every_s * NS_PER_S:
                    asked_ns = now_ns
                    quiet_s = still.still_s(scrape(), now_ns)
                    if quiet_s >= limits.hang_s:
                        text = f"the server's counter of output tokens stood still for {quiet_s:.0f} s while requests ran"
                        return Ended("hung", text, elapsed_s)
                clock.sleep_until(now_ns + _LOOK_NS)
        finally:
            if living(host.look(group)):
                stop_group(host, group, _GRACE_S, clock, Flag())
        seconds = (clock.now_ns() - began_ns) / NS_PER_S
    if look.exit_code != 0:
        return Ended("failed", f"it ended with {exit_text(look.exit_code)}: {_last(log)}", seconds, look.exit_code)
    new = tuple(sorted(path for path, stamp in _files(command.results).items() if before.get(path) != stamp))
    return Ended("done", "", seconds, 0, new)


@contextmanager
def _recorded(registry: Registry, log: Path, name: str) -> Iterator[str]:
    """So that the next loadcell finds it, should this one be killed."""
    marker = new_marker("benchmark")
    entry = Entry(
        marker=marker,
        service="benchmark",
        host=HostSpec("local"),
        owner=this_process(),
        made_by="run",
        spec_name=name,
        folder=str(log.parent),
        created=now_text(),
        log=str(log),
    )
    registry.add(entry)
    try:
        yield marker
    finally:
        registry.remove(marker)


def _files(folder: Path) -> dict[Path, tuple[int, int]]:
    """Below a folder: (size, time of change)."""
    found = {}
    for path in folder.rglob("*") if folder.is_dir() else ():
        try:
            stat = path.stat()
        except OSError:
            continue
        if path.is_file():
            found[path] = (stat.st_size, stat.st_mtime_ns)
    return found


def _last(log: Path) -> str:
    """The last line that says what went wrong, which others may follow (what a library has to say at its exit); else the last few."""
    try:
        text = log.read_bytes()[-_TAIL:].decode("utf-8", "replace")
    except OSError:
        return "it said nothing"
    lines = [line.strip() for line in _COLOURS.sub("", text).replace("\r", "\n").split("\n") if line.strip()]
    wrong = next((line for line in reversed(lines) if _WRONG.match(line)), None)
    return (wrong or " / ".join(lines[-_LINES:]) or "it said nothing")[:_LONGEST]
