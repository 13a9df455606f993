"""Three machines made of this one: network, process and host-name namespaces, each with its own sshd, keys and home folder.

    with hosts_made(tmp) as (one, two, three): ...     -> HostSpecs, as a person would write them, and the switches of their cables

A bridge in the namespace of the tests joins them. They share this machine's files (shared memory excepted), clock and boot id; nothing else: no process
of one is seen in another's /proc. Each one's processes end with its first process, and that ends with us, however we end. What a killed run leaves (names of
namespaces, a bridge) is removed by the next. Needs root.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.fleet.hosts.waiting import until

from loadcell.fleet.hosts.ssh import ssh_words
from loadcell.fleet.spec import HostSpec

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
PREFIX = "loadcell"
NAMES = ("one", "two", "three")
# A cut is noticed in seconds here; ssh takes the first value that it is given.
QUICK = ("ServerAliveInterval=1", "ServerAliveCountMax=2", "ConnectTimeout=2")

# What processes of one machine share by files is that machine's alone (Ray's sockets and object stores).
_FIRST = """
hostname "$1"
mkdir -p /tmp/ray
for folder in /dev/shm /tmp/ray; do mount -t tmpfs tmpfs $folder; done
exec "$2" -D -e -f "$3"
"""


def missing() -> str | None:
    """Why there can be no such hosts here."""
    if os.getuid() != 0:
        return "needs root, to make network namespaces"
    tools = [name for name in ("ip", "ssh", "ssh-keygen", "unshare", "setpriv") if shutil.which(name) is None]
    if SSHD is None:
        tools.append("sshd")
    return f"not installed: {', '.join(tools)} (Debian: iproute2, openssh-server, util-linux)" if tools else None


def ip(*words: str) -> str:
    ended = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"ip {' '.join(words)}: {ended.stderr}"
    return ended.stdout


def _is_of(process: Path, service: str | None) -> bool:
    if service is None:
        return True
    start = b"LOADCELL_SERVICE=" + service.encode()
    return any(word.startswith(start) for word in (process / "environ").read_bytes().split(b"\0"))


@dataclass(frozen=True)
class Machine:
    """`spec`: how a fleet reaches it. `cable`: the bridge's end of its only link. `first`: its first process, by the pid that it has here."""

    spec: HostSpec
    address: str
    cable: str
    home: Path
    first: int

    @property
    def name(self) -> str:
        return self.spec.name

    def processes(self, service: str | None = None) -> list[int]:
        """All but its first, by the pids that they have here; of a service: those whose marker begins with its name (empty: any service's)."""
        found = []
        own = Path(f"/proc/{self.first}/ns/pid").readlink()
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != self.first:
                with suppress(OSError):  # ended meanwhile
                    if (folder / "ns" / "pid").readlink() == own and _is_of(folder, service):
                        found.append(int(folder.name))
        return sorted(found)

    def cut(self) -> None:
        ip("link", "set", self.cable, "down")

    def join(self) -> None:
        ip("link", "set", self.cable, "up")

    def toml(self) -> str:
        """It as a table of a specification."""
        options = ", ".join(f'"{option}"' for option in self.spec.ssh_options)
        return f'[[fleet.host]]\nname = "{self.name}"\nssh = "{self.spec.ssh}"\nssh-options = [{options}]\npython = "{self.spec.python}"\n'


