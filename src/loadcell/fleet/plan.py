"""FleetSpec + what was found on its hosts -> one ServicePlan per process group. Pure: it opens nothing, and takes nobody's word for granted.

Replicas are spread evenly over the hosts, as far as devices reach, neighbours staying together: `replica-0`, `replica-1`, ... The ranks of a service
over several hosts are `replica-0` (the head) and `replica-0.rank-1`, ... Raises UserError for what cannot be, naming the key; that somebody else
has a port or a device is for the caller to find out.

Variables: the specification's beat the inherited ones, and what the plan sets (devices, the ranks' network) beats both, except for the
network's, which the specification may say better.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.fleet.command_line import fill, option
from loadcell.fleet.devices import VARIABLES, Pool, lists_of, pool_of, refuse_absent, share, variable, vendor_of
from loadcell.fleet.engines import ENGINES
from loadcell.fleet.engines.engine import Engine
from loadcell.fleet.hosts.host import DeviceUse
from loadcell.fleet.multihost import network_variables, over_ray, shape
from loadcell.fleet.naming import placeholders
from loadcell.fleet.spec import FleetSpec, HostSpec, Launch, MultiHostSpec, Replica, ServicePlan

HERE: Final = HostSpec("local")
_PARALLEL: Final = ("tensor-parallel-size", "-tp", "tp-size", "tp", "pipeline-parallel-size", "-pp", "pp-size", "pp", "data-parallel-size", "-dp", "dp-size", "dp")  # fmt: skip
"""How engines call the options that multiply devices."""
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


class HostFound(Struct, frozen=True):
    """One host as it was found. `devices` null: no vendor's tool tells. `taken`: devices of other fleets of ours. `free_ports`: for `auto`.

    `interface`: (name, address) of the one that leads to the other hosts. `folder`: where replicas may have files there.
    """

    address: str = "127.0.0.1"
    devices: tuple[DeviceUse, ...] | None = None
    taken: tuple[int, ...] = ()
    free_ports: tuple[int, ...] = ()
    interface: tuple[str, str] | None = None
    folder: str = ""


def hosts_of(spec: FleetSpec) -> tuple[HostSpec, ...]:
    """Its hosts; without any, this machine."""
    return spec.host or (HERE,)


def ports_wanted(spec: FleetSpec) -> int:
    """At most how many free ports one host has to offer to `plan_services`; 0: none."""
    return (spec.replicas if spec.port == "auto" else 0) + (1 if spec.multi_host and spec.multi_host.data_parallel_rpc_port == 0 else 0)


def plan_services(spec: FleetSpec, found: Mapping[str, HostFound], config_text: str | None = None) -> tuple[ServicePlan, ...]:
    """`found` by the host's name. `config_text`: content of `config_file`. Raises UserError, EnvironmentFailure (too few free devices)."""
    engine = ENGINES[spec.engine]
    check_spec(spec)
    engine.check(spec)
    if spec.multi_host is not None:
        return _over_hosts(spec, spec.multi_host, engine, found, config_text)
    return _replicas(spec, engine, found, config_text)


def check_spec(spec: FleetSpec) -> None:
    """What does not make sense whatever the engine and the machines. Raises UserError."""
    if spec.replicas < 1:
        raise UserError(f"fleet.replicas = {spec.replicas}: at least 1 is needed")
    if spec.devices_per_replica is not None and spec.devices_per_replica < 0:
        raise UserError(f"fleet.devices_per_replica = {spec.devices_per_replica}: 0 or more is needed")
    if spec.restarts < 0:
        raise UserError(f"fleet.restarts = {spec.restarts}: 0 or more is needed")
    if isinstance(spec.port, int) and not 1 <= spec.port <= 65535:
        raise UserError(f'fleet.port = {spec.port}: a port from 1 to 65535 is needed, or "auto"')
    names = [host.name for host in spec.host]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"fleet.host: the name {twice!r} stands twice; records are kept by it: choose another")
    for name in spec.env:
        if not name or "=" in name or "\0" in name + spec.env[name]:
            raise UserError(f"fleet.env.{name}: no name or value that a variable can have")
    for path in spec.files:
        if path.startswith("/") or ".." in path.split("/") or not path:
            raise UserError(f"fleet.files.{path}: give a path below the folder of a replica")
    lists_of(spec)


