"""What was tried -> what to try next: default, known-good ones, a space-filling start, then the search. Pure; randomness is an argument.

A proposal is always legal and never one that was tried. Gaussian processes of each metric are fitted on the trials that survived, a survival
process on all whose end the configuration caused. They are compared on a finite set of candidates, so that conditions and constraints are exact:
draws from the whole space, the best trials with some parameters drawn anew, and then, in rounds, steps around the best candidates.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from scipy.stats import qmc

from loadcell.tune.outcome import MEASURED, TEACHES_DEATH, TrialResult
from loadcell.tune.parameters import Configuration, Value
from loadcell.tune.sampler.acquisition import log_expected_improvement, log_within
from loadcell.tune.sampler.gp import Regression
from loadcell.tune.sampler.inflight import InFlight
from loadcell.tune.sampler.kernel import Columns, Floats, Kernel
from loadcell.tune.sampler.survival import Survival
from loadcell.tune.space import Space

_POOL: Final = 1000  # drawn once; each trial looks at some
_DRAWS: Final = 100
_CROSSED: Final = 240
_REDRAWN: Final = (1.0, 2.0, 4.0)  # parameters, on average
_AROUND: Final = 40
_ROUNDS: Final = 3
_CENTRES: Final = 4
_KEPT: Final = 3
_CAUTION: Final = 2.0
_RECENT: Final = 10
_LIKELY: Final = float(np.log(0.5))
_MARGIN: Final = 3.0  # log(measured/limit) beyond e^3 = 20 says nothing more
_POOR: Final = 4.0  # as does an objective of e^-4 of the best
_FILL_POINTS: Final = 64
_KEPT_IN_FILL: Final = 0.5

Key = tuple[tuple[str, Value], ...]
Stage = Literal["default", "known", "fill", "search"]


class Observation(Struct, frozen=True):
    """One trial as the search sees it. `alive` null: it teaches nothing of survival. `values`: the objectives, to be maximised, above 0."""

    configuration: Configuration
    alive: bool | None
    values: tuple[float, ...] = ()
    violations: Mapping[str, float | None] = {}
    feasible: bool = False
    seconds: float = 0.0


class Proposal(Struct, frozen=True):
    """`gain`: expected relative improvement of the best candidate, with its chance of being feasible; null before the search, and while nothing is
    feasible. `log_survival`: of the one proposed.
    """

    configuration: Configuration
    kind: Stage
    gain: float | None = None
    log_survival: float | None = None


def observed(result: TrialResult, second: str | None = None) -> Observation:
    """`second`: the figure that is the second objective of a Pareto front."""
    alive = True if result.outcome in MEASURED else False if result.outcome in TEACHES_DEATH else None
    values: tuple[float, ...] = ()
    if alive and result.objective is not None:
        other = (result.figures.get(second),) if second is not None else ()
        values = tuple(value for value in (result.objective, *other) if value is not None)
        values = values if len(values) == 1 + len(other) and min(values) > 0 and math.isfinite(sum(values)) else ()
    seconds = result.launch_s + result.measure_s + result.stop_s
    violations = {limit: None if value is None or math.isnan(value) else value for limit, value in result.violations.items()}
    return Observation(result.configuration, alive, values, violations, result.feasible, seconds)


def beginnings(space: Space, known: Sequence[Configuration]) -> list[tuple[Stage, Configuration]]:
    """What every search begins with, in order: the default, and the known-good ones, where they are legal."""
    every: list[tuple[Stage, Configuration]] = [("default", space.default())]
    every += [("known", space.complete(one)) for one in known]
    return [(kind, one) for kind, one in every if space.legal(one) is None]


class Search:
    """`limits`: the SLOs' texts, keys of `violations`. `fill`: trials of the space-filling start; null: a third as many as parameters.
    `per_second`: prefer trials that are predicted to be short; for a budget in time. `in_flight`: null: only what `space` tells.
    """

    def __init__(
        self,
        space: Space,
        limits: Sequence[str] = (),
        known: Sequence[Configuration] = (),
        fill: int | None = None,
        *,
        per_second: bool = False,
        in_flight: InFlight | None = None,
    ) -> None:
        self.space, self.limits = space, tuple(limits)
        self.known = tuple(space.complete(one) for one in known)
        self.fill = max(2, len(space.searched) // 3) if fill is None else fill
        self.per_second = per_second
        self.in_flight = in_flight or InFlight(space)
        self.columns = Columns.of((*space.columns, *self.in_flight.columns))
        self.kernel = Kernel(self.columns)
        self.thetas: dict[str, list[Floats]] = {}
        self._pool: list[Configuration] = []

    def propose(self, history: Sequence[Observation], rng: np.random.Generator) -> Proposal | None:
        """Null: nothing is left to try."""
        tried = {key_of(self.space.complete(one.configuration)) for one in history}
        for kind, one in beginnings(self.space, self.known):
            if key_of(one) not in tried:
                return Proposal(one, kind)
        if not self.space.searched:
            return None
        if len(tried) - 1 - len(self.known) < self.fill:
            proposal = self._filling(history, tried, rng)
            if proposal is not None:
                return proposal
        return self._searched(history, tried, rng)

    def _filling(self, history: Sequence[Observation], tried: set[Key], rng: np.random.Generator) -> Proposal | None:
        """Of scrambled Sobol points, the one farthest from all that was tried, in the encoding (Johnson et al. 1990: maximin).

        About half of the parameters of each stay at the default: it most likely lives, far corners most likely do not, and what differs in a random
        half tells the effects apart as a screening design does (Satterthwaite 1959).
        """
        whole: dict[Key, Configuration] = {}
        points = qmc.Sobol(len(self.space.searched), rng=rng).random(_FILL_POINTS)
        default = self.space.default()
        known = np.array([name in default for name in self.space.searched])
        points = np.where(known & (rng.random(points.shape) < _KEPT_IN_FILL), np.array(self.space.to_unit(default)), points)
        for point in points.tolist():
            one = self.space.from_unit(point)
            if self.space.legal(one) is not None:
                repaired = self.space.repair(one)
                if repaired is None:
                    continue
                one = repaired[0]
            if key_of(one) not in tried:
                whole.setdefault(key_of(one), one)
        choices = list(whole.values())
        if not choices:
            return None
        if not history:
            return Proposal(choices[0], "fill")
        models = Models(self, history, rng, survival_only=True)
        near = models.near(choices)
        score = 0.5 * np.log(np.maximum(near.squares.sum(axis=0).min(axis=0), 1e-12)) + models.log_survival(near)
        return Proposal(choices[int(np.argmax(score))], "fill")

    def _searched(self, history: Sequence[Observation], tried: set[Key], rng: np.random.Generator) -> Proposal | None:
        models = Models(self, history, rng)
        if not self._pool:
            self._pool = self.space.candidates(rng, _POOL)
        fresh = rng.choice(len(self._pool), size=min(_DRAWS, len(self._pool)), replace=False)
        found = {key_of(one): one for one in (self._pool[at] for at in fresh)}
        found |= {key_of(one): one for one in self._crossed(rng, models.good)}
        ranked = [one for key, one in found.items() if key not in tried]
        scores = [models.scores(ranked)] if ranked else []
        centres = models.good
        for _ in range(_ROUNDS):
            more = {key_of(one): one for one in self.space.candidates(rng, 2 * _AROUND, centres)[: 2 * _AROUND]}
            new = [one for key, one in more.items() if key not in found and key not in tried]
            found |= more
            if new:
                ranked += new
                scores.append(models.scores(new))
            if not ranked:
                return None
            score = np.concatenate([part[0] for part in scores])
            centres = [ranked[at] for at in np.argsort(-score)[:_CENTRES]]
        score, gain, survival = (np.concatenate(parts) for parts in zip(*scores, strict=True))
        at = int(np.argmax(score))
        expected = float(np.exp(np.max(gain))) if models.best is not None else None
        return Proposal(ranked[at], "search", expected, float(survival[at]))

    def _crossed(self, rng: np.random.Generator, centres: Sequence[Configuration]) -> list[Configuration]:
        """Around each centre, some parameters drawn anew, the others kept: with so many parameters and so few trials almost every uniform draw is far
        from all that is known (Regis & Shoemaker 2013; Eriksson et al. 2019).
        """
        names = len(self.space.searched)
        made: list[Configuration] = []
        for centre in centres:
            here = np.array(self.space.to_unit(centre))
            chance = np.minimum(1.0, rng.choice(_REDRAWN, size=_CROSSED // len(centres)) / names)
            drawn = rng.random((len(chance), names)) < chance[:, None]
            drawn[np.arange(len(chance)), rng.integers(names, size=len(chance))] = True
            for unit in np.where(drawn, rng.random(drawn.shape), here).tolist():
                one = self.space.from_unit(unit)
                if self.space.legal(one) is None:
                    made.append(one)
        return made


class Models:
    """All that is predicted from one history. `best`: the objective to be exceeded, null while nothing is feasible."""

    def __init__(self, search: Search, history: Sequence[Observation], rng: np.random.Generator, *, survival_only: bool = False) -> None:
        self._search = search
        self._rows, self._known = self._encoded([one.configuration for one in history])
        self._squares = search.columns.squares(self._rows, self._rows)
        self._rng = rng
        told = [one.alive for one in history if one.alive is not None][-_RECENT:]
        self._caution = _CAUTION * (1 + 4 * told.count(False) / _RECENT)
        self._survival = self._survivors(history)
        self._limits: list[_Model] = []
        self._objective: _Model | None = None
        self._seconds: _Model | None = None
        self.best: float | None = None
        self.good: list[Configuration] = []
        if not survival_only:
            self._fit(history)

    def near(self, configurations: Sequence[Configuration]) -> "Near":
        rows, known = self._encoded(configurations)
        return Near(self._search.columns.squares(self._rows, rows), known)

    def _encoded(self, configurations: Sequence[Configuration]) -> tuple[Floats, Floats]:
        known = self._search.in_flight.of(configurations)
        return self._search.columns.scaled(np.hstack([self._search.space.encode(configurations), known])), known

    def log_survival(self, near: "Near") -> Floats:
        if self._survival is None:
            return np.zeros(near.squares.shape[2])
        model, rows = self._survival
        return model.log_chance(near.squares[:, rows])

    def scores(self, configurations: Sequence[Configuration]) -> tuple[Floats, Floats, Floats]:
        """Of each: acquisition, log of the expected improvement that is feasible, log P(survives).

        The acquisition is cautious: P(survives) counts more than once, and more yet while trials have been dying lately. Memory ends at an edge, the best
        configurations stand close to it, and a smooth model is too hopeful there; a trial that dies tells nothing of the metrics.
        """
        near = self.near(configurations)
        survival = self.log_survival(near)
        gain = self._log_within(near) + survival
        if self._objective is not None and self.best is not None:
            gain = gain + log_expected_improvement(*self._objective.predict(near), self.best)
        score = gain + (self._caution - 1) * survival
        if self._seconds is not None:
            score = score - self._seconds.predict(near)[0]
        return score, gain, survival

    def _survivors(self, history: Sequence[Observation]) -> "tuple[Survival, Rows] | None":
        rows = np.array([at for at, one in enumerate(history) if one.alive is not None], dtype=np.intp)
        alive = [bool(history[at].alive) for at in rows]
        if all(alive):
            return None
        thetas = self._search.thetas.setdefault("survival", [])
        model = Survival(self._search.kernel, self._squares[:, rows[:, None], rows], alive, thetas[-1] if thetas else None)
        thetas[:] = [model.theta]
        return model, rows

    def _fit(self, history: Sequence[Observation]) -> None:
        alive = [at for at, one in enumerate(history) if one.alive]
        for limit in self._search.limits:
            told = [(at, violation) for at in alive if (violation := history[at].violations.get(limit)) is not None]
            if len(told) >= 2:
                self._limits.append(
                    self._regression(
                        limit,
                        [at for at, _ in told],
                        np.clip([value for _, value in told], -_MARGIN, _MARGIN),
                        self._search.in_flight.trend(limit),
                    )
                )
        measured = [at for at in alive if history[at].values]
        self.good = [history[at].configuration for at in (measured or alive)[-_CENTRES:]]
        if len(measured) >= 2:
            self._value(history, np.array(measured))
        timed = [at for at in alive if history[at].seconds > 0]
        if self._search.per_second and len(timed) >= 4:
            self._seconds = self._regression("seconds", timed, np.log([history[at].seconds for at in timed]))

    def _value(self, history: Sequence[Observation], measured: "Rows") -> None:
        logs = np.log([history[at].values for at in measured])
        y = _scalar(logs, self._rng)
        trend = self._search.in_flight.trend(None) if logs.shape[1] == 1 else None
        self._objective = self._regression("objective", measured, np.maximum(y, np.max(y) - _POOR), trend)
        near = Near(self._squares[:, :, measured], self._known[measured])
        mean, _ = self._objective.predict(near)
        chance = self._log_within(near)
        self.good = [history[measured[at]].configuration for at in np.argsort(-(mean + np.maximum(chance, -4)))[:_CENTRES]]
        feasible = [at for at in range(len(measured)) if history[measured[at]].feasible]
        if feasible:
            # A lucky measurement of a point that most likely violates is no incumbent: of the likely ones, the best mean.
            likely = [at for at in feasible if chance[at] > _LIKELY] or feasible
            self.best = float(np.max(mean[likely]))

    def _regression(self, name: str, rows: "Sequence[int] | Rows", y: Floats, trend: Floats | None = None) -> "_Model":
        at = np.asarray(rows, dtype=np.intp)
        thetas = self._search.thetas.setdefault(name, [])
        slopes = np.zeros(self._known.shape[1]) if trend is None else trend
        model = Regression(self._search.kernel, self._squares[:, at[:, None], at], y - self._known[at] @ slopes, thetas)
        thetas[:] = [*thetas, model.theta][-_KEPT:]
        return _Model(model, at, slopes)

    def _log_within(self, near: "Near") -> Floats:
        out = np.zeros(near.squares.shape[2])
        for model in self._limits:
            out += log_within(*model.predict(near))
        return out


Rows = npt.NDArray[np.intp]


class Near(NamedTuple):
    """New configurations beside the history. `squares`: (groups, history, m); `known`: (m, columns) of `InFlight.of`."""

    squares: Floats
    known: Floats


class _Model(NamedTuple):
    regression: Regression
    rows: Rows
    slopes: Floats

    def predict(self, near: Near) -> tuple[Floats, Floats]:
        mean, deviation = self.regression.predict(near.squares[:, self.rows])
        return mean + near.known @ self.slopes, deviation


def key_of(configuration: Configuration) -> Key:
    """Of configurations that `complete` made: their names stand in one order."""
    return tuple(configuration.items())


def _scalar(logs: Floats, rng: np.random.Generator) -> Floats:
    """One objective as it is; several by augmented Chebyshev with weights drawn anew for each trial (ParEGO, Knowles 2006)."""
    if logs.shape[1] == 1:
        return logs[:, 0]
    low, high = logs.min(axis=0), logs.max(axis=0)
    lost = (high - logs) / np.maximum(high - low, 1e-9)
    weights = rng.dirichlet(np.ones(logs.shape[1]))
    weighted = weights * lost
    return np.asarray(-(weighted.max(axis=1) + 0.05 * weighted.sum(axis=1)))
