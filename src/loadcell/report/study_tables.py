"""What a study found -> tables of plain text, before any layout. Pure."""

import math
from collections.abc import Mapping
from typing import Final

from loadcell.report.figures import MISSING, count, one_line, seconds, share
from loadcell.report.study import CapacityCurve, StudyResults, StudyTrial, Value
from loadcell.report.tables import Row, Table

RATES: Final = ("throughput", "goodput", "request_rate")
_EVIDENCE: Final = 300
_BARS: Final = 20
OUTCOMES: Final = {
    "ok": "within the limits",
    "slo_violated": "a limit missed",
    "early_stopped": "ended early, on evidence",
    "oom_start": "out of memory at the start",
    "oom_load": "out of memory under load",
    "bad_arguments": "arguments refused",
    "start_timeout": "not ready in time",
    "crashed": "crashed",
    "hung": "hung",
    "bench_failed": "the benchmark failed",
    "invalid_measurement": "the measurement was no good",
    "infrastructure": "the machine's fault",
    "cancelled": "cancelled",
}
HEADS: Final = {
    "winner": "BETTER THAN THE DEFAULT",
    "default_fails": "WITHIN THE LIMITS, AS THE DEFAULT IS NOT",
    "no_reliable_improvement": "NO RELIABLE IMPROVEMENT",
    "not_confirmed": "NOT CONFIRMED",
    "front": "A FRONT OF TWO OBJECTIVES",
    "none": "NO ANSWER",
}
AS_IT_IS: Final = "nothing is set"
"""Of a configuration that leaves everything to the engine."""
FRONT_NOTE: Final = (
    "None of them is confirmed: each stands as it was measured once, in the search, so that the best of them are lucky ones, too. "
    "Measure the one you choose again: loadcell study export --trial N, then loadcell run."
)
_STATES: Final = {
    "running": "RUNNING",
    "failed": "FAILED",
    "stopped": "STOPPED",
    "interrupted": "INTERRUPTED",
    "cut_off": "CUT OFF",
}


def title(results: StudyResults) -> str:
    """`BETTER THAN THE DEFAULT`, `INTERRUPTED`, …"""
    return HEADS[results.announced] if results.state == "complete" else _STATES[results.state]


def figure(value: float | None, unit: str = "") -> str:
    """Four digits: `4,210 tokens/s`, `0.5123`."""
    if value is None:
        return MISSING
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{text} {unit}".rstrip()


def duration(value: float | None) -> str:
    """What a trial, or a study, took: `4.2 s`, `58 s`, `3 min 25 s`, `2 h 5 min`."""
    if value is None:
        return MISSING
    if value < 9.95:
        return f"{value:.1f} s" if value else "0 s"
    whole = round(value)
    if whole < 120:
        return f"{whole} s"
    size, small, names = (60, 1, ("min", "s")) if whole < 7200 else (3600, 60, ("h", "min"))
    rest = whole % size // small
    return f"{whole // size} {names[0]}" + (f" {rest} {names[1]}" if rest else "")


def second_text(name: str, value: float | None) -> str:
    """The second objective of a front. A latency was inverted, so that larger is better."""
    return figure(value) if name in RATES or not value else seconds(1 / value)