def inherited_notes(spec: FleetSpec, inherited: Iterable[str]) -> tuple[str, ...]:
    """Variables of this process that its services will read too, as texts; by name only, for a value may be a key."""
    reads = ENGINES[spec.engine].reads
    acting = [name for name in sorted(set(inherited) - spec.env.keys()) if name.startswith(reads)] if reads else []
    return (f"inherited variables act on the services here, unless fleet.env sets them: {', '.join(acting)}",) if acting else ()


def devices_by_config(spec: FleetSpec) -> int | None:
    """Devices of one replica as the specification alone tells, for machines whose tools tell nothing. Null: it does not, or they differ."""
    if spec.vendor == "none" or spec.multi_host is not None:
        return None
    lists = lists_of(spec)
    if lists:
        return len(lists[0]) if len(set(map(len, lists))) == 1 else None
    if spec.devices_per_replica is not None:
        return spec.devices_per_replica or None
    said = any(option(spec.args, name) is not None for name in _PARALLEL)
    return ENGINES[spec.engine].devices_needed(spec) if said else None


# --- replicas, each on one host


def _replicas(spec: FleetSpec, engine: Engine, found: Mapping[str, HostFound], config_text: str | None) -> tuple[ServicePlan, ...]:
    hosts = hosts_of(spec)
    lists = lists_of(spec)
    pools = {host.name: _pool(spec, engine, host, found[host.name]) for host in hosts}
    each = 0 if lists else _each(spec, engine, pools)
    counts = share(pools, spec.replicas, each)
    ports = _Ports(spec, found)
    plans: list[ServicePlan] = []
    given: dict[str, set[int]] = {name: set() for name in pools}
    for host in hosts:
        place = found[host.name]
        for nth in range(counts[host.name]):
            index = len(plans)
            devices = lists[index] if lists else pools[host.name].devices[nth * each : (nth + 1) * each]
            if lists:
                refuse_absent(devices, f"fleet.devices[{index}]", host.name, place.devices)
            twice = sorted(given[host.name].intersection(devices))
            if twice:
                raise UserError(f"fleet.devices: device {twice[0]} on host {host.name} is given to two replicas")
            given[host.name].update(devices)
            address = host.address or place.address
            replica = Replica(
                name=f"replica-{index}",
                index=index,
                host=host.name,
                port=ports.next(host.name, address),
                address=address,
                bind=_bind(spec, address),
                devices=devices,
                folder=f"{place.folder}/replica-{index}",
                config_text=config_text,
            )
            plans.append(_service(spec, engine, replica, _vendor(spec, engine, place, devices)))
    return tuple(plans)


def _pool(spec: FleetSpec, engine: Engine, host: HostSpec, place: HostFound) -> Pool:
    """Devices that were only found are for engines that have devices, or for a specification that counts them."""
    pool = pool_of(spec, host, place.devices, place.taken)
    wanted = pool.named or engine.devices_by != "none" or spec.devices_per_replica
    return pool if (wanted and spec.vendor != "none") or pool.named else Pool((), named=False)


