"""What would go wrong is refused before anything starts: plans + hosts + what is claimed -> errors that name key, holder and way out.

Looks at machines, starts nothing there. What an engine can and cannot do is checked by its adapter and by `plan`.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.fleet.devices import in_use
from loadcell.fleet.hosts.host import DeviceUse, Host
from loadcell.fleet.registry import Claims
from loadcell.fleet.spec import Replica, ServicePlan

_NOT_FOUND = 127


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
        _refuse_taken(host, replica, replica.bind, replica.port, "fleet.port", ours[replica.host])
        if replica.port in claims[replica.host].ports:  # and nobody listens there yet
            raise EnvironmentFailure(
                f'port {replica.port} on {replica.host} is taken by another fleet of ours: stop it, or use port = "auto"'
            )
        for port, key in plan.meets:
            _refuse_taken(host, replica, replica.head_address or replica.bind, port, key, ours[replica.host])


def _refuse_taken(host: Host, replica: Replica, address: str, port: int, key: str, ours: frozenset[int]) -> None:
    if host.bindable(address, port):
        return
    holder = host.port_holder(port)
    if holder is not None and holder.pid in ours:
        return
    whose = f"process {holder.pid} ({holder.command})" if holder is not None and holder.pid else "a process that this user cannot see"
    how = " as its end of a connection" if holder is not None and holder.kind == "connection" else ""
    raise EnvironmentFailure(
        f"port {port} on {replica.host}, for {replica.name}, is taken by {whose}{how}: stop that, or choose another {key}"
    )


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
                f"device {min(both)} on {replica.host} is taken by another fleet of ours: stop it, or choose fleet.devices"
            )
