"""What would go wrong is refused before anything starts: plans + hosts + what is claimed -> errors that name key, holder and way out.

Looks at machines, starts nothing there. What an engine can and cannot do is checked by its adapter and by `plan`.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.fleet.devices import in_use
from loadcell.fleet.hosts.host import DeviceUse, Host, PortHolder
from loadcell.fleet.registry import Claims, Entry
from loadcell.fleet.registry import holder as whose
from loadcell.fleet.spec import Replica, ServicePlan

_RANGE: Final = "/proc/sys/net/ipv4/ip_local_port_range"
_RESERVED: Final = "/proc/sys/net/ipv4/ip_local_reserved_ports"
_UNSEEN: Final = "whose process cannot be seen from here (another user's, or in another container)"
_WHOSE: Final = {
    "listener": f"a listener {_UNSEEN}",
    "connection": f"the local end of a connection {_UNSEEN}",
    "closing": "the local end of a connection that is being closed and that no process has any more",
    "time_wait": "the local end of a connection that was closed within the last minute (TIME_WAIT)",
    "unknown": "a socket that is bound and not listened on, and the system does not show whose",
}
_SELDOM_LASTING: Final = ("connection", "closing", "time_wait")


def refuse_missing_model(path: str, hosts: Mapping[str, Host]) -> None:
    for name, host in hosts.items():
        if not host.exists(path):
            raise UserError(f"fleet.model = {path!r}: there is no such path on host {name}; mount it, or give the path that it has there")


def refuse_missing_program(plans: Sequence[ServicePlan], hosts: Mapping[str, Host]) -> None:
    """Each program once per host."""
    asked: dict[tuple[str, str, str, str | None], None] = {}
    for plan in plans:
        cwd = plan.cwd or plan.launch.cwd
        for launch in (*plan.before, plan.launch):
            asked[plan.replica.host, launch.argv[0], launch.env.get("PATH", ""), cwd] = None
    for name, program, path, cwd in asked:
        if not _found(hosts[name], program, path, cwd):
            raise UserError(
                f"{program!r} is no program on host {name}: install it there, give its path as fleet.executable, or set PATH in fleet.env"
            )


def _found(host: Host, program: str, path: str, cwd: str | None) -> bool:
    if "/" in program:
        return host.exists(str(PurePosixPath(cwd or ".") / program) if cwd or program.startswith("/") else program)
    env = {"PATH": path} if path else None
    return host.run(["/bin/sh", "-c", 'command -v -- "$1"', "sh", program], env=env).code == 0


def refuse_taken_ports(
    plans: Sequence[ServicePlan], hosts: Mapping[str, Host], claims: Mapping[str, Claims], ours: Mapping[str, frozenset[int]]
) -> None:
    """`ours`: pids of orphans on each host, which the start stops first."""
    for plan in plans:
        replica = plan.replica
        if not plan.serves:
            continue
        host = hosts[replica.host]
        server = claims[replica.host].servers.get(replica.port)
        _refuse_taken(host, replica, replica.bind, replica.port, "fleet.port", ours[replica.host], server)
        if replica.port in claims[replica.host].ports:  # and nobody listens there yet
            raise EnvironmentFailure(
                f'port {replica.port} on {replica.host} is taken by another fleet of ours: stop it, or use port = "auto"'
            )
        for port, key in plan.meets:
            _refuse_taken(host, replica, replica.head_address or replica.bind, port, key, ours[replica.host])


def _refuse_taken(
    host: Host, replica: Replica, address: str, port: int, key: str, ours: frozenset[int], server: Entry | None = None
) -> None:
    """`server`: the service of another fleet of ours that has this port."""
    if host.bindable(address, port):
        return
    holder = host.port_holder(port)
    if holder is not None and holder.pid in ours:
        return
    if server is not None and holder is not None and holder.kind == "listener" and holder.pid:
        end = "load it with --skip-fleet, stop it with `loadcell fleet down`" if server.made_by == "up" else "wait for that one's end"
        why = f"is taken by process {holder.pid} ({holder.command}), in our records {whose(server)}: {end}, or choose another {key}"
    else:
        why = _taken(host, holder, address, port, key)
    raise EnvironmentFailure(f"port {port} on {replica.host}, for {replica.name}, {why}")


def _taken(host: Host, holder: PortHolder | None, address: str, port: int, key: str) -> str:
    """By whom, and what to do."""
    if holder is None:
        return f"cannot be listened on at {address}: is that an address of this host? Else it became free this moment: try again"
    if holder.kind == "forbidden":
        return f"cannot be listened on by this user: choose another {key}, from 1024 on"
    if holder.pid:
        how = " as its end of a connection" if holder.kind == "connection" else ""
        out = f"is taken by process {holder.pid} ({holder.command}){how}: stop that, or choose another {key}"
    elif holder.kind in ("closing", "time_wait"):
        out = f"is taken by {_WHOSE[holder.kind]}: it is free within a minute or two; wait, or choose another {key}"
    else:
        out = f"is taken by {_WHOSE[holder.kind]}: end that, or choose another {key}"
    given = outgoing_ports(host) if holder.kind in _SELDOM_LASTING else None
    if given is not None and port in given:
        out += f", outside {given[0]}-{given[-1]}, which this machine gives to outgoing connections"
    return out


def outgoing_ports(host: Host) -> range | None:
    """Those that the machine gives to connections that it makes; null: it does not tell."""
    words = host.fetch(_RANGE).decode("ascii", "replace").split()
    return range(int(words[0]), int(words[1]) + 1) if len(words) == 2 and all(word.isdigit() for word in words) else None


def outgoing_port_notes(plans: Sequence[ServicePlan], hosts: Mapping[str, Host]) -> list[str]:
    """For ports that were fixed: one of that range may be some connection's own when the service wants it."""
    notes = []
    for name, host in hosts.items():
        given = outgoing_ports(host)
        if given is None:
            continue
        mine = {plan.replica.port for plan in plans if plan.serves and plan.replica.host == name and plan.replica.port in given}
        if risky := sorted(mine - _reserved(host)):
            notes.append(
                f"fleet.port: {', '.join(map(str, risky))} on {name} may be taken by any outgoing connection, to which this machine gives "
                f"the ports {given[0]}-{given[-1]} (ip_local_port_range): choose one outside, or add them to ip_local_reserved_ports"
            )
    return notes


def _reserved(host: Host) -> set[int]:
    out: set[int] = set()
    for part in host.fetch(_RESERVED).decode("ascii", "replace").strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            out.update(range(int(first), int(last if last.isdigit() else first) + 1))
    return out


def refuse_taken_devices(
    plans: Sequence[ServicePlan], found: Mapping[str, tuple[DeviceUse, ...] | None], claims: Mapping[str, Claims]
) -> None:
    for plan in plans:
        replica = plan.replica
        for use in found.get(replica.host) or ():
            why = in_use(use) if use.index in replica.devices else None
            if why is not None:
                raise EnvironmentFailure(
                    f"device {use.index} ({use.name}) on {replica.host}, for {replica.name}, is in use: {why}; stop that, or choose other fleet.devices"
                )
        both = claims[replica.host].devices.intersection(replica.devices)
        if both:
            raise EnvironmentFailure(
                f"device {min(both)} on {replica.host} is taken by another fleet of ours, {claims[replica.host].whose.get(min(both), 'now')}: "
                "stop it, or choose fleet.devices"
            )
