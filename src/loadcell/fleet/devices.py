"""Which devices a replica may take, and the variable that gives them to it. Pure: what the vendor's tool told comes in as `DeviceUse`.

A device that the specification names is taken as named: whether somebody uses it is checked before the start, and refused there. Of devices that
were only found, those in use are left alone. Knows no process.
"""

from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.fleet.hosts.host import DeviceUse
from loadcell.fleet.spec import FleetSpec, HostSpec

VARIABLES: Final[dict[str, str]] = {
    "nvidia": "CUDA_VISIBLE_DEVICES",
    "amd": "HIP_VISIBLE_DEVICES",
    "ascend": "ASCEND_RT_VISIBLE_DEVICES",
}
_BUSY: Final = 0.1
"""A device with more than this part of its memory in use is not free, though no process can be seen on it (a container does not see all)."""


class Pool(Struct, frozen=True):
    """Devices of one host that may be given away, in order. `named`: by the specification. `busy`: device -> why it is left out."""

    devices: tuple[int, ...]
    named: bool
    busy: dict[int, str] = {}


def in_use(use: DeviceUse) -> str | None:
    """Why a device is not free, in words; null: it is."""
    if use.holders:
        return ", ".join(f"process {pid} ({command})" for pid, command in use.holders)
    if use.memory_used_mib is not None and use.memory_total_mib and use.memory_used_mib > _BUSY * use.memory_total_mib:
        return f"{use.memory_used_mib:.0f} MiB in use by nobody that can be seen from here"
    return None


def pool_of(spec: FleetSpec, host: HostSpec, found: tuple[DeviceUse, ...] | None, taken: Collection[int]) -> Pool:
    """What `host` may give. Lists per replica are no pool: see `lists_of`. Raises UserError for a device that is not there."""
    flat = tuple(one for one in spec.devices or () if isinstance(one, int))
    named = host.devices if host.devices is not None else flat if spec.devices is not None else None
    if named is not None:
        refuse_absent(named, f"devices of host {host.name}" if host.devices is not None else "fleet.devices", host.name, found)
        return Pool(named, named=True)
    busy = {use.index: why for use in found or () if (why := in_use(use) or ("another fleet of ours" if use.index in taken else None))}
    return Pool(tuple(use.index for use in found or () if use.index not in busy), named=False, busy=busy)


def lists_of(spec: FleetSpec) -> tuple[tuple[int, ...], ...] | None:
    """`devices = [[0, 1], [2, 3]]`: one list per replica; null: it is a pool, or not given. Raises UserError."""
    given = spec.devices or ()
    lists = tuple(tuple(one) for one in given if not isinstance(one, int))
    if not lists:
        flat = [one for one in given if isinstance(one, int)]
        if len(set(flat)) != len(flat):
            raise UserError(f"fleet.devices = {flat}: a device stands twice")
        return None
    if len(lists) != len(given):
        raise UserError(
            f"fleet.devices = {list(given)!r}: give one pool ([0, 1, 2, 3]) or one list per replica ([[0, 1], [2, 3]]), not both"
        )
    if len(lists) != spec.replicas:
        raise UserError(f"fleet.devices has {len(lists)} lists for fleet.replicas = {spec.replicas}: one list per replica is needed")
    for index, one in enumerate(lists):
        if len(set(one)) != len(one):
            raise UserError(f"fleet.devices[{index}] = {list(one)}: a device stands twice")
        if spec.devices_per_replica is not None and len(one) != spec.devices_per_replica:
            raise UserError(f"fleet.devices[{index}] = {list(one)}: fleet.devices_per_replica = {spec.devices_per_replica}")
    return lists


def refuse_absent(devices: Collection[int], key: str, host: str, found: tuple[DeviceUse, ...] | None) -> None:
    """A device that the vendor's tool does not list, where there is one."""
    if any(device < 0 for device in devices):
        raise UserError(f"{key} = {list(devices)}: devices are numbered from 0")
    absent = sorted(set(devices) - {use.index for use in found}) if found else []
    if found and absent:
        there = ", ".join(str(use.index) for use in found)
        raise UserError(f"{key}: host {host} has no device {absent[0]}; its devices are {there}")


def share(pools: Mapping[str, Pool], replicas: int, each: int) -> dict[str, int]:
    """How many replicas each host gets: evenly, as far as its devices reach. Raises for too few devices, naming who has them."""
    counts = dict.fromkeys(pools, 0)
    for _ in range(replicas):
        able = [name for name, pool in pools.items() if each == 0 or (counts[name] + 1) * each <= len(pool.devices)]
        if not able:
            raise _too_few(pools, replicas, each)
        counts[min(able, key=counts.__getitem__)] += 1
    return counts


def _too_few(pools: Mapping[str, Pool], replicas: int, each: int) -> UserError | EnvironmentFailure:
    have = "; ".join(f"{name} has {len(pool.devices)}" for name, pool in pools.items())
    busy = "; ".join(f"device {device} on {name} is in use: {why}" for name, pool in pools.items() for device, why in pool.busy.items())
    text = f"fleet.replicas = {replicas} with {each} devices each need {replicas * each} devices: {have}"
    if busy:
        return EnvironmentFailure(f"{text} free ({busy}): stop what uses them, or lower fleet.replicas")
    return UserError(f"{text}: lower fleet.replicas or fleet.devices_per_replica, or add to the devices")


def vendor_of(spec: FleetSpec, found: tuple[DeviceUse, ...] | None) -> str | None:
    """Whose devices they are: said, else as the tool that was found tells; null: not known."""
    if spec.vendor != "auto":
        return spec.vendor
    return found[0].vendor if found else None


def variable(vendor: str, devices: tuple[int, ...]) -> dict[str, str]:
    """`CUDA_VISIBLE_DEVICES=2,3`; nothing for no devices, or a vendor without one."""
    name = VARIABLES.get(vendor)
    return {name: ",".join(map(str, devices))} if name and devices else {}
