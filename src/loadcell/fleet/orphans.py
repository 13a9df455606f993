"""Services whose loadcell was killed before it could stop them: found in the registry, proven ours by pid, start time and boot id, stopped, and said.

What `fleet up` made is no orphan. A record whose processes are gone, or are somebody else's by now, is removed and nobody is touched.
"""

from collections.abc import Callable, Mapping
from typing import Final

from loadcell.clock import Clock
from loadcell.errors import EnvironmentFailure
from loadcell.fleet.hosts import open_host
from loadcell.fleet.hosts.host import Group, Host
from loadcell.fleet.interrupts import Flag
from loadcell.fleet.monitor import living
from loadcell.fleet.registry import Entry, Registry
from loadcell.fleet.stopping import stop_group
from loadcell.fleet.together import together

GRACE_S: Final = 10.0


def stop_orphans(registry: Registry, hosts: Mapping[str, Host], clock: Clock) -> tuple[str, ...]:
    """Stop those on `hosts` (by alias) and on this machine; a text for each. Those on other machines are named and left alone."""
    entries = registry.orphans()
    reached = [entry for entry in entries if entry.host.name in hosts or (entry.host.ssh is None and entry.host.docker is None)]
    elsewhere = sorted({entry.host.name for entry in entries if entry not in reached})
    texts = together([_stopper(registry, entry, hosts, clock) for entry in reached], "orphan")
    return (
        *texts,
        *(f"services of a run that was killed are recorded on host {name}, which is not of this fleet: left alone" for name in elsewhere),
    )


def _stopper(registry: Registry, entry: Entry, hosts: Mapping[str, Host], clock: Clock) -> Callable[[], str]:
    return lambda: stop_recorded(registry, entry, hosts.get(entry.host.name) or open_host(entry.host), clock, _whose(entry))


def _whose(entry: Entry) -> str:
    return f"{entry.service} of {entry.spec_name}, whose loadcell (process {entry.owner.pid}) is gone"


def group_of(entry: Entry, host: Host) -> Group | None:
    """The recorded group, or what the marker finds where the record was never completed. Raises HostUnreachable."""
    return entry.group or host.find(entry.marker, entry.log)


def stop_recorded(registry: Registry, entry: Entry, host: Host, clock: Clock, whose: str, grace_s: float = GRACE_S) -> str:
    """Stop exactly what the entry records, and forget it; what was done, as a text."""
    try:
        group = group_of(entry, host)
        members = living(host.look(group)) if group is not None else ()
        if group is None or not members:
            registry.remove(entry.marker)
            return f"{whose}: its processes are gone too; the record is removed"
        left = stop_group(host, group, grace_s, clock, Flag())
    except EnvironmentFailure as cut:
        return f"{whose}: not stopped: {cut}"
    if left:
        return f"{whose}: not stopped, process {', '.join(str(member.pid) for member in left)} is still there"
    registry.remove(entry.marker)
    return f"{whose}: stopped (process {', '.join(str(member.pid) for member in members)})"
