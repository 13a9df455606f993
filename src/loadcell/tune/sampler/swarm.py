"""Particle swarm, as msmodeling optix searches, in the unit cube of the space: logarithmic where a parameter is, and damped. An optuna sampler.

Inertia and pulls are Clerc & Kennedy's (2002) constriction; a step is at most a quarter of a range, and walls reflect. It holds no state: particle
k's trials are those whose number is k modulo the size, so that a study can be resumed. It is here to be compared with; `model` needs fewer trials.
"""

import math
from typing import Any, Final

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from loadcell.seeds import derive
from loadcell.tune.outcome import TEACHES_DEATH, TrialResult
from loadcell.tune.parameters import Configuration
from loadcell.tune.sampler.kernel import Floats
from loadcell.tune.sampler.search import Proposal
from loadcell.tune.sampler.told import distributions, parameters_of, results
from loadcell.tune.space import Space

SIZE: Final = 8
_INERTIA: Final = 0.7298
_PULL: Final = 1.4962
_FASTEST: Final = 0.25
_TRIES: Final = 50


def fitness(result: TrialResult) -> float:
    """Feasible before infeasible before dead; among the infeasible the nearest to its limits (Deb's rules, 2000)."""
    if result.feasible and result.objective:
        return math.log(result.objective)
    if result.outcome in TEACHES_DEATH or not result.violations:
        return -2e6
    return -1e6 - sum(max(0.0, 3.0 if value is None else value) for value in result.violations.values())


def moved(own: list[tuple[Floats, float]], best: Floats, rng: np.random.Generator) -> Floats:
    """The next place of a particle with this history of (place, fitness), newest last."""
    here = own[-1][0]
    velocity = here - own[-2][0] if len(own) > 1 else rng.uniform(-0.1, 0.1, len(here))
    mine = max(own, key=lambda pair: pair[1])[0]
    pulls = _PULL * rng.random((2, len(here)))
    velocity = np.clip(_INERTIA * velocity + pulls[0] * (mine - here) + pulls[1] * (best - here), -_FASTEST, _FASTEST)
    there = np.abs(here + velocity)
    return np.asarray(np.where(there > 1, 2 - there, there))


class SwarmSampler(optuna.samplers.BaseSampler):
    """`proposals`: as ModelSampler's."""

    def __init__(self, space: Space, seed: int, size: int = SIZE) -> None:
        self._space, self._seed, self._size = space, seed, size
        self.proposals: dict[int, Proposal] = {}

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        return distributions(self._space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]  # noqa: ARG002
    ) -> dict[str, Any]:  # fmt: skip
        rng = np.random.default_rng(derive(self._seed, "swarm", trial.number))
        done = results(study)
        places = [(np.array(self._space.to_unit(one.configuration)), fitness(one)) for one in done]
        own = [place for at, place in enumerate(places) if at % self._size == len(places) % self._size]
        tried = {self._space.key(one.configuration) for one in done}
        for _ in range(_TRIES):
            if own:
                place = moved(own, max(places, key=lambda pair: pair[1])[0], rng)
            else:
                place = rng.random(len(self._space.searched))
            found = self._legal(place)
            if found is not None and self._space.key(found) not in tried:
                self.proposals[trial.number] = Proposal(found, "search")
                return parameters_of(self._space, found)
        rest = [one for one in self._space.candidates(rng, 64) if self._space.key(one) not in tried]
        if not rest:
            return {}
        self.proposals[trial.number] = Proposal(rest[0], "search")
        return parameters_of(self._space, rest[0])

    def _legal(self, place: Floats) -> Configuration | None:
        drawn = self._space.from_unit(place.tolist())
        if self._space.legal(drawn) is None:
            return drawn
        repaired = self._space.repair(drawn)
        return None if repaired is None else repaired[0]

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution  # noqa: ARG002
    ) -> Any:  # fmt: skip
        return self._space.domains[param_name].at(0.5)
