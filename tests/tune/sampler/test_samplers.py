"""Every sampler by name, through optuna's ask and tell."""

import importlib.util
import math

import optuna
import pytest

from loadcell.errors import UserError
from loadcell.tune.outcome import TrialResult
from loadcell.tune.parameters import Configuration, Constraint, Parameter, Place
from loadcell.tune.sampler import SAMPLERS, SearchSpec, make_sampler, told
from loadcell.tune.sampler.swarm import fitness
from loadcell.tune.space import Space

AT = Place(flag="--x")
LIMIT = "ttft"


def space() -> Space:
    return Space(
        (
            Parameter("seqs", "int", AT, ladder=(8, 16, 32, 64, 128), default=32),
            Parameter("tokens", "int", AT, low=16, high=256, log=True, default=300),  # a default outside its range
            Parameter("share", "float", AT, low=0.1, high=0.9, step=0.1, default=0.5),
            Parameter("mode", "categorical", AT, choices=("plain", "fast"), default="plain"),
            Parameter("depth", "int", AT, low=1, high=3, default=1, when="mode == 'fast'"),
        ),
        (Constraint("tokens >= seqs", repair="tokens"),),
    )


def measured(number: int, one: Configuration) -> TrialResult:
    if one["share"] == 0.9:
        return TrialResult(number, one, "oom_start", "launch", violations={LIMIT: None})
    margin = math.log(float(one["seqs"]) / 100)
    outcome = "ok" if margin <= 0 else "slo_violated"
    return TrialResult(number, one, outcome, "report", objective=float(one["seqs"]), violations={LIMIT: margin})


AVAILABLE = [name for name in SAMPLERS if name not in ("gp", "cmaes", "grid")]


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.mark.parametrize("name", AVAILABLE)
def test_asks_and_tells(name: str) -> None:
    known: Configuration = {"seqs": 64, "tokens": 128, "share": 0.3, "mode": "fast", "depth": 2}
    one = space()
    study = optuna.create_study(sampler=make_sampler(name, SearchSpec(one, 3, (LIMIT,), (known,))), direction="maximize")
    asked = [told.ask(study, one, (known,))]
    for number in range(12):
        assert asked[-1].configuration is not None
        assert one.legal(asked[-1].configuration) is None
        told.tell(study, asked[-1].trial, measured(number, asked[-1].configuration))
        asked.append(told.ask(study, one, (known,)))
    assert [first.kind for first in asked[:2]] == ["default", "known"]
    assert asked[0].configuration == one.default()
    assert asked[0].configuration["tokens"] == 300
    assert asked[1].configuration == known
    assert len(told.results(study)) == 12


@pytest.mark.parametrize("name", ["model", "pso", "random", "tpe"])
def test_a_study_that_is_opened_again_goes_on_as_it_would_have(name: str) -> None:
    def ask_on(study: optuna.Study) -> Configuration | None:
        study.sampler = make_sampler(name, SearchSpec(one, 3, (LIMIT,)))
        return told.ask(study, one).configuration

    one, studies = space(), []
    for _ in range(2):
        study = optuna.create_study(sampler=make_sampler(name, SearchSpec(one, 3, (LIMIT,))), direction="maximize")
        for number in range(9):
            asked = told.ask(study, one)
            assert asked.configuration is not None
            told.tell(study, asked.trial, measured(number, asked.configuration))
        studies.append(study)
    assert ask_on(studies[0]) == ask_on(studies[1])


def test_dead_trials_are_pruned_and_void_ones_failed() -> None:
    one = space()
    study = optuna.create_study(sampler=make_sampler("random", SearchSpec(one, 0)), direction="maximize")
    for outcome, state in (("oom_start", "PRUNED"), ("infrastructure", "FAIL"), ("invalid_measurement", "FAIL")):
        asked = told.ask(study, one)
        assert asked.configuration is not None
        told.tell(study, asked.trial, TrialResult(0, asked.configuration, outcome, "launch"))  # type: ignore[arg-type]
        assert study.trials[-1].state.name == state
        assert study.trials[-1].values is None


def test_what_is_in_flight_elsewhere_is_not_proposed() -> None:
    one = Space((Parameter("a", "int", AT, ladder=(1, 2, 3), default=1),))
    study = optuna.create_study(sampler=make_sampler("model", SearchSpec(one, 0)), direction="maximize")
    asked = [told.ask(study, one) for _ in range(3)]
    assert sorted(first.configuration["a"] for first in asked if first.configuration) == [1, 2, 3]
    assert told.ask(study, one).exhausted


def test_the_swarm_ranks_feasible_before_infeasible_before_dead() -> None:
    def of(outcome: str, objective: float | None, margin: float | None) -> TrialResult:
        return TrialResult(0, {}, outcome, "report", objective=objective, violations={LIMIT: margin})  # type: ignore[arg-type]

    ranked = [of("ok", 2.0, -1), of("ok", 1.0, -1), of("slo_violated", 9.0, 0.1), of("slo_violated", 9.0, 2.0), of("oom_start", None, None)]
    values = [fitness(one) for one in ranked]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 5


@pytest.mark.parametrize(
    ("name", "second", "word"), [("modle", None, "choose from"), ("pso", "goodput", "one objective"), ("grid", None, "configurations")]
)
def test_refusals(name: str, second: str | None, word: str) -> None:
    wide = Space(tuple(Parameter(f"p{at}", "float", AT, low=0, high=1, default=0.5) for at in range(9)))
    with pytest.raises(UserError, match=word):
        make_sampler(name, SearchSpec(wide, 0, second=second))


@pytest.mark.parametrize(("name", "needs"), [("gp", "torch"), ("cmaes", "cmaes")])
def test_what_is_missing_is_named(name: str, needs: str) -> None:
    if importlib.util.find_spec(needs) is not None:
        pytest.skip(f"{needs} is installed")
    with pytest.raises(UserError, match=needs):
        make_sampler(name, SearchSpec(space(), 0))


def test_a_grid_of_a_small_space_tries_every_cell_once() -> None:
    one = Space(
        (Parameter("a", "int", AT, ladder=(1, 2, 4), default=1), Parameter("b", "bool", AT, default=False)), (Constraint("a < 4 or b"),)
    )
    study = optuna.create_study(sampler=make_sampler("grid", SearchSpec(one, 0)), direction="maximize")
    seen = []
    while not (asked := told.ask(study, one)).exhausted:
        assert asked.configuration is not None
        seen.append(one.key(asked.configuration))
        told.tell(study, asked.trial, TrialResult(len(seen), asked.configuration, "ok", "report", objective=1.0))
    assert len(seen) == len(set(seen)) == 5
