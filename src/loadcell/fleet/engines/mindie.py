"""MindIE: `mindieservice_daemon`, which reads all that it is told from one JSON file. Written from its documentation and from public users of it;
not tried on the real thing here.

The user's file (`fleet.config_file`: MindIE's own conf/config.json, or one made from it) is never changed: a copy is rendered into the replica's
folder and named by MIES_CONFIG_JSON_PATH. Set in the copy: address and ports (one for requests, management and metrics), no TLS unless
`fleet.config` says so, devices, world size, the model; then `fleet.config`, dotted path -> value, list indices as numbers:
`"BackendConfig.ScheduleConfig.maxBatchSize" = 200`, `"BackendConfig.ModelDeployConfig.ModelConfig.0.cpuMemSize" = 5`.

Devices stand in the file (`npuDeviceIds`), so that no ASCEND_RT_VISIBLE_DEVICES is set: with both, the numbers would be counted twice.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal

from loadcell.errors import UserError
from loadcell.fleet.engines.words import DRIVER, MODEL_HUB, PORT_TAKEN, TORCH_OUT_OF_MEMORY, patterns
from loadcell.fleet.naming import program
from loadcell.fleet.spec import FleetSpec, Launch, LogPattern, Replica, Tunable

FILE: Final = "mindie-config.json"
_OURS: Final = {
    "ServerConfig.port": "fleet.port",
    "ServerConfig.managementPort": "fleet.port",
    "ServerConfig.metricsPort": "fleet.port",
    "ServerConfig.ipAddress": "fleet.host",
    "BackendConfig.npuDeviceIds": "fleet.devices",
    "BackendConfig.ModelDeployConfig.ModelConfig.0.worldSize": "fleet.devices_per_replica",
    "BackendConfig.ModelDeployConfig.ModelConfig.0.modelName": "fleet.served_model_name",
    "BackendConfig.ModelDeployConfig.ModelConfig.0.modelWeightPath": "fleet.model",
}
_MODEL: Final = "BackendConfig.ModelDeployConfig.ModelConfig.0"

PATTERNS: Final = (
    *TORCH_OUT_OF_MEMORY,
    *PORT_TAKEN,
    *MODEL_HUB,
    *patterns("bad_arguments", (r"parse config\.json failed",)),
    *DRIVER,
    *patterns(
        "fatal",
        (r"Failed to init endpoint!", r"LLMInferEngine failed to init", r"Daemon is killing", r"error while loading shared libraries:"),
    ),
)

TUNABLES: Final = (
    Tunable("max_batch_size", "BackendConfig.ScheduleConfig.maxBatchSize", "int", 16, 1024, log=True, default=200),
    Tunable("max_prefill_batch_size", "BackendConfig.ScheduleConfig.maxPrefillBatchSize", "int", 1, 128, log=True, default=50),
    Tunable("max_prefill_tokens", "BackendConfig.ScheduleConfig.maxPrefillTokens", "int", 4096, 65536, log=True, default=8192),
    Tunable("prefill_time_ms_per_req", "BackendConfig.ScheduleConfig.prefillTimeMsPerReq", "int", 0, 1000, default=150),
    Tunable("decode_time_ms_per_req", "BackendConfig.ScheduleConfig.decodeTimeMsPerReq", "int", 0, 1000, default=50),
    Tunable("support_select_batch", "BackendConfig.ScheduleConfig.supportSelectBatch", "bool", default=False),
    Tunable("max_queue_delay", "BackendConfig.ScheduleConfig.maxQueueDelayMicroseconds", "int", 500, 1_000_000, log=True, default=5000),
)


class Mindie:
    name = "mindie"
    health_path = "/v1/models"
    """Its health paths differ between versions; the list of models is a light GET that all have."""
    patterns: tuple[LogPattern, ...] = PATTERNS
    devices_by: Literal["variable", "config", "none"] = "config"
    reads: tuple[str, ...] = ("MIES_", "MINDIE_", "ATB_", "HCCL_", "NPU_MEMORY_FRACTION", "ASCEND_", "RANK")

    def model_path(self, spec: FleetSpec) -> str | None:
        return spec.model

    def check(self, spec: FleetSpec) -> None:
        if not spec.model:
            raise UserError("fleet.model is missing: the folder of the model's weights")
        if not spec.config_file:
            raise UserError("fleet.config_file is missing: MindIE's conf/config.json, which stays as it is: a copy is changed")
        if spec.args:
            raise UserError(
                'fleet.args: MindIE reads a file, not options: use [fleet.config], "BackendConfig.ScheduleConfig.maxBatchSize" = 200'
            )
        for name, key in _OURS.items():
            if name in spec.config:
                raise UserError(f"fleet.config.{name}: the fleet sets this itself: use {key}")

    def devices_needed(self, spec: FleetSpec) -> int | None:  # noqa: ARG002 - the file's world size is set from the devices
        return None

    def launch(self, spec: FleetSpec, replica: Replica) -> Launch:
        env = {
            "MIES_CONFIG_JSON_PATH": f"{replica.folder}/{FILE}",
            "MINDIE_CHECK_INPUTFILES_PERMISSION": "0",  # the copy has the permissions of a file of ours
            "MINDIE_LOG_TO_STDOUT": "1",
            "MIES_SERVICE_MONITOR_MODE": "1",  # /metrics
        }
        root = spec.env.get("MIES_INSTALL_PATH")
        daemon = program(spec, (f"{root}/bin/mindieservice_daemon" if root else "mindieservice_daemon",))
        content = json.dumps(rendered(spec, replica), indent=2, ensure_ascii=False)
        return Launch(daemon, env, ((FILE, content + "\n"),), cwd=replica.folder)

    def tunables(self) -> tuple[Tunable, ...]:
        return TUNABLES


def rendered(spec: FleetSpec, replica: Replica) -> dict[str, Any]:
    """The user's configuration with what this replica needs. Raises UserError for a file that cannot be read, or a path that leads nowhere."""
    try:
        config = json.loads(replica.config_text or "")
    except ValueError as error:
        raise UserError(f"fleet.config_file = {spec.config_file!r} holds no JSON: {error}") from None
    if not isinstance(config, dict):
        raise UserError(f"fleet.config_file = {spec.config_file!r}: expected a JSON object")
    server = config.setdefault("ServerConfig", {})
    server.pop("managementIpAddress", None)  # management has the same address and port
    ours = {
        "ServerConfig.ipAddress": replica.bind,
        "ServerConfig.port": replica.port,
        "ServerConfig.managementPort": replica.port,
        "ServerConfig.metricsPort": replica.port,
        "ServerConfig.httpsEnabled": False,
        f"{_MODEL}.modelName": spec.served_model_name or spec.model,
        f"{_MODEL}.modelWeightPath": spec.model,
    }
    if replica.bind == "0.0.0.0":  # noqa: S104 - where other hosts ask
        ours["ServerConfig.allowAllZeroIpListening"] = True
    if replica.devices:
        ours |= {"BackendConfig.npuDeviceIds": [list(replica.devices)], f"{_MODEL}.worldSize": len(replica.devices)}
    for path, value in (ours | spec.config).items():
        place(config, path, value, f"fleet.config.{path}")
    return config


