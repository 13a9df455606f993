"""What a look at a service means: what was seen of it before + one look -> findings. Pure.

It knows process states alone. It cannot reach HTTP, not even transitively (an import contract says so): while a load runs nobody here
asks a service anything, least of all for tokens.
"""

import re
import signal
from collections.abc import Iterable
from typing import Final, Literal

from msgspec import Struct

from loadcell.fleet.hosts.host import Look, Member
from loadcell.fleet.lifecycle import State

Kind = Literal["died", "member_lost", "hung", "resumed", "host unreachable", "host reachable"]
FATAL: Final[frozenset[Kind]] = frozenset({"died", "member_lost", "host unreachable"})
"""After these a replica counts as failed, and is started again between loads."""

LASTING_LOOKS: Final = 3
UNREACHABLE_LOOKS: Final = 2
_SHELL_SIGNAL: Final = 128

# Compilers and the workers that call them come and go while an engine serves.
_PASSING: Final = re.compile(r"compile_worker|(?:^|[/ ])(?:ninja|nvcc|ptxas|cicc|cc1(?:plus)?|gcc|g\+\+|cc|ld|as|hipcc|ccec)(?: |$)")


class FleetEvent(Struct, frozen=True, omit_defaults=True):
    """One line of fleet_events.jsonl. `time`: ISO 8601, UTC. `state`: the service's after it."""

    time: str
    service: str
    state: State
    event: str
    cause: str | None = None


class Finding(Struct, frozen=True):
    kind: Kind
    text: str


class _Known(Struct, frozen=True):
    looks: int
    command: str


class Sighting(Struct, frozen=True):
    """What is known of one service from the looks so far. `members`: (pid, start time) -> for how many looks, and its command.

    `ended`: its main process is gone; `empty`: no process of it is left.
    """

    members: dict[tuple[int, int], _Known] = {}
    misses: int = 0
    ended: bool = False
    empty: bool = False
    hung: bool = False
    unreachable: bool = False


def living(look: Look) -> tuple[Member, ...]:
    """Members that can still do something: a zombie cannot."""
    return tuple(member for member in look.members if member.state not in ("Z", "X"))


def has_ended(look: Look) -> bool:
    """Its main process is gone, whatever children it has left behind."""
    return not look.alive


def exit_text(code: int | None) -> str:
    """How a process ended, in words: `exit code 3`, `killed by SIGKILL`."""
    if code is None:
        return "it is gone without an exit code"
    number = -code if code < 0 else code - _SHELL_SIGNAL if code > _SHELL_SIGNAL else 0
    if number in {one.value for one in signal.Signals}:
        return f"killed by {signal.Signals(number).name} (exit code {code})"
    return f"exit code {code}"


def observe(before: Sighting, look: Look | None, *, lasting: bool = False, waited: bool = False) -> tuple[Sighting, tuple[Finding, ...]]:
    """What has changed. `look` null: its host did not answer; `waited`: for seconds, which is no moment's trouble any more.

    `lasting`: all that is seen now is meant to stay (the first look of a load).
    """
    if before.ended:
        return (before if look is None else Sighting(ended=True, empty=not living(look))), ()
    if look is None:
        return _missed(before, UNREACHABLE_LOOKS if waited else 1)
    findings = [Finding("host reachable", "its host answers again")] if before.unreachable else []
    if has_ended(look):
        return Sighting(ended=True, empty=not living(look)), (*findings, Finding("died", exit_text(look.exit_code)))
    here = living(look)
    present = {(member.pid, member.started) for member in here}
    for key, known in before.members.items():
        if key not in present and known.looks >= LASTING_LOOKS:
            findings.append(Finding("member_lost", f"its process {key[0]} ({known.command[:120]}) is gone"))
    stopped = [member for member in here if member.state in ("T", "t")]
    if stopped and not before.hung:
        findings.append(Finding("hung", f"stopped by a signal: process {', '.join(str(member.pid) for member in stopped)}"))
    if before.hung and not stopped:
        findings.append(Finding("resumed", "runs again"))
    return Sighting(members=_aged(before, here, lasting), hung=bool(stopped)), tuple(findings)


def _aged(before: Sighting, here: Iterable[Member], lasting: bool) -> dict[tuple[int, int], _Known]:
    members = {}
    for member in here:
        if _PASSING.search(member.command):
            continue
        key = (member.pid, member.started)
        seen = before.members[key].looks + 1 if key in before.members else 1
        members[key] = _Known(max(seen, LASTING_LOOKS) if lasting else seen, member.command)
    return members


def _missed(before: Sighting, looks: int) -> tuple[Sighting, tuple[Finding, ...]]:
    """One look without an answer is a moment; two are an event. What was known of its members is kept."""
    misses = before.misses + looks
    cut = misses >= UNREACHABLE_LOOKS
    now = Sighting(before.members, misses, hung=before.hung, unreachable=cut)
    return now, (Finding("host unreachable", "its host does not answer"),) if cut and not before.unreachable else ()
