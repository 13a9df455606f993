"""Repeated, interleaved measurements of the best candidates and the default -> which one is announced, if any. Pure.

A search ends with the luckiest of many noisy measurements: announced as it is, it disappoints, and near a limit it truly violates it. So the best
three and the default are measured again on fresh services, in rounds, so that a drift of the machine meets all alike. Ratios are paired by round;
a gain must be significant (one-sided t, Holm 1979 over the candidates), and every limit must hold with 95 % confidence over the rounds. The rounds
end early when the answer is known: the 5 % are spent over the looks (Lan & DeMets 1983), so that looking often does not announce more.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import numpy as np
from msgspec import Struct
from scipy.special import log_ndtr, stdtr, stdtrit

from loadcell.tune.outcome import TrialResult
from loadcell.tune.parameters import Configuration

CANDIDATES: Final = 3
LEAST_ROUNDS: Final = 3
MOST_ROUNDS: Final = 6
ALPHA: Final = 0.05
USUAL_NOISE: Final = 0.04  # relative deviation of one measurement, where nothing was measured twice
_SPENT: Final = {3: 0.006, 4: 0.010, 5: 0.015, 6: 0.025}
"""Nominal level of each look; together just under 4 % (tests/tune/test_confirm.py simulates it). A fixed number of rounds uses 5 %."""
_LEAST_DEVIATION: Final = 1e-4

Meets = Literal["meets", "fails", "unclear"]
Verdict = Literal["winner", "default_fails", "no_reliable_improvement"]


class Measured(Struct, frozen=True):
    """One measurement of a round. `value` null: it died, or could not be measured; `dead`: because of its configuration."""

    value: float | None
    violations: Mapping[str, float | None] = {}
    dead: bool = False


Round = Mapping[int, Measured]
"""Candidate -> its measurement; 0 is the default."""


class Standing(Struct, frozen=True):
    """One candidate over the rounds. `gain`: geometric mean of value / default's value in the same round, less 1; `low`, `high`: its one-sided 95 %
    bounds. `p`: of no gain. `limits`: whether each holds. `margins`: mean log(measured/limit), and its upper 95 % bound (null: none yet).
    """

    candidate: int
    rounds: int
    dead: bool
    value: float | None
    gain: float | None
    low: float | None
    high: float | None
    p: float
    significant: bool
    limits: dict[str, Meets]
    margins: dict[str, tuple[float, float | None]]

    @property
    def meets(self) -> bool:
        return not self.dead and self.rounds > 0 and all(state == "meets" for state in self.limits.values())

    @property
    def out(self) -> bool:
        return self.dead or any(state == "fails" for state in self.limits.values())


class Decision(Struct, frozen=True):
    """`winner` null: the default stays. `final`: no further round changes it. `text` says it in words."""

    verdict: Verdict
    winner: int | None
    final: bool
    text: str
    standings: tuple[Standing, ...]


def shortlist(
    results: Sequence[TrialResult], default: Configuration, key: Callable[[Configuration], str], count: int = CANDIDATES
) -> tuple[Configuration, ...]:
    """The best by lower bound: log objective less 1.64 deviations, plus log P(all limits hold). Measurements of one configuration are pooled."""
    pooled: dict[str, list[TrialResult]] = {}
    for result in results:
        if result.objective is not None and result.objective > 0 and result.outcome in ("ok", "slo_violated"):
            pooled.setdefault(key(result.configuration), []).append(result)
    noise = spread(list(pooled.values()))
    scored: list[tuple[float, int, Configuration]] = []
    for own in pooled.values():
        if key(own[0].configuration) == key(default) or not any(one.feasible for one in own):
            continue
        told = [one.objective_se / one.objective for one in own if one.objective_se is not None and one.objective]
        deviation = max(noise, max(told, default=0.0)) / math.sqrt(len(own))
        bound = float(np.mean([math.log(one.objective) for one in own if one.objective])) - 1.645 * deviation
        for limit in own[0].violations:
            margins = [margin for one in own if (margin := one.violations.get(limit)) is not None]
            if margins:
                bound += float(log_ndtr(-np.mean(margins) / (1.5 * noise / math.sqrt(len(margins)))))
        scored.append((bound, -own[0].number, own[0].configuration))
    scored.sort(key=lambda one: one[:2], reverse=True)
    return tuple(configuration for _, _, configuration in scored[:count])


def spread(pooled: Sequence[Sequence[TrialResult]]) -> float:
    """Relative deviation of one measurement, from configurations that were measured more than once (the baseline, for drift)."""
    squares, freedom = 0.0, 0
    for own in pooled:
        logs = [math.log(one.objective) for one in own if one.objective]
        if len(logs) > 1:
            squares += float(np.var(logs)) * len(logs)
            freedom += len(logs) - 1
    return math.sqrt((squares + 3 * USUAL_NOISE**2) / (freedom + 3))  # three pseudo-measurements: two trials tell little


def order(number: int, candidates: int) -> tuple[int, ...]:
    """In which order round `number` (from 0) measures the default (0) and the candidates: turned by one each round, every other one backwards."""
    row = [(at + number) % (candidates + 1) for at in range(candidates + 1)]
    return tuple(row if number % 2 == 0 else reversed(row))


def decide(rounds: Sequence[Round], candidates: int, limits: Sequence[str], least: int = LEAST_ROUNDS, most: int = MOST_ROUNDS) -> Decision:
    """What these rounds say. With fewer than `least` it is never final, unless nothing is left to confirm."""
    level = (
        ALPHA if least == most or len(rounds) not in _SPENT else _SPENT[len(rounds)] if most == MOST_ROUNDS else ALPHA / (most - least + 1)
    )
    default = _standing(0, rounds, limits)
    found = _holm([_standing(one, rounds, limits) for one in range(1, candidates + 1)], level)
    standings = (default, *found)
    default_fails = default.out
    good = [one for one in found if one.meets and (default_fails or one.significant)]
    best = max(good, key=lambda one: one.value or 0.0, default=None)
    ended = len(rounds) >= most
    if len(rounds) < least:
        final = not any(not one.out for one in found)
        return _decision(None, standings, default_fails=default_fails, final=final)
    # One that may still beat the best, or still become significant, is worth another round.
    open_ones = [one for one in found if not one.out and one not in good and _may_win(one, best)]
    return _decision(best, standings, default_fails=default_fails, final=ended or not open_ones)


def _may_win(one: Standing, best: Standing | None) -> bool:
    if one.high is not None and one.high <= 0 and best is None:
        return False
    return best is None or (one.value or 0.0) > (best.value or 0.0)


def _decision(best: Standing | None, standings: tuple[Standing, ...], *, default_fails: bool, final: bool) -> Decision:
    if best is None:
        text = "no reliable improvement"
        if default_fails:
            text += ": the default fails its limits, and no candidate reliably meets them"
        return Decision("no_reliable_improvement", None, final, text, standings)
    gain = (
        ""
        if best.gain is None or best.low is None
        else f"{best.gain:+.1%} against the default (at least {best.low:+.1%} with 95 % confidence)"
    )
    if default_fails:
        text = "the default fails its limits, this one meets them" + (f"; {gain}" if gain else "")
        return Decision("default_fails", best.candidate, final, text, standings)
    return Decision("winner", best.candidate, final, gain, standings)


def _standing(candidate: int, rounds: Sequence[Round], limits: Sequence[str]) -> Standing:
    own = [one[candidate] for one in rounds if candidate in one]
    values = [one.value for one in own if one.value]
    ratios = [
        math.log(one[candidate].value / one[0].value)  # type: ignore[operator]
        for one in rounds
        if candidate in one and 0 in one and one[candidate].value and one[0].value
    ]
    dead = any(one.dead for one in own)
    mean, half, p = _one_sided(ratios) if candidate else (0.0, 0.0, 1.0)
    known = len(ratios) > 1 and candidate > 0
    margins: dict[str, tuple[float, float | None]] = {}
    states: dict[str, Meets] = {}
    for limit in limits:
        told = [margin for one in own if (margin := one.violations.get(limit)) is not None]
        centre, width, _ = _one_sided(told)
        # What could not be measured in a round is no pass; a single round proves nothing.
        complete = len(told) == len(values) and len(told) > 1
        margins[limit] = centre, centre + width if math.isfinite(width) else None  # JSON has no infinity, and the record is JSON
        states[limit] = "meets" if complete and centre + width <= 0 else "fails" if len(told) > 1 and centre - width > 0 else "unclear"
    return Standing(
        candidate,
        len(values),
        dead,
        float(np.exp(np.mean(np.log(values)))) if values else None,
        math.expm1(mean) if known else None,
        math.expm1(mean - half) if known else None,
        math.expm1(mean + half) if known else None,
        p,
        significant=False,
        limits=states,
        margins=margins,
    )


def _one_sided(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, distance of its one-sided 95 % bound, and p of a mean at or below 0 (Student)."""
    n = len(values)
    if n < 2:
        return (float(values[0]) if n else 0.0), math.inf, 1.0
    mean, error = float(np.mean(values)), max(float(np.std(values, ddof=1)), _LEAST_DEVIATION) / math.sqrt(n)
    return mean, float(stdtrit(n - 1, 1 - ALPHA)) * error, float(stdtr(n - 1, -mean / error))


