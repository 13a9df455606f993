"""Machines that services run on: here, over ssh, in containers."""

from loadcell.errors import UserError
from loadcell.fleet.hosts.host import Host
from loadcell.fleet.hosts.local import LocalHost
from loadcell.fleet.hosts.ssh import SshHost
from loadcell.fleet.spec import HostSpec


def open_host(spec: HostSpec) -> Host:
    """The host that `spec` means. Nothing is connected before its first call."""
    if spec.docker is None:
        return _machine(spec)
    from loadcell.fleet.hosts import docker

    if (spec.docker.image is None) == (spec.docker.container is None):
        raise UserError(f"host {spec.name}: docker takes one of image (a container per service) and container (one that runs already)")
    return docker.exec_host(spec) if spec.docker.container is not None else docker.DockerRunHost(spec, _machine(spec))


def _machine(spec: HostSpec) -> LocalHost | SshHost:
    return LocalHost(spec.name, spec.address or "127.0.0.1") if spec.ssh is None else SshHost(spec)
