"""The `[vllm]`, `[mindie]` and `[PLUGIN]` tables of an optix configuration -> the fleet that is tuned, and where fields go in it. Pure."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadcell.errors import UserError
from loadcell.fleet.command_line import flag_of
from loadcell.fleet.engines import ENGINES
from loadcell.fleet.engines.vllm import NEGATABLE
from loadcell.fleet.spec import EngineName, FleetSpec, LogPattern
from loadcell.tune.optix.fields import CONCURRENCY, REQUEST_RATE, Field
from loadcell.tune.parameters import Place

BUILT_IN: Final[dict[str, EngineName]] = {"vllm": "vllm", "multihost_infer": "vllm", "mindie": "mindie", "simulated": "simulated"}
MINDIE_HOME: Final = "/usr/local/Ascend/mindie/latest/mindie-service"
_SHORT: Final = {"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size"}
_INSIDE: Final = {
    "cudagraph_mode": "compilation-config.cudagraph_mode",
    "cudagraph_capture_sizes": "compilation-config.cudagraph_capture_sizes",
    "num_speculative_tokens": "speculative-config.num_speculative_tokens",
    "speculative_enforce_eager": "speculative-config.enforce_eager",
}
"""What vLLM takes inside of a JSON option, and by its dotted name."""
_FLAGS: Final = frozenset((
    "all2all-backend", "api-server-count", "async-scheduling", "attention-backend", "block-size", "calculate-kv-scales", "chat-template",
    "compilation-config", "config-format", "context-length", "cpu-offload-gb", "cuda-graph-sizes", "data-parallel-backend",
    "data-parallel-size", "data-parallel-size-local", "dbo-decode-token-threshold", "decode-context-parallel-size",
    "disable-cascade-attn", "disable-chunked-mm-input", "disable-custom-all-reduce", "disable-hybrid-kv-cache-manager",
    "disable-log-stats", "disable-nccl-for-dp-synchronization", "disable-sliding-window", "distributed-executor-backend", "dtype",
    "enable-chunked-prefill", "enable-dbo", "enable-eplb", "enable-expert-parallel", "enable-lora", "enable-prefix-caching",
    "enable-prompt-embeds", "enable-sleep-mode", "enforce-eager", "fully-sharded-loras", "generation-config", "gpu-memory-utilization",
    "hf-overrides", "kv-cache-dtype", "kv-cache-memory-bytes", "kv-sharing-fast-prefill", "kv-transfer-config", "limit-mm-per-prompt",
    "load-format", "logits-processors", "long-prefill-token-threshold", "mamba-cache-dtype", "mamba-ssm-cache-dtype",
    "max-cudagraph-capture-size", "max-long-partial-prefills", "max-lora-rank", "max-loras", "max-model-len", "max-num-batched-tokens",
    "max-num-partial-prefills", "max-num-seqs", "max-parallel-loading-workers", "max-seq-len-to-capture", "mm-encoder-tp-mode",
    "mm-processor-cache-gb", "num-gpu-blocks-override", "num-lookahead-slots", "optimization-level", "pipeline-parallel-size",
    "prefill-context-parallel-size", "prefix-caching-hash-algo", "quantization", "scheduling-policy", "seed", "speculative-config",
    "stream-interval", "swap-space", "tensor-parallel-size", "tokenizer-mode", "trust-remote-code", "ubatch-size",
))  # fmt: skip
"""Options of `vllm serve` that a study may set, of versions 0.6 to 0.32; `--no-` forms aside."""
_CAUSES: Final = {"out_of_memory": "out_of_memory", "device_error": "driver_fault"}


def place_in(engine: EngineName, used: Sequence[str]) -> "PlaceOf":
    """`used`: words in which `$NAME` may stand."""
    return PlaceOf(engine, used)


class PlaceOf:
    """Where a field's value goes: the load, `$NAME` in the words where it stands there, the engine's own option, a variable, or a JSON path."""

    def __init__(self, engine: EngineName, used: Sequence[str]) -> None:
        self._engine: EngineName = engine
        self._named = {name for word in used for name in re.findall(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)", word)}
        self._own = {one.flag for one in ENGINES[engine].tunables()}

    def __call__(self, field: Field) -> Place:
        if field.name.upper() in CONCURRENCY:
            return Place(load="concurrency")
        if field.name.upper() in REQUEST_RATE:
            return Place(load="request_rate")
        if field.config_position != "env":
            if self._engine != "mindie":
                raise UserError(
                    f"target_field {field.name}: config_position = {field.config_position!r} is a place in MindIE's configuration; engine "
                    f'{self._engine} reads none: give "env"'
                )
            return Place(path=field.config_position)
        if field.name in self._named:
            return Place(word=True)
        flag = self._flag(field.name.lower())
        return Place(flag=flag) if flag is not None else Place(env=field.name)

    def _flag(self, name: str) -> str | None:
        if self._engine not in ("vllm", "simulated", "sglang"):
            return None
        plain = _SHORT.get(name, _INSIDE.get(name, name.replace("_", "-")))
        flag = "--" + plain
        known = flag in self._own or (self._engine == "vllm" and (plain in _FLAGS or name in _INSIDE))
        if not known:
            return None
        return f"{flag}/--no-{plain}" if flag in NEGATABLE else flag


def vllm_fleet(section: Mapping[str, Any], engine: EngineName, root: str | None, home: str) -> FleetSpec:
    """`vllm serve MODEL … others`. `home`: the table's name, for messages. Fields say the two capacities; `others` may say anything."""
    command = table(section, "command", f"[{home}]")
    host, port = str(command.get("host", "127.0.0.1")), command.get("port", 8000)
    words = tuple(split(command.get("others", ""), f"[{home}.command] others"))
    if host not in ("", "127.0.0.1", "localhost"):
        words = ("--host", host, *words)
    if not command.get("model"):
        raise UserError(f"[{home}.command] model is missing: the folder of the model, or its name on the hub")
    return FleetSpec(
        engine,
        model=str(command["model"]),
        served_model_name=str(command["served_model_name"]) if command.get("served_model_name") else None,
        port=number(port, f"[{home}.command] port"),
        args=words,
        executable=program(root, "vllm") if engine == "vllm" else None,
        api="completions" if engine == "vllm" else "chat",
    )


