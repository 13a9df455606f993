"""What a study is: parameters, constraints, services, load, limits, objective, budget. Frozen; pure. `conform` reads it, `space_of` searches it."""

from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct

from loadcell.experiment.spec import SpecError
from loadcell.fleet.spec import Amount, FleetSpec
from loadcell.tune.parameters import Configuration, Constraint, Parameter, Value
from loadcell.tune.space import Space

SamplerName = Literal["model", "tpe", "gp", "nsga2", "cmaes", "qmc", "random", "grid", "pso"]
ObjectiveMetric = Literal["throughput", "goodput", "request_rate"]
BenchmarkName = Literal["loadcell", "vllm_benchmark", "evalscopeperf", "ais_bench"]
Knob = Literal["concurrency", "request_rate"]
DEFAULT_TRIALS: Final = 30


class Budget(Struct, frozen=True, forbid_unknown_fields=True):
    """What the study may use; the first that is used up ends it. `trials`: of the search, controls of drift included; the confirmation comes on top.
    `wall_clock` and `launches` hold the confirmation, for which a part is kept back. None given: 30 trials.
    """

    wall_clock: Amount | None = None
    trials: int | None = None
    launches: int | None = None


class Confirm(Struct, frozen=True, forbid_unknown_fields=True):
    """`candidates`: how many are compared with the default. `max_rounds` 0: no confirmation, and no claim.

    A winner's changes are taken back one by one, the least important first, where that costs no more than the noise of the rounds, or than `tolerance`
    of its objective; all of them together cost no more. `revert_launches`: what this may spend, two for a change; 0: every change stays.
    """

    candidates: int = 3
    min_rounds: int = 3
    max_rounds: int = 6
    tolerance: float = 0.01
    revert_launches: int = 16


class StudyTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`[study]`. `storage` null: a journal file in the study's folder; else a URL that optuna knows, `sqlite:///study.db`.

    `parameters`: those that the engine's adapter offers, `"vllm-default"`; a `[[parameter]]` of the same name replaces one, `leave` leaves
    some alone. `constants`: further names for expressions; `devices` (of a replica) and `replicas` are known where `[fleet]` tells them.
    `known`: configurations that are known to work, tried right after the default; what one does not say is the default. `prior`: histories (CSV of optix) to learn from.
    """

    name: str = "study"
    seed: int = 0
    storage: str | None = None
    sampler: SamplerName = "model"
    output_dir: str | None = None
    parameters: str | None = None
    leave: tuple[str, ...] = ()
    constants: dict[str, Value] = {}
    known: tuple[dict[str, Value], ...] = ()
    prior: tuple[str, ...] = ()
    budget: Budget = Budget()
    confirm: Confirm = Confirm()


class Objective(Struct, frozen=True, forbid_unknown_fields=True):
    """`throughput`: output tokens/s; `goodput`: requests/s that meet every limit of `goodput` in [bench]; `request_rate`: requests/s answered.

    `pareto`: a front of two of these instead, or of one and a latency such as "ttft p95", which is minimised.
    """

    metric: ObjectiveMetric = "throughput"
    per: Literal["all", "device"] = "all"
    pareto: tuple[str, str] | None = None


class LoadTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`fixed`: the load of [bench], or of parameters placed at `load`. `capacity`: within each trial the largest `knob` between `low` and `high`
    that meets every SLO, found with at most `probes` loads. `calibrated`: the load of [bench] without a rate first, then, and this is what counts, at
    `factor` × the request rate that was reached, at most `high`.
    """

    mode: Literal["fixed", "capacity", "calibrated"] = "fixed"
    knob: Knob = "concurrency"
    low: float | None = None
    high: float | None = None
    probes: int = 6
    factor: float = 1.05


class Warmup(Struct, frozen=True, forbid_unknown_fields=True):
    """Until the requests in flight have reached the load, at most `timeout`, at least `least`; then whether it is stationary is checked, and said."""

    timeout: Amount = "5m"
    least: Amount = 0


class TrialTable(Struct, frozen=True, forbid_unknown_fields=True):
    """`timeout`: of one measured load. `hang`: so long no token of any request in flight is a hang.

    `retry_on`: texts of a service's or benchmark's log that tell of the world, not of the configuration: a failure with one is `infrastructure`.
    `caches`: `reset` asks the engine to empty its prefix cache before a load (404: only said), `alike` leaves the same warm-up to do it.
    """

    timeout: Amount = "1h"
    hang: Amount = "60s"
    early_stop: bool = True
    caches: Literal["reset", "alike"] = "reset"
    retry_on: tuple[str, ...] = ()


