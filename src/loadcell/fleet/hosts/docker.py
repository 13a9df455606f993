"""Containers on a machine that is reached some other way: `docker run` per service, or our processes in one that runs already.

A container is ours when the id that we recorded carries our label with the service's marker; nothing else is ever signalled or removed.
One that ends leaves its log and exit code in files beside the log, and is then removed. Tried against a stand-in for `docker` only.
"""

import json
import shlex
import signal
import time
from collections.abc import Sequence
from typing import Any, Final

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.fleet.docker_command import SERVICE_LABEL, docker_words, run_words
from loadcell.fleet.hosts import agent
from loadcell.fleet.hosts.agent_host import AgentHost, all_ours
from loadcell.fleet.hosts.host import DeviceUse, Ended, Group, Look, Member, PortHolder
from loadcell.fleet.hosts.piped import Piped, agent_words
from loadcell.fleet.hosts.ssh import SshHost, ssh_connection
from loadcell.fleet.spec import HostSpec

RUN_S: Final = 600.0
"""`docker run` pulls an image that is not there."""
FOLLOWER_S: Final = 10.0
FOLLOWER_STEP_S: Final = 0.05
PAUSING: Final = {int(signal.SIGSTOP): "pause", int(signal.SIGCONT): "unpause"}


def exec_host(spec: HostSpec) -> AgentHost:
    """The inside of a container that runs already, here or over ssh: the agent runs in it. The container is never stopped."""
    assert spec.docker is not None
    assert spec.docker.container is not None
    if spec.docker.container.startswith("-"):
        raise UserError(f"host {spec.name}: docker.container = {spec.docker.container!r}: expected a container's name or id")
    words, text = agent_words(spec.python)
    inside = [*docker_words(spec.docker), "exec", "-i", spec.docker.container, *words]
    if spec.ssh is not None:
        return SshHost(spec, ssh_connection(spec, inside))
    return AgentHost(spec.name, spec.address or "127.0.0.1", Piped(spec.name, shlex.join(inside[: -len(words)]), inside, text))


