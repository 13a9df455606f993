"""Every legal combination of a few levels per parameter, in an order that the seed shuffles. An optuna sampler that ends when all were tried.

optuna's own grid stops the study by itself, which only works inside `Study.optimize`, and knows no constraints.
"""

import itertools
import math
from typing import Any, Final

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from loadcell.errors import UserError
from loadcell.seeds import derive
from loadcell.tune.parameters import Configuration, Value
from loadcell.tune.sampler.search import Proposal
from loadcell.tune.sampler.told import CONFIGURATION, distributions, parameters_of
from loadcell.tune.space import Space

_MOST: Final = 20_000
_LEVELS: Final = 4


def levels(space: Space) -> dict[str, list[Value]]:
    """All values of a parameter that has few; four of another, evenly over its scale."""
    found: dict[str, list[Value]] = {}
    for name in space.searched:
        domain = space.domains[name]
        every = domain.values if domain.values and len(domain.values) <= 2 * _LEVELS else ()
        found[name] = list(dict.fromkeys(every or [domain.at((at + 0.5) / _LEVELS) for at in range(_LEVELS)]))
    return found


class GridSampler(optuna.samplers.BaseSampler):
    """`proposals`: as ModelSampler's. UserError where the grid is larger than anyone could try."""

    def __init__(self, space: Space, seed: int) -> None:
        rows = levels(space)
        count = math.prod(map(len, rows.values()))
        if count > _MOST:
            raise UserError(
                f'study.sampler = "grid": {count:,} configurations: give fewer parameters or ladders of few values, or use "model"'
            )
        whole: dict[str, Configuration] = {}
        for values in itertools.product(*rows.values()):
            one = space.complete(dict(zip(rows, values, strict=True)))
            if space.legal(one) is None:
                whole.setdefault(space.key(one), one)
        order = np.random.default_rng(derive(seed, "grid")).permutation(len(whole))
        keys = list(whole)
        self._space = space
        self._cells = [(keys[at], whole[keys[at]]) for at in order]
        self.proposals: dict[int, Proposal] = {}

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        return distributions(self._space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]  # noqa: ARG002
    ) -> dict[str, Any]:  # fmt: skip
        told = study.get_trials(deepcopy=False)
        tried = {self._space.key(one.user_attrs[CONFIGURATION]) for one in told if CONFIGURATION in one.user_attrs}
        found = next((one for key, one in self._cells if key not in tried), None)
        if found is None:
            return {}
        self.proposals[trial.number] = Proposal(found, "search")
        return parameters_of(self._space, found)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution  # noqa: ARG002
    ) -> Any:  # fmt: skip
        return self._space.domains[param_name].at(0.5)
