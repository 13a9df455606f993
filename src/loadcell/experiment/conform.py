"""The tree of a TOML file -> ExperimentSpec. Keys in kebab or snake case; an unknown one is refused with the nearest right one. Pure."""

import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from loadcell.errors import UserError
from loadcell.experiment.offered import Offered
from loadcell.experiment.spec import NAME_RULE, ExperimentSpec, Place, ScenarioRow, SpecError, TargetUrls, is_name
from loadcell.experiment.wanted import instead, refusal
from loadcell.flags.table import ALIASES, ALREADY_SO, FLAGS
from loadcell.flags.values import unknown
from loadcell.fleet import spec as fleet_spec
from loadcell.metrics.slo import parse_slo

# Flags that an experiment says otherwise, or that have no place in it.
ELSEWHERE: Final = {
    **dict.fromkeys(("base_url", "host", "port", "ports"), "say where running services are in [target] base-url; those of [fleet] are known"),
    **dict.fromkeys(("cell", "repeat"), "each cell is given its own"),
    "seed": "give one seed for the experiment, at the top of the file",
    "output_dir": "give it at the top of the file, or as --output-dir of `loadcell run`",
    **dict.fromkeys(("output_file", "overwrite"), "every cell's requests are written to raw_outputs/ of the run's folder"),
    **dict.fromkeys(
        ("save_result", "save_detailed", "append_result", "result_dir", "result_filename", "percentile_metrics", "metric_percentiles"),
        "results.json of the run's folder holds the figures; `loadcell bench` writes this one",
    ),
    **dict.fromkeys(("progress", "quiet", "strict"), "give it to `loadcell run`"),
}  # fmt: skip
BENCH_ONLY: Final = {
    "name": "the experiment's name stands at the top of the file, a scenario's in its [[scenario]]",
    "slo": "give limits as [[slo]], or as slo = [...] of a scenario",
    **dict.fromkeys(("gate", "repeats"), "give it at the top of the file, or in a [[scenario]]"),
    "shuffle": "give it at the top of the file",
}
_AMOUNTS: Final = (
    ("start_timeout", fleet_spec.seconds), ("stall_timeout", fleet_spec.seconds), ("ready_request_timeout", fleet_spec.seconds),
    ("stop_timeout", fleet_spec.seconds), ("log_cap", fleet_spec.size_bytes),
)  # fmt: skip
SWITCHES: Final = {"true": True, "false": False, "True": True, "False": False}
_AS_THEY_STAND: Final = ("args", "env", "config")  # tables whose keys are the engine's
_SLO_KEYS: Final = ("metric", "statistic", "limit")
_ROW_KEYS: Final = ("name", "slo", "gate", "repeats")
_OF_STUDIES: Final = dict.fromkeys(
    ("study", "objective", "parameter", "constraint"), "an experiment has none; a study is run by `loadcell tune`"
)


def experiment_from(tree: Mapping[str, Any], name: str) -> ExperimentSpec:
    """`name` holds where the tree gives none. SpecError names the place of what cannot be used."""
    top = known_keys(tree, tuple(f for f in ExperimentSpec.__struct_fields__ if f != "origins"), (), _OF_STUDIES)
    fleet, target = top.pop("fleet", None), top.pop("target", None)
    if fleet is None and target is None:
        raise SpecError((), "there is neither [fleet], services to start, nor [target], services that run already: give one")
    made: dict[str, Any] = {
        "name": name,
        **{key: top[key] for key in top if key not in ("bench", "scenario", "slo")},
        "bench": bench_flags(as_table(top.get("bench", {}), ("bench",)), ("bench",), {**ELSEWHERE, **BENCH_ONLY}),
    }
    rows = tuple(_row(row, ("scenario", at)) for at, row in enumerate(as_tables(top.get("scenario", ()), ("scenario",))))
    spec: ExperimentSpec = converted(made, ExperimentSpec, ())
    if spec.repeats < 1:
        raise SpecError(("repeats",), f"{spec.repeats}: must be 1 or more")
    check_name(spec.name, ("name",))
    return msgspec.structs.replace(
        spec,
        scenario=rows,
        slo=slo_texts(top.get("slo", ()), ("slo",)),
        fleet=None if fleet is None else fleet_from(as_table(fleet, ("fleet",)), ("fleet",)),
        target=None if target is None else _target(as_table(target, ("target",))),
    )


