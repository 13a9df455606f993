"""optuna's study <-> our nouns: parameters as distributions, an asked trial as a configuration, a result as what optuna keeps.

Every sampler is asked and told here, so that all get the same: the default and the known-good configurations first, repaired proposals, results.
A trial that died is told as pruned: it is no value, and samplers that can learn from it do. One that teaches nothing is told as failed.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from loadcell.tune.outcome import MEASURED, TEACHES_DEATH, TrialResult
from loadcell.tune.parameters import Configuration
from loadcell.tune.sampler.search import Stage, beginnings
from loadcell.tune.space import Space

if TYPE_CHECKING:
    import optuna

RESULT: Final = "loadcell:result"
CONFIGURATION: Final = "loadcell:configuration"
CONSTRAINTS: Final = "loadcell:constraints"
_DEAD: Final = 3.0  # log(measured/limit) of a service that answers nothing: 20 times over every limit


class Asked(Struct, frozen=True):
    """`configuration` null: what the sampler said breaks a constraint and cannot be repaired, or (with `exhausted`) nothing is left to try.
    `moved`: parameters that a repair changed. `gain`: expected relative improvement, where the sampler knows it.
    """

    trial: Any
    configuration: Configuration | None
    kind: Stage
    moved: tuple[str, ...] = ()
    gain: float | None = None
    exhausted: bool = False


def distributions(space: Space) -> dict[str, "optuna.distributions.BaseDistribution"]:
    """Of every parameter that is searched. Ladders are choices: optuna knows no ordered ones."""
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, BaseDistribution] = {}
    for parameter in space.parameters:
        if parameter.name not in space.searched:
            continue
        domain = space.domains[parameter.name]
        if parameter.kind in ("categorical", "bool") or parameter.ladder:
            found[parameter.name] = CategoricalDistribution(domain.values)
        elif parameter.kind == "int":
            step = 1 if parameter.log else int(parameter.step or 1)
            found[parameter.name] = IntDistribution(math.ceil(domain.low or 0), math.floor(domain.high or 0), log=parameter.log, step=step)
        else:
            step_or_none = None if parameter.log else parameter.step
            found[parameter.name] = FloatDistribution(domain.low or 0.0, domain.high or 0.0, log=parameter.log, step=step_or_none)
    return found


def parameters_of(space: Space, configuration: Configuration) -> dict[str, Any]:
    """What optuna is told of a configuration: the nearest value of each distribution, the middle for what is absent."""
    return {name: domain.snap(configuration.get(name, domain.at(0.5))) for name in space.searched for domain in (space.domains[name],)}


def ask(study: "optuna.Study", space: Space, known: Sequence[Configuration] = ()) -> Asked:
    """The next configuration, whatever the sampler. `tell` ends the trial, `pass_over` one without a configuration."""
    tried = {space.key(one) for trial in study.get_trials(deepcopy=False) if (one := trial.user_attrs.get(CONFIGURATION)) is not None}
    spread = distributions(space)
    first = next(((kind, one) for kind, one in beginnings(space, known) if space.key(one) not in tried), None)
    if first is not None:
        study.enqueue_trial(parameters_of(space, first[1]))
        asked = Asked(study.ask(spread), first[1], first[0])
    else:
        trial = study.ask(spread)
        proposals = getattr(study.sampler, "proposals", None)
        if proposals is not None:
            proposal = proposals.pop(trial.number, None)
            asked = (
                Asked(trial, None, "search", exhausted=True)
                if proposal is None
                else Asked(trial, proposal.configuration, proposal.kind, gain=proposal.gain)
            )
        else:
            repaired = space.repair(space.complete(trial.params))
            asked = Asked(trial, None, "search") if repaired is None else Asked(trial, repaired[0], "search", repaired[1])
    if asked.configuration is not None:
        asked.trial.set_user_attr(CONFIGURATION, asked.configuration)
    return asked


def tell(study: "optuna.Study", trial: Any, result: TrialResult, second: str | None = None) -> None:
    """`second`: the figure that is the second objective. A duplicate is told with the result on record."""
    from optuna.trial import TrialState

    trial.set_user_attr(RESULT, msgspec.to_builtins(result))
    dead = result.outcome in TEACHES_DEATH
    trial.set_user_attr(
        CONSTRAINTS,
        [_DEAD if dead or value is None or math.isnan(value) else value for value in result.violations.values()]
        or [_DEAD if dead else 0.0],
    )
    values = [result.objective] if second is None else [result.objective, result.figures.get(second)]
    if result.outcome in MEASURED and all(value is not None and math.isfinite(value) for value in values):
        study.tell(trial, [float(value) for value in values if value is not None])
    elif dead or result.outcome in MEASURED:
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, state=TrialState.FAIL)


def pass_over(study: "optuna.Study", trial: Any) -> None:
    """End a trial that never ran."""
    from optuna.trial import TrialState

    study.tell(trial, state=TrialState.FAIL)


def results(study: "optuna.Study") -> list[TrialResult]:
    """What was measured, once each, in order; answers from the record are not repeated."""
    found: dict[int, TrialResult] = {}
    for trial in study.get_trials(deepcopy=False):
        if RESULT in trial.user_attrs:
            result = msgspec.convert(trial.user_attrs[RESULT], TrialResult)
            found.setdefault(result.number, result)
    return list(found.values())


def constraints_of(trial: Any) -> list[float]:
    """optuna's `constraints_func`: above 0 is violated."""
    return list(trial.user_attrs.get(CONSTRAINTS, [0.0]))