def _holm(standings: Sequence[Standing], level: float) -> list[Standing]:
    """Holm's step-down: the smallest p against level/m, the next against level/(m-1), until one fails."""
    significant: set[int] = set()
    ranked = sorted(standings, key=lambda one: one.p)
    for at, one in enumerate(ranked):
        if one.p > level / (len(ranked) - at):
            break
        significant.add(one.candidate)
    return [_with(one, significant=one.candidate in significant) for one in standings]


def _with(standing: Standing, *, significant: bool) -> Standing:
    from msgspec.structs import replace

    return replace(standing, significant=significant)


def next_revert(
    winner: Configuration, default: Configuration, importance: Mapping[str, float], refused: frozenset[str], searched: Sequence[str],
    complete: Callable[[Configuration], Configuration], legal: Callable[[Configuration], str | None],
) -> tuple[str, Configuration] | None:  # fmt: skip
    """The least important parameter that still differs from the default, and the winner with it put back. `refused`: reverts that were measured
    and not accepted. Parameters whose revert alone is not legal are left.
    """
    changed = [name for name in searched if winner.get(name) != default.get(name) and name not in refused]
    for name in sorted(changed, key=lambda one: (importance.get(one, 0.0), one)):
        values = {other: value for other, value in winner.items() if other != name}
        if name in default:
            values[name] = default[name]
        whole = complete(values)
        if whole.get(name) == default.get(name) and legal(whole) is None:
            return name, whole
    return None


