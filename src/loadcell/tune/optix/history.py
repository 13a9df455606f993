"""A history of optix (`data_storage_<time>.csv`) -> prior trials of a study. Pure.

A row counts where it was measured, its parameters are those of the study, and its configuration is legal today. Its figures keep their meaning: means, times
in seconds. What optix marked with an error taught it nothing but infinity; where its text tells a cause, the trial tells it.
"""

import csv
import io
import math
import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from loadcell.errors import UserError
from loadcell.metrics.slo import parse_slo
from loadcell.tune.outcome import OutcomeName, TrialPhase, TrialResult
from loadcell.tune.parameters import Configuration, Parameter, Value
from loadcell.tune.space import Space
from loadcell.tune.spec import StudySpec, constants_of, space_of

_FIGURES: Final = {
    "generate_speed": "throughput",
    "time_to_first_token": "ttft_mean",
    "time_per_output_token": "tpot_mean",
    "success_rate": "success_rate",
    "throughput": "request_rate",
}
_CAUSES: Final[tuple[tuple[str, OutcomeName, TrialPhase], ...]] = (
    (r"out of memory|\boom\b|MemoryError|No available memory for the cache", "oom_start", "launch"),
    (r"unrecognized arguments|invalid (choice|value)|ValueError", "bad_arguments", "launch"),
    (r"timed? ?out|timeout", "start_timeout", "launch"),
    (r"ais_bench|vllm_benchmark|evalscope|benchmark", "bench_failed", "measure"),
)
"""Words of an error -> what it was. What none of them tells may be anything, and teaches nothing."""


class History(Struct, frozen=True):
    """`skipped`: rows that were not measured, or that are no configuration of this study, by reason."""

    trials: tuple[TrialResult, ...]
    skipped: dict[str, int]


def read_history(text: str, name: str, spec: StudySpec) -> History:
    """`name`: the file's, for messages and as the trials' origin. UserError for what is no history of optix."""
    rows = csv.DictReader(io.StringIO(text.lstrip("\ufeff")))
    columns = [column.strip() for column in rows.fieldnames or ()]
    if "generate_speed" not in columns:
        raise UserError(f"{name}: no history of optix: its first line names no generate_speed")
    space = space_of(spec)
    trials: list[TrialResult] = []
    skipped: dict[str, int] = {}
    seen: set[str] = set()
    for row in rows:
        plain = {(key or "").strip(): (value or "").strip() for key, value in row.items() if isinstance(value, str)}
        made = _trial(plain, name, spec, space, -1 - len(trials))
        if isinstance(made, TrialResult) and space.key(made.configuration) + made.outcome in seen:
            made = "measured twice: the first counts"
        if isinstance(made, str):
            skipped[made] = skipped.get(made, 0) + 1
            continue
        seen.add(space.key(made.configuration) + made.outcome)
        trials.append(made)
    return History(tuple(trials), skipped)


def _trial(row: Mapping[str, str], name: str, spec: StudySpec, space: Space, number: int) -> TrialResult | str:
    if row.get("real_evaluation", "True").lower() in ("false", "0"):
        return "predicted, not measured"
    configuration = _configuration(row, space)
    if isinstance(configuration, str):
        return configuration
    figures = {ours: _number(row.get(theirs, "")) for theirs, ours in _FIGURES.items()}
    # 0 and infinity stand for "missing" there: no service makes 0 tokens/s, or answers in no time.
    figures = {key: value if value and math.isfinite(value) else None for key, value in figures.items()}
    error = row.get("error", "")
    extra = {"source": name, "fitness": _number(row.get("fitness", "")), "duration_s": _number(row.get("duration", ""))}
    if error and error.lower() not in ("none", "nan"):
        outcome, phase = _cause(error)
        return TrialResult(number, configuration, outcome, phase, "known", evidence=error, extra=extra)
    if figures["throughput"] is None:
        return "no throughput, and no error either"
    violations = {text: _violation(text, figures) for text in spec.slo}
    broken = any(value is not None and value > 0 for value in violations.values())
    objective = _objective(spec, figures)
    if objective is None:
        return "no figure for this study's objective"
    return TrialResult(
        number,
        configuration,
        "slo_violated" if broken else "ok",
        "report",
        "known",
        objective=objective,
        figures=figures,
        violations=violations,
        extra=extra,
    )


def _objective(spec: StudySpec, figures: Mapping[str, float | None]) -> float | None:
    """In the study's own unit; null where the history does not tell it."""
    value = figures.get(spec.objective.metric)
    if value is None or spec.objective.per == "all":
        return value
    known = constants_of(spec.fleet, spec.study.constants)
    devices = known.get("devices")
    return value / (devices * spec.fleet.replicas) if isinstance(devices, int) and devices else None


def _configuration(row: Mapping[str, str], space: Space) -> Configuration | str:
    values: dict[str, Value] = {}
    for one in space.parameters:
        if not row.get(one.name) or one.derived is not None:
            continue  # an empty cell: it was not set
        value = _value(one, row[one.name])
        if value is None:
            return f"{one.name} is missing or of another kind"
        values[one.name] = value
    for one in space.parameters:  # a ratio is not in the table: its product is
        product = one.name.removesuffix("_ratio")
        if one.name.endswith("_ratio") and one.name not in values and product in row:
            ratio = _ratio(row, product, space)
            if ratio is not None:
                values[one.name] = ratio
    missing = [name for name in space.searched if name not in values and name in space.active(values)]
    if missing:
        return f"{missing[0]} is in no column"
    whole = space.complete(values)
    why = space.legal(whole)
    return whole if why is None else "outside of today's space"


def _ratio(row: Mapping[str, str], product: str, space: Space) -> float | None:
    """Product / field, so that its floor is the product again."""
    derived = next((one.derived for one in space.parameters if one.name == product), None) or ""
    of = re.search(r"_ratio \* (\w+)", derived)
    above, below = _number(row.get(product, "")), _number(row.get(of[1], "")) if of else None
    if above is None or not below:
        return None
    value = space.domains[f"{product}_ratio"].snap(above / below)
    return value if isinstance(value, float) else float(value)


def _value(one: Parameter, text: str) -> Value | None:
    if one.kind == "bool":
        return {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}.get(text.lower())
    if one.kind == "categorical":
        same = next((choice for choice in one.choices if str(choice) == text), None)
        number = _number(text)
        near = next(
            (choice for choice in one.choices if not isinstance(choice, str) and number is not None and float(choice) == number), None
        )
        return same if same is not None else near
    number = _number(text)
    if number is None or not math.isfinite(number):
        return None
    return int(number) if one.kind == "int" else number


def _violation(text: str, figures: Mapping[str, float | None]) -> float | None:
    """log(measured / limit); null for a statistic that optix did not keep."""
    slo = parse_slo(text)
    if slo.metric == "success_rate":
        measured = figures.get("success_rate")
        return None if measured is None else math.log(slo.limit / measured)
    measured = figures.get(f"{slo.metric}_{slo.statistic}")
    return None if measured is None else math.log(measured * 1000 / slo.limit)


def _cause(error: str) -> tuple[OutcomeName, TrialPhase]:
    for pattern, outcome, phase in _CAUSES:
        if re.search(pattern, error, re.IGNORECASE):
            return outcome, phase
    return "bench_failed", "measure"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
