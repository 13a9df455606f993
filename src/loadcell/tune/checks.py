"""What the parts of a study say together, refused where it makes no sense. Pure."""

from typing import Any, Final

from loadcell.errors import UserError
from loadcell.experiment.matrix import flag_of
from loadcell.experiment.spec import Place as FilePlace
from loadcell.experiment.spec import SpecError
from loadcell.flags.resolve import scenario_from_flags
from loadcell.fleet.spec import seconds
from loadcell.metrics.slo import parse_slo
from loadcell.tune.parameters import Parameter, Value
from loadcell.tune.space_checks import check_constants, check_constraints, check_parameters, check_some_legal
from loadcell.tune.spec import LoadTable, StudySpec, known_of, space_of

_SOMEWHERE: Final = "http://127.0.0.1:1"
_OBJECTIVES: Final = ("throughput", "goodput", "request_rate")


def checked(spec: StudySpec) -> StudySpec:
    """`spec`, with what its parts say together refused where it makes no sense. SpecError."""
    _check_numbers(spec)
    check_constants(spec)
    space = space_of(spec)
    check_parameters(spec)
    check_constraints(spec, space)
    for at, known in enumerate(spec.study.known):
        for key in known:
            if key not in space.domains:
                raise SpecError(("study", "known", at, key), f"{key} is no parameter that is set: there are {', '.join(space.domains)}")
    known_of(spec, space)
    if not space.searched:
        raise SpecError((), "there is nothing to search: give a [[parameter]] with more than one value, or [study] parameters")
    check_some_legal(space)
    _check_load(spec)
    _check_limits(spec)
    _check_objective(spec)
    _check_benchmark(spec)
    _check_bench(spec)
    return spec


def _check_numbers(spec: StudySpec) -> None:
    budget, confirm = spec.study.budget, spec.study.confirm
    if spec.study.seed < 0:
        raise SpecError(("study", "seed"), f"{spec.study.seed}: must be 0 or more")
    if budget.wall_clock is not None and seconds(budget.wall_clock, "wall_clock") <= 0:
        raise SpecError(("study", "budget", "wall_clock"), f"{budget.wall_clock}: must be above 0; leave it out for no limit of time")
    if confirm.max_rounds < 0:
        raise SpecError(("study", "confirm", "max_rounds"), f"{confirm.max_rounds}: must be 0 (no confirmation) or more")
    for key in ("trials", "launches"):
        value = getattr(budget, key)
        if value is not None and value < 1:
            raise SpecError(("study", "budget", key), f"{value}: must be 1 or more")
    if confirm.max_rounds and not 2 <= confirm.min_rounds <= confirm.max_rounds:
        raise SpecError(
            ("study", "confirm", "min_rounds"),
            f"{confirm.min_rounds}: from 2 to max_rounds = {confirm.max_rounds}; one round has no spread",
        )
    if not 0 <= confirm.tolerance < 1:
        raise SpecError(
            ("study", "confirm", "tolerance"), f"{confirm.tolerance:g}: a share from 0 to less than 1, such as 0.01, is expected"
        )
    if confirm.revert_launches < 0:
        raise SpecError(("study", "confirm", "revert_launches"), f"{confirm.revert_launches}: must be 0 (every change stays) or more")
    if confirm.candidates < 1:
        raise SpecError(("study", "confirm", "candidates"), f"{confirm.candidates}: must be 1 or more")


def _check_load(spec: StudySpec) -> None:
    load = spec.load
    own = [flag_of(one.place.load.lstrip("-").replace("-", "_")) for one in spec.parameter if one.place.load is not None]
    if load.mode == "calibrated":
        _check_calibration(spec, own)
    elif load.mode == "fixed":
        for key in ("low", "high"):
            if getattr(load, key) is not None:
                raise SpecError(("load", key), f'a fixed load is that of [bench]: leave {key} out, or say mode = "capacity"')
        for key, mode in (("probes", "capacity"), ("factor", "calibrated")):
            if getattr(load, key) != getattr(LoadTable(), key):
                raise SpecError(("load", key), f'it belongs to mode = "{mode}": leave it out, or say so')
    else:
        _check_capacity(spec, own)


def _check_calibration(spec: StudySpec, own: list[str]) -> None:
    if spec.load.knob != "request_rate":
        raise SpecError(("load", "knob"), 'a calibrated load is a rate: say knob = "request_rate"')
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
    for key, value in (("low", low), ("high", load.high)):
        if load.knob == "concurrency" and value != int(value):
            raise SpecError(("load", key), f"{value:g}: a concurrency is a whole number")
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


def _check_limits(spec: StudySpec) -> None:
    """One limit for each figure: of two, one would say nothing."""
    seen: dict[tuple[str, str], str] = {}
    for at, text in enumerate(spec.slo):
        slo = parse_slo(text, "[[slo]]")
        what = (slo.metric, slo.statistic)
        if what in seen:
            raise SpecError(("slo", at), f"{slo.text!r} beside {seen[what]!r}: one limit for each figure; leave one out")
        seen[what] = slo.text


def _check_benchmark(spec: StudySpec) -> None:
    table = spec.benchmark
    for key in ("executable", "args", "output_dir"):
        if table.kind == "loadcell" and getattr(table, key):
            raise SpecError(("benchmark", key), "loadcell's own load is that of [bench]: leave it out, or say kind = 'vllm_benchmark', …")


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
    if spec.objective.pareto and not set(wanted) & set(_OBJECTIVES):
        raise SpecError(
            ("objective", "pareto"), f"{wanted[0]!r} and {wanted[1]!r} are both latencies: one of the two is {', '.join(_OBJECTIVES)}"
        )
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