def fleet_from(table: Mapping[str, Any], place: Place) -> fleet_spec.FleetSpec:
    """`[fleet]`, with its times and sizes checked."""
    tree = struct_keys(table, fleet_spec.FleetSpec, place)
    if isinstance(tree.get("env"), Mapping):  # every variable is a text, and a number in it is how people write one
        tree["env"] = {key: str(value) if type(value) in (int, float, Offered) else value for key, value in tree["env"].items()}
    if isinstance(tree.get("executable"), Mapping):
        raise SpecError((*place, "executable"), "expected a program, or the list of its words")
    made: fleet_spec.FleetSpec = converted(tree, fleet_spec.FleetSpec, place)
    for key, read in _AMOUNTS:
        try:
            read(getattr(made, key), key)
        except UserError as wrong:
            raise SpecError((*place, key), str(wrong)) from None
    if made.replicas < 1:
        raise SpecError((*place, "replicas"), f"{made.replicas}: must be 1 or more")
    if made.ready_pattern is not None:
        _check_expression(made.ready_pattern, (*place, "ready_pattern"))
    for at, one in enumerate(made.pattern):
        _check_expression(one.pattern, (*place, "pattern", at, "pattern"))
    return made


def _check_expression(text: str, place: Place) -> None:
    try:
        re.compile(text)
    except re.error as wrong:
        raise SpecError(place, f"{text!r} is no regular expression: {wrong}") from None


def _target(table: Mapping[str, Any]) -> TargetUrls:
    keys = known_keys(table, TargetUrls.__struct_fields__, ("target",))
    urls = keys.get("base_url", ())
    keys["base_url"] = [urls] if isinstance(urls, str) else urls
    if not urls:
        raise SpecError(("target", "base_url"), "give at least one URL")
    made: TargetUrls = converted(keys, TargetUrls, ("target",))
    return made


def _row(row: Mapping[str, Any], place: Place) -> ScenarioRow:
    own = {_snake(key): value for key, value in row.items() if _snake(key) in _ROW_KEYS}
    flags = bench_flags({key: value for key, value in row.items() if _snake(key) not in _ROW_KEYS}, place, ELSEWHERE)
    if "slo" in own:
        own["slo"] = slo_texts(own["slo"], (*place, "slo"))
    made: ScenarioRow = msgspec.structs.replace(converted(own, ScenarioRow, place), flags=flags)
    if made.repeats is not None and made.repeats < 1:
        raise SpecError((*place, "repeats"), f"{made.repeats}: must be 1 or more")
    if made.name is not None:
        check_name(made.name, (*place, "name"))
    return made


def check_name(name: str, place: Place) -> None:
    if not is_name(name):
        raise SpecError(place, f"{name!r}: {NAME_RULE}")


def bench_flags(table: Mapping[str, Any], place: Place, elsewhere: Mapping[str, str]) -> dict[str, Any]:
    """Flags of `loadcell bench` by their snake_case names; one that is none, or that an experiment says otherwise, is refused."""
    known = (*FLAGS, *ALIASES, *ALREADY_SO)
    out: dict[str, Any] = {}
    for key, value in table.items():
        name, here = _snake(key), (*place, key)
        if name in elsewhere:
            raise SpecError(here, elsewhere[name])
        if name not in known:
            near = get_close_matches(name, [*known, *(_ROW_KEYS if place[0] == "scenario" else ())], n=1)
            raise SpecError(here, f"unknown key {key}: did you mean {near[0]}?" if near else unknown(name))
        if name in out:
            raise SpecError(here, f"{name} is given twice, with - and with _: keep one")
        out[name] = _plain(name, value)
    return out


def _plain(name: str, value: Any) -> Any:
    """A flag's value as files and hashes carry it: no infinity, which JSON does not know, and `${KEY}` of a switch as true or false."""
    if isinstance(value, (list, tuple)):
        return [_plain(name, item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(name, item) for key, item in value.items()}
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, Offered):
        flag = FLAGS.get(name) or ALIASES.get(name)
        return _texts(value) if flag is not None and flag.kind == "switch" else str(value)
    return value


def slo_texts(given: Any, place: Place) -> tuple[str, ...]:
    """`[[slo]]` tables and texts -> texts, each one checked."""
    items = [given] if isinstance(given, (str, Mapping)) else given
    if not isinstance(items, (list, tuple)):
        raise SpecError(place, f"{given!r}: expected limits such as 'ttft p95 <= 200ms'")
    texts = [str(item) if isinstance(item, str) else _slo_text(item, (*place, at)) for at, item in enumerate(items)]
    for at, text in enumerate(texts):
        try:
            parse_slo(text, "limit")
        except UserError as wrong:
            raise SpecError((*place, at), str(wrong)) from None
    return tuple(texts)


