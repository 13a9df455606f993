"""A study's specification and its record -> `StudyResults`, from which every report is rendered. Pure: it can be made again at any time."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from loadcell.report.study import StudyObjective, StudyResults, StudySpent, StudyState
from loadcell.tune import drift
from loadcell.tune.events import Record
from loadcell.tune.objective import UNITS
from loadcell.tune.outcome import MEASURED, TrialResult
from loadcell.tune.results_answer import confirmation, fresh, gain, limits_of, mean, measured_of, parameters
from loadcell.tune.results_load import curves, front_of
from loadcell.tune.results_trials import failures, notices, trial_of, trials_of
from loadcell.tune.space import Space
from loadcell.tune.spec import StudySpec, objectives
from loadcell.tune.standing import incumbent, spent_of


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
    trials = [*trials_of(spec, record), *(trial_of(spec, one, "other machine", None) for one in others)]
    best = closed.best if closed is not None else None
    default = space.default()
    found = incumbent([*drift.corrected(record.searching()), *others])
    default_fit = [one for one in record.results.values() if one.outcome in MEASURED and one.configuration == default]
    best_fit = measured_of(record, best)
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
        parameters=parameters(spec, space, record, default, best, importance or {}),
        limits=limits_of(limits, best_fit, default_fit),
        trials=trials,
        default=default,
        best=best,
        best_value=mean([one.objective for one in best_fit]),
        default_value=mean([one.objective for one in fresh(default_fit)]),
        gain=gain(record, best),
        incumbent=None if found is None else found.number,
        confirmation=confirmation(record, default),
        capacity=curves(spec, best_fit, fresh(default_fit), found),
        front=front_of([one for one in trials if one.kind != "drift"]) if pareto is not None else [],
        failures=failures(record, space),
        drifts=[f"trial {one.number}: {one.text}" for one in record.drifts],
        in_flight=[one.number for one in record.in_flight()] if state != "complete" else [],
        notices=notices(spec, record),
        spec=dict(shown),
    )


def _objective(spec: StudySpec) -> StudyObjective:
    metric, second = objectives(spec.objective)
    per_device = spec.objective.per == "device"
    return StudyObjective(metric, UNITS[metric] + (" per device" if per_device else ""), per_device, second)


def _no_answer(state: StudyState) -> str:
    return "it goes on" if state == "running" else "its process ended without a word; what it had measured is kept"


def with_launch(results: StudyResults, launch: Sequence[Any], notice: str | None = None) -> StudyResults:
    """With how the best is started; `notice`: why that could not be told."""
    return replace(results, launch=list(launch), notices=[*results.notices, *([notice] if notice else [])])
