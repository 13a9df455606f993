"""A machine as a `Host`: its agent's plain values made into our nouns. How the agent is reached is the connection's business."""

import base64
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from loadcell.errors import EnvironmentFailure
from loadcell.fleet.hosts import device_tools
from loadcell.fleet.hosts.host import DeviceUse, Ended, Group, Look, PortHolder

CALL_S = 15.0
"""Of a call that the agent answers at once."""
START_S = 45.0
FETCH_BYTES = 1 << 20
"""Files below /proc/sys refuse to be read 4 MiB at a time."""


class AgentRefusal(Exception):
    """The agent answered that it cannot; not that it cannot be reached."""


class Connection(Protocol):
    """One way to an agent. Safe to call from several threads."""

    def call(self, name: str, values: dict[str, Any], timeout_s: float) -> Any:
        """Raises HostUnreachable, or AgentRefusal with the agent's text."""

    def close(self) -> None: ...


class AgentHost:
    """`hosts.host.Host` over a connection."""

    def __init__(self, name: str, address: str, connection: Connection) -> None:
        self.name = name
        self.address = address
        self._connection = connection

    def call(self, call: str, timeout_s: float = CALL_S, /, **values: Any) -> Any:
        """One of `agent.CALLS`."""
        try:
            return self._connection.call(call, values, timeout_s)
        except AgentRefusal as refusal:
            raise EnvironmentFailure(f"host {self.name}: {refusal}") from None

    def run(self, argv: Sequence[str], *, timeout_s: float = 30.0, env: dict[str, str] | None = None) -> Ended:
        ended = self.call("run", timeout_s + CALL_S, argv=list(argv), timeout_s=timeout_s, env=env)
        return msgspec.convert(ended, Ended)

    def start(
        self, argv: Sequence[str], *, env: dict[str, str], cwd: str | None, log: str, marker: str, cpus: Sequence[int] | None = None
    ) -> Group:
        asked = {"argv": list(argv), "env": env, "cwd": cwd, "log": log, "marker": marker, "exit_file": exit_file_of(log)}
        return msgspec.convert(self.call("start", START_S, **asked, cpus=None if cpus is None else list(cpus)), Group)

    def find(self, marker: str, log: str) -> Group | None:
        return msgspec.convert(self.call("find", marker=marker, log=log, exit_file=exit_file_of(log)), Group | None)

    def look(self, group: Group) -> Look:
        return msgspec.convert(self.call("look", group=msgspec.to_builtins(group)), Look)

    def signal(self, group: Group, number: int) -> int:
        return int(self.call("send_signal", group=msgspec.to_builtins(group), number=int(number)))

    def read_log(self, path: str, offset: int, limit: int = 1 << 20) -> tuple[int, bytes]:
        read = self.call("read_log", path=path, offset=offset, limit=limit)
        return int(read["next"]), base64.b64decode(read["data"])

    def cap_log(self, path: str, cap: int) -> None:
        self.call("cap_log", 120.0, path=path, cap=cap)

    def bindable(self, address: str, port: int) -> bool:
        return bool(self.call("bindable", address=address, port=port))

    def free_ports(self, address: str, count: int, avoid: Sequence[int] = ()) -> tuple[int, ...]:
        found = self.call("free_ports", address=address, count=count, avoid=list(avoid))
        if len(found) < count:
            raise EnvironmentFailure(f"host {self.name}: {len(found)} free ports found on {address}, {count} needed")
        return tuple(found)

    def port_holder(self, port: int) -> PortHolder | None:
        return msgspec.convert(self.call("port_holder", port=port), PortHolder | None)

    def listener_of(self, group: Group, port: int) -> bool | None:
        found = self.call("listeners", port=port, group=msgspec.to_builtins(group))
        return all_ours(found, {member.pid for member in self.look(group).members})

    def devices(self, vendor: str) -> tuple[DeviceUse, ...] | None:
        return device_tools.devices(self.run, lambda pids: self.call("commands", pids=pids), vendor)

    def interface_address(self, nic: str | None, towards: str | None = None) -> tuple[str, str] | None:
        found = self.call("interface_address", nic=nic, towards=towards)
        return (found[0], found[1]) if found else None

    def exists(self, path: str) -> bool:
        return bool(self.call("exists", path=path))

    def make_folder(self, path: str) -> None:
        self.call("make_folder", path=path)

    def write_file(self, path: str, content: str) -> None:
        self.call("write_file", 60.0, path=path, content=content)

    def fetch(self, path: str) -> bytes:
        parts: list[bytes] = []
        while True:
            part = base64.b64decode(self.call("fetch", 60.0, path=path, offset=sum(map(len, parts)), limit=FETCH_BYTES))
            parts.append(part)
            if len(part) < FETCH_BYTES:
                return b"".join(parts)

    def close(self) -> None:
        self._connection.close()


def exit_file_of(log: str) -> str:
    """Where a service's exit code is written, beside its log."""
    return f"{log}.exit"


def all_ours(listeners: dict[str, Any], ours: set[int]) -> bool | None:
    """Several servers can listen on one port (SO_REUSEPORT, or one per address): one stranger among them is enough to be answered by it."""
    sockets = [set(pids) for pids in listeners["sockets"]]
    if any(not pids & ours for pids in sockets):
        return False
    return True if sockets and not listeners["unknown"] else None
