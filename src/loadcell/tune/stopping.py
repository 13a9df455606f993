"""How a study stands -> why its search ends, or null. One table of reasons, asked in order. Pure."""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from loadcell.tune.outcome import MEASURED, TEACHES_DEATH, OutcomeName, TrialPhase

LEAST_GAIN: Final = 0.01
ASKS: Final = 5
INFRASTRUCTURE_IN_A_ROW: Final = 3
STARTS_IN_A_ROW: Final = 5


class Budget(Struct, frozen=True):
    """Null: no end. What confirmation needs is already taken off (`reserve`)."""

    wall_s: float | None = None
    trials: int | None = None
    launches: int | None = None


class Progress(Struct, frozen=True):
    """`ended`: (outcome, phase) of every trial, in order, retries of one trial counted once. `gains`: expected relative improvement at each ask,
    null where the sampler does not tell. `exhausted`: the sampler has nothing left. `trials`, `launches`: of the search.
    """

    elapsed_s: float = 0.0
    trials: int = 0
    launches: int = 0
    ended: Sequence[tuple[OutcomeName, TrialPhase]] = ()
    gains: Sequence[float | None] = ()
    exhausted: bool = False


class Stop(Struct, frozen=True):
    """`failed`: the study ends here, without confirmation; else what was found is confirmed."""

    reason: str
    text: str
    failed: bool = False


def stop(progress: Progress, budget: Budget) -> Stop | None:
    """The first reason of the table that holds."""
    for reason, failed, holds in REASONS:
        text = holds(progress, budget)
        if text is not None:
            return Stop(reason, text, failed)
    return None


def _infrastructure(progress: Progress, _: Budget) -> str | None:
    last = [outcome for outcome, _ in progress.ended[-INFRASTRUCTURE_IN_A_ROW:]]
    if last != ["infrastructure"] * INFRASTRUCTURE_IN_A_ROW:
        return None
    return f"{INFRASTRUCTURE_IN_A_ROW} trials in a row failed because of the machine, not of their configuration"


def _starts(progress: Progress, _: Budget) -> str | None:
    if any(outcome in MEASURED for outcome, _ in progress.ended):
        return None
    told = [(outcome, phase) for outcome, phase in progress.ended if outcome != "infrastructure"]
    last = told[-STARTS_IN_A_ROW:]
    if len(last) < STARTS_IN_A_ROW or not all(outcome in TEACHES_DEATH and phase in ("plan", "launch") for outcome, phase in last):
        return None
    return f"no trial has succeeded yet, and the last {STARTS_IN_A_ROW} did not even start"


def _wall(progress: Progress, budget: Budget) -> str | None:
    if budget.wall_s is None or progress.elapsed_s < budget.wall_s:
        return None
    return f"the time for the search is used up ({progress.elapsed_s:.0f} of {budget.wall_s:.0f} s)"


def _trials(progress: Progress, budget: Budget) -> str | None:
    return None if budget.trials is None or progress.trials < budget.trials else f"all {budget.trials} trials were made"


def _launches(progress: Progress, budget: Budget) -> str | None:
    return None if budget.launches is None or progress.launches < budget.launches else f"all {budget.launches} launches were made"


def _exhausted(progress: Progress, _: Budget) -> str | None:
    return "every configuration of the space was tried" if progress.exhausted else None


def _gain(progress: Progress, _: Budget) -> str | None:
    last = progress.gains[-ASKS:]
    if len(last) < ASKS or not all(gain is not None and gain < LEAST_GAIN for gain in last):
        return None
    return f"the expected improvement was below {LEAST_GAIN:.0%} for {ASKS} trials in a row"


REASONS: Final[tuple[tuple[str, bool, Callable[[Progress, Budget], str | None]], ...]] = (
    ("infrastructure", True, _infrastructure),
    ("nothing_starts", True, _starts),
    ("wall_clock", False, _wall),
    ("trials", False, _trials),
    ("launches", False, _launches),
    ("exhausted", False, _exhausted),
    ("no_gain_expected", False, _gain),
)
"""(name, whether the study has failed, the text where it holds). Circuit breakers come first: they explain more than a budget does."""


def reserve(budget: Budget, confirmations: int, trial_s: float) -> Budget:
    """What is left for the search when confirmation (`confirmations` launches of about `trial_s`) is set aside; at least half stays."""
    wall = None if budget.wall_s is None else max(budget.wall_s / 2, budget.wall_s - confirmations * trial_s)
    launches = None if budget.launches is None else max((budget.launches + 1) // 2, budget.launches - confirmations)
    return Budget(wall, budget.trials, launches)