class DockerRunHost:
    """`hosts.host.Host` whose services are containers on `machine`. Ports, devices, files and commands are the machine's."""

    def __init__(self, spec: HostSpec, machine: AgentHost) -> None:
        assert spec.docker is not None
        assert spec.docker.image is not None
        if spec.docker.image.startswith("-"):
            raise UserError(f"host {spec.name}: docker.image = {spec.docker.image!r}: expected an image's name")
        self._docker = spec.docker
        self._machine = machine
        self.name = spec.name
        self._folders: set[str] = set()

    @property
    def address(self) -> str:
        return self._machine.address

    def run(self, argv: Sequence[str], *, timeout_s: float = 30.0, env: dict[str, str] | None = None) -> Ended:
        return self._machine.run(argv, timeout_s=timeout_s, env=env)

    def start(
        self, argv: Sequence[str], *, env: dict[str, str], cwd: str | None, log: str, marker: str, cpus: Sequence[int] | None = None
    ) -> Group:
        me = agent.identity()
        owner = f"{me['machine']} {me['pid']} {me['started']}"
        words = run_words(self._docker, argv, env=env, cwd=cwd, marker=marker, owner=owner, cpus=cpus, folders=self._folders)
        self._machine.write_file(_ending(log), "")
        ran = self._machine.run(words, timeout_s=RUN_S)
        if ran.code != 0:
            # A container that was made and could not be started is there, and is ours.
            for left in self._ids(marker):
                self._say("rm", "-f", left)
            raise EnvironmentFailure(f"host {self.name}: docker run: {ran.err.strip() or ran.out.strip()} (code {ran.code})")
        container = ran.out.split()[-1]
        follow = [*docker_words(self._docker), "logs", "-f", container]
        follower = self._machine.start(follow, env={}, cwd="/", log=log, marker=_follower(marker))
        return self._group(container, marker, follower.log)

    def find(self, marker: str, log: str) -> Group | None:
        found = self._ids(marker)
        return self._group(found[0], marker, log) if found else None

    def look(self, group: Group) -> Look:
        state = self._state(group)
        log_size = int(self._machine.call("log_size", path=group.log))
        if state is None:
            code = self._machine.fetch(group.exit_file).decode("ascii", "replace").strip()
            return Look(alive=False, exit_code=int(code) if code.lstrip("-").isdigit() else None, members=(), log_size=log_size)
        if state.get("Running"):
            return Look(alive=True, exit_code=None, members=self._members(group), log_size=log_size)
        if state.get("Status") == "created":
            return Look(alive=True, exit_code=None, members=(), log_size=log_size)
        code_now = _signed(int(state.get("ExitCode", 0)))
        self._bury(group, code_now, out_of_memory=bool(state.get("OOMKilled")))
        return Look(alive=False, exit_code=code_now, members=(), log_size=int(self._machine.call("log_size", path=group.log)))

    def signal(self, group: Group, number: int) -> int:
        state = self._state(group)
        if state is None or not state.get("Running"):
            return 0
        members = self._members(group)
        if number in PAUSING:
            if bool(state.get("Paused")) == (number == signal.SIGSTOP):
                return len(members)
            self._say(PAUSING[number], group.container or "")
        else:
            if state.get("Paused"):  # docker signals no container that is paused
                self._say("unpause", group.container or "")
            self._say("kill", "--signal", str(int(number)), group.container or "")
        return max(1, len(members))

    def read_log(self, path: str, offset: int, limit: int = 1 << 20) -> tuple[int, bytes]:
        return self._machine.read_log(path, offset, limit)

    def cap_log(self, path: str, cap: int) -> None:
        self._machine.cap_log(path, cap)

    def bindable(self, address: str, port: int) -> bool:
        return self._machine.bindable(address, port)

    def free_ports(self, address: str, count: int, avoid: Sequence[int] = ()) -> tuple[int, ...]:
        return self._machine.free_ports(address, count, avoid)

    def port_holder(self, port: int) -> PortHolder | None:
        return self._machine.port_holder(port)

    def listener_of(self, group: Group, port: int) -> bool | None:
        return all_ours(self._machine.call("listeners", port=port), {member.pid for member in self.look(group).members})

    def devices(self, vendor: str) -> tuple[DeviceUse, ...] | None:
        return self._machine.devices(vendor)

    def interface_address(self, nic: str | None, towards: str | None = None) -> tuple[str, str] | None:
        return self._machine.interface_address(nic, towards)

    def exists(self, path: str) -> bool:
        return self._machine.exists(path)

    def make_folder(self, path: str) -> None:
        self._machine.make_folder(path)
        self._folders.add(path)

    def write_file(self, path: str, content: str) -> None:
        self._machine.write_file(path, content)
        self._folders.add(path.rpartition("/")[0])

    def fetch(self, path: str) -> bytes:
        return self._machine.fetch(path)

    def close(self) -> None:
        self._machine.close()

    def _say(self, *words: str) -> Ended:
        return self._machine.run([*docker_words(self._docker), *words])

    def _ids(self, marker: str) -> list[str]:
        return self._say("ps", "-aq", "--no-trunc", "--filter", f"label={SERVICE_LABEL}={marker}").out.split()

    def _group(self, container: str, marker: str, log: str) -> Group:
        boot = self._machine.call("identity")["boot_id"]
        return Group(pid=0, started=0, boot_id=boot, marker=marker, log=log, exit_file=_ending(log), container=container)

    def _state(self, group: Group) -> dict[str, Any] | None:
        """Of the container; null where it is gone, or is not ours. A daemon that does not answer is no sign of a container's end."""
        told = self._say("inspect", "--type", "container", group.container or "")
        if told.code != 0:
            if "no such" in told.err.lower():
                return None
            raise EnvironmentFailure(f"host {self.name}: docker inspect: {told.err.strip()} (code {told.code})")
        container = json.loads(told.out)[0]
        labels = (container.get("Config") or {}).get("Labels") or {}
        return container["State"] if labels.get(SERVICE_LABEL) == group.marker else None

    def _members(self, group: Group) -> tuple[Member, ...]:
        """Pids as the machine counts them. A start time is not told: the container's id stands for it."""
        rows = self._say("top", group.container or "", "-eo", "pid,ppid,stat,args").out.splitlines()[1:]
        split = (row.split(None, 3) for row in rows)
        return tuple(Member(int(f[0]), 0, int(f[1]), f[2][:1], f[3]) for f in split if len(f) == 4 and f[2][:1] != "Z")

    def _bury(self, group: Group, code: int, *, out_of_memory: bool) -> None:
        """The log is whole when its follower has ended; then nothing of the container is needed."""
        deadline = time.monotonic() + FOLLOWER_S
        while (follower := self._machine.find(_follower(group.marker), group.log)) is not None and time.monotonic() < deadline:
            time.sleep(FOLLOWER_STEP_S)
        if out_of_memory:
            text = "loadcell: out of memory: the kernel killed this container"
            self._machine.run(["sh", "-c", 'printf "%s\\n" "$1" >> "$2"', "sh", text, group.log])
        self._machine.write_file(group.exit_file, f"{code}\n")
        if follower is None:
            self._say("rm", group.container or "")


def _signed(code: int) -> int:
    """Docker tells the end by signal N as 128 + N."""
    return 128 - code if code > 128 else code


def _ending(log: str) -> str:
    return f"{log}.container"


def _follower(marker: str) -> str:
    return f"{marker}.log"
