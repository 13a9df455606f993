"""What engines share in saying how a replica is started: the program, the placeholders, which model is a path. Pure."""

from collections.abc import Sequence

from loadcell.fleet.spec import FleetSpec, Replica


def program(spec: FleetSpec, usual: Sequence[str]) -> tuple[str, ...]:
    """`fleet.executable` instead of the engine's usual program. A text is one word, spaces and all; a list is several."""
    if spec.executable is None:
        return tuple(usual)
    return (spec.executable,) if isinstance(spec.executable, str) else spec.executable


def placeholders(spec: FleetSpec, replica: Replica) -> dict[str, str]:
    """What `{name}` in `fleet.command`, `fleet.args` and `fleet.env` stands for."""
    return {
        "port": str(replica.port),
        "host": replica.bind,
        "address": replica.address,
        "model": spec.model or "",
        "devices": ",".join(map(str, replica.devices)),
        "name": replica.name,
        "index": str(replica.index),
        "rank": str(replica.rank),
        "folder": replica.folder,
    }


def local_path(model: str | None) -> str | None:
    """The model as a path on its host, where it is written like one; a name on a hub (`org/name`) is none."""
    return model if model and model.startswith(("/", "./", "../", "~")) else None
