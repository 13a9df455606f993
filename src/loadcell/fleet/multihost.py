"""One service over several hosts: how its ranks divide, and the words and variables that make them find each other. Pure.

Data parallel, as vLLM does it: the head serves, and waits at `--data-parallel-rpc-port` for workers that run `--headless`, each with the first of
its ranks. The head must not be given `--data-parallel-start-rank`: vLLM takes that for hybrid load balancing.

Ray: a node per host, then, when all have joined, an engine on the head that spreads over them. Each node is started with `--block`, as a process
of our group, and ends with the group: `ray stop` is never used, because it ends every Ray process of this user on the host, whoever started it. On
the head the engine and Ray's node share a group, and when the node ends the engine is ended. Tried with Ray 2.60 around the simulated engine over
three hosts: all processes of a node stay in its session. On accelerators untried.
"""

from typing import Final

from msgspec import Struct

from loadcell.errors import UserError
from loadcell.fleet.command_line import number
from loadcell.fleet.spec import FleetSpec, Launch, MultiHostSpec, Replica

_HEAD: Final = """\
ray=$1; at=$2; port=$3; nodes=$4; shift 4
active() { "$ray" status --address "$at:$port" 2>/dev/null | sed -n '/^Active:/,/^Pending:/p' | grep -c node_; }
("$ray" start --head "--port=$port" "--node-ip-address=$at" --disable-usage-stats --block || kill -TERM $$) &
until "$ray" health-check --address "$at:$port" >/dev/null 2>&1; do sleep 1; done
echo "waiting for $nodes nodes of the Ray cluster at $at:$port"
until [ "$(active)" -ge "$nodes" ]; do sleep 1; done
exec "$@"
"""
_WORKER: Final = """\
ray=$1; head=$2; own=$3
until "$ray" health-check --address "$head" >/dev/null 2>&1; do sleep 1; done
exec "$ray" start "--address=$head" "--node-ip-address=$own" --disable-usage-stats --block
"""
_RAY_WORKERS: Final = range(10002, 20000)
_RAY_ENDS: Final = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
"""Asked to end, a node would wait 30 s for its requests to move to other nodes; the whole cluster ends with it."""


class Shape(Struct, frozen=True):
    """How ranks and devices divide over the hosts. `local_size`: data-parallel ranks of one host; 0 under Ray. `devices`: of one host."""

    hosts: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    local_size: int
    devices: int