def _each(spec: FleetSpec, engine: Engine, pools: Mapping[str, Pool]) -> int:
    """Devices of one replica; 0 where none are known: the engine then takes what it finds."""
    needed = engine.devices_needed(spec)
    if spec.devices_per_replica is not None:
        if needed is not None and spec.devices_per_replica not in (0, needed):
            raise UserError(
                f"fleet.devices_per_replica = {spec.devices_per_replica}, but the options in fleet.args need {needed} "
                "(tensor × pipeline × data parallel): make them agree"
            )
        if spec.devices_per_replica and not any(pool.devices or pool.busy for pool in pools.values()):
            raise UserError(
                f"fleet.devices_per_replica = {spec.devices_per_replica}: no vendor's tool found devices; say which there are, "
                "as in devices = [0, 1, 2, 3]"
            )
        return spec.devices_per_replica
    if engine.devices_by == "config" and spec.replicas > 1:
        raise UserError("fleet.devices_per_replica is missing: without it every replica would take the devices of its configuration file")
    if not any(pool.devices or pool.busy for pool in pools.values()):
        return 0
    if needed is not None:
        return needed
    if not any(pool.named for pool in pools.values()):
        return 0
    raise UserError(f"fleet.devices_per_replica is missing: engine {spec.engine!r} does not tell how many of the devices a replica needs")


class _Ports:
    """The first port and those that follow, counted per address, so that two aliases of one machine never get the same."""

    def __init__(self, spec: FleetSpec, found: Mapping[str, HostFound]) -> None:
        self._first = None if spec.port == "auto" else spec.port
        self._free = {name: list(place.free_ports) for name, place in found.items()}
        self._used: dict[str, set[int]] = {}

    def next(self, host: str, address: str) -> int:
        used = self._used.setdefault(address, set())
        port = self.free(host, used) if self._first is None else self._first + len(used)
        if port > 65535:
            raise UserError(f"fleet.port = {self._first}: the replicas on {host} would need port {port}: begin lower")
        used.add(port)
        return port

    def free(self, host: str, used: set[int]) -> int:
        """0, where nobody has looked, stands for any number of free ones."""
        free = self._free[host]
        while free:
            port = free.pop(0)
            if port not in used or port == 0:
                return port
        raise EnvironmentFailure(f'fleet.port = "auto": too few free ports were found on {host}')


def _bind(spec: FleetSpec, address: str) -> str:
    """Where to listen: as `host` in `fleet.args` says, else on loopback where clients come that way, else everywhere."""
    said = option(spec.args, "host")
    return str(said) if said not in (None, True) else address if address in _LOOPBACK else "0.0.0.0"  # noqa: S104 - for other hosts


def _vendor(spec: FleetSpec, engine: Engine, place: HostFound, devices: tuple[int, ...]) -> str:
    vendor = vendor_of(spec, place.devices)
    if vendor is not None or not devices or engine.devices_by != "variable" or spec.engine == "command":
        return vendor or "none"
    raise UserError(
        f'fleet.vendor = "auto": no vendor\'s tool tells whose devices {list(devices)} are: say vendor = "nvidia", "amd", "ascend" or "none"'
    )


# --- one service over several hosts


def _over_hosts(
    spec: FleetSpec, multi: MultiHostSpec, engine: Engine, found: Mapping[str, HostFound], config_text: str | None
) -> tuple[ServicePlan, ...]:
    if spec.replicas != 1:
        raise UserError(f"fleet.replicas = {spec.replicas}: fleet.multi_host makes one service of all hosts: leave replicas out")
    if spec.engine not in ("vllm", "simulated"):
        raise UserError(f'fleet.multi_host is for engine "vllm" (and "simulated"), not for {spec.engine!r}')
    hosts = hosts_of(spec)
    parts = shape(spec, multi)
    if lists_of(spec):
        raise UserError("fleet.devices: lists per replica do not go with fleet.multi_host: give each host its devices, or one pool for all")
    ports = _Ports(spec, found)
    head = hosts[0]
    address = head.address or found[head.name].address
    port = ports.next(head.name, address)
    if multi.data_parallel_rpc_port == 0 and multi.kind == "data_parallel":
        multi = msgspec.structs.replace(multi, data_parallel_rpc_port=ports.free(head.name, {port}))
        spec = msgspec.structs.replace(spec, multi_host=multi)
    meeting = _meeting(head, found[head.name], address, len(hosts))
    plans = []
    for rank, host in enumerate(hosts):
        place = found[host.name]
        devices = _rank_devices(spec, engine, multi, host, place, parts.devices)
        nic, nic_address = (host.nic, None) if place.interface is None else place.interface
        name = "replica-0" if rank == 0 else f"replica-0.rank-{rank}"
        own = host.address or place.address
        replica = Replica(
            name=name,
            index=0,
            host=host.name,
            port=port if rank == 0 else 0,
            address=own,
            bind=_bind(spec, own),
            devices=devices,
            rank=rank,
            ranks=len(hosts),
            head_address=meeting,
            nic=host.nic or nic,
            nic_address=nic_address,
            folder=f"{place.folder}/{name}",
            config_text=config_text,
        )
        plans.append(_service(spec, engine, replica, _vendor(spec, engine, place, devices)))
    return tuple(plans)


