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
from loadcell.experiment.matrix import flag_of
from loadcell.experiment.spec import Place as FilePlace
from loadcell.experiment.spec import SpecError
from loadcell.flags.resolve import scenario_from_flags
from loadcell.flags.table import ALIASES, FLAGS
from loadcell.fleet.command_line import option
from loadcell.fleet.spec import FleetSpec, seconds
from loadcell.metrics.slo import parse_slo
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
    known_of,
    space_of,
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
_SOMEWHERE: Final = "http://127.0.0.1:1"
_OBJECTIVES: Final = ("throughput", "goodput", "request_rate")


def study_from(tree: Mapping[str, Any], name: str) -> StudySpec:
    """`name` holds where the tree gives none. SpecError names the place of what cannot be used."""
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


def checked(spec: StudySpec) -> StudySpec:
    """`spec`, with what its parts say together refused where it makes no sense. SpecError."""
    _check_numbers(spec)
    space = space_of(spec)
    for at, one in enumerate(spec.parameter):
        _check_place(one, spec, ("parameter", at))
    for at, known in enumerate(spec.study.known):
        for key in known:
            if key not in space.domains:
                raise SpecError(("study", "known", at, key), f"{key} is no parameter that is set: there are {', '.join(space.domains)}")
    known_of(spec, space)
    if not space.searched:
        raise SpecError((), "there is nothing to search: give a [[parameter]] with more than one value, or [study] parameters")
    _check_load(spec)
    _check_objective(spec)
    _check_bench(spec)
    return spec


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


def _check_numbers(spec: StudySpec) -> None:
    budget, confirm = spec.study.budget, spec.study.confirm
    for key in ("trials", "launches"):
        value = getattr(budget, key)
        if value is not None and value < 1:
            raise SpecError(("study", "budget", key), f"{value}: must be 1 or more")
    if confirm.max_rounds and not 2 <= confirm.min_rounds <= confirm.max_rounds:
        raise SpecError(
            ("study", "confirm", "min_rounds"),
            f"{confirm.min_rounds}: from 2 to max_rounds = {confirm.max_rounds}; one round has no spread",
        )
    if confirm.candidates < 1:
        raise SpecError(("study", "confirm", "candidates"), f"{confirm.candidates}: must be 1 or more")


def _check_place(one: Parameter, spec: StudySpec, place: FilePlace) -> None:
    where = one.place
    given = [key for key in ("flag", "env", "path", "load", "word") if getattr(where, key) not in (None, False)]
    if where.file is not None and where.path is None:
        raise SpecError((*place, "file"), f"{one.name}: say where in {where.file}: path = 'a.b.c'")
    if not given and one.derived is not None:
        return  # it may be there for constraints alone
    if len(given) != 1:
        said = "goes to " + " and to ".join(given) if given else "goes nowhere"
        raise SpecError(place, f"{one.name} {said}: give one of flag, env, file with path, load, or word = true")
    engine = spec.fleet.engine
    if where.flag is not None and engine == "mindie":
        raise SpecError(
            (*place, "flag"), f"{one.name}: MindIE reads a file, not options: give path = 'BackendConfig.ScheduleConfig.maxBatchSize'"
        )
    if where.flag is not None and engine == "command":
        raise SpecError(
            (*place, "flag"), f"{one.name}: a command of your own has no place for flags: write ${one.name} into it, and word = true here"
        )
    if where.path is not None and where.file is None and engine != "mindie":
        raise SpecError((*place, "path"), f"{one.name}: say which file: file = 'conf.json'")
    if where.load is not None:
        name = where.load.lstrip("-").replace("-", "_")
        if flag_of(name) not in FLAGS and name not in ALIASES:
            raise SpecError((*place, "load"), f"{one.name}: {where.load} is no flag of `loadcell bench`")


def _check_load(spec: StudySpec) -> None:
    load = spec.load
    own = [flag_of(one.place.load.lstrip("-").replace("-", "_")) for one in spec.parameter if one.place.load is not None]
    if load.mode == "calibrated":
        _check_calibration(spec, own)
    elif load.mode == "fixed":
        for key in ("low", "high"):
            if getattr(load, key) is not None:
                raise SpecError(("load", key), f'a fixed load is that of [bench]: leave {key} out, or say mode = "capacity"')
    else:
        _check_capacity(spec, own)


