"""`optix/config.toml`, as it is -> a study. Opens the files that it names; starts nothing, changes none of them.

What optix weighs into one number is a limit here: `ttft_slo` on the mean, as it measured it, unless its penalty is 0. Its swarm's particles and rounds become
a budget of trials. What cannot be taken as it is written is told to `note`.
"""

import math
import shutil
import tomllib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import msgspec

from loadcell.errors import UserError
from loadcell.experiment.read import name_of, text_of
from loadcell.experiment.spec import SpecError
from loadcell.fleet.cluster_file import parse_cluster, with_cluster
from loadcell.fleet.spec import FleetSpec
from loadcell.tune.checks import checked
from loadcell.tune.conform import with_constants
from loadcell.tune.optix.benchmarks import EXTERNAL, external, own_concurrency, own_load
from loadcell.tune.optix.fields import CONCURRENCY, REQUEST_RATE, Field, fields_from
from loadcell.tune.optix.services import (
    BUILT_IN,
    MINDIE_HOME,
    command_fleet,
    log_patterns,
    mindie_fleet,
    place_in,
    table,
    texts_of,
    vllm_fleet,
)
from loadcell.tune.parameters import Parameter
from loadcell.tune.spec import BenchmarkTable, Budget, Confirm, FitnessTable, LoadTable, StudySpec, StudyTable, TrialTable

CLUSTER: Final = "CLUSTER_CONFIG_PATH"
_TOP: Final = (
    "n_particles", "iters", "ttft_penalty", "tpot_penalty", "success_rate_penalty", "ttft_slo", "tpot_slo", "success_rate_slo",
    "use_request_rate_calibration", "wait_start_time", "particles_time_out", "max_fine_tune", "generate_speed_target", "output", "data_storage",
    "deploy", "health_check", "benchmark_early_exit", "vllm", "mindie", "vllm_benchmark", "ais_bench", "evalscopeperf",
)  # fmt: skip
_UNUSED: Final = (
    "service", "sample_size", "theory_guided_enable", "gp_model", "pso_options", "fine_tune_type", "latency_model", "simulator", "kubectl", "pso_init_kwargs",
    "prefill_lr_slo", "slo_coefficient", "step_size", "w_gen", "w_ft", "w_pot", "w_succ",
)  # fmt: skip
_COUNTS: Final = ("n_particles", "iters")
_AMOUNTS: Final = ("ttft_slo", "tpot_slo", "success_rate_slo", "generate_speed_target", "wait_start_time", "particles_time_out")
_VENDORS: Final = ("npu-smi", "nvidia-smi", "amd-smi", "rocm-smi")