def shape(spec: FleetSpec, multi: MultiHostSpec) -> Shape:
    """Raises UserError where it does not divide, or needs more devices than a host has."""
    hosts = len(spec.host) or 1
    if multi.devices_per_host < 1:
        raise UserError(f"fleet.multi_host.devices_per_host = {multi.devices_per_host}: at least 1 is needed")
    tensor = _agreed(spec, "tensor-parallel-size", "-tp", multi.tensor_parallel_size, 1) or 1
    pipeline = _agreed(spec, "pipeline-parallel-size", "-pp", multi.pipeline_parallel_size, 1) or 1
    data = _agreed(spec, "data-parallel-size", "-dp", multi.data_parallel_size, None)
    if multi.kind == "ray":
        return _over_ray(multi, hosts, tensor, pipeline, data)
    each = tensor * pipeline
    if each > multi.devices_per_host:
        raise UserError(
            f"fleet.multi_host: a data-parallel rank takes tensor {tensor} × pipeline {pipeline} = {each} devices, devices_per_host is "
            f'{multi.devices_per_host}: make it smaller, or use kind = "ray" to spread one rank over hosts'
        )
    size = data if data is not None else hosts * (multi.devices_per_host // each)
    if size % hosts:
        raise UserError(f"fleet.multi_host.data_parallel_size = {size} does not divide over {hosts} hosts: use a multiple of {hosts}")
    local = size // hosts
    if local * each > multi.devices_per_host:
        raise UserError(
            f"fleet.multi_host: {local} data-parallel ranks per host × tensor {tensor} × pipeline {pipeline} = {local * each} devices, but "
            f"devices_per_host is {multi.devices_per_host}: lower data_parallel_size or tensor_parallel_size"
        )
    return Shape(hosts, tensor, pipeline, size, local, local * each)


def _over_ray(multi: MultiHostSpec, hosts: int, tensor: int, pipeline: int, data: int | None) -> Shape:
    if data not in (None, 1):
        raise UserError(f'fleet.multi_host.data_parallel_size = {data}: kind = "ray" is for tensor and pipeline parallel')
    if multi.ray_port in _RAY_WORKERS:
        raise UserError(f"fleet.multi_host.ray_port = {multi.ray_port}: Ray keeps 10002 to 19999 for its workers: choose another")
    world = tensor * pipeline
    if world % hosts:
        raise UserError(
            f"fleet.multi_host: tensor {tensor} × pipeline {pipeline} = {world} devices do not divide over {hosts} hosts: "
            "choose sizes whose product is a multiple of the hosts"
        )
    if world // hosts > multi.devices_per_host:
        raise UserError(
            f"fleet.multi_host: tensor {tensor} × pipeline {pipeline} takes {world // hosts} devices per host, devices_per_host is "
            f"{multi.devices_per_host}: lower them, or add hosts"
        )
    return Shape(hosts, tensor, pipeline, 1, 0, world // hosts)


def _agreed(spec: FleetSpec, name: str, short: str, given: int | None, default: int | None) -> int | None:
    """A size may stand in `fleet.args` or in `fleet.multi_host`; two different ones are refused."""
    key = f"fleet.multi_host.{name.replace('-', '_')}"
    if given is not None and given < 1:
        raise UserError(f"{key} = {given}: at least 1 is needed")
    in_args = number(spec.args, name, short)
    if in_args is None or given == in_args:
        return given
    if given != default:
        raise UserError(f"{key} = {given} and fleet.args.{name} = {in_args}: give one of them")
    return in_args


def data_parallel_words(spec: FleetSpec, multi: MultiHostSpec, replica: Replica) -> tuple[str, ...]:
    """vLLM's options for one rank of a data-parallel service. Takes the RPC port from `multi`, which the plan has made certain."""
    parts = shape(spec, multi)
    out = [
        *("--tensor-parallel-size", str(parts.tensor_parallel_size)),
        *(("--pipeline-parallel-size", str(parts.pipeline_parallel_size)) if parts.pipeline_parallel_size > 1 else ()),
        *("--data-parallel-size", str(parts.data_parallel_size)),
        *("--data-parallel-size-local", str(parts.local_size)),
        *("--data-parallel-address", replica.head_address or replica.address),
        *("--data-parallel-rpc-port", str(multi.data_parallel_rpc_port)),
    ]
    if replica.rank > 0:
        out += ["--headless", "--data-parallel-start-rank", str(replica.rank * parts.local_size)]
    return tuple(out)


def ray_words(spec: FleetSpec, multi: MultiHostSpec, replica: Replica) -> tuple[str, ...]:  # noqa: ARG001 - as data_parallel_words
    """vLLM's options for the head of a service over Ray."""
    parts = shape(spec, multi)
    sizes = ("--tensor-parallel-size", str(parts.tensor_parallel_size), "--pipeline-parallel-size", str(parts.pipeline_parallel_size))
    return (*sizes, "--distributed-executor-backend", "ray")


def over_ray(multi: MultiHostSpec, replica: Replica, engine: Launch) -> Launch:
    """What one host of a service over Ray runs: the head its node and the engine, the others their node."""
    head = replica.head_address or replica.address
    if replica.rank > 0:
        own = replica.nic_address or replica.address
        node = ("/bin/sh", "-c", _WORKER, "ray-worker", multi.ray_executable, f"{head}:{multi.ray_port}", own)
        return Launch(node, _RAY_ENDS | engine.env)
    words = ("/bin/sh", "-c", _HEAD, "ray-head", multi.ray_executable, head, str(multi.ray_port), str(replica.ranks), *engine.argv)
    return Launch(words, {"RAY_ADDRESS": f"{head}:{multi.ray_port}"} | _RAY_ENDS | engine.env, engine.files, engine.cwd)


def network_variables(replica: Replica, vendor: str) -> dict[str, str]:
    """Which interface and address the ranks talk over; nothing for what is not known."""
    out: dict[str, str] = {}
    if replica.nic_address:
        out["VLLM_HOST_IP"] = replica.nic_address
    if replica.nic:
        out |= {"GLOO_SOCKET_IFNAME": replica.nic, "TP_SOCKET_IFNAME": replica.nic}
        if vendor == "ascend":
            out["HCCL_SOCKET_IFNAME"] = replica.nic
            if replica.nic_address:
                out["HCCL_IF_IP"] = replica.nic_address
        elif vendor in ("nvidia", "amd"):
            out["NCCL_SOCKET_IFNAME"] = replica.nic
    return out
