"""A study's specification and its record -> `StudyResults`, from which every report is rendered. Pure: it can be made again at any time."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from loadcell.report.study import (
    CapacityCurve,
    CapacityPoint,
    Confirmation,
    Contender,
    Failure,
    FrontPoint,
    Gain,
    StudyLimit,
    StudyObjective,
    StudyParameter,
    StudyResults,
    StudySpent,
    StudyState,
    StudyTrial,
)
from loadcell.tune import drift
from loadcell.tune.events import Record
from loadcell.tune.objective import UNITS
from loadcell.tune.optix.fitness import fitness_of
from loadcell.tune.outcome import MEASURED, TEACHES_DEATH, TrialResult
from loadcell.tune.parameters import Configuration, Parameter
from loadcell.tune.space import Space
from loadcell.tune.spec import StudySpec
from loadcell.tune.standing import incumbent, seconds_of, spent_of

_NUMBER: Final = re.compile(r"[0-9][0-9.,]*")
_OFTEN: Final = 2
"""A note of trials that stands in so many of them is told once."""
SECOND: Final = "second"


def study_results(
    spec: StudySpec,
    space: Space,
    record: Record,
    limits: Sequence[str],
    *,
    shown: Mapping[str, Any],
    running: bool = False,
    elapsed_s: float | None = None,
    importance: Mapping[str, float] | None = None,
    others: Sequence[TrialResult] = (),
) -> StudyResults:
    """`shown`: the specification without secrets. `running`: a process works on it now. `importance`: where it was worked out. `others`: trials of
    other machines that share the storage.
    """
    closed = record.closed
    state: StudyState = closed.state if closed is not None else "running" if running else "cut_off"
    trials = [*_trials(spec, record), *(_trial(spec, one, "other machine", None) for one in others)]
    best = closed.best if closed is not None else None
    default = space.default()
    found = incumbent([*drift.corrected(record.searching()), *others])
    default_fit = [one for one in record.results.values() if one.outcome in MEASURED and one.configuration == default]
    best_fit = _of(record, best)
    spent = spent_of(record, record.elapsed_s if elapsed_s is None else elapsed_s)
    pareto = spec.objective.pareto
    return StudyResults(
        name=spec.study.name,
        state=state,
        announced=closed.announced if closed is not None else "none",
        answer=closed.text if closed is not None else _no_answer(state),
        objective=_objective(spec),
        fingerprint=dict(record.opened[0].fingerprint) if record.opened else {},
        sampler=record.opened[-1].sampler if record.opened else spec.study.sampler,
        search_ended=record.searched.text if record.searched is not None else None,
        spent=StudySpent(
            **{name: round(float(getattr(spent, name)), 3) for name in ("elapsed_s", "launch_s", "measure_s", "lost_s")},
            trials=spent.trials,
            launches=spent.launches,
            proposals_answered=len(record.answered),
            proposals_rejected=record.rejected,
        ),
        parameters=_parameters(spec, space, record, default, best, importance or {}),
        limits=_limits(limits, best_fit, default_fit),
        trials=trials,
        default=default,
        best=best,
        best_value=_mean([one.objective for one in best_fit]),
        default_value=_mean([one.objective for one in _fresh(default_fit)]),
        gain=_gain(record, best),
        incumbent=None if found is None else found.number,
        confirmation=_confirmation(record, default),
        capacity=_curves(spec, best_fit, default_fit, found),
        front=_front([one for one in trials if one.kind != "drift"]) if pareto is not None else [],
        failures=failures(record, space),
        drifts=[f"trial {one.number}: {one.text}" for one in record.drifts],
        in_flight=[one.number for one in record.in_flight()] if state != "complete" else [],
        notices=_notices(spec, record),
        spec=dict(shown),
    )


def objective_key(spec: StudySpec) -> str:
    """The figure of a trial that its objective is."""
    metric = _metric(spec)
    return f"{metric}_per_device" if spec.objective.per == "device" else metric


def _metric(spec: StudySpec) -> str:
    first = spec.objective.pareto[0] if spec.objective.pareto else spec.objective.metric
    return first if first in UNITS else spec.objective.metric


def _objective(spec: StudySpec) -> StudyObjective:
    metric = _metric(spec)
    second = next((one for one in spec.objective.pareto or () if one != metric), None)
    per_device = spec.objective.per == "device"
    return StudyObjective(metric, UNITS[metric] + (" per device" if per_device else ""), per_device, second)


def _no_answer(state: StudyState) -> str:
    return "it goes on" if state == "running" else "its process ended without a word; what it had measured is kept"


# --- trials


def _trials(spec: StudySpec, record: Record) -> list[StudyTrial]:
    searching = record.searching()
    corrected = {one.number: one.objective for one in drift.corrected(searching) if "drift" in one.extra}
    return [_trial(spec, one, tag, corrected.get(one.number)) for tag, one in record.results.items()]


def _trial(spec: StudySpec, one: TrialResult, tag: str, corrected: float | None) -> StudyTrial:
    return StudyTrial(
        number=one.number,
        kind=one.kind,
        tag=tag,
        configuration=one.configuration,
        outcome=one.outcome,
        phase=one.phase,
        feasible=one.feasible,
        objective=one.objective,
        objective_se=one.objective_se,
        corrected=corrected,
        second=one.figures.get(SECOND),
        fitness=None if spec.fitness is None else fitness_of(spec.fitness, one.figures),
        figures={name: value for name, value in one.figures.items() if name != SECOND},
        n=one.n,
        margins=one.violations,
        load=one.load,
        evidence=one.evidence,
        exit_code=one.exit_code,
        folder=one.folder,
        verdict=one.verdict,
        attempts=one.attempts,
        launch_s=one.launch_s,
        measure_s=one.measure_s,
        stop_s=one.stop_s,
        started=one.started,
        ended=one.ended,
        notes=[str(note) for note in one.extra.get("notes", ())],
    )


def _of(record: Record, configuration: Configuration | None) -> list[TrialResult]:
    """Measurements of it; where it was measured in confirmation, those alone: a search's best is its luckiest."""
    own = [one for one in record.results.values() if one.outcome in MEASURED and one.configuration == configuration]
    return _fresh(own)


