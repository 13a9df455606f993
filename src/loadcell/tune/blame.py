"""How a trial ended, from what is known of its start, its services and its load: tables and one order of precedence. Pure.

What the configuration caused teaches the search where not to go; what the machine, the tool or the user caused does not, so these are told apart first.
"""

import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from loadcell.fleet.spec import Cause
from loadcell.metrics.summary import Summary
from loadcell.tune.objective import Score
from loadcell.tune.outcome import OutcomeName, TrialPhase
from loadcell.tune.sequential import Stop

AT_START: Final[dict[str, OutcomeName]] = {
    "out_of_memory": "oom_start",
    "bad_arguments": "bad_arguments",
    "missing_model": "bad_arguments",
    "port_taken": "infrastructure",
    "driver_fault": "infrastructure",
    "host_unreachable": "infrastructure",
    "timed_out": "start_timeout",
    "stalled": "start_timeout",
    "fatal": "crashed",
    "exited": "crashed",
    "not_ready": "crashed",
    "member_lost": "crashed",
    "hung": "hung",
    "aborted": "cancelled",
}
"""A FleetFailure's cause -> outcome."""

UNDER_LOAD: Final[dict[Cause, OutcomeName]] = {
    "out_of_memory": "oom_load",
    "driver_fault": "infrastructure",
    "bad_arguments": "crashed",
    "missing_model": "crashed",
    "port_taken": "crashed",
    "fatal": "crashed",
}
"""What the log says of a service that did not survive its load -> outcome."""

_NEVER_SENT: Final = ("worker_lost", "fatal", "max_failures")
_UNREACHABLE: Final = "host unreachable"


class Blame(Struct, frozen=True):
    """`evidence`: the line or the figures that say so. `code`: the service's exit code, where it ended."""

    outcome: OutcomeName
    phase: TrialPhase
    evidence: str | None = None
    code: int | None = None


class Death(Struct, frozen=True):
    """A service that is gone. `kind`: of the fleet's event; `log`: the cause that its log names, with the line."""

    text: str
    kind: str = "died"
    log: tuple[Cause, str] | None = None
    code: int | None = None


class Ending(Struct, frozen=True):
    """What is known of one measured load. `signal`: of the user; `hung`, `slow`: what was waited for in vain; `early`: why it was ended;
    `failure`: the load could not be made. `phase`: where it was then. `error`: the commonest one of its requests. `log`: a cause named by a service
    that lives on.
    """

    phase: TrialPhase = "measure"
    signal: int | None = None
    death: Death | None = None
    hung: str | None = None
    slow: str | None = None
    failure: str | None = None
    early: Stop | None = None
    summary: Summary | None = None
    score: Score | None = None
    log: tuple[Cause, str] | None = None


def of_start(cause: str, text: str, code: int | None, lines: Sequence[str] = ()) -> Blame:
    """`text`: of the failure; the last line of the log where it names none."""
    outcome = AT_START.get(cause, "crashed")
    first = text.splitlines()[0] if text else cause
    evidence = first if outcome != "crashed" or not lines or lines[-1].strip() in first else f"{first}; last line: {lines[-1].strip()}"
    return Blame(outcome, "launch", evidence, code)


def of_load(end: Ending) -> Blame:
    """The first of these that holds: the user, the service, the load, the evidence, the measurement, the limits."""
    if end.signal is not None:
        return Blame("cancelled", end.phase, f"signal {end.signal}")
    if end.death is not None:
        return _of_death(end.death, end.phase)
    if end.hung is not None:
        return Blame("hung", end.phase, end.hung)
    if end.slow is not None:
        return Blame("start_timeout", end.phase, end.slow)
    if end.early is not None:
        return Blame("early_stopped", end.phase, end.early.text)
    summary, score = end.summary, end.score
    if end.failure is not None or summary is None or score is None:
        return Blame("bench_failed", end.phase, end.failure or "nothing was measured")
    counts = summary.whole.counts
    if end.log is not None and end.log[0] == "out_of_memory" and counts.failed:
        return Blame("oom_load", end.phase, end.log[1])
    if summary.stop_reason == "patience":
        return Blame("crashed", end.phase, summary.stop_detail)
    if summary.stop_reason in _NEVER_SENT or summary.lost_workers:
        return Blame("bench_failed", end.phase, summary.stop_detail or f"the load ended: {summary.stop_reason}")
    if not counts.ok:
        return Blame("bench_failed", end.phase, nothing_ok(summary))
    if summary.verdict == "invalid":
        reasons = "; ".join(f"{reason.text} ({reason.observed})" for reason in summary.reasons if reason.severity == "invalid")
        return Blame("invalid_measurement", end.phase, reasons)
    return of_score(score, end.phase)


def of_score(score: Score, phase: TrialPhase = "measure") -> Blame:
    """A load that was measured to its end. A figure that is missing is a failure, never a value."""
    if score.objective is None:
        return Blame("bench_failed", phase, score.why_null or "the objective could not be measured")
    if score.unknown:
        return Blame("bench_failed", phase, f"not measured, so that the limit cannot be judged: {', '.join(score.unknown)}")
    missed = {text: margin for text, margin in score.violations.items() if margin is not None and margin > 0}
    if missed:
        told = (f"{text}: {_beyond(margin)}" for text, margin in sorted(missed.items(), key=lambda item: -item[1]))
        return Blame("slo_violated", phase, "; ".join(told))
    return Blame("ok", phase)


def nothing_ok(summary: Summary) -> str:
    """Which errors there were instead."""
    counts = summary.whole.counts
    told = [f"{number} x {outcome}: {summary.errors.get(outcome, outcome)}" for outcome, number in counts.by_outcome.items() if number]
    return f"none of {counts.offered} requests was ok ({'; '.join(told) or 'none was made'})"


def _of_death(death: Death, phase: TrialPhase) -> Blame:
    if death.kind == _UNREACHABLE:
        return Blame("infrastructure", phase, death.text, death.code)
    if death.log is None:
        return Blame("crashed", phase, death.text, death.code)
    cause, line = death.log
    return Blame(UNDER_LOAD[cause], phase, line.strip() or death.text, death.code)


def _beyond(margin: float) -> str:
    return f"{math.exp(margin):.3g} times the limit"
