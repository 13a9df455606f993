"""Machines that services run on: here, over ssh, in containers."""

from loadcell.errors import UserError
from loadcell.fleet.hosts.host import Host
from loadcell.fleet.hosts.local import LocalHost
from loadcell.fleet.spec import HostSpec


def open_host(spec: HostSpec) -> Host:
    """The host that `spec` means. Nothing is connected before its first call."""
    if spec.ssh is None and spec.docker is None:
        return LocalHost(spec.name, spec.address or "127.0.0.1")
    raise UserError(f"host {spec.name}: not yet")
