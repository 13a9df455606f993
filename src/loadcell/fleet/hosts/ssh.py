"""A machine reached by the system's `ssh`: the user's own configuration, keys and jump hosts. Asks for no password: what needs one fails.

The far end's login shell sees one line, every word of it quoted; all that varies goes through stdin as JSON.
"""

import functools
import shlex
import subprocess
from collections.abc import Callable, Sequence
from typing import Final

from loadcell.errors import UserError
from loadcell.fleet.hosts.agent_host import AgentHost, Connection
from loadcell.fleet.hosts.piped import Piped, agent_words
from loadcell.fleet.spec import HostSpec

# A network that is cut is noticed after interval × count. ssh takes the first value it is given: a spec's own options stand before these.
OPTIONS: Final = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3", "RequestTTY=no", "ForwardX11=no")
CONFIG_S: Final = 10.0


def ssh_words(spec: HostSpec) -> list[str]:
    """`ssh` up to its destination. Raises UserError for a destination that ssh would take for an option."""
    destination = spec.ssh or ""
    if not destination or destination.startswith("-") or any(c.isspace() for c in destination):
        raise UserError(f"host {spec.name}: ssh = {spec.ssh!r}: expected a destination as ssh takes it: gpu1, user@gpu1")
    options = [word for option in (*spec.ssh_options, *OPTIONS) for word in ("-o", option)]
    port = [] if spec.ssh_port is None else ["-p", str(spec.ssh_port)]
    return ["ssh", *options, *port, "--", destination]


def over_ssh(spec: HostSpec, argv: Sequence[str]) -> list[str]:
    """The words that run `argv` there. `exec`: no shell of the far end stays between."""
    return [*ssh_words(spec), f"exec {shlex.join(argv)}"]


def ssh_connection(spec: HostSpec, argv: Sequence[str] | None = None) -> Connection:
    """To the agent on `spec`'s machine; `argv` instead runs it there in another way (inside a container)."""
    words, text = agent_words(spec.python)
    return Piped(spec.name, f"ssh {spec.ssh}", over_ssh(spec, argv or words), text)


class SshHost(AgentHost):
    """`hosts.host.Host` over ssh. Its services go on when the connection ends."""

    def __init__(self, spec: HostSpec, connection: Connection | None = None, resolve: Callable[[HostSpec], str] | None = None) -> None:
        self._spec = spec
        self._resolve = resolve or destination_host
        super().__init__(spec.name, spec.address or "", connection or ssh_connection(spec))

    @property
    def address(self) -> str:
        """Where clients reach its services: what ssh itself connects to, unless the spec says another address."""
        return self._address or self._resolved

    @address.setter
    def address(self, address: str) -> None:
        self._address = address

    @functools.cached_property
    def _resolved(self) -> str:
        return self._resolve(self._spec)


def destination_host(spec: HostSpec) -> str:
    """The host name that the user's ssh configuration makes of the destination (`ssh -G` connects to nothing)."""
    words = ssh_words(spec)
    try:
        told = subprocess.run(
            ["ssh", "-G", *words[1:]], capture_output=True, text=True, timeout=CONFIG_S, stdin=subprocess.DEVNULL, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return host_of(spec.ssh or "")
    return next((line.split(None, 1)[1] for line in told.stdout.splitlines() if line.startswith("hostname ")), host_of(spec.ssh or ""))


def host_of(destination: str) -> str:
    """`user@host`, `ssh://user@host:22`, `host` -> `host`."""
    host = destination.removeprefix("ssh://").rpartition("@")[2]
    if host.startswith("["):
        return host[1 : host.find("]")]
    return host.partition(":")[0] if destination.startswith("ssh://") else host