def place(config: dict[str, Any], path: str, value: Any, key: str) -> None:
    """Set what stands at a dotted path; missing objects are made, missing list entries too if they are the next one. Raises UserError."""
    *steps, last = path.split(".")
    at: Any = config
    for step, following in zip(steps, [*steps[1:], last], strict=True):
        at = _into(at, step, [] if following.isdigit() else {}, key)
    _put(at, last, _plain(value), key)


def _into(at: Any, step: str, fresh: Any, key: str) -> Any:
    if isinstance(at, list):
        index = _index(at, step, key)
        if index == len(at):
            at.append(fresh)
        return at[index]
    if not isinstance(at, dict):
        raise UserError(f"{key}: {step!r} stands below something that is neither object nor list")
    return at.setdefault(step, fresh)


def _put(at: Any, step: str, value: Any, key: str) -> None:
    if isinstance(at, list):
        index = _index(at, step, key)
        at[index : index + 1] = [value]
    elif isinstance(at, dict):
        at[step] = value
    else:
        raise UserError(f"{key}: {step!r} stands below something that is neither object nor list")


def _index(at: list[Any], step: str, key: str) -> int:
    if not step.isdigit() or int(step) > len(at):
        raise UserError(f"{key}: {step!r} is no entry of a list of {len(at)}: entries are numbered from 0")
    return int(step)


def _plain(value: Any) -> Any:
    """TOML's arrays and tables as JSON's."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
