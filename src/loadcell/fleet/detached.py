"""Services that another loadcell started, by `fleet up` or for a run: found again by their records alone, looked at, read, stopped.

Nothing here goes by a name or a port: what is not recorded is not touched, and a recorded pid that is somebody else's by now neither.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from loadcell.clock import NS_PER_S, Clock
from loadcell.errors import EnvironmentFailure
from loadcell.fleet.events import last_event
from loadcell.fleet.hosts import open_host
from loadcell.fleet.hosts.host import Group, Host, HostUnreachable
from loadcell.fleet.inquiry import Question, light_get
from loadcell.fleet.monitor import exit_text, has_ended, living
from loadcell.fleet.orphans import group_of, stop_recorded
from loadcell.fleet.registry import Entry, Registry, owner_lives
from loadcell.fleet.together import together

_FOLLOW_NS: Final = NS_PER_S // 4
_READ: Final = 1 << 20
_BYTES_PER_LINE: Final = 1 << 10


class Found(Struct, frozen=True):
    """One recorded service as it is now. `state`: `ready` answers the light GET, `running` does not (yet, or serves nothing).

    One of a run that is under way is not asked: it is ready when that run has said so.
    """

    entry: Entry
    state: Literal["ready", "running", "ended", "host unreachable"]
    detail: str
    pid: int | None


def recorded(registry: Registry, folder: str, source: str) -> tuple[Entry, ...]:
    """Of the specification in the file `source`: what `up` made, which has this folder, then what its runs made."""
    entries = registry.entries()
    up = [entry for entry in entries if entry.made_by == "up" and entry.folder == folder]
    return (*up, *(entry for entry in entries if entry.made_by == "run" and entry.source == source))


def under_way(entry: Entry) -> bool:
    """Whether a run that is there owns it, and will stop it."""
    return entry.made_by == "run" and owner_lives(entry.owner)


def owner_word(entry: Entry) -> str:
    return "fleet up" if entry.made_by == "up" else f"run {entry.owner.pid}"


def look_at(entries: Sequence[Entry]) -> list[Found]:
    return together([_looker(entry) for entry in entries], "status")


def _looker(entry: Entry) -> Callable[[], Found]:
    return lambda: _look(entry)


def _look(entry: Entry) -> Found:
    host = open_host(entry.host)
    try:
        group = group_of(entry, host)
        look = host.look(group) if group is not None else None
    except HostUnreachable as cut:
        return Found(entry, "host unreachable", str(cut), None)
    finally:
        host.close()
    if group is None or look is None:
        return Found(entry, "ended", "it was never started, or is gone", None)
    if has_ended(look):
        rest = len(living(look))
        return Found(entry, "ended", exit_text(look.exit_code) + (f"; {rest} processes of it remain" if rest else ""), None)
    if under_way(entry):
        last = last_event(Path(entry.folder), entry.service)
        state = last.state if last is not None else "starting"
        return Found(entry, "ready" if state == "ready" else "running", "" if state == "ready" else state, group.pid or None)
    url = entry.base_url
    wrong = "serves no requests itself" if url is None else light_get(Question(url, "chat", entry.health_path, None, 0.0))
    return Found(entry, "running" if wrong else "ready", wrong or "", group.pid or None)


def down(registry: Registry, entries: Sequence[Entry], clock: Clock) -> list[str]:
    """Stop exactly these, at once; a text for each. Whose record remains is not stopped."""
    return together([_stopper(registry, entry, clock) for entry in entries], "down")


def _stopper(registry: Registry, entry: Entry, clock: Clock) -> Callable[[], str]:
    def stop() -> str:
        host = open_host(entry.host)
        try:
            return stop_recorded(registry, entry, host, clock, entry.service, entry.stop_s)
        finally:
            host.close()

    return stop


def log_lines(entry: Entry, lines: int, clock: Clock, *, follow: bool) -> Iterator[str]:
    """The last `lines` of its log; with `follow`, what comes after them until it has ended. Raises EnvironmentFailure."""
    host = open_host(entry.host)
    try:
        offset, data = host.read_log(entry.log, -_BYTES_PER_LINE * max(1, lines))
        text = data.decode("utf-8", "replace")
        yield from text.splitlines(keepends=True)[-lines:] if lines else ()
        group = group_of(entry, host) if follow else None
        while group is not None:
            offset, more = host.read_log(entry.log, offset, _READ)
            if more:
                yield more.decode("utf-8", "replace")
            elif _ended(host, group):
                return
            else:
                clock.sleep_until(clock.now_ns() + _FOLLOW_NS)
    finally:
        host.close()


def _ended(host: Host, group: Group) -> bool:
    return has_ended(host.look(group))


def named(entries: Sequence[Entry], name: str | None) -> tuple[Entry, ...]:
    """All, or the one of that name. Raises EnvironmentFailure."""
    found = tuple(entry for entry in entries if name in (None, entry.service))
    if not found:
        known = ", ".join(entry.service for entry in entries)
        raise EnvironmentFailure(f"no service {name} is recorded" + (f"; there are: {known}" if known else ""))
    return found
