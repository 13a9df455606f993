"""Results of trials -> rows of the report: each trial, those that failed alike together, and what is said of several. Pure."""

import re
from collections.abc import Sequence
from typing import Final

from loadcell.report.study import Failure, StudyTrial
from loadcell.tune import drift
from loadcell.tune.events import Record
from loadcell.tune.optix.fitness import fitness_of
from loadcell.tune.outcome import MEASURED, TEACHES_DEATH, TrialResult
from loadcell.tune.space import Space
from loadcell.tune.spec import StudySpec
from loadcell.tune.standing import SECOND, seconds_of

_NUMBER: Final = re.compile(r"[0-9][0-9.,]*")
_OFTEN: Final = 2
"""A note of trials that stands in so many of them is told once."""


def trials_of(spec: StudySpec, record: Record) -> list[StudyTrial]:
    searching = record.searching()
    corrected = {one.number: one.objective for one in drift.corrected(searching) if "drift" in one.extra}
    return [trial_of(spec, one, tag, corrected.get(one.number)) for tag, one in record.results.items()]


def trial_of(spec: StudySpec, one: TrialResult, tag: str, corrected: float | None) -> StudyTrial:
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


def notices(spec: StudySpec, record: Record) -> list[str]:
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
