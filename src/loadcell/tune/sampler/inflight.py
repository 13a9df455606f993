"""How many requests run at once in a configuration -> columns and trends of the models: what queueing says of any engine before it runs. Pure.

Throughput is requests in flight over their latency (Little 1961), and a step takes longer the more of them it serves: both rise with what runs
at once, the smaller of what the load offers and what the engine admits. What is offered beyond that waits, and waiting shows in the time to the
first token at once. Models that start from there spend their few trials on what is not known: prediction errors of the logarithm of throughput are
half as large (docs/tuning-benchmark.md).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from loadcell.tune.parameters import Value
from loadcell.tune.sampler.kernel import Floats
from loadcell.tune.space import Space

_ADMITTED: Final = frozenset({"maxnumseqs", "maxbatchsize"})  # vLLM, MindIE: sequences of one data-parallel rank
_ADMITTED_IN_ALL: Final = frozenset({"maxrunningrequests"})  # SGLang: of all ranks
_REPLICAS: Final = frozenset({"dataparallelsize", "dpsize"})
_WAITING: Final = ("ttft", "e2e", "latency")  # figures that hold the time in the queue
_PER_TOKEN: Final = ("tpot", "itl")
_REACH: Final = 5.5  # log of 250: about how far a load is searched, and the unit of a column
_RISE: Final = 0.5  # of a logarithm by that of the requests that run: between no effect and proportional
_QUEUED: Final = 1.0
_SHARP: Final = 2.0


class InFlight:
    """`concurrency`: of the load, where no parameter sets it. `services`: how many share it. `columns`: names of what `of` gives; none where
    nothing is known.
    """

    def __init__(self, space: Space, concurrency: float | None = None, services: int = 1) -> None:
        self._concurrency, self._services = concurrency, services
        self._constants = space.constants
        self._offered = next((one.name for one in space.parameters if one.place.load == "concurrency"), None)
        self._replicas, in_all = _named(space, _REPLICAS), _named(space, _ADMITTED_IN_ALL)
        self._admitted, self._in_all = in_all or _named(space, _ADMITTED), in_all is not None
        known = self._offered is not None or (concurrency is not None and self._admitted is not None)
        self.columns: tuple[str, ...] = ("running*", "each*", "queue*") if known else ()

    def of(self, configurations: Sequence[Mapping[str, Value]]) -> Floats:
        """(n, columns): the logarithm of what runs in all and in one replica, and how far more is offered than admitted; about 1 across each."""
        out = np.empty((len(configurations), len(self.columns)))
        for at, one in enumerate(configurations if self.columns else ()):
            offered = self._number(one, self._offered, self._concurrency or 1.0)
            replicas = self._number(one, self._replicas, 1.0) * self._services
            admitted = self._number(one, self._admitted, math.inf) * (self._services if self._in_all else replicas)
            running = min(offered, admitted)
            queue = math.tanh(_SHARP * math.log(offered / admitted)) if math.isfinite(admitted) else -1.0
            out[at] = math.log(running) / _REACH, math.log(running / replicas) / _REACH, queue / 2
        return out

    def trend(self, figure: str | None) -> Floats:
        """What a logarithm rises by along each column: of the objective (null), or of a limit's figure by its text."""
        slopes = np.zeros(len(self.columns))
        if self.columns and (figure is None or figure.startswith(_WAITING + _PER_TOKEN)):
            slopes[0] = _RISE * _REACH
            slopes[2] = 2 * _QUEUED * (figure is not None and figure.startswith(_WAITING))
        return slopes

    def _number(self, one: Mapping[str, Value], name: str | None, otherwise: float) -> float:
        value = one.get(name, self._constants.get(name, otherwise)) if name is not None else otherwise
        return max(1.0, float(value)) if isinstance(value, int | float) else otherwise


def _named(space: Space, known: frozenset[str]) -> str | None:
    """The parameter or constant that is one of these, by its own name or that of its flag or variable."""
    for one in space.parameters:
        if any(_plain(text) in known for text in (one.name, one.place.flag, one.place.path, one.place.env) if text):
            return one.name
    return next((name for name in space.constants if _plain(name) in known), None)


def _plain(text: str) -> str:
    return text.rsplit(".", 1)[-1].replace("-", "").replace("_", "").lower()
