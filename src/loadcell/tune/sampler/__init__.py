"""Which search proposes the next trial, by name. optuna, numpy and scipy are loaded when one is made.

sampler = make_sampler("model", SearchSpec(space, seed=1, limits=("ttft_p99 <= 1 s",)))
study = optuna.create_study(storage=..., sampler=sampler, direction="maximize")
asked = told.ask(study, space, known)          # Asked: trial, configuration, kind, gain
told.tell(study, asked.trial, result)          # TrialResult; or told.pass_over(study, asked.trial)
"""

import importlib.util
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from loadcell.errors import UserError
from loadcell.tune.parameters import Configuration
from loadcell.tune.space import Space

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class SearchSpec(Struct, frozen=True):
    """What a search is made from. `limits`: keys of `TrialResult.violations`. `second`: the figure that is the second objective of a Pareto front.
    `per_second`: the budget is time, so that short trials are worth more. `concurrency`: of the load, where no parameter sets it. `services`:
    how many share it.
    """

    space: Space
    seed: int
    limits: tuple[str, ...] = ()
    known: tuple[Configuration, ...] = ()
    second: str | None = None
    per_second: bool = False
    concurrency: float | None = None
    services: int = 1


def make_sampler(name: str, spec: SearchSpec) -> "BaseSampler":
    """UserError for a name that is none, and for a sampler whose needs are not met."""
    if name not in SAMPLERS:
        raise UserError(f"study.sampler = {name!r}: choose from {', '.join(SAMPLERS)}")
    if spec.second is not None and name in ("cmaes", "pso"):
        raise UserError(
            f'study.sampler = "{name}": it knows one objective only; for objective.pareto use model, tpe, nsga2, qmc, random or grid'
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "experimental", "deprecated": chosen here, not by the user
        return SAMPLERS[name](spec)


def _model(spec: SearchSpec) -> "BaseSampler":
    from loadcell.tune.sampler.inflight import InFlight
    from loadcell.tune.sampler.model import ModelSampler

    in_flight = InFlight(spec.space, spec.concurrency, spec.services)
    return ModelSampler(spec.space, spec.seed, spec.limits, spec.known, spec.second, per_second=spec.per_second, in_flight=in_flight)


def _pso(spec: SearchSpec) -> "BaseSampler":
    from loadcell.tune.sampler.swarm import SwarmSampler

    return SwarmSampler(spec.space, spec.seed)


def _optuna(name: str, spec: SearchSpec, *, constrained: bool = False, **options: Any) -> "BaseSampler":
    import optuna

    from loadcell.tune.sampler.told import constraints_of

    if constrained:
        options["constraints_func"] = constraints_of
    sampler: BaseSampler = getattr(optuna.samplers, name)(seed=spec.seed % 2**32, **options)
    return sampler


def _gp(spec: SearchSpec) -> "BaseSampler":
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            'study.sampler = "gp": optuna\'s Gaussian process needs torch, which is not installed: pip install torch, or use "model"'
        )
    return _optuna("GPSampler", spec, constrained=True)


def _cmaes(spec: SearchSpec) -> "BaseSampler":
    if importlib.util.find_spec("cmaes") is None:
        raise UserError('study.sampler = "cmaes": it needs the package cmaes, which is not installed: pip install cmaes, or use "model"')
    return _optuna("CmaEsSampler", spec, warn_independent_sampling=False)


def _grid(spec: SearchSpec) -> "BaseSampler":
    from loadcell.tune.sampler.grid import GridSampler

    return GridSampler(spec.space, spec.seed)


SAMPLERS: Final[dict[str, Callable[[SearchSpec], "BaseSampler"]]] = {
    "model": _model,
    "tpe": lambda spec: _optuna(
        "TPESampler", spec, constrained=True, multivariate=True, n_startup_trials=8, warn_independent_sampling=False
    ),
    "gp": _gp,
    "nsga2": lambda spec: _optuna("NSGAIISampler", spec, constrained=True, population_size=10),
    "cmaes": _cmaes,
    "qmc": lambda spec: _optuna("QMCSampler", spec, scramble=True, warn_independent_sampling=False, warn_asynchronous_seeding=False),
    "random": lambda spec: _optuna("RandomSampler", spec),
    "grid": _grid,
    "pso": _pso,
}
