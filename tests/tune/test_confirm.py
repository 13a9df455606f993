"""Confirmation as statistics: how often it announces what is true, and what is not."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from loadcell.tune.confirm import Decision, Measured, Round, decide, next_revert, order, revert_holds, shortlist, spread
from loadcell.tune.outcome import TrialResult
from loadcell.tune.parameters import Configuration

LIMIT = "ttft_p99 <= 1 s"


def rounds_until_final(
    gains: Sequence[float], margins: Sequence[float], rng: np.random.Generator, noise: float = 0.04, drift: float = 0.1
) -> tuple[Decision, int]:
    """`gains`, `margins`: true log ratios and margins, the default's first. `drift`: what a whole round shares."""
    rounds: list[Round] = []
    while True:
        shared = rng.normal(0, drift)
        rounds.append(
            {
                one: Measured(100 * math.exp(gain + shared + rng.normal(0, noise)), {LIMIT: margin + rng.normal(0, noise)})
                for one, (gain, margin) in enumerate(zip(gains, margins, strict=True))
            }
        )
        decision = decide(rounds, len(gains) - 1, [LIMIT])
        if decision.final:
            return decision, len(rounds)


@pytest.mark.parametrize("noise", [0.02, 0.06])
def test_nothing_is_announced_on_a_flat_surface_in_95_of_100(noise: float) -> None:
    rng = np.random.default_rng(1)
    false = sum(rounds_until_final([0, 0, 0, 0], [-0.5] * 4, rng, noise)[0].winner is not None for _ in range(400))
    assert false <= 400 * 0.05 + 9  # two deviations


def test_a_true_gain_of_15_percent_is_announced_in_19_of_20() -> None:
    rng = np.random.default_rng(2)
    decisions = [rounds_until_final([0, math.log(1.15), 0.05, 0.0], [-0.4] * 4, rng) for _ in range(200)]
    assert sum(one.winner == 1 for one, _ in decisions) >= 190
    assert np.mean([rounds for _, rounds in decisions]) < 5.5


def test_an_announced_winner_meets_its_limit_in_95_of_100() -> None:
    """Candidates truly stand a little within and a little beyond the limit."""
    rng = np.random.default_rng(3)
    wrong = announced = 0
    for _ in range(400):
        margins = [-0.5, *rng.uniform(-0.1, 0.06, 3)]
        decision, _ = rounds_until_final([0, 0.2, 0.18, 0.15], margins, rng)
        if decision.winner is not None:
            announced += 1
            wrong += margins[decision.winner] > 0
    assert announced > 200
    assert wrong <= 0.05 * announced


def test_where_the_default_fails_meeting_the_limits_suffices() -> None:
    rng = np.random.default_rng(4)
    decision, _ = rounds_until_final([0, -0.2, -0.3, 0.2], [0.4, -0.3, -0.3, 0.3], rng)
    assert (decision.verdict, decision.winner) == ("default_fails", 1)
    assert decision.text.startswith("the default fails its limits, this one meets them")


def test_where_all_fail_it_is_over_at_once_and_says_so() -> None:
    rng = np.random.default_rng(5)
    decision, rounds = rounds_until_final([0, 0.5, 0.5, 0.5], [0.4] * 4, rng)
    assert (decision.verdict, decision.winner) == ("no_reliable_improvement", None)
    assert rounds <= 3
    assert "fails its limits" in decision.text


def test_one_that_dies_in_a_round_is_not_announced() -> None:
    alive = Measured(100.0, {LIMIT: -0.5})
    rounds = [{0: alive, 1: Measured(150.0 + at, {LIMIT: -0.5})} for at in range(5)]
    assert decide(rounds, 1, [LIMIT]).winner == 1
    assert decide([*rounds, {0: alive, 1: Measured(None, dead=True)}], 1, [LIMIT]).winner is None


def test_a_limit_that_was_not_measured_is_not_met() -> None:
    rounds = [{0: Measured(100.0 + at, {LIMIT: -0.5}), 1: Measured(200.0 + at, {LIMIT: None})} for at in range(6)]
    decision = decide(rounds, 1, [LIMIT])
    assert (decision.winner, decision.final) == (None, True)


