"""The seam to a machine: start a process group, look at it, signal it, read its log. One agent does the same on every kind of host."""

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from loadcell.errors import EnvironmentFailure


class HostUnreachable(EnvironmentFailure):
    """The host did not answer in time, or its connection is cut. Says nothing of the services on it."""


class Ended(Struct, frozen=True):
    """A command that ran to its end. `code`: its exit code, minus the signal's number where one killed it."""

    code: int
    out: str
    err: str


class Group(Struct, frozen=True):
    """A process group of ours, sufficient to find it again after we have died: a pid alone can be somebody else's tomorrow.

    `pid` leads its own session. `started`: its start in clock ticks after boot. `marker`: value of LOADCELL_SERVICE in the environment of
    every member, also of those that left the session. `container`: of docker run; then `pid` is 0. `waiter`: the process above the leader,
    outside the session, that writes its end down; it leaves by itself and is no member.
    """

    pid: int
    started: int
    boot_id: str
    marker: str
    log: str
    exit_file: str
    container: str | None = None
    waiter: int = 0
    waiter_started: int = 0


class Member(Struct, frozen=True):
    """A living process of a group. `state`: as in /proc/PID/stat (R, S, D, T, Z...); `?`: it has ended, and how is not written down yet."""

    pid: int
    started: int
    parent: int
    state: str
    command: str


class Look(Struct, frozen=True):
    """A group at one moment. `alive`: its leader lives (members may outlive it). `exit_code`: minus the signal's number where one killed it;
    null: its leader lives, or nothing tells. `log_size`: bytes ever written. `defunct`: children that have ended and that their parent, a
    member, has not noticed.
    """

    alive: bool
    exit_code: int | None
    members: tuple[Member, ...]
    log_size: int
    defunct: tuple[Member, ...] = ()


class PortHolder(Struct, frozen=True):
    """`pid` 0 where the system does not tell whose it is. `kind`: a listener; the local end of somebody's connection, or of one that no process
    has any more (`closing`, and `time_wait` at its end); `forbidden` to this user; `unknown`: bound, and the system shows no more of it.
    """

    port: int
    pid: int
    command: str
    kind: Literal["listener", "connection", "closing", "time_wait", "forbidden", "unknown"] = "listener"


class DeviceUse(Struct, frozen=True):
    """One device as the vendor's tool tells. `holders`: (pid, command); `memory_used_mib` null: not told."""

    index: int
    vendor: str
    name: str
    memory_used_mib: float | None
    memory_total_mib: float | None
    holders: tuple[tuple[int, str], ...]


class Host(Protocol):
    """All calls have a deadline and raise HostUnreachable when it passes. Safe to call from several threads."""

    name: str

    @property
    def address(self) -> str:
        """Where clients reach the services on it."""

    def run(self, argv: Sequence[str], *, timeout_s: float = 30.0, env: dict[str, str] | None = None) -> Ended:
        """A short command there, run to its end. A program that is not there: code 127."""

    def start(
        self, argv: Sequence[str], *, env: dict[str, str], cwd: str | None, log: str, marker: str, cpus: Sequence[int] | None = None
    ) -> Group:
        """Start in a new session, output appended to `log` (made with its folders), stdin empty. `env` is added to the environment there.

        A program that cannot be run gives a group that has ended with 127 (or 126) and says so in its log, as in a shell.
        """

    def find(self, marker: str, log: str) -> Group | None:
        """The group of a start that was intended and never written down as done (found by the marker); null: nothing of it lives."""

    def look(self, group: Group) -> Look:
        """How it is. Members that left the session are found by the marker."""

    def signal(self, group: Group, number: int) -> int:
        """Signal every living member (never a pid whose start time differs); how many."""

    def read_log(self, path: str, offset: int, limit: int = 1 << 20) -> tuple[int, bytes]:
        """(next offset, bytes) from `offset` on, offsets counted over all rotations; older bytes that are gone are skipped. Negative: the last -offset bytes."""

    def cap_log(self, path: str, cap: int) -> None:
        """Keep at most about `cap` bytes: the newest half is kept as `path`.1, truncation noted in it. Does nothing below the cap."""

    def bindable(self, address: str, port: int) -> bool:
        """Whether a server could listen there now (tried by bind, as servers do)."""

    def free_ports(self, address: str, count: int, avoid: Sequence[int] = ()) -> tuple[int, ...]:
        """Ports that nobody has now, all different, none of `avoid`."""

    def port_holder(self, port: int) -> PortHolder | None:
        """Who has it, as far as it can be told."""

    def listener_of(self, group: Group, port: int) -> bool | None:
        """Whether all sockets that listen on `port` belong to members (several can share it); null: nothing listens, or it cannot be told."""

    def devices(self, vendor: str) -> tuple[DeviceUse, ...] | None:
        """As the vendor's tool tells; null: there is no such tool."""

    def interface_address(self, nic: str | None, towards: str | None = None) -> tuple[str, str] | None:
        """(interface, IPv4 address): of `nic`, else of the route to `towards` (else the default route)."""

    def exists(self, path: str) -> bool: ...

    def make_folder(self, path: str) -> None:
        """With those above it; one that exists is fine."""

    def write_file(self, path: str, content: str) -> None:
        """Make it, with its folders; an existing file is replaced."""

    def fetch(self, path: str) -> bytes:
        """A whole file's content; empty where there is none."""

    def close(self) -> None:
        """Let go of the connection. Services go on."""
