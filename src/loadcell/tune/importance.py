"""A study's trials -> which parameters mattered, as shares. Pure; randomness is an argument.

The total effect of a parameter (Jansen 1999; Saltelli et al. 2010) under the Gaussian process that was fitted to the objective: the mean square
change of its prediction when that parameter alone is drawn anew. Only legal configurations count, so a constraint can hide a part of an effect.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from loadcell.tune.parameters import Configuration
from loadcell.tune.sampler.gp import Regression
from loadcell.tune.sampler.kernel import Columns, Floats, Kernel
from loadcell.tune.sampler.search import Observation
from loadcell.tune.space import Space

_BASES: Final = 64
LEAST_TRIALS: Final = 4
_FITS: Final = 3  # modes under randomly moved priors, averaged


def importance(space: Space, history: Sequence[Observation], rng: np.random.Generator) -> dict[str, float]:
    """Name -> share of the total effects, of every parameter that is searched; they sum to 1. Empty under 4 measured trials, or where nothing matters."""
    told = [one for one in history if one.alive and one.values]
    if len(told) < LEAST_TRIALS or not space.searched:
        return {}
    columns = Columns.of(space.columns)
    kernel = Kernel(columns)
    rows = columns.scaled(space.encode([one.configuration for one in told]))
    squares = columns.squares(rows, rows)
    y = np.log([one.values[0] for one in told])
    thetas: list[Floats] = []
    for _ in range(_FITS):
        model = Regression(kernel, squares, y, thetas, rng.normal(size=kernel.size + 1))
        thetas.append(model.theta)
    bases = space.candidates(rng, _BASES)

    def predicted(configurations: Sequence[Configuration]) -> Floats:
        return model.predict(columns.squares(rows, columns.scaled(space.encode(configurations))))[0]

    effects = {name: _effect(space, name, bases, predicted(bases), predicted, rng) for name in space.searched}
    total = sum(effects.values())
    return {name: effect / total for name, effect in effects.items()} if total > 0 else {}


def _effect(space: Space, name: str, bases, at_bases, predicted, rng: np.random.Generator) -> float:  # type: ignore[no-untyped-def]
    pairs = [
        (at, space.complete({**base, name: space.domains[name].at(float(rng.random()))})) for at, base in enumerate(bases) if name in base
    ]
    legal = [(at, one) for at, one in pairs if space.legal(one) is None]
    if not legal:
        return 0.0
    change = predicted([one for _, one in legal]) - at_bases[[at for at, _ in legal]]
    return float(np.mean(change**2)) / 2
