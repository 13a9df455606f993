"""The benchmark of searches, small: that it runs, and that a whole search with confirmation announces what is true."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import optuna

import surfaces
import tuning
from loadcell.seeds import derive
from loadcell.tune.confirm import Decision, Measured, Round, decide, shortlist
from loadcell.tune.outcome import TrialResult
from loadcell.tune.parameters import Configuration
from loadcell.tune.sampler.search import Search, observed
from loadcell.tune.space import Space

optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_ours_is_ahead_of_random_search_and_dies_seldom() -> None:
    rows = [
        tuning.run(surfaces.KNOWN[name], sampler, seed, 30)
        for name in surfaces.SURFACES
        for sampler in ("model", "random")
        for seed in range(100, 104)
    ]
    mean = {one: np.mean([row["best"][-1] for row in rows if row["sampler"] == one]) for one in ("model", "random")}
    assert mean["model"] > mean["random"] + 0.05
    assert np.mean([row["crashes"][-1] for row in rows if row["sampler"] == "model"]) <= 6
    assert "| random |" in tuning.table(rows)


def study(surface: surfaces.Surface, seed: int, trials: int = 24) -> tuple[Decision, list[Configuration]]:
    """A search, then rounds of confirmation on what it shortlists; [default, candidates...]."""
    space = Space(surface.parameters, surface.constraints)
    search, results = Search(space, tuple(surface.limits)), list[TrialResult]()
    for number in range(trials):
        proposal = search.propose([observed(one) for one in results], np.random.default_rng(derive(seed, "search", number)))
        assert proposal is not None
        results.append(surface.observe(proposal.configuration, number, np.random.default_rng(derive(seed, "noise", number))))
    tried = [space.default(), *shortlist(results, space.default(), space.key)]
    rounds: list[Round] = []
    while True:
        rng = np.random.default_rng(derive(seed, "confirm", len(rounds)))
        measured = [surface.observe(one, 0, rng) for one in tried]
        rounds.append({at: Measured(one.objective, one.violations, dead=one.objective is None) for at, one in enumerate(measured)})
        decision = decide(rounds, len(tried) - 1, list(surface.limits))
        if decision.final:
            return decision, tried


SEEDS = range(20)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_flat_surface_ends_in_no_reliable_improvement() -> None:
    assert sum(study(surfaces.FLAT, seed)[0].winner is None for seed in SEEDS) >= 18


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_true_gain_of_15_percent_is_announced() -> None:
    announced = 0
    for seed in SEEDS:
        decision, tried = study(surfaces.GAIN, seed)
        if decision.winner is not None:
            announced += 1
            assert surfaces.GAIN.value(tried[decision.winner]) > 5000
    assert announced >= 18


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_announced_winners_truly_meet_their_limits() -> None:
    announced = true = 0
    for name in surfaces.SURFACES:
        for seed in range(7):
            decision, tried = study(surfaces.SURFACES[name], seed)
            if decision.winner is not None:
                announced += 1
                truth = surfaces.SURFACES[name].truth(tried[decision.winner])
                true += all(math.log(truth.figures[limit] / most) <= 0 for limit, most in surfaces.SURFACES[name].limits.items())
    assert announced >= 14
    assert true >= 0.95 * announced