class BenchmarkTable(Struct, frozen=True, forbid_unknown_fields=True):
    """What loads the service: `loadcell` itself, or another tool's command, which is run as it is and whose result files are read.

    `executable`: the program, or its words (`["/venv/bin/vllm", "bench", "serve"]`). `args`: as in [fleet]; `{base_url}`, `{host}`, `{port}`, `{model}` and
    `{folder}` (of this load) stand for what a trial has. `fail_on`: texts of its output that mean it failed, whatever its exit code. `output_dir`: where the tool writes, if its arguments say so; null: a folder of the trial.
    """

    kind: BenchmarkName = "loadcell"
    executable: tuple[str, ...] | str | None = None
    args: dict[str, Any] | tuple[str, ...] = {}
    env: dict[str, str] = {}
    output_dir: str | None = None
    timeout: Amount = "1h"
    fail_on: tuple[str, ...] = ()


class FitnessTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Of an optix configuration: what its fitness was made of. It is reported as a column, and decides nothing."""

    ttft_penalty: float = 1.0
    tpot_penalty: float = 1.0
    success_rate_penalty: float = 5.0
    ttft_slo: float = 2.0
    tpot_slo: float = 0.05
    success_rate_slo: float = 1.0
    generate_speed_target: float = 5000.0


class StudySpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole study. `[fleet]`, `[bench]` and `[[slo]]` are those of an experiment. `origins`: as there; no key.

    `parameter` and `constraint` hold what the adapter offered, too. `fitness`: the column that users of optix know.
    """

    fleet: FleetSpec
    study: StudyTable = StudyTable()
    bench: dict[str, Any] = {}
    slo: tuple[str, ...] = ()
    objective: Objective = Objective()
    parameter: tuple[Parameter, ...] = ()
    constraint: tuple[Constraint, ...] = ()
    load: LoadTable = LoadTable()
    warmup: Warmup = Warmup()
    trial: TrialTable = TrialTable()
    benchmark: BenchmarkTable = BenchmarkTable()
    fitness: FitnessTable | None = None
    origins: dict[str, str] = {}


def objectives(asked: Objective) -> tuple[ObjectiveMetric, str | None]:
    """What is maximised, and the second objective of a front."""
    if asked.pareto is None:
        return asked.metric, None
    first, other = asked.pareto
    rates = get_args(ObjectiveMetric)
    return (first, other) if first in rates else (other, first)  # type: ignore[return-value]


def constants_of(fleet: FleetSpec, given: dict[str, Value]) -> dict[str, Value]:
    """What expressions may speak of besides parameters. A number of devices that only the machines tell is not known here."""
    known: dict[str, Value] = {"replicas": fleet.replicas}
    if fleet.devices_per_replica:
        known["devices"] = fleet.devices_per_replica
    elif fleet.devices and isinstance(fleet.devices[0], tuple):
        known["devices"] = len(fleet.devices[0])
    elif fleet.devices:
        known["devices"] = len(fleet.devices) // fleet.replicas
    return {**known, **given}


def space_of(spec: StudySpec) -> Space:
    """The space of its parameters. SpecError names the place."""
    constants = constants_of(spec.fleet, spec.study.constants)
    taken = {parameter.name for parameter in spec.parameter}
    return Space(spec.parameter, spec.constraint, {name: value for name, value in constants.items() if name not in taken})


def known_of(spec: StudySpec, space: Space) -> tuple[Configuration, ...]:
    """`[study] known`, each as a whole configuration: what it does not say is the default. SpecError for one that is not legal."""
    found = []
    for at, known in enumerate(spec.study.known):
        whole = space.complete({**space.default(), **known})
        why = space.legal(whole)
        if why is not None:
            raise SpecError(("study", "known", at), f"it is not legal: {why}")
        found.append(whole)
    return tuple(found)


def trials_of(budget: Budget) -> int | None:
    """The most trials; null: another limit ends the study."""
    return DEFAULT_TRIALS if budget == Budget() else budget.trials


def with_parts(spec: StudySpec, **changes: Any) -> StudySpec:
    """`spec` with other tables."""
    changed: StudySpec = msgspec.structs.replace(spec, **changes)
    return changed