def _meeting(head: HostSpec, place: HostFound, address: str, hosts: int) -> str:
    """Where the other ranks reach the head: its interface's address, else the one that clients use."""
    meeting = place.interface[1] if place.interface else address
    if hosts > 1 and meeting in _LOOPBACK:
        raise UserError(f"host {head.name}: {meeting} is no address that the other hosts reach it by: give it an address or a nic")
    return meeting


def _rank_devices(spec: FleetSpec, engine: Engine, multi: MultiHostSpec, host: HostSpec, place: HostFound, needed: int) -> tuple[int, ...]:
    pool = pool_of(spec, host, place.devices, place.taken)
    if spec.vendor == "none" and not pool.named:
        return ()
    if not pool.named and (place.devices is None or engine.devices_by == "none"):
        return tuple(range(needed))  # of the devices_per_host that the specification promises
    if len(pool.devices) < needed:
        share({host.name: pool}, 1, needed)
    return pool.devices[: min(needed, multi.devices_per_host)]


# --- both


def _service(spec: FleetSpec, engine: Engine, replica: Replica, vendor: str) -> ServicePlan:
    launch = engine.launch(spec, replica)
    multi = spec.multi_host
    before: tuple[Launch, ...] = ()
    meets: tuple[tuple[int, str], ...] = ()
    if multi is not None and multi.kind == "ray":
        launch = over_ray(multi, replica, launch)
        if replica.host not in _contained(spec):  # a program of an image is not on the machine
            before = (Launch((multi.ray_executable, "--version")),)
        meets = ((multi.ray_port, "fleet.multi_host.ray_port"),)
    elif multi is not None:
        meets = ((multi.data_parallel_rpc_port, "fleet.multi_host.data_parallel_rpc_port"),)
    devices = variable(vendor, replica.devices) if engine.devices_by != "config" else {}
    for name in VARIABLES.values():
        if replica.devices and name in spec.env:
            raise UserError(f"fleet.env.{name}: the devices {list(replica.devices)} are planned: give them as fleet.devices instead")
    own = {name: fill(value, placeholders(spec, replica)) for name, value in spec.env.items()}
    network = network_variables(replica, vendor) if replica.ranks > 1 else {}
    launch = msgspec.structs.replace(launch, env=launch.env | network | own | devices, files=(*launch.files, *spec.files.items()))
    serves = replica.rank == 0
    url = _url(spec, replica) if serves else None
    return ServicePlan(replica, launch, serves, url, spec.cwd or launch.cwd, before, meets=meets if serves else ())


def _contained(spec: FleetSpec) -> set[str]:
    """Hosts whose services are containers of their own."""
    return {host.name for host in spec.host if host.docker is not None and host.docker.image is not None}


def _url(spec: FleetSpec, replica: Replica) -> str:
    secure = option(spec.args, "ssl-certfile") is not None or spec.config.get("ServerConfig.httpsEnabled") is True
    host = f"[{replica.address}]" if ":" in replica.address else replica.address
    path = option(spec.args, "root-path") or ""
    return f"{'https' if secure else 'http'}://{host}:{replica.port}{path}"
