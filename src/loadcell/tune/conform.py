"""The tree of a study's TOML file -> StudySpec, strict: what cannot be used is refused with its place. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from loadcell.errors import UserError
from loadcell.experiment.conform import (
    BENCH_ONLY,
    ELSEWHERE,
    as_table,
    as_tables,
    bench_flags,
    check_name,
    converted,
    fleet_from,
    known_keys,
    slo_texts,
    struct_keys,
)
from loadcell.experiment.spec import Place as FilePlace
from loadcell.experiment.spec import SpecError
from loadcell.fleet.command_line import option
from loadcell.fleet.spec import FleetSpec, seconds
from loadcell.tune.checks import checked
from loadcell.tune.offers import check_engine_of, given_constants, offered_constraints, offered_parameters
from loadcell.tune.parameters import Constraint, Parameter, Place, Value
from loadcell.tune.spec import (
    BenchmarkTable,
    FitnessTable,
    LoadTable,
    Objective,
    StudySpec,
    StudyTable,
    TrialTable,
    Warmup,
    constants_of,
)

_TABLES: Final[dict[str, type[msgspec.Struct]]] = {
    "study": StudyTable,
    "objective": Objective,
    "load": LoadTable,
    "warmup": Warmup,
    "trial": TrialTable,
    "benchmark": BenchmarkTable,
    "fitness": FitnessTable,
}
_PLACES: Final = ("flag", "env", "file", "path", "load", "word")
_PARAMETER_KEYS: Final = (*(field for field in Parameter.__struct_fields__ if field != "place"), *_PLACES)
_AS_THEY_STAND: Final = ("known", "constants")  # tables whose keys are names of parameters
_AMOUNTS: Final = (("study", "budget", "wall_clock"), ("warmup", "timeout"), ("warmup", "least"), ("trial", "timeout"), ("trial", "hang"), ("benchmark", "timeout"))  # fmt: skip


def study_from(tree: Mapping[str, Any], name: str) -> StudySpec:
    """`name` holds where the tree gives none. SpecError names the place of what cannot be used."""
    _refuse_others(tree)
    top = known_keys(tree, tuple(field for field in StudySpec.__struct_fields__ if field != "origins"), ())
    if "fleet" not in top:
        raise SpecError((), "there is no [fleet]: a study starts its services anew for each configuration")
    fleet = fleet_from(as_table(top["fleet"], ("fleet",)), ("fleet",))
    made = {key: _table(top, key, kind) for key, kind in _TABLES.items() if key in top}
    study = made.get("study", StudyTable())
    if "name" not in as_table(top.get("study", {}), ("study",)):
        study = msgspec.structs.replace(study, name=name)
    check_name(study.name, ("study", "name"))
    written = tuple(_parameter(row, at) for at, row in enumerate(as_tables(top.get("parameter", ()), ("parameter",))))
    parameters = _with_offered(study, fleet, written)
    spec = StudySpec(
        fleet,
        **{
            **made,
            "study": study,
            "bench": bench_flags(as_table(top.get("bench", {}), ("bench",)), ("bench",), {**ELSEWHERE, **BENCH_ONLY}),
            "slo": slo_texts(top.get("slo", ()), ("slo",)),
            "parameter": tuple(_with_default(one, fleet, at) for at, one in enumerate(parameters)),
            "constraint": tuple(_constraint(row, at) for at, row in enumerate(as_tables(top.get("constraint", ()), ("constraint",)))),
        },
    )
    return checked(with_constants(spec))


def _refuse_others(tree: Mapping[str, Any]) -> None:
    """Files that are no studies, and tables that are often written otherwise."""
    if "study" not in tree and any(key in tree for key in ("scenario", "target")):
        raise SpecError((), "this is an experiment: loadcell run FILE runs it; a study has [[parameter]]s, and starts its services itself")
    if any(isinstance(table, Mapping) and "target_field" in table for table in tree.values()):
        raise SpecError((), "this is a configuration of optix: give it as --from-optix FILE")
    for key in ("parameter", "constraint"):
        if isinstance(tree.get(key), Mapping):
            raise SpecError((key,), f"write [[{key}]], with two brackets")
    asked = tree.get("objective")
    if not isinstance(asked, Mapping) or "pareto" not in asked:
        return
    if "metric" in asked:
        raise SpecError(("objective", "metric"), "pareto names both objectives: leave metric out")
    if not isinstance(asked["pareto"], list) or len(asked["pareto"]) != 2:
        raise SpecError(("objective", "pareto"), "two objectives are expected, such as ['throughput', 'ttft p95']")


def _table(top: Mapping[str, Any], key: str, kind: type[msgspec.Struct]) -> Any:
    table = dict(as_table(top[key], (key,)))
    kept = {own: table.pop(own) for own in list(table) if key == "study" and own in _AS_THEY_STAND}
    made = converted({**struct_keys(table, kind, (key,)), **kept}, kind, (key,))
    for path in _AMOUNTS:
        if path[0] == key:
            value = made
            for part in path[1:]:
                value = getattr(value, part)
            if value is not None:
                _seconds(value, path)
    return made


def _seconds(value: Any, place: FilePlace) -> None:
    try:
        seconds(value, str(place[-1]))
    except UserError as wrong:
        raise SpecError(place, str(wrong)) from None


def _parameter(row: Mapping[str, Any], at: int) -> Parameter:
    """Its place stands beside its range: `flag = "--max-num-seqs"`."""
    place: FilePlace = ("parameter", at)
    keys = known_keys(row, _PARAMETER_KEYS, place)
    where = converted({key: keys.pop(key) for key in _PLACES if key in keys}, Place, place)
    for key in ("name", "kind"):
        if key not in keys:
            raise SpecError(place, f"{key} is missing: give name, kind (int, float, categorical or bool), and where it goes, such as flag")
    parameter: Parameter = converted({**keys, "place": {}}, Parameter, place)
    return msgspec.structs.replace(parameter, place=where)


def _constraint(row: Mapping[str, Any], at: int) -> Constraint:
    made: Constraint = converted(known_keys(row, Constraint.__struct_fields__, ("constraint", at)), Constraint, ("constraint", at))
    return made


def _with_offered(study: StudyTable, fleet: FleetSpec, written: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """Written ones first, so that their places in the file are their places here."""
    if study.parameters is None:
        if study.leave:
            raise SpecError(("study", "leave"), "only parameters that [study] parameters offers can be left alone")
        return written
    check_engine_of(study.parameters, fleet.engine)
    offered = offered_parameters(fleet.engine, constants_of(fleet, study.constants))
    for at, name in enumerate(study.leave):
        if name not in {one.name for one in offered}:
            raise SpecError(("study", "leave", at), f"{name} is not offered: there are {', '.join(one.name for one in offered)}")
    taken = {one.name for one in written} | {one.place.flag for one in written if one.place.flag} | set(study.leave)
    return (*written, *(one for one in offered if one.name not in taken and one.place.flag not in taken))


def _with_default(one: Parameter, fleet: FleetSpec, at: int) -> Parameter:
    """What [fleet] sets without the study is what the study begins with: it goes before what the engine would do."""
    given = _given(one, fleet)
    if given is None or one.derived is not None:
        return one
    try:
        value = _as_kind(one, given)
    except ValueError:
        raise SpecError(("parameter", at), f"{one.name}: [fleet] sets it to {given!r}, which is no {one.kind}") from None
    return msgspec.structs.replace(one, default=value)


def _given(one: Parameter, fleet: FleetSpec) -> Any:
    if one.place.flag is not None:
        positive = one.place.flag.partition("/")[0]
        return option(fleet.args, positive)
    if one.place.env is not None:
        return fleet.env.get(one.place.env)
    if one.place.path is not None and one.place.file is None:
        return fleet.config.get(one.place.path)
    return None


def _as_kind(one: Parameter, given: Any) -> Value:
    if one.kind == "bool":
        words = {"true": True, "1": True, "false": False, "0": False}
        if str(given).lower() not in words:
            raise ValueError
        return words[str(given).lower()]
    if one.kind == "categorical":
        return next(
            (choice for choice in one.choices if str(choice) == str(given)), given if isinstance(given, int | float) else str(given)
        )
    if isinstance(given, bool):
        raise ValueError
    number = float(given)
    if one.kind == "int":
        if number != int(number):
            raise ValueError
        return int(number)
    return number


def with_constants(spec: StudySpec) -> StudySpec:
    """What the engine knows to be legal together is added to what is written."""
    names = [one.name for one in spec.parameter]
    movable = [one.name for one in spec.parameter if one.derived is None]
    constants = {**given_constants(spec.fleet), **constants_of(spec.fleet, spec.study.constants)}
    rules = offered_constraints(spec.fleet.engine, names, movable, {name: value for name, value in constants.items() if name not in names})
    used = {**spec.study.constants, **{name: value for name, value in given_constants(spec.fleet).items() if name not in names}}
    return msgspec.structs.replace(
        spec,
        constraint=(*spec.constraint, *(rule for rule in rules if rule not in spec.constraint)),
        study=msgspec.structs.replace(spec.study, constants=used),
    )
