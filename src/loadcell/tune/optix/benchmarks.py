"""The `[vllm_benchmark]`, `[evalscopeperf]` and `[ais_bench]` tables -> the command that loads the service, or the same load for our own client. Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from loadcell.errors import UserError
from loadcell.flags.table import ALIASES, ALREADY_SO, FLAGS
from loadcell.fleet.command_line import flag_of
from loadcell.fleet.spec import Amount
from loadcell.tune.optix.services import program, split, table
from loadcell.tune.spec import BenchmarkName, BenchmarkTable

EXTERNAL: Final[tuple[BenchmarkName, ...]] = ("vllm_benchmark", "evalscopeperf", "ais_bench")
_SERVICE: Final = ("host", "port", "model", "served_model_name", "serving", "backend", "result_dir", "others")
_OUR_NAMES: Final = {"number": "num_prompts", "parallel": "concurrency", "max_tokens": "output_len"}
"""Options of evalscope that our client has under another name."""


def external(
    kind: BenchmarkName, section: Mapping[str, Any], service: Mapping[str, Any], fields: Collection[str], root: str | None, timeout: Amount
) -> BenchmarkTable:
    """`service`: `[vllm.command]`, from which host, port and model are taken. `fields`: names that `$NAME` may stand for."""
    command = table(section, "command", f"[{kind}]")
    words = {"vllm_benchmark": _vllm, "evalscopeperf": _evalscope, "ais_bench": _ais_bench}[kind](command, service, fields)
    executable = {"vllm_benchmark": ("vllm", "bench", "serve"), "evalscopeperf": ("evalscope", "perf"), "ais_bench": ("ais_bench",)}[kind]
    first = program(root, executable[0])
    if first is not None:
        executable = (first, *executable[1:])
    output = section.get("output_path") or command.get("outputs_dir") or command.get("result_dir") or command.get("work_dir")
    return BenchmarkTable(
        kind,
        executable=executable,
        args=tuple(words),
        output_dir=str(output) if output else None,
        timeout=timeout,
    )


def _vllm(command: Mapping[str, Any], service: Mapping[str, Any], fields: Collection[str]) -> list[str]:
    model = str(service.get("model") or command.get("model") or "{model}")
    served = service.get("served_model_name") or command.get("served_model_name")
    words = ["--host", "{host}", "--port", "{port}", "--model", model]
    words += ["--served-model-name", str(served)] if served else []
    for key in ("backend", "dataset_name", "dataset_path", "num_prompts"):
        if command.get(key) not in (None, ""):
            words += [flag_of(key), str(command[key])]
    others = split(command.get("others", ""), "[vllm_benchmark.command] others")
    for option, names in (("--max-concurrency", ("CONCURRENCY", "MAXCONCURRENCY")), ("--request-rate", ("REQUESTRATE",))):
        name = next((name for name in names if name in fields), None)
        if name is not None and option not in others:
            words += [option, f"${name}"]
    words += ["--result-dir", str(command["result_dir"])] if command.get("result_dir") else []
    return [*words, "--save-result", *others]


def _evalscope(command: Mapping[str, Any], _service: Mapping[str, Any], _fields: Collection[str]) -> list[str]:
    words = []
    for key in ("url", "model", "tokenizer_path", "dataset", "dataset_path", "api", "outputs_dir"):
        if command.get(key) not in (None, ""):
            words += [flag_of(key), str(command[key])]
    return [*words, *split(command.get("others", ""), "[evalscopeperf.command] others")]


def _ais_bench(command: Mapping[str, Any], _service: Mapping[str, Any], _fields: Collection[str]) -> list[str]:
    words = []
    for key, flag in (
        ("models", "--models"),
        ("datasets", "--datasets"),
        ("mode", "--mode"),
        ("work_dir", "--work-dir"),
        ("num_prompts", "--num-prompts"),
    ):
        if command.get(key) not in (None, ""):
            words += [flag, str(command[key])]
    return [*words, *split(command.get("others", ""), "[ais_bench.command] others")]


def own_load(tree: Mapping[str, Any], note: Callable[[str], None]) -> dict[str, Any]:
    """Flags of `loadcell bench` for the load that the file's benchmark describes; the first that is described counts."""
    for kind in EXTERNAL:
        section = tree.get(kind)
        if not isinstance(section, Mapping) or not isinstance(section.get("command"), Mapping):
            continue
        command = section["command"]
        given = {
            key: value
            for key, value in command.items()
            if key in ("dataset_name", "dataset_path", "num_prompts") and value not in (None, "")
        }
        given |= _options(split(command.get("others", ""), f"[{kind}.command] others"))
        flags: dict[str, Any] = {}
        for key, value in given.items():
            name = _OUR_NAMES.get(key, key)
            if key in _SERVICE or (isinstance(value, str) and "$" in value):
                continue
            if name in FLAGS or name in ALIASES:
                flags[name] = value
            elif name not in ALREADY_SO:
                note(f"[{kind}.command]: {flag_of(key)} has no meaning for our own client, and is left out")
        if flags.get("dataset_name") not in (None, "random", "sharegpt", "custom", "mooncake"):
            note(f"[{kind}.command]: our own client has no data set {flags['dataset_name']!r}: prompts are random")
            flags.pop("dataset_name"), flags.pop("dataset_path", None)
        for key in ("concurrency", "max_concurrency", "request_rate"):
            flags.pop(key, None)  # CONCURRENCY and REQUESTRATE say them
        return flags
    return {}


def own_concurrency(tree: Mapping[str, Any]) -> Any:
    """What `--parallel` or `--max-concurrency` of the file's benchmark says, for a file without CONCURRENCY."""
    for kind in EXTERNAL:
        command = (tree.get(kind) or {}).get("command") if isinstance(tree.get(kind), Mapping) else None
        if isinstance(command, Mapping):
            given = _options(split(command.get("others", ""), f"[{kind}.command] others"))
            found = given.get("parallel", given.get("max_concurrency"))
            if isinstance(found, str) and found.isdigit():
                return int(found)
    return None


def _options(words: Sequence[str]) -> dict[str, Any]:
    """`--num-prompts 1000 --ignore-eos` -> {"num_prompts": "1000", "ignore_eos": True}."""
    found: dict[str, Any] = {}
    at = 0
    while at < len(words):
        head, equals, value = words[at].partition("=")
        if not head.startswith("--"):
            raise UserError(f"others of a benchmark: {words[at]!r} belongs to no option")
        name = head[2:].replace("-", "_")
        following = words[at + 1] if at + 1 < len(words) else "--"
        if equals:
            found[name] = value
        elif following.startswith("--"):
            found[name] = True
        else:
            found[name] = following
            at += 1
        at += 1
    return found
