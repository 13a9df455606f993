"""A machine without processes: what was started is kept, and a test says what becomes of it. `fleet.hosts.host.Host`, for tests of supervision."""

import signal
from collections.abc import Callable, Sequence

from loadcell.fleet.hosts.host import DeviceUse, Ended, Group, HostUnreachable, Look, Member, PortHolder


class FakeProcesses:
    """One group. `obeys`: signals that end it. Writing its log and ending it is the test's to do."""

    def __init__(self, group: Group, argv: Sequence[str], env: dict[str, str]) -> None:
        self.group, self.argv, self.env = group, tuple(argv), env
        self.members = [Member(group.pid, group.started, 1, "S", " ".join(argv))]
        self.exit_code: int | None = None
        self.obeys = {signal.SIGTERM, signal.SIGKILL}
        self.signals: list[int] = []

    def add_child(self, pid: int, state: str = "S", command: str = "worker") -> None:
        self.members.append(Member(pid, self.group.started + 1, self.group.pid, state, command))

    def set_state(self, pid: int, state: str) -> None:
        self.members = [Member(m.pid, m.started, m.parent, state, m.command) if m.pid == pid else m for m in self.members]

    def lose(self, pid: int) -> None:
        self.members = [member for member in self.members if member.pid != pid]

    def end(self, code: int | None) -> None:
        """The leader ends; its children stay."""
        self.exit_code = code
        self.lose(self.group.pid)


class FakeHost:
    """`on_start` is called with each group. `cut`: every call raises HostUnreachable. `holders`: port -> who has it."""

    def __init__(self, name: str = "local", address: str = "127.0.0.1") -> None:
        self.name, self.address = name, address
        self.groups: list[FakeProcesses] = []
        self.logs: dict[str, bytes] = {}
        self.files: dict[str, str] = {}
        self.paths: set[str] = set()
        self.commands: list[tuple[str, ...]] = []
        self.holders: dict[int, PortHolder] = {}
        self.device_uses: tuple[DeviceUse, ...] | None = None
        self.answers: dict[str, Ended] = {}
        self.on_start: Callable[[FakeProcesses], None] = lambda _: None
        self.cut = False
        self.looks = 0
        self.capped: list[str] = []

    def _reached(self) -> None:
        if self.cut:
            raise HostUnreachable(f"host {self.name} does not answer")

    def _of(self, group: Group) -> FakeProcesses:
        return next(one for one in self.groups if one.group.marker == group.marker and one.group.pid == group.pid)

    def run(self, argv: Sequence[str], *, timeout_s: float = 30.0, env: dict[str, str] | None = None) -> Ended:  # noqa: ARG002
        self._reached()
        self.commands.append(tuple(argv))
        return self.answers.get(argv[0], Ended(0, "", ""))

    def start(
        self,
        argv: Sequence[str],
        *,
        env: dict[str, str],
        cwd: str | None,  # noqa: ARG002
        log: str,
        marker: str,
        cpus: Sequence[int] | None = None,  # noqa: ARG002
    ) -> Group:
        self._reached()
        number = len(self.groups) + 1
        group = Group(1000 * number, 10 * number, "boot", marker, log, f"{log}.exit")
        self.logs.setdefault(log, b"")
        self.groups.append(FakeProcesses(group, argv, env))
        self.on_start(self.groups[-1])
        return group

    def find(self, marker: str, log: str) -> Group | None:  # noqa: ARG002
        self._reached()
        return next((one.group for one in self.groups if one.group.marker == marker and one.members), None)

    def look(self, group: Group) -> Look:
        self._reached()
        self.looks += 1
        known = self._of(group)
        alive = any(member.pid == group.pid for member in known.members)
        living = tuple(member for member in known.members if member.state != "Z")
        defunct = tuple(member for member in known.members if member.state == "Z")
        return Look(alive, None if alive else known.exit_code, living, len(self.logs[group.log]), defunct)

    def signal(self, group: Group, number: int) -> int:
        self._reached()
        known = self._of(group)
        known.signals.append(number)
        count = len(known.members)
        if number in known.obeys and known.members:
            known.exit_code = -number
            known.members = []
            self.holders = {port: holder for port, holder in self.holders.items() if holder.pid != group.pid}
        return count

    def read_log(self, path: str, offset: int, limit: int = 1 << 20) -> tuple[int, bytes]:
        self._reached()
        whole = self.logs.get(path, b"")
        begin = max(0, len(whole) + offset) if offset < 0 else offset
        data = whole[begin : begin + limit]
        return begin + len(data), data

    def say(self, log: str, text: str) -> None:
        """A line more in a log."""
        self.logs[log] = self.logs.get(log, b"") + text.encode() + b"\n"

    def cap_log(self, path: str, cap: int) -> None:  # noqa: ARG002
        self.capped.append(path)

    def bindable(self, address: str, port: int) -> bool:  # noqa: ARG002
        self._reached()
        return port not in self.holders

    def free_ports(self, address: str, count: int, avoid: Sequence[int] = ()) -> tuple[int, ...]:  # noqa: ARG002
        free = (port for port in range(20_000, 30_000) if port not in avoid and port not in self.holders)
        return tuple(next(free) for _ in range(count))

    def port_holder(self, port: int) -> PortHolder | None:
        return self.holders.get(port)

    def listener_of(self, group: Group, port: int) -> bool | None:
        holder = self.holders.get(port)
        return None if holder is None else holder.pid in {member.pid for member in self._of(group).members}

    def devices(self, vendor: str) -> tuple[DeviceUse, ...] | None:  # noqa: ARG002
        self._reached()
        return self.device_uses

    def interface_address(self, nic: str | None, towards: str | None = None) -> tuple[str, str] | None:  # noqa: ARG002
        return nic or "eth0", self.address

    def exists(self, path: str) -> bool:
        self._reached()
        return path in self.paths

    def make_folder(self, path: str) -> None:
        self._reached()
        self.paths.add(path)

    def write_file(self, path: str, content: str) -> None:
        self.files[path] = content

    def fetch(self, path: str) -> bytes:
        self._reached()
        return self.logs.get(path, b"")

    def close(self) -> None:
        """There is no connection."""
