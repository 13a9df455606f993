"""`cpus` of [fleet] -> the CPUs of the services on this machine, and the words for it. Pure."""

from collections.abc import Sequence

from loadcell.errors import UserError
from loadcell.fleet.spec import FleetSpec


def cpus_of(spec: FleetSpec, usable: Sequence[int]) -> tuple[int, ...] | None:
    """Null: all of the host's. `apart`: of the `usable` ones of this process all but the last, which is the client's; a single one is shared."""
    if spec.cpus == "any":
        return None
    if spec.cpus == "apart":
        return tuple(sorted(usable)[:-1]) or None
    if not set(usable).issuperset(spec.cpus) or not spec.cpus:
        raise UserError(f"fleet.cpus = {list(spec.cpus)}: this process may use the CPUs {sorted(usable)}: choose of these")
    return spec.cpus


def told(spec: FleetSpec, usable: Sequence[int]) -> str | None:
    """Who runs where on this machine, for whoever reads what will be started; null where nothing is asked for."""
    if spec.cpus == "any":
        return None
    here = not spec.host or any(host.ssh is None and host.docker is None for host in spec.host)
    if spec.cpus != "apart":
        return f"cpus: services of this machine on {_named(spec.cpus)}" if here else None
    if not here:
        return f'cpus = "apart": the client on {_named([max(usable)])}; services in containers and on other hosts are bound to none'
    mine = cpus_of(spec, usable)
    if mine is None:
        return 'cpus = "apart": this process may use one CPU, which the client and the services of this machine share'
    return f'cpus = "apart": services of this machine on {_named(mine)}, the client on {_named([max(usable)])}'


def _named(cpus: Sequence[int]) -> str:
    """`CPU 3`, `CPUs 0-6, 8`."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return f"CPU{'' if len(set(cpus)) == 1 else 's'} " + ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