def mindie_fleet(section: Mapping[str, Any], path: str, text: str, root: str | None, installed: str | None) -> FleetSpec:
    """MindIE's daemon, told by a copy of its configuration `text`, which stays as it is. Model, port and devices are those of the file."""
    try:
        config = json.loads(text)
    except ValueError as error:
        raise UserError(f"{path}: no JSON: {error}") from None
    server, backend = _at(config, "ServerConfig"), _at(config, "BackendConfig")
    model = _at(backend, "ModelDeployConfig").get("ModelConfig")
    model = model[0] if isinstance(model, list) and model and isinstance(model[0], dict) else {}
    if not model.get("modelWeightPath"):
        raise UserError(f"{path}: BackendConfig.ModelDeployConfig.ModelConfig.0.modelWeightPath names no model")
    groups = backend.get("npuDeviceIds")
    devices = groups[0] if isinstance(groups, list) and groups and isinstance(groups[0], list) else []
    command = section.get("command", {})
    words = split(command.get("others", ""), "[mindie.command] others") if isinstance(command, Mapping) else []
    daemon = program(root, "mindieservice_daemon")
    executable: Any = (daemon or (f"{installed}/bin/mindieservice_daemon" if installed else "mindieservice_daemon"), *words)
    return FleetSpec(
        "mindie",
        model=str(model["modelWeightPath"]),
        served_model_name=str(model["modelName"]) if model.get("modelName") else None,
        port=number(server.get("port", 1025), f"{path}: ServerConfig.port"),
        config_file=path,
        devices=tuple(int(one) for one in devices) or None,
        devices_per_replica=len(devices) or None,
        env={"MIES_INSTALL_PATH": installed} if installed else {},
        executable=executable if words or daemon else None,
        vendor="ascend",
    )


def command_fleet(section: Mapping[str, Any], name: str, root: str | None) -> FleetSpec:
    """An engine of a plug-in: `[NAME.command] command` is its command line; other keys become its options. Fields reach it as variables, or by `$NAME`."""
    command = dict(table(section, "command", f"[{name}]"))
    words = split(command.pop("command", ""), f"[{name}.command] command")
    if not words:
        raise UserError(
            f"[{name}.command] command is missing: engine {name!r} is none of {', '.join(BUILT_IN)}, so that its command line has to be given"
        )
    others = split(command.pop("others", ""), f"[{name}.command] others")
    port = number(command.get("port", 8000), f"[{name}.command] port")
    served, model = command.get("served_model_name"), command.get("model")
    own = [word for key, value in command.items() if value not in ("", None) for word in (flag_of(key), str(value))]
    first = program(root, words[0]) if root and "/" not in words[0] else None
    return FleetSpec(
        "command",
        model=str(model) if model else None,
        served_model_name=str(served) if served else None,
        port=port,
        command=(first or words[0], *words[1:], *own, *others),
    )


def log_patterns(health: Mapping[str, Any]) -> tuple[LogPattern, ...]:
    """Of `service_errors.fatal_patterns`: texts of a log, as they are, upper or lower case."""
    fatal = _lists(health, "service_errors", "fatal_patterns")
    causes = {name: _CAUSES.get(name, "fatal") for name in fatal}
    return tuple(LogPattern(causes[name], f"(?i){re.escape(text)}") for name, texts in fatal.items() for text in texts)  # type: ignore[arg-type]


def texts_of(health: Mapping[str, Any], whose: str, how: str) -> tuple[str, ...]:
    """All texts of `[health_check.<whose>.<how>]`."""
    return tuple(dict.fromkeys(text for texts in _lists(health, whose, how).values() for text in texts))


def _lists(health: Mapping[str, Any], whose: str, how: str) -> dict[str, list[str]]:
    found = _at(_at(health, whose), how)
    for name, texts in found.items():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise UserError(f"[health_check.{whose}.{how}] {name} = {texts!r}: a list of texts is expected")
    return {name: [text for text in texts if text] for name, texts in found.items()}


def _at(tree: Any, key: str) -> dict[str, Any]:
    found = tree.get(key) if isinstance(tree, Mapping) else None
    return found if isinstance(found, dict) else {}


def table(section: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    found = section.get(key, {})
    if not isinstance(found, Mapping):
        raise UserError(f"{where} {key}: a table is expected")
    return found


def split(text: Any, where: str) -> list[str]:
    """Words as a shell would split them; a list is taken as it is."""
    if isinstance(text, list):
        return [str(word) for word in text]
    try:
        return shlex.split(str(text))
    except ValueError as error:
        raise UserError(f"{where} = {text!r}: {error}") from None


def number(value: Any, where: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise UserError(f"{where} = {value!r}: a port number is expected") from None


def program(root: str | None, name: str) -> str | None:
    """In the deployment's own bin/, where `[deploy] path_prefix` names its root; else null, and PATH tells."""
    return f"{root.rstrip('/')}/bin/{name}" if root else None