@contextmanager
def hosts_made(folder: Path) -> Iterator[tuple[Machine, Machine, Machine]]:
    """Running machines, reached once by ssh each. `folder`: for keys, configurations and homes."""
    _remove_leftovers()
    own = f"{PREFIX}-{os.getpid()}"
    bridge, net = f"lc{os.getpid()}", _free_net()
    _key(folder / "key")
    with ExitStack() as undo:
        ip("link", "add", bridge, "type", "bridge")
        undo.callback(_quietly, "link", "del", bridge)
        ip("addr", "add", f"{net}.1/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        one, two, three = (_machine(undo, folder, own, bridge, net, number, name) for number, name in enumerate(NAMES))
        yield one, two, three


def _machine(undo: ExitStack, folder: Path, own: str, bridge: str, net: str, number: int, name: str) -> Machine:
    namespace, cable, address = f"{own}-{name}", f"{bridge}-{number}", f"{net}.{11 + number}"
    ip("netns", "add", namespace)
    undo.callback(_quietly, "netns", "del", namespace)
    ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
    undo.callback(_quietly, "link", "del", cable)
    ip("link", "set", cable, "master", bridge, "up")
    ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
    ip("-n", namespace, "link", "set", "eth0", "up")
    ip("-n", namespace, "link", "set", "lo", "up")
    place = folder / name
    home = place / "home"
    home.mkdir(parents=True)
    known, first = _sshd(undo, folder, place, namespace, address, name)
    options = (f"IdentityFile={folder}/key", "IdentitiesOnly=yes", f"UserKnownHostsFile={known}", "GlobalKnownHostsFile=none", *QUICK)
    spec = HostSpec(name=name, ssh=f"root@{address}", ssh_options=options, python=sys.executable)
    told = subprocess.run([*ssh_words(spec), "hostname"], capture_output=True, text=True, check=False)
    assert told.stdout == f"{name}\n", f"{told.stderr}\n{(place / 'sshd.log').read_text()}"
    return Machine(spec, address, cable, home, first)


def _sshd(undo: ExitStack, folder: Path, place: Path, namespace: str, address: str, name: str) -> tuple[Path, int]:
    """Start the machine's first process, which is its sshd; the file that its key is known by, and its pid."""
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd of root refuses to run without it
    _key(place / "host_key")
    (place / "authorized").write_text((folder / "key.pub").read_text())
    (place / "known").write_text(f"{address} {(place / 'host_key.pub').read_text()}")
    (place / "sshd_config").write_text(
        f"ListenAddress {address}\nHostKey {place}/host_key\nAuthorizedKeysFile {place}/authorized\nPidFile none\nStrictModes no\nUsePAM no\n"
        f"PasswordAuthentication no\nPermitRootLogin prohibit-password\nUseDNS no\nClientAliveInterval 2\nClientAliveCountMax 2\nMaxStartups 100\nSetEnv HOME={place}/home\n"
    )
    log = place / "sshd.log"
    ends_with_us = ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", namespace]
    apart = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    run = ["sh", "-ec", _FIRST, "machine", name, str(SSHD), str(place / "sshd_config")]
    with log.open("wb") as said:
        machine = subprocess.Popen([*ends_with_us, *apart, *run], stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    undo.callback(_end, machine)
    until(lambda: b"Server listening" in log.read_bytes() or machine.poll() is not None)
    assert machine.poll() is None, log.read_text()
    return place / "known", _children(machine.pid)[0]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _end(machine: "subprocess.Popen[bytes]") -> None:
    """Its first process, and with it all of them; the one that made it follows when it has seen that."""
    for child in _children(machine.pid):
        os.kill(child, signal.SIGKILL)
    try:
        machine.wait(5.0)
    except subprocess.TimeoutExpired:
        machine.kill()
        machine.wait()


def _key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _free_net() -> str:
    """The first three numbers of a /24 that this machine has no address in."""
    used = ip("-o", "-4", "addr", "show") + ip("-4", "route", "show")
    return next(net for third in range(200, 250) if (net := f"10.231.{third}") + "." not in used)


def _quietly(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, check=False)


def _remove_leftovers() -> None:
    """Namespaces and bridges whose makers are gone."""
    for namespace, pid in re.findall(rf"^({PREFIX}-([0-9]+)-[a-z]+)", ip("netns", "list"), re.MULTILINE):
        if not Path(f"/proc/{pid}").exists():
            _quietly("netns", "del", namespace)
    for bridge, pid in re.findall(r"^[0-9]+: (lc([0-9]+)):", ip("-o", "link", "show", "type", "bridge"), re.MULTILINE):
        if not Path(f"/proc/{pid}").exists():
            _quietly("link", "del", bridge)