def revert_holds(winner: Sequence[Measured], reverted: Sequence[Measured], limits: Sequence[str], tolerance: float = 0.0) -> bool:
    """Is what was put back as good as the winner, as far as can be told, or as anybody cares? Its mean lies above the winner's lower 95 % bound, or
    less than `tolerance` below its mean (where noise is tiny, the bound tells differences that matter to nobody), and it is within every limit by the
    pooled deviation of both. Always compared with the winner that was confirmed, so that small losses do not add up.
    """
    old = [math.log(one.value) for one in winner if one.value]
    new = [math.log(one.value) for one in reverted if one.value]
    if len(old) < 2 or len(new) < len(reverted) or not new:
        return False
    centre, half, _ = _one_sided(old)
    if float(np.mean(new)) < centre - max(half, -math.log1p(-tolerance)):
        return False
    return all(_margin_holds(winner, reverted, limit) for limit in limits)


def _margin_holds(winner: Sequence[Measured], reverted: Sequence[Measured], limit: str) -> bool:
    before = [margin for one in winner if (margin := one.violations.get(limit)) is not None]
    after = [margin for one in reverted if (margin := one.violations.get(limit)) is not None]
    if len(after) < len(reverted) or len(before) < 2:
        return False
    residuals = [*(np.array(before) - np.mean(before)), *(np.array(after) - np.mean(after))]
    freedom = len(residuals) - 2 if len(after) > 1 else len(before) - 1
    deviation = math.sqrt(float(np.sum(np.square(residuals))) / freedom)
    return float(np.mean(after)) + float(stdtrit(freedom, 1 - ALPHA)) * deviation / math.sqrt(len(after)) <= 0
