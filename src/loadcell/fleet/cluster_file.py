"""The cluster file of msmodeling's `multihost_infer` (the one that CLUSTER_CONFIG_PATH names), as it is -> hosts and how they form one service. Pure.

    docker_use_sudo = false
    [vllm_mix]
    chips_per_node = 8                 # per host
    data_parallel_rpc_port = 13389     # 0 or left out: a free one
    env = { HCCL_BUFFSIZE = "1024" }   # for every rank
    [[vllm_mix.node]]                  # the head: this machine
    host = "192.168.0.10"
    nic_name = "eth0"                  # left out: found
    [[vllm_mix.workers]]               # any number
    host = "192.168.0.11"
    ssh_port = 22
    ssh_user = "root"
    docker_container_id = "vllm"       # left out: on the host itself
    nic_name = "eth0"

A `password` is not used: hosts are reached by the system's ssh, with its keys and agents. `notes` says so.
"""

import difflib
import tomllib
from typing import Any, Final

import msgspec
from msgspec import Struct

from loadcell.errors import UserError
from loadcell.fleet.command_line import option
from loadcell.fleet.spec import DockerSpec, FleetSpec, HostSpec, MultiHostSpec

Text = str | int | float | bool


class _Node(Struct, frozen=True, forbid_unknown_fields=True):
    host: str
    nic_name: str | None = None


class _Worker(Struct, frozen=True, forbid_unknown_fields=True):
    host: str
    ssh_port: int = 22
    ssh_user: str = "root"
    docker_container_id: str | None = None
    nic_name: str | None = None
    password: str | None = None


class _Mix(Struct, frozen=True, forbid_unknown_fields=True):
    node: tuple[_Node, ...]
    workers: tuple[_Worker, ...] = ()
    chips_per_node: int = 8
    data_parallel_rpc_port: int = 0
    env: dict[str, Text] = {}


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    vllm_mix: _Mix
    docker_use_sudo: bool = False


class Cluster(Struct, frozen=True):
    """The head is the first of `hosts`."""

    hosts: tuple[HostSpec, ...]
    chips_per_node: int
    data_parallel_rpc_port: int
    env: dict[str, str]
    notes: tuple[str, ...]


_KNOWN: Final[dict[str, type[Struct]]] = {"vllm_mix.node": _Node, "vllm_mix.workers": _Worker, "vllm_mix": _Mix, "": _File}


def parse_cluster(text: str, path: str) -> Cluster:
    """The file's content. `path` stands in errors only. Raises UserError."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: no TOML: {error}") from None
    _refuse_unknown(table, path)
    try:
        file = msgspec.convert(table, _File)
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {error}") from None
    mix = file.vllm_mix
    if len(mix.node) != 1:
        raise UserError(
            f"{path}: [[vllm_mix.node]] stands {len(mix.node)} times: the head is one host; the others are [[vllm_mix.workers]]"
        )
    head = HostSpec(mix.node[0].host, address=mix.node[0].host, nic=mix.node[0].nic_name or None)
    hosts = (head, *(_worker(one, sudo=file.docker_use_sudo) for one in mix.workers))
    names = [host.name for host in hosts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{path}: host {twice!r} stands twice: a host runs one rank")
    given = [one.host for one in mix.workers if one.password]
    notes = (f"{path}: the password of {', '.join(given)} is not used: give this user an ssh key there",) if given else ()
    env = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in mix.env.items()}
    return Cluster(hosts, mix.chips_per_node, mix.data_parallel_rpc_port, env, notes)


def _worker(one: _Worker, *, sudo: bool) -> HostSpec:
    docker = DockerSpec(container=one.docker_container_id, sudo=sudo) if one.docker_container_id else None
    return HostSpec(
        one.host, ssh=f"{one.ssh_user}@{one.host}", ssh_port=one.ssh_port, docker=docker, address=one.host, nic=one.nic_name or None
    )


def _refuse_unknown(table: dict[str, Any], path: str) -> None:
    for place, kind in _KNOWN.items():
        at: Any = table
        for step in place.split(".") if place else ():
            at = at.get(step, {}) if isinstance(at, dict) else {}
        for one in at if isinstance(at, list) else [at]:
            for key in one if isinstance(one, dict) else ():
                if key not in kind.__struct_fields__:
                    near = difflib.get_close_matches(key, kind.__struct_fields__, 1)
                    meant = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(kind.__struct_fields__)}"
                    raise UserError(f"{path}: {f'[{place}] ' if place else ''}has no key {key!r}{meant}")


def with_cluster(spec: FleetSpec, cluster: Cluster) -> FleetSpec:
    """`spec` as one data-parallel service over the cluster's hosts. Without a size in `fleet.args`, one rank per host. Raises UserError."""
    if spec.host or spec.multi_host is not None:
        raise UserError("fleet.host and fleet.multi_host are what a cluster file says: give one of both")
    sized = option(spec.args, "data-parallel-size", "-dp") is not None
    multi = MultiHostSpec(
        kind="data_parallel",
        devices_per_host=cluster.chips_per_node,
        data_parallel_size=None if sized else len(cluster.hosts),
        data_parallel_rpc_port=cluster.data_parallel_rpc_port,
    )
    return msgspec.structs.replace(spec, host=cluster.hosts, multi_host=multi, env=cluster.env | spec.env)