def _fresh(own: Sequence[TrialResult]) -> list[TrialResult]:
    fresh = [one for one in own if one.kind in ("confirm", "revert")]
    return fresh or list(own)


def _mean(values: Sequence[float | None]) -> float | None:
    """Geometric: gains are ratios."""
    logs = [math.log(value) for value in values if value]
    return math.exp(sum(logs) / len(logs)) if logs else None


# --- the answer


def _parameters(
    spec: StudySpec,
    space: Space,
    record: Record,
    default: Configuration,
    best: Configuration | None,
    importance: Mapping[str, float],
) -> list[StudyParameter]:
    winner = _winner(record)
    put_back = {one.parameter for one in record.reverted if one.accepted} if winner is not None else set()
    return [
        StudyParameter(
            name=one.name,
            place=place_text(one),
            searched=one.name in space.searched,
            default=default.get(one.name),
            best=None if best is None else best.get(one.name),
            changed=best is not None and best.get(one.name) != default.get(one.name),
            importance=importance.get(one.name),
            put_back=winner.get(one.name) if winner is not None and one.name in put_back else None,
        )
        for one in spec.parameter
    ]


def place_text(one: Parameter) -> str:
    """`--max-num-seqs`, `$VLLM_USE_V1`, `config.json: a.b`, `bench --concurrency`."""
    where = one.place
    if where.flag is not None:
        return where.flag
    if where.env is not None:
        return f"${where.env}"
    if where.load is not None:
        return f"bench --{where.load.lstrip('-').replace('_', '-')}"
    if where.path is not None:
        return f"{where.file}: {where.path}" if where.file else where.path
    return f"${one.name} in texts"


def _winner(record: Record) -> Configuration | None:
    """Of the confirmation, before anything was put back."""
    if record.judged is None or record.judged.decision.winner is None or not record.shortlist:
        return None
    return record.shortlist[record.judged.decision.winner - 1]


def _gain(record: Record, best: Configuration | None) -> Gain | None:
    winner, closed = _winner(record), record.closed
    if winner is None or record.judged is None or closed is None or closed.announced not in ("winner", "default_fails"):
        return None
    settled = record.settled
    if settled is not None and settled.configuration == best and settled.decision.winner is not None:
        winner, decision = best, settled.decision  # what was left by reverting was measured in rounds itself
    else:
        decision = record.judged.decision
    standing = next(one for one in decision.standings if one.candidate == decision.winner)
    if standing.gain is None:
        return None
    return Gain(standing.gain, _finite(standing.low), _finite(standing.high), before_reverting=best != winner)


def _confirmation(record: Record, default: Configuration) -> Confirmation | None:
    judged = record.judged
    if judged is None or record.shortlist is None:
        return None
    contenders = []
    for one in judged.decision.standings:
        configuration = default if one.candidate == 0 else record.shortlist[one.candidate - 1]
        contenders.append(
            Contender(
                candidate=one.candidate,
                configuration=configuration,
                rounds=one.rounds,
                value=one.value,
                gain=one.gain,
                gain_low=_finite(one.low),
                gain_high=_finite(one.high),
                p=one.p if one.candidate else None,
                significant=one.significant,
                died=one.dead,
                limits=dict(one.limits),
            )
        )
    return Confirmation(judged.rounds, judged.ended, contenders)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _limits(limits: Sequence[str], best: Sequence[TrialResult], default: Sequence[TrialResult]) -> list[StudyLimit]:
    shares = {text: _shares(best, text) for text in limits}
    means = {text: _mean(values) for text, values in shares.items()}
    known = {text: mean for text, mean in means.items() if mean is not None}
    first = max(known, key=known.__getitem__, default=None)
    return [
        StudyLimit(
            text=text,
            share=means[text],
            highest=max(shares[text], default=None),
            default_share=_mean(_shares(_fresh(default), text)),
            binding=text == first,
        )
        for text in limits
    ]