def _slo_text(item: Any, place: Place) -> str:
    """metric = "ttft", statistic = "p95", limit = "200ms" -> `ttft p95 <= 200ms`."""
    table = known_keys(as_table(item, place), _SLO_KEYS, place)
    metric, limit = table.get("metric"), table.get("limit")
    if not isinstance(metric, str):
        raise SpecError((*place, "metric"), "give the metric that is limited, such as ttft, tpot, e2e or success_rate")
    if isinstance(limit, bool) or not isinstance(limit, (str, int, float)):
        raise SpecError((*place, "limit"), "give the limit with its unit, such as '200ms' or '99%'")
    sign = ">=" if metric.lower().startswith("success") else "<="
    return " ".join(filter(None, (metric, str(table.get("statistic", "")), sign, str(limit))))


def struct_keys(table: Mapping[str, Any], struct: type[Struct], place: Place) -> dict[str, Any]:
    """`known_keys`, and the same in every table below that is a struct of ours."""
    below = known_keys(table, struct.__struct_fields__, place)
    for field in msgspec.structs.fields(struct):
        inner = next((kind for kind in _kinds(field.type) if isinstance(kind, type) and issubclass(kind, Struct)), None)
        value = below.get(field.name)
        if inner is None or field.name in _AS_THEY_STAND:
            continue
        if isinstance(value, Mapping):
            below[field.name] = struct_keys(value, inner, (*place, field.name))
        elif isinstance(value, (list, tuple)):
            below[field.name] = [
                struct_keys(item, inner, (*place, field.name, at)) if isinstance(item, Mapping) else item for at, item in enumerate(value)
            ]
    return below


def _kinds(kind: Any) -> Iterable[Any]:
    yield kind
    for argument in get_args(kind):
        yield from _kinds(argument)


def known_keys(table: Mapping[str, Any], known: Iterable[str], place: Place, elsewhere: Mapping[str, str] = {}) -> dict[str, Any]:
    """The table under snake_case names. SpecError for one that is not known, and for two spellings of one. `elsewhere`: what to do about a name that
    belongs in another file.
    """
    out: dict[str, Any] = {}
    names = tuple(known)
    for key, value in table.items():
        name = _snake(key)
        if name not in names:
            near = get_close_matches(name, names, n=1)
            instead = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
            raise SpecError((*place, key), f"unknown key {key}: {elsewhere.get(name, instead)}")
        if name in out:
            raise SpecError((*place, key), f"{name} is given twice, with - and with _: keep one")
        out[name] = value
    return out


def as_table(value: Any, place: Place) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SpecError(place, f"{value!r}: expected a table")
    return value


def as_tables(value: Any, place: Place) -> Iterable[Mapping[str, Any]]:
    if not isinstance(value, (list, tuple)):
        raise SpecError(place, "expected tables: write [[scenario]], with two brackets")
    return [as_table(item, (*place, at)) for at, item in enumerate(value)]


def converted(tree: Mapping[str, Any], kind: type[Any], place: Place) -> Any:
    """msgspec's strict conversion; what `${KEY}` offered is text, and is read as the type that its place wants."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    read = {key: _as_wanted(value, fields[key], (*place, key)) if _is_offered(value) else _texts(value) for key, value in tree.items()}
    try:
        return msgspec.convert(read, kind)
    except msgspec.ValidationError as wrong:
        text, _, path = str(wrong).partition(" - at `$")
        at = _path(path.rstrip("`"))
        raise SpecError((*place, *at), refusal(text, read, kind, at)) from None


def _is_offered(value: Any) -> bool:
    return isinstance(value, Offered) or (isinstance(value, list) and any(isinstance(item, Offered) for item in value))


def _as_wanted(value: Any, kind: Any, place: Place) -> Any:
    """A text, or a list of texts, of an env file."""
    plain = [str(item) for item in value] if isinstance(value, list) else str(value)
    for strict in (True, False):
        try:
            return msgspec.convert(plain, kind, strict=strict)
        except msgspec.ValidationError:
            continue
    raise SpecError(place, f"{plain!r}: {instead(kind)}")


def _texts(value: Any) -> Any:
    """What stands deeper wants no type that we know, as in an engine's own options: text, but `true` and `false` switch, as Python writes them too."""
    if isinstance(value, Mapping):
        return {key: _texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_texts(item) for item in value]
    return SWITCHES.get(value, str(value)) if isinstance(value, Offered) else value


def _path(text: str) -> Place:
    """`.host[0].name` -> ("host", 0, "name")."""
    return tuple(int(part) if part.isdigit() else part for part in text.replace("[", ".").replace("]", "").split(".") if part)


def _snake(key: str) -> str:
    return key.replace("-", "_")