def test_too_few_rounds_are_never_final() -> None:
    rounds = [{0: Measured(100.0, {LIMIT: -1}), 1: Measured(200.0 + at, {LIMIT: -1})} for at in range(2)]
    assert not decide(rounds, 1, [LIMIT]).final


def test_every_round_measures_all_and_places_turn() -> None:
    rows = [order(at, 3) for at in range(8)]
    assert all(sorted(row) == [0, 1, 2, 3] for row in rows)
    places = np.array([[row.index(one) for row in rows] for one in range(4)])
    assert (abs(places.mean(axis=1) - 1.5) <= 0.5).all()


def result(number: int, objective: float, margin: float = -0.5, **configuration: int) -> TrialResult:
    outcome = "ok" if margin <= 0 else "slo_violated"
    return TrialResult(number, dict(configuration), outcome, "report", objective=objective, violations={LIMIT: margin})


def text(configuration: Configuration) -> str:
    return str(sorted(configuration.items()))


def test_the_shortlist_is_by_lower_bound() -> None:
    results = [
        result(0, 100, a=0),
        result(1, 120, a=1),
        result(2, 121, -0.001, a=2),  # a coin toss whether it truly meets its limit
        result(3, 150, 0.1, a=3),
        result(4, 119, a=4),
        result(5, 110, a=5),
        TrialResult(6, {"a": 6}, "oom_start", "launch"),
    ]
    assert [one["a"] for one in shortlist(results, {"a": 0}, text)] == [1, 4, 5]
    repeated = [*results, result(7, 119, a=4)]
    assert shortlist(repeated, {"a": 0}, text)[0] == {"a": 4}


def test_the_spread_comes_from_what_was_measured_twice() -> None:
    rng = np.random.default_rng(0)
    calm = [[result(at, 100 * math.exp(rng.normal(0, 0.01)), a=0) for at in range(20)]]
    assert spread(calm) < 0.025
    assert spread([]) == pytest.approx(0.04)


def test_the_least_important_change_is_put_back_first() -> None:
    winner: Configuration = {"a": 5, "b": 2, "c": 1}
    default: Configuration = {"a": 1, "b": 1, "c": 1}
    importance = {"a": 0.9, "b": 0.1}

    def legal(one: Configuration) -> str | None:
        return None

    found = next_revert(winner, default, importance, frozenset(), ("a", "b", "c"), dict, legal)
    assert found == ("b", {"a": 5, "b": 1, "c": 1})
    again = next_revert({"a": 5, "c": 1}, {"c": 1}, importance, frozenset(), ("a", "b", "c"), dict, legal)
    assert again == ("a", {"c": 1})
    assert next_revert(winner, default, importance, frozenset({"a", "b"}), ("a", "b", "c"), dict, legal) is None
    assert next_revert(winner, default, importance, frozenset(), ("a", "b", "c"), dict, lambda _: "no") is None


def test_a_revert_is_accepted_where_it_costs_nothing_and_refused_where_it_does() -> None:
    rng = np.random.default_rng(6)

    def measured(gain: float, margin: float, n: int) -> list[Measured]:
        return [Measured(100 * math.exp(gain + rng.normal(0, 0.03)), {LIMIT: margin + rng.normal(0, 0.03)}) for _ in range(n)]

    same = sum(revert_holds(measured(0, -0.3, 6), measured(0, -0.3, 2), [LIMIT]) for _ in range(200))
    worse = sum(revert_holds(measured(0, -0.3, 6), measured(-0.12, -0.3, 2), [LIMIT]) for _ in range(200))
    exact = [Measured(1000 + 0.1 * at, {LIMIT: -0.3}) for at in range(6)]
    slower = [[Measured(1000 * (1 - loss), {LIMIT: -0.3})] * 2 for loss in (0.003, 0.02)]
    assert [revert_holds(exact, one, [LIMIT]) for one in slower] == [False, False]
    assert [revert_holds(exact, one, [LIMIT], tolerance=0.01) for one in slower] == [True, False], "0.3 % matters to nobody"
    beyond = sum(revert_holds(measured(0, -0.3, 6), measured(0, 0.02, 2), [LIMIT]) for _ in range(200))
    assert same > 140
    assert worse < 10
    assert beyond < 10