def _shares(results: Sequence[TrialResult], limit: str) -> list[float]:
    return [math.exp(margin) for one in results if (margin := one.violations.get(limit)) is not None]


# --- load, front, failures


def _curves(
    spec: StudySpec, best: Sequence[TrialResult], default: Sequence[TrialResult], found: TrialResult | None
) -> list[CapacityCurve]:  # fmt: skip
    if spec.load.mode != "capacity":
        return []
    wanted = [("best", best[-1:] or ([found] if found is not None else [])), ("default", _fresh(default)[-1:])]
    return [
        curve
        for label, own in wanted
        for one in own
        if (curve := _curve(label, one, spec.load.knob, one.extra.get("capacity"))) is not None
    ]


def _curve(label: str, result: TrialResult, knob: str, told: Any) -> CapacityCurve | None:
    if not isinstance(told, Mapping) or not told.get("probes"):
        return None
    low, high = told.get("interval") or (None, None)
    return CapacityCurve(
        label=label,
        trial=result.number,
        knob=knob,
        points=[_point(point) for point in sorted(told["probes"], key=lambda one: one["load"])],
        status=told.get("status"),
        load=told.get("load"),
        low=low,
        high=high,
        confirmed=told.get("confirmed"),
        text=told.get("text"),
    )


def _point(told: Mapping[str, Any]) -> CapacityPoint:
    margins = told.get("margins") or {}
    worst = max(margins, key=lambda name: margins[name], default=None)
    return CapacityPoint(
        load=told["load"],
        outcome=told["outcome"],
        margin=None if worst is None else margins[worst],
        binding=worst,
        objective=told.get("objective"),
        why=told.get("why"),
    )


def _front(trials: Sequence[StudyTrial]) -> list[FrontPoint]:
    """Feasible trials that no other exceeds in both, by the first objective."""
    points = [
        FrontPoint(one.number, one.objective, one.second, one.configuration)
        for one in trials
        if one.feasible and one.objective is not None and one.second is not None
    ]
    best = [one for one in points if not any(_exceeds(other, one) for other in points)]
    return sorted(best, key=lambda one: one.objective)


def _exceeds(other: FrontPoint, one: FrontPoint) -> bool:
    return (
        other.objective >= one.objective and other.second >= one.second and (other.objective, other.second) != (one.objective, one.second)
    )


def failures(record: Record, space: Space) -> list[Failure]:
    """Trials without figures, those that ended alike together: the same outcome, and evidence that differs in numbers alone. The most frequent first."""
    groups: dict[tuple[str, str, str], list[TrialResult]] = {}
    for one in record.results.values():
        if one.outcome not in MEASURED:
            groups.setdefault((one.outcome, one.phase, _NUMBER.sub("N", one.evidence or "")), []).append(one)
    found = [_failure(own, space) for own in groups.values()]
    return sorted(found, key=lambda one: (-len(one.trials), one.trials[0]))


def _failure(own: Sequence[TrialResult], space: Space) -> Failure:
    first = own[0]
    ranges: dict[str, tuple[float, float]] = {}
    for name in space.searched if first.outcome in TEACHES_DEATH else ():
        values = [value for one in own if isinstance(value := one.configuration.get(name), int | float) and not isinstance(value, bool)]
        if values and len(values) == len(own):
            ranges[name] = min(values), max(values)
    return Failure(
        outcome=first.outcome,
        phase=first.phase,
        evidence=first.evidence or "",
        trials=[one.number for one in own],
        exit_codes=sorted({one.exit_code for one in own if one.exit_code is not None}),
        folder=next((one.folder for one in own if one.folder), None),
        lost_s=round(sum(map(seconds_of, own)), 3),
        ranges=ranges,
    )


def _notices(spec: StudySpec, record: Record) -> list[str]:
    """Of the study, and what is said of several trials."""
    found = [one.text for one in record.drifts if one.significant]
    said: dict[str, list[int]] = {}
    words: dict[str, str] = {}
    for one in record.results.values():
        capacity = one.extra.get("capacity") or {}
        for note in one.extra.get("notes", ()):
            if note == capacity.get("text"):  # a table shows it
                continue
            key = _NUMBER.sub("N", str(note))
            said.setdefault(key, []).append(one.number)
            words.setdefault(key, str(note))
    found += [f"in {len(numbers)} trials, as in {numbers[0]}: {words[key]}" for key, numbers in said.items() if len(set(numbers)) >= _OFTEN]
    if record.unread:
        found.append(f"{record.unread} lines of events.jsonl could not be read")
    resumed = sum(one.resumed for one in record.opened)
    if resumed:
        found.append(f"it was resumed {resumed} time{'' if resumed == 1 else 's'}")
    if spec.study.storage is not None:
        found.append("its storage is shared: trials of other machines stand in that storage, with all they measured")
    return found


def with_launch(results: StudyResults, launch: Sequence[Any], notice: str | None = None) -> StudyResults:
    """With how the best is started; `notice`: why that could not be told."""
    return replace(results, launch=list(launch), notices=[*results.notices, *([notice] if notice else [])])
