"""Ending a process group that is ours: terminate, wait, kill, and what is still there then. Group in, living members out."""

import signal
from typing import Final

from loadcell.clock import NS_PER_S, Clock
from loadcell.fleet.hosts.host import Group, Host, Member
from loadcell.fleet.interrupts import Flag
from loadcell.fleet.monitor import living

_LOOK_EVERY_NS: Final = NS_PER_S // 10
_KILL_NS: Final = 10 * NS_PER_S


def stop_group(host: Host, group: Group, grace_s: float, clock: Clock, hurry: Flag) -> tuple[Member, ...]:
    """SIGTERM, wait `grace_s`, SIGKILL, wait; the members that are still there. Raises HostUnreachable."""
    host.signal(group, signal.SIGTERM)
    host.signal(group, signal.SIGCONT)  # a stopped process takes no SIGTERM before it runs again
    left = _gone_by(host, group, round(grace_s * NS_PER_S), clock, hurry)
    if left:
        host.signal(group, signal.SIGKILL)
        left = _gone_by(host, group, _KILL_NS, clock, Flag())
    return left


def _gone_by(host: Host, group: Group, wait_ns: int, clock: Clock, hurry: Flag) -> tuple[Member, ...]:
    deadline_ns = clock.now_ns() + wait_ns
    while True:
        left = living(host.look(group))
        now_ns = clock.now_ns()
        if not left or now_ns >= deadline_ns or hurry.is_set():
            return left
        clock.sleep_until(now_ns + _LOOK_EVERY_NS)