def read_optix(
    path: Path,
    engine: str = "vllm",
    benchmark: str | None = None,
    *,
    backup: bool = False,
    load_breakpoint: bool = False,
    environment: Mapping[str, str] | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> StudySpec:
    """`benchmark` null: our own client. `environment`: where MIES_INSTALL_PATH, CLUSTER_CONFIG_PATH and OPTIX_DEPLOY_PATH are looked up.

    UserError names the file and what to do.
    """
    tree = _tree(path)
    try:
        return _study(
            tree, path, engine, benchmark, backup=backup, load_breakpoint=load_breakpoint, environment=environment or {}, note=note
        )
    except SpecError as wrong:
        raise UserError(f"{path}: {wrong.place[0] if wrong.place else ''} {wrong}") from None
    except UserError as wrong:
        text = str(wrong)
        raise UserError(text if text.startswith(str(path)) else f"{path}: {text}") from None


def _study(
    tree: dict[str, Any],
    path: Path,
    engine: str,
    benchmark: str | None,
    *,
    backup: bool,
    load_breakpoint: bool,
    environment: Mapping[str, str],
    note: Callable[[str], None],
) -> StudySpec:
    kind = benchmark or "loadcell"
    if kind not in ("loadcell", *EXTERNAL):
        raise UserError(f"-b {kind}: known are loadcell (our own client), {', '.join(EXTERNAL)}")
    _check_keys(tree, engine, note)
    root = environment.get("OPTIX_DEPLOY_PATH") or table(tree, "deploy", "").get("path_prefix")
    fleet = _fleet(tree, engine, str(root) if root else None, environment, note)
    home = "vllm" if engine in ("multihost_infer", "simulated") and engine not in tree else engine
    fields = _fields(tree, home, kind)
    loads, rest = _loads(fields), [field for field in fields if field.name.upper() not in (*CONCURRENCY, *REQUEST_RATE)]
    load_fields, load, bench = _load(loads, bool(tree.get("use_request_rate_calibration", True)))
    timeout = tree.get("particles_time_out", 3600)
    service = table(table(tree, home, ""), "command", f"[{home}]") if home in tree else {}
    if kind == "loadcell":
        bench = {**own_load(tree, note), **bench}
        if not load_fields and "concurrency" not in bench and (given := own_concurrency(tree)) is not None:
            bench["concurrency"] = given
        command = BenchmarkTable()
    else:
        names = {field.name for field in load_fields} | {field.name for field in rest}
        command = external(kind, table(tree, kind, ""), service, names, str(root) if root else None, timeout)
    health = table(tree, "health_check", "")
    words = (*_words(fleet.args), *fleet.command, *_words(command.args))
    made = fields_from([*rest, *load_fields], place_in(fleet.engine, words))
    for text in made.notes:
        note(text)
    fleet = msgspec.structs.replace(fleet, start_timeout=tree.get("wait_start_time", 1800), pattern=log_patterns(health))
    storage = table(tree, "data_storage", "")
    early = table(tree, "benchmark_early_exit", "")
    spec = StudySpec(
        fleet,
        study=StudyTable(
            name_of(path),
            output_dir=str(tree["output"]) if tree.get("output") else None,
            prior=_prior(path, tree, storage, note) if load_breakpoint else (),
            budget=Budget(trials=int(tree.get("n_particles", 8)) * int(tree.get("iters", 4)) + 1),
            confirm=Confirm(candidates=int(storage["pso_top_k"])) if storage.get("pso_top_k") else Confirm(),
        ),
        bench=bench,
        slo=_limits(tree),
        parameter=_with_engine_defaults(fleet, made.parameters),
        constraint=made.constraints,
        load=load,
        trial=TrialTable(
            timeout=timeout,
            early_stop=bool(early.get("enabled", True)) and early.get("action", "terminate") == "terminate",
            retry_on=(
                *texts_of(health, "service_errors", "retryable_patterns"),
                *texts_of(health, "benchmark_errors", "retryable_patterns"),
            ),
        ),
        benchmark=msgspec.structs.replace(command, fail_on=texts_of(health, "benchmark_errors", "fatal_patterns")),
        fitness=msgspec.convert({key: tree[key] for key in FitnessTable.__struct_fields__ if key in tree}, FitnessTable, strict=False),
    )
    if backup:
        note("--backup: every trial's logs, figures and requests are kept in the study's folder anyway")
    return checked(with_constants(spec))


def _tree(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text_of(path))
    except tomllib.TOMLDecodeError as wrong:
        raise UserError(f"{path}: not TOML: {wrong}") from None


def _check_keys(tree: Mapping[str, Any], engine: str, note: Callable[[str], None]) -> None:
    if "study" in tree or "parameter" in tree:
        raise UserError("this is a study of loadcell's own: loadcell tune FILE runs it as it is")
    for key in _COUNTS:
        if key in tree and (not isinstance(tree[key], int) or isinstance(tree[key], bool) or tree[key] < 1):
            raise UserError(f"{key} = {tree[key]!r}: a whole number, 1 or more, is expected")
    for key in _AMOUNTS:
        if key in tree and (not isinstance(tree[key], int | float) or isinstance(tree[key], bool) or not 0 < tree[key] < math.inf):
            raise UserError(f"{key} = {tree[key]!r}: a number above 0 is expected")
    known = (*_TOP, *_UNUSED, engine)
    for key in tree:
        if key in _UNUSED:
            note(f"{key} is not used: the search and its confirmation need no such setting")
        elif key not in known:
            near = get_close_matches(key, known, n=1)
            note(f"{key} is not known{f' (did you mean {near[0]}?)' if near else ''}, and is not used")


def _fleet(
    tree: Mapping[str, Any], engine: str, root: str | None, environment: Mapping[str, str], note: Callable[[str], None]
) -> FleetSpec:
    if engine == "mindie":
        section = table(tree, "mindie", "")
        installed = environment.get("MIES_INSTALL_PATH")
        file = str(section.get("config_path") or f"{installed or MINDIE_HOME}/conf/config.json")
        return mindie_fleet(section, file, text_of(Path(file)), root, installed)
    if engine in BUILT_IN:
        home = engine if engine in tree else "vllm"
        fleet = vllm_fleet(table(tree, home, ""), BUILT_IN[engine], root, home)
        return _over_hosts(fleet, environment, note) if engine == "multihost_infer" else fleet
    if engine not in tree:
        raise UserError(
            f"-e {engine}: known are {', '.join(BUILT_IN)}, and engines with a table of their own: [{engine}.command] is missing"
        )
    return command_fleet(table(tree, engine, ""), engine, root)


def _over_hosts(fleet: FleetSpec, environment: Mapping[str, str], note: Callable[[str], None]) -> FleetSpec:
    """One service over the hosts of the file that the plug-in is told by a variable."""
    named = environment.get(CLUSTER)
    if not named:
        raise UserError(f"-e multihost_infer: {CLUSTER} is not set: it names the file of the cluster's hosts")
    cluster = parse_cluster(text_of(Path(named)), named)
    for text in cluster.notes:
        note(text)
    return _without_tools(with_cluster(fleet, cluster), note)


def _without_tools(fleet: FleetSpec, note: Callable[[str], None]) -> FleetSpec:
    """A machine on which no vendor's tool is, such as one with stand-ins: there are no devices to plan with."""
    if any(shutil.which(tool) for tool in _VENDORS):
        return fleet
    note("no vendor's tool is on PATH here: the engine takes the devices that it finds")
    return msgspec.structs.replace(fleet, vendor="none")


def _fields(tree: Mapping[str, Any], home: str, benchmark: str) -> list[Field]:
    """Those of the engine, and of the benchmark, where it has some."""
    found: list[Field] = []
    for name in (home, benchmark):
        section = tree.get(name)
        rows = section.get("target_field", []) if isinstance(section, Mapping) else []
        for at, row in enumerate(rows):
            try:
                found.append(msgspec.convert(row, Field))
            except msgspec.ValidationError as wrong:
                named = f" ({row.get('name')})" if isinstance(row, dict) else ""
                raise UserError(f"[[{name}.target_field]] {at + 1}{named}: {wrong}") from None
    if not found:
        raise UserError(f"[[{home}.target_field]] is missing: there is nothing to search")
    return found


def _loads(fields: list[Field]) -> list[Field]:
    return [field for field in fields if field.name.upper() in (*CONCURRENCY, *REQUEST_RATE)]


def _load(fields: list[Field], calibrated: bool) -> tuple[list[Field], LoadTable, dict[str, Any]]:
    """What of the load is searched, how it is measured, and what is fixed in `[bench]`.

    Calibrated: concurrency is its max, the rate is measured, up to its max. Else concurrency is searched, the rate is its max. A rate of 0 is none.
    """
    concurrency = next((field for field in fields if field.name.upper() in CONCURRENCY), None)
    rate = next((field for field in fields if field.name.upper() in REQUEST_RATE), None)
    searched: list[Field] = []
    load = LoadTable()
    if concurrency is not None and concurrency.dtype == "ratio":  # of the engine's batch, say
        searched.append(msgspec.structs.replace(concurrency, min=concurrency.max) if calibrated else concurrency)
    elif concurrency is not None:
        concurrency = msgspec.structs.replace(concurrency, dtype="int") if concurrency.dtype == "float" else concurrency
        top = concurrency.constant if concurrency.constant is not None else concurrency.max
        fixed = msgspec.structs.replace(concurrency, min=concurrency.max, constant=int(top), value=int(top), dtype="int")
        searched.append(fixed if calibrated or concurrency.fixed else concurrency)
    if rate is not None:
        top = float(rate.constant) if rate.constant is not None else rate.max
        if calibrated and not rate.fixed:
            load = LoadTable("calibrated", "request_rate", high=top or None)
        elif top > 0:
            searched.append(msgspec.structs.replace(rate, min=rate.max, constant=top, value=top, dtype="float"))
    return searched, load, {}


def _limits(tree: Mapping[str, Any]) -> tuple[str, ...]:
    """Limits on means, as optix measured them; one whose penalty is 0 was no limit."""
    found = []
    for metric, usual in (("ttft", 2.0), ("tpot", 0.05)):
        if float(tree.get(f"{metric}_penalty", 1)) > 0:
            found.append(f"{metric} mean <= {float(tree.get(f'{metric}_slo', usual)) * 1000:g}ms")
    if float(tree.get("success_rate_penalty", 5)) > 0:
        found.append(f"success_rate >= {float(tree.get('success_rate_slo', 1)) * 100:g}%")
    return tuple(found)


def _prior(path: Path, tree: Mapping[str, Any], storage: Mapping[str, Any], note: Callable[[str], None]) -> tuple[str, ...]:
    """The newest history: older ones may be of another machine or model, and optix took them all."""
    names = [str(storage.get("store_dir", "store")), str(Path(str(tree.get("output", "result"))) / str(storage.get("store_dir", "store")))]
    folders = [Path(name) if Path(name).is_absolute() else base / name for name in names for base in (Path(), path.parent)]
    found = sorted({file.resolve() for folder in folders for file in folder.glob("data_storage_*.csv")}, key=lambda file: file.name)
    if not found:
        note(
            f"--load-breakpoint: there is no data_storage_*.csv in {', '.join(dict.fromkeys(str(folder) for folder in folders))}: nothing to take up"
        )
        return ()
    if len(found) > 1:
        note(f"--load-breakpoint: of {len(found)} histories the newest is taken, {found[-1].name}; name others as [study] prior")
    return (str(found[-1]),)


def _with_engine_defaults(fleet: FleetSpec, parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """A field without a baseline is left to the engine, whose default its adapter may know."""
    from loadcell.fleet.engines import ENGINES

    known = {one.flag: one.default for one in ENGINES[fleet.engine].tunables() if fleet.engine != "mindie"}
    out = []
    for one in parameters:
        flag = (one.place.flag or "").partition("/")[0]
        unsaid = one.default is None and one.derived is None
        default = known.get(flag) if unsaid else one.default
        out.append(msgspec.structs.replace(one, default=default))
    return tuple(out)


def _words(args: Any) -> tuple[str, ...]:
    return tuple(str(word) for word in args) if not isinstance(args, Mapping) else tuple(str(word) for word in args.values())
