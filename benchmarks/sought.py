"""A response surface whose trials look for the largest load within the limits themselves, as `[load] mode = "capacity"` does: at most six loads in one
launch. The concurrency is no parameter of the search then. Scores count the true throughput at the load that was found.
"""

import math

import numpy as np

from loadcell.tune.capacity import Capacity, Probe, Range, advance
from loadcell.tune.outcome import TrialResult
from loadcell.tune.parameters import Configuration, Parameter, Value
from surfaces import THROUGHPUT, Surface

_LOW, _HIGH, _FIRST = 8, 2048, 64


class Sought:
    """Of one search: it remembers the best load so far, where the next trial begins."""

    def __init__(self, surface: Surface) -> None:
        self._surface = surface
        self.name, self.limits, self.constraints = surface.name, surface.limits, surface.constraints
        self.parameters: tuple[Parameter, ...] = tuple(one for one in surface.parameters if one.place.load is None)
        self._start, self._best = float(_FIRST), 0.0
        self._loads: dict[tuple[tuple[str, Value], ...], float] = {}

    def value(self, configuration: Configuration) -> float:
        """The true objective at the load that `observe` found; 0 where it found none."""
        load = self._loads.get(tuple(configuration.items()))
        return 0.0 if load is None else self._surface.value({**configuration, "concurrency": round(load)})

    def observe(self, configuration: Configuration, number: int, rng: np.random.Generator) -> TrialResult:
        probes: list[Probe] = []
        measured: dict[float, list[TrialResult]] = {}
        while True:
            step = advance(Range(_LOW, _HIGH, start=self._start), probes)
            if isinstance(step, Capacity):
                break
            one = self._surface.observe({**configuration, "concurrency": round(step.load)}, number, rng)
            if one.outcome == "oom_start":
                return one
            if one.objective is None:
                probes.append(Probe(step.load, died=True, why=step.why))
                continue
            probes.append(Probe(step.load, {name: margin for name, margin in one.violations.items() if margin is not None}, why=step.why))
            measured.setdefault(step.load, []).append(one)
        if not measured:
            return TrialResult(number, configuration, "oom_load", "measure", launch_s=70.0, exit_code=1)
        found = step.load if step.load in measured else None
        own = measured[min(measured) if found is None else found]
        violations: dict[str, float | None] = {
            name: float(np.mean([margin for one in own if (margin := one.violations[name]) is not None])) for name in self.limits
        }
        objective = math.exp(float(np.mean([math.log(one.objective) for one in own if one.objective])))
        good = all(margin is not None and margin <= 0 for margin in violations.values())
        if good and found is not None:
            self._loads[tuple(configuration.items())] = found
            if objective > self._best:
                self._best, self._start = objective, found
        return TrialResult(
            number, configuration, "ok" if good else "slo_violated", "report",
            objective=objective, figures={THROUGHPUT: objective}, violations=violations, launch_s=70.0, measure_s=60.0 * len(probes), stop_s=5.0,
        )  # fmt: skip
