"""What a person asks of the fleet, and what it becomes: a `ServicePlan` per process group to start. Pure; knows no scenario.

The structs of the first half are read from TOML as they stand: a key of `[fleet]` is a field of `FleetSpec`, in kebab or snake case.
"""

import re
from typing import Any, Final, Literal

from msgspec import Struct

from loadcell.errors import UserError

EngineName = Literal["vllm", "sglang", "mindie", "simulated", "command"]
Vendor = Literal["auto", "nvidia", "amd", "ascend", "none"]
Cause = Literal["out_of_memory", "bad_arguments", "port_taken", "missing_model", "driver_fault", "fatal"]
Amount = int | float | str

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {"b": 1, "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30}  # fmt: skip
_AMOUNT: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([A-Za-z]*)\s*")


class LogPattern(Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a service's log that names why it cannot go on. `pattern`: a regular expression, searched in each line."""

    cause: Cause
    pattern: str


class DockerSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """`image`: a container of ours per service (docker run). `container`: one that runs already (docker exec); it is never stopped."""

    image: str | None = None
    container: str | None = None
    sudo: bool = False
    args: tuple[str, ...] = ()
    """More words for `docker run`, before the image."""


class HostSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One place that services run on. `name` is its alias: records are kept by it. `ssh` null: this machine.

    `address`: where its services are asked (null: the ssh destination's host, 127.0.0.1 here). `python`: the interpreter there that runs our agent.
    """

    name: str
    ssh: str | None = None
    ssh_port: int | None = None
    ssh_options: tuple[str, ...] = ()
    """`-o` options for ssh, each KEY=VALUE: `ProxyJump=bastion`."""
    docker: DockerSpec | None = None
    address: str | None = None
    nic: str | None = None
    devices: tuple[int, ...] | None = None
    python: str = "python3"


class MultiHostSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One service over several hosts: the first host is the head.

    `data_parallel`: vLLM's own ranks (`--headless` workers). `ray`: tensor and pipeline parallel over a Ray cluster of ours.
    `data_parallel_size` null: one rank per `tensor_parallel_size` devices of all hosts.
    """

    kind: Literal["data_parallel", "ray"]
    devices_per_host: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int | None = None
    data_parallel_rpc_port: int = 13345
    ray_port: int = 6379
    ray_executable: str = "ray"


class FleetSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """`[fleet]`. Times: seconds, or texts as `90s`, `1h`; sizes: bytes, or `256MiB`; 0 means none.

    `args`: words as they are, or a table of the engine's options: `tensor-parallel-size = 2`, `enable-x = true`, a table value becomes JSON.
    `devices`: the pool to take from (`[0, 1, 2, 3]`), or one list per replica (`[[0, 1], [2, 3]]`); null: all that are found.
    `port`: the first one, the others follow; `auto`: free ones. `cpus`: CPUs for the services here; `apart` leaves the last one to the client.
    `command`: the argv template of engine `command`. In it, in `args` and in `env` stand `{port}`, `{host}`, `{address}`, `{model}`,
    `{devices}`, `{name}`, `{index}`, `{rank}` and `{folder}` for what the replica has; `executable`: instead of the engine's usual program.
    `config_file` and `config`: for engines that read a JSON file; dotted path -> value, set in a copy.
    """

    engine: EngineName
    model: str | None = None
    served_model_name: str | None = None
    replicas: int = 1
    devices_per_replica: int | None = None
    devices: tuple[int | tuple[int, ...], ...] | None = None
    vendor: Vendor = "auto"
    port: int | Literal["auto"] = "auto"
    args: dict[str, Any] | tuple[str, ...] = {}
    env: dict[str, str] = {}
    executable: tuple[str, ...] | str | None = None
    command: tuple[str, ...] = ()
    cwd: str | None = None
    config_file: str | None = None
    config: dict[str, Any] = {}
    api: Literal["chat", "completions"] = "chat"
    health_path: str | None = None
    ready_pattern: str | None = None
    pattern: tuple[LogPattern, ...] = ()
    start_timeout: Amount = "1h"
    stall_timeout: Amount = "20m"
    ready_request_timeout: Amount = "5m"
    stop_timeout: Amount = "30s"
    restarts: int = 2
    log_cap: Amount = "256MiB"
    cpus: Literal["any", "apart"] | tuple[int, ...] = "any"
    host: tuple[HostSpec, ...] = ()
    multi_host: MultiHostSpec | None = None
    files: dict[str, str] = {}
    """Relative path -> content: written into each replica's folder before it starts; `{folder}/PATH` in `args` names one."""


class Replica(Struct, frozen=True):
    """What is decided of one process group before its engine says how to start it. `rank` 0 is the head; others only where `ranks` > 1.

    `bind`: the address to listen on, `address`: where clients reach it. `folder`: for rendered files, on its own host.
    `head_address`: where the head's rank listens for the others; `nic`: this host's network interface, where one is given or found.
    """

    name: str
    index: int
    host: str
    port: int
    address: str = "127.0.0.1"
    bind: str = "127.0.0.1"
    devices: tuple[int, ...] = ()
    rank: int = 0
    ranks: int = 1
    head_address: str | None = None
    nic: str | None = None
    nic_address: str | None = None
    folder: str = ""
    config_text: str | None = None
    """What stands in the spec's `config_file`, for engines that render a copy of it."""


class Launch(Struct, frozen=True):
    """How an engine starts one replica: words, variables, and files (path relative to the replica's folder, content) to write before.

    `cwd`: where the engine has to run, unless `fleet.cwd` says otherwise.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    files: tuple[tuple[str, str], ...] = ()
    cwd: str | None = None


class ServicePlan(Struct, frozen=True):
    """One process group to start. `serves`: it answers requests at `base_url` (a headless rank does not). `before`, `after`: commands
    run on its host before its start and after its end. `meets`: (port, the key that gives it) where the head's ranks find each other.
    """

    replica: Replica
    launch: Launch
    serves: bool = True
    base_url: str | None = None
    cwd: str | None = None
    before: tuple[Launch, ...] = ()
    after: tuple[Launch, ...] = ()
    meets: tuple[tuple[int, str], ...] = ()

    @property
    def name(self) -> str:
        return self.replica.name


class Tunable(Struct, frozen=True):
    """A parameter that an engine offers to a study, as plain data. `flag`: the engine's option."""

    name: str
    flag: str
    kind: Literal["int", "float", "bool", "categorical"]
    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()
    default: Any = None


def seconds(amount: Amount, key: str) -> float:
    """`"1h"` -> 3600.0. UserError names `key`."""
    return _amount(amount, key, _SECONDS, "s", "seconds, or a text as 90s, 15m or 2h")


def size_bytes(amount: Amount, key: str) -> int:
    """`"50MiB"` -> 52428800. UserError names `key`."""
    return int(_amount(amount, key, _BYTES, "b", "bytes, or a text as 50MiB"))


def _amount(amount: Amount, key: str, units: dict[str, float] | dict[str, int], plain: str, wanted: str) -> float:
    found = _AMOUNT.fullmatch(str(amount))
    unit = (found[2].lower() or plain) if found else ""
    if found is None or unit not in units:
        raise UserError(f"{key} = {amount!r}: expected {wanted}; 0 means none")
    return float(found[1]) * units[unit]