def _check_calibration(spec: StudySpec, own: list[str]) -> None:
    if spec.load.factor <= 0:
        raise SpecError(("load", "factor"), f"{spec.load.factor:g}: must be above 0")
    if "request_rate" in own:
        raise SpecError(("load", "mode"), "the request rate is measured in each trial, and is a [[parameter]], too: give it once")
    if "request_rate" in {flag_of(name) for name in spec.bench}:
        raise SpecError(("bench", "request_rate"), "it is measured in each trial: leave it out here")


def _check_capacity(spec: StudySpec, own: list[str]) -> None:
    load = spec.load
    if load.high is None:
        raise SpecError(("load", "high"), f"give the largest {load.knob} that may be tried")
    low = 1.0 if load.low is None else load.low
    if not 0 < low <= load.high:
        raise SpecError(("load", "low"), f"low = {low:g} and high = {load.high:g}: a range above 0 is needed")
    if not spec.slo:
        raise SpecError(("load", "mode"), "the largest load within the limits needs limits: give an [[slo]]")
    if spec.benchmark.kind != "loadcell":
        raise SpecError(
            ("load", "mode"), f"with benchmark {spec.benchmark.kind} the load of a trial is fixed: its tokens are not seen while it runs"
        )
    if not 1 <= load.probes <= 20:
        raise SpecError(("load", "probes"), f"{load.probes}: from 1 to 20")
    if load.knob in own:
        raise SpecError(("load", "knob"), f"{load.knob} is a [[parameter]], too: give it once")
    if load.knob in {flag_of(name) for name in spec.bench}:
        raise SpecError(("bench", load.knob), "it is what [load] looks for within each trial: leave it out here")


def _check_objective(spec: StudySpec) -> None:
    wanted: tuple[str, ...] = spec.objective.pareto or (spec.objective.metric,)
    for at, text in enumerate(wanted):
        place: FilePlace = ("objective", "pareto", at) if spec.objective.pareto else ("objective", "metric")
        if text not in _OBJECTIVES:
            try:
                parse_slo(f"{text} <= 1s", "objective")
            except UserError as wrong:
                raise SpecError(place, f"{text!r} is none of {', '.join(_OBJECTIVES)}, and no latency: {wrong}") from None
        if text == "goodput" and "goodput" not in spec.bench:
            raise SpecError(
                place, "goodput counts requests that meet limits of their own: give [bench] goodput, such as ['ttft:200', 'tpot:20']"
            )
        if text == "goodput" and spec.benchmark.kind != "loadcell":
            raise SpecError(place, f"benchmark {spec.benchmark.kind} tells no goodput: use throughput or request_rate")
    if spec.objective.pareto and wanted[0] == wanted[1]:
        raise SpecError(("objective", "pareto"), "a front needs two different objectives")


def _check_bench(spec: StudySpec) -> None:
    """The load with every parameter at its lowest and at its highest, so that what would be refused later is refused now."""
    if spec.benchmark.kind != "loadcell":
        return
    for end in ("low", "high"):
        flags = {**spec.bench, "base_url": [_SOMEWHERE]}
        for one in spec.parameter:
            if one.place.load is not None:
                value = _end(one, end)
                if value is not None:
                    flags[flag_of(one.place.load.lstrip("-").replace("-", "_"))] = value
        if spec.load.mode == "capacity":
            flags[spec.load.knob] = getattr(spec.load, end) or 1
            if spec.load.knob == "concurrency":
                flags[spec.load.knob] = int(flags[spec.load.knob])
        try:
            scenario_from_flags({name: value for name, value in flags.items() if not _per_concurrency(name, value)})
        except UserError as wrong:
            spoken = next((word.lstrip("-").rstrip(":,").replace("-", "_") for word in str(wrong).split() if word.startswith("--")), "")
            raise SpecError(("bench", spoken) if spoken in spec.bench else ("bench",), str(wrong)) from None


def _per_concurrency(name: str, value: Any) -> bool:
    """`num-prompts = "20x"`: it is multiplied when the load is known."""
    return flag_of(name) in ("num_prompts", "warmup_requests") and isinstance(value, str) and value.strip().endswith("x")


def _end(one: Parameter, end: str) -> Value | None:
    if one.kind == "bool":
        return end == "high"
    row = one.ladder or one.choices
    value = (row[0] if end == "low" else row[-1]) if row else (one.low if end == "low" else one.high)
    return int(value) if one.kind == "int" and value is not None else value