def value_text(value: Value | None) -> str:
    """As a command line has it; null: nothing is set."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def shown(configuration: Mapping[str, Value]) -> str:
    """`max_num_seqs=128 block_size=16`."""
    return " ".join(f"{name}={value_text(value)}" for name, value in configuration.items())


def percent(value: float | None) -> str:
    """A signed change: `+12.3 %`."""
    return MISSING if value is None else f"{value * 100:+.1f} %"


def budget(results: StudyResults) -> str:
    spent = results.spent
    return " · ".join(
        [
            f"{_counted(len(results.trials), 'trial')} ({spent.trials} of the search), {_counted(spent.launches, 'launch', 'launches')} in {duration(spent.elapsed_s)}",
            f"{duration(spent.launch_s)} starting, {duration(spent.measure_s)} measuring, {duration(spent.lost_s)} lost to trials that failed",
        ]
    )


def _counted(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def answer(results: StudyResults) -> list[str]:
    """What it means, a sentence each."""
    unit, said = results.objective.unit, one_line(results.answer, 600)
    if results.gain is not None:  # it is told below, with both bounds
        said = said.partition(";")[0] if results.announced == "default_fails" else ""
    lines = [said] if said else []
    changed = [one for one in results.parameters if one.changed]
    if results.best is not None and not changed:
        lines.append("best.toml is the default.")
    if results.gain is not None:
        low, high = results.gain.low, results.gain.high
        text = f"Gain over the default: {percent(results.gain.value)}"
        text += f", with 95 % confidence at least {percent(low)}" if low is not None else ""
        text += f" (and at most {percent(high)}, likewise)" if high is not None else ""
        if results.gain.before_reverting:
            text += "; measured before changes that make no difference were taken back"
        lines.append(f"{text}.")
    if results.best_value is not None and results.default_value is not None and changed:
        lines.append(f"{figure(results.best_value, unit)}, the default {figure(results.default_value, unit)}.")
    lines += binding_lines(results)
    lines += capacity_lines(results)
    if results.announced == "not_confirmed" or results.state in ("interrupted", "cut_off", "running", "stopped"):
        lines += incumbent_lines(results)
    return lines


def binding_lines(results: StudyResults) -> list[str]:
    """Of the best configuration, where there is one and there are limits."""
    binding = next((one for one in results.limits if one.binding), None)
    if binding is None or results.best is None:
        return []
    return [f"The limit that comes first: {binding.text}, of which {share(binding.share)} is used."]


def capacity_lines(results: StudyResults) -> list[str]:
    """The largest load within the limits, of the best and of the default."""
    told = {one.label: one for one in results.capacity if one.load is not None}
    if not told:
        return []
    said = [
        f"{'at least ' if one.status == 'bound_reached' else ''}{one.load:g} with the {label}"
        for label, one in told.items()
        if label == "default" or results.best != results.default
    ]
    knob = next(iter(told.values())).knob.replace("_", " ")
    return [f"The largest {knob} within the limits: {', '.join(said)}."]


def incumbent_lines(results: StudyResults) -> list[str]:
    found = next((one for one in results.trials if one.number == results.incumbent), None)
    if found is None:
        return ["Nothing was measured within the limits."]
    value = found.corrected if found.corrected is not None else found.objective
    return [
        f"Best of the search, not confirmed: trial {found.number} with {figure(value, results.objective.unit)}: {shown(found.configuration) or AS_IT_IS}."
    ]


def difference(results: StudyResults) -> Table:
    """Every parameter that was searched, and those that follow from them; changed ones first, by importance."""
    ordered = sorted(results.parameters, key=lambda one: (not one.changed, -(one.importance or 0.0)))
    rows: list[Row] = []
    for one in ordered:
        best = MISSING if results.best is None else value_text(one.best)
        note = "changed" if one.changed else ""
        if one.put_back is not None:
            note = f"{value_text(one.put_back)} made no difference: put back"
        if not one.searched:
            note = f"{note}, not searched".lstrip(", ")
        rows.append((one.name, one.place, value_text(one.default), best, share(one.importance), note))
    notes = [
        "Importance: share of the total effects on the objective (Jansen 1999), by the model fitted to the trials; constraints can hide a part."
    ]
    known = any(one.importance is not None for one in results.parameters)
    return Table("Parameters", ("parameter", "goes to", "default", "best", "importance", ""), rows, notes if known else [])


def limits(results: StudyResults) -> Table:
    rows: list[Row] = [
        (one.text + (" (binding)" if one.binding else ""), share(one.share), share(one.highest), share(one.default_share))
        for one in results.limits
    ]
    return Table(
        "Limits: how much of each is used",
        ("limit", "best", "best, in its worst trial", "default"),
        rows,
        ["Above 100 % a limit is missed. Means are geometric, over the rounds of confirmation where there were any."],
    )


def confirmation(results: StudyResults) -> Table:
    found = results.confirmation
    if found is None:
        return Table("Confirmation", (), [])
    rows: list[Row] = []
    for one in found.contenders:
        name = "default" if one.candidate == 0 else f"candidate {one.candidate}"
        says = "died" if one.died else ", ".join(f"{text}: {state}" for text, state in one.limits.items()) or "no limits"
        p = MISSING if one.p is None or one.candidate == 0 else f"{one.p:.2g}{'' if one.significant else ' (not significant)'}"
        configuration = shown(
            {key: value for key, value in one.configuration.items() if one.candidate == 0 or _differs(results, key, value)}
        )
        rows.append(
            (
                name,
                count(one.rounds),
                figure(one.value, results.objective.unit),
                percent(one.gain),
                percent(one.gain_low),
                percent(one.gain_high),
                p,
                says,
                configuration or "as the default",
            )
        )
    notes = [
        f"{found.rounds} interleaved rounds on fresh services; {found.ended or 'going on'}.",
        "Gains are paired by round; each bound is a one-sided 95 % one (Student), p is held against Holm's steps over the candidates.",
    ]
    header = ("", "rounds", "mean", "gain", "at least", "at most", "p", "limits (95 %)", "differs from the default in")
    return Table("Confirmation", header, rows, notes)


def _differs(results: StudyResults, name: str, value: Value) -> bool:
    return results.default.get(name) != value


def capacity(curve: CapacityCurve) -> Table:
    """One row per probe; the bar is the share of the limit that comes first."""
    rows: list[Row] = []
    for one in curve.points:
        used = None if one.margin is None else math.exp(one.margin)
        bar = "" if used is None else "█" * min(_BARS, max(1, round(used * _BARS / 2)))
        rows.append(
            (f"{one.load:g}", OUTCOMES.get(one.outcome, one.outcome), share(used), bar, figure(one.objective), one.binding or MISSING)
        )
    text = [one_line(curve.text, 400)] if curve.text else []
    if curve.status == "cliff" and curve.low is not None and curve.high is not None:
        text.append(f"The answer is an interval, {curve.low:g} to {curve.high:g}, not a point.")
    return Table(
        f"Capacity: {curve.knob} of the {curve.label} (trial {curve.trial})",
        (curve.knob, "outcome", "of the limit", f"(full at {_BARS // 10 * 100} %)", "objective", "limit that comes first"),
        rows,
        text,
    )


def front(results: StudyResults) -> Table:
    """By the first objective."""
    second = results.objective.second or "second"
    rows: list[Row] = [
        (str(one.trial), figure(one.objective, results.objective.unit), second_text(second, one.second), shown(one.configuration))
        for one in results.front
    ]
    return Table(
        "Front",
        ("trial", results.objective.metric, second, "configuration"),
        rows,
        ["No trial is better than one of these in both.", FRONT_NOTE],
    )


def failures(results: StudyResults) -> Table:
    rows: list[Row] = []
    for one in results.failures:
        ranges = ", ".join(f"{name} {_range(low, high)}" for name, (low, high) in one.ranges.items())
        rows.append(
            (
                OUTCOMES.get(one.outcome, one.outcome),
                one.phase,
                str(len(one.trials)),
                ", ".join(map(str, one.trials)),
                one_line(one.evidence, _EVIDENCE) or MISSING,
                ", ".join(map(str, one.exit_codes)) or MISSING,
                duration(one.lost_s),
                ranges or MISSING,
                one.folder or MISSING,
            )
        )
    header = ("outcome", "phase", "trials", "numbers", "evidence", "exit code", "time lost", "where in the space", "logs")
    return Table("Trials that failed, and why", header, rows)


def _range(low: float, high: float) -> str:
    return f"{low:.6g}" if low == high else f"{low:.6g}…{high:.6g}"


def outcomes(results: StudyResults) -> Table:
    counts: dict[str, list[StudyTrial]] = {}
    for one in results.trials:
        counts.setdefault(one.outcome, []).append(one)
    rows: list[Row] = [
        (
            OUTCOMES.get(name, name),
            str(len(own)),
            duration(sum(one.launch_s for one in own)),
            duration(sum(one.measure_s for one in own) or None),
        )
        for name, own in counts.items()
    ]
    return Table("How the trials ended", ("outcome", "trials", "starting", "measuring"), rows)


def trials(results: StudyResults) -> Table:
    """All of them, in order. Parameters that never varied are left out."""
    varied = [one.name for one in results.parameters if len({str(trial.configuration.get(one.name)) for trial in results.trials}) > 1]
    fitness = any(one.fitness is not None for one in results.trials)
    limit_names = [one.text for one in results.limits]
    rows: list[Row] = []
    second, front_numbers = results.objective.second, {one.trial for one in results.front}
    best = -math.inf
    for one in results.trials:
        value = one.corrected if one.corrected is not None else one.objective
        new = one.feasible and one.kind in ("default", "known", "fill", "search") and value is not None and value > best
        best = value if new and value is not None else best
        marked = one.number in front_numbers if second else new
        rows.append(
            (
                str(one.number),
                one.kind,
                OUTCOMES.get(one.outcome, one.outcome),
                figure(value) + (" *" if marked else ""),
                *([second_text(second, one.second)] if second else []),
                *([figure(one.fitness)] if fitness else []),
                *(share(None if (margin := one.margins.get(text)) is None else math.exp(margin)) for text in limit_names),
                " ".join(f"{load:g}" for load in one.load.values()) or MISSING,
                *(value_text(one.configuration.get(name)) if name in one.configuration else MISSING for name in varied),
                duration(one.launch_s + one.measure_s + one.stop_s),
            )
        )
    header = (
        "trial",
        "for",
        "outcome",
        results.objective.unit,
        *([second] if second else []),
        *(["optix's fitness"] if fitness else []),
        *(f"of {text}" for text in limit_names),
        "load",
        *varied,
        "time",
    )
    notes = ["* on the front." if second else "* the best of the search up to there, within the limits."]
    if any(one.corrected is not None for one in results.trials):
        notes.append("Objectives stand as they would have been without the machine's drift; trials.csv has both.")
    return Table("All trials", header, rows, notes)


def environment(results: StudyResults) -> Table:
    rows: list[Row] = [(name, one_line(text, 200)) for name, text in results.fingerprint.items() if text and name not in _HASHES]
    rows += [("sampler", results.sampler), *([("the search ended", results.search_ended)] if results.search_ended else [])]
    spent = results.spent
    if spent.proposals_answered:
        rows.append(("proposals answered from the record", count(spent.proposals_answered)))
    if spent.proposals_rejected:
        rows.append(("proposals that were not legal", count(spent.proposals_rejected)))
    return Table("What was tuned", ("", "value"), rows)


_HASHES: Final = ("services", "workload", "limits and objective", "parameters")
