"""Which devices and ports a study has for itself, from its first trial to its last: between two trials its services are down, and the fleet's registry
holds nothing for them. One file per study below the registry's folder; one whose process is gone holds nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from loadcell.errors import EnvironmentFailure
from loadcell.fleet.registry import Owner, Registry, new_marker, owner_lives, this_process
from loadcell.fleet.spec import ServicePlan


class Hold(Struct, frozen=True):
    """`ports`, `devices`: (host, number). Ports that are chosen anew for every start are not held."""

    owner: Owner
    name: str
    folder: str
    ports: frozenset[tuple[str, int]] = frozenset()
    devices: frozenset[tuple[str, int]] = frozenset()


def hold_of(plans: Sequence[ServicePlan], name: str, folder: Path, *, fixed_ports: bool) -> Hold:
    """Of the services that a study will start again and again."""
    replicas = [plan.replica for plan in plans]
    return Hold(
        this_process(),
        name,
        str(folder.absolute()),
        frozenset((one.host, one.port) for one in replicas if fixed_ports),
        frozenset((one.host, device) for one in replicas for device in one.devices),
    )


@contextmanager
def held(registry: Registry, hold: Hold) -> Iterator[None]:
    """For the length of the block. EnvironmentFailure names the study that has one of them."""
    folder = registry.folder / "studies"
    path = folder / f"{new_marker(hold.name)}.json"
    with registry.allocating():
        for other in _living(folder):
            _refuse(hold, other)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            path.write_bytes(msgspec.json.encode(hold))
        except OSError as error:
            raise EnvironmentFailure(f"cannot write {path}: {error.strerror}") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


def _living(folder: Path) -> list[Hold]:
    """Files of studies that are gone are removed."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            one = msgspec.json.decode(path.read_bytes(), type=Hold)
        except (OSError, msgspec.DecodeError):
            one = None
        if one is not None and owner_lives(one.owner):
            found.append(one)
        else:
            path.unlink(missing_ok=True)
    return found


def _refuse(mine: Hold, other: Hold) -> None:
    ports, devices = mine.ports & other.ports, mine.devices & other.devices
    if ports or devices:
        what, (host, number) = ("port", min(ports)) if ports else ("device", min(devices))
        raise EnvironmentFailure(
            f"{what} {number} on {host} is taken by study {other.name} (process {other.owner.pid}, folder {other.folder}): "
            f"wait for its end, or choose another fleet.{'port' if ports else 'devices'}"
        )
