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
from loadcell.tune.sampler.names import named, number, varies
from loadcell.tune.space import Space

_ADMITTED: Final = frozenset({"maxnumseqs", "maxbatchsize"})  # vLLM, MindIE: sequences of one data-parallel rank
_ADMITTED_IN_ALL: Final = frozenset({"maxrunningrequests"})  # SGLang: of all ranks
_REPLICAS: Final = frozenset({"dataparallelsize", "dpsize"})
_WAITING: Final = ("ttft", "e2e", "latency")  # figures that hold the time in the queue
_PER_TOKEN: Final = ("tpot", "itl")
_MANY: Final = 4096.0
_REACH: Final = 5.5  # log of 250: about how far a load is searched, and the unit of a column
_RISE: Final = 0.5  # of a logarithm by that of the requests that run: between no effect and proportional
_QUEUED: Final = 1.0
_SHARP: Final = 2.0


class InFlight:
    """`concurrency`: of the load, where no parameter sets it. `services`: how many share it. `columns`: names of what `of` gives; none where
    nothing is known. Where each trial looks for the load itself only what the engine admits is known.
    """

    def __init__(self, space: Space, concurrency: float | None = None, services: int = 1) -> None:
        self._concurrency, self._services = concurrency, services
        self._space = space
        self._offered = next((one.name for one in space.parameters if one.place.load == "concurrency"), None)
        self._replicas, in_all = named(space, _REPLICAS), named(space, _ADMITTED_IN_ALL)
        self._admitted, self._in_all = in_all or named(space, _ADMITTED), in_all is not None
        self._told = self._offered is not None or (concurrency is not None and self._admitted is not None)
        self._most = _largest(space, self._admitted)
        self.columns: tuple[str, ...] = (
            ("running*", "each*", "queue*") if self._told else ("admitted*",) if varies(space, self._admitted) else ()
        )

    def of(self, configurations: Sequence[Mapping[str, Value]]) -> Floats:
        """(n, columns): the logarithm of what runs in all and in one replica, and how far more is offered than admitted; or of what is admitted in all;
        about 1 across each.
        """
        out = np.empty((len(configurations), len(self.columns)))
        for at, one in enumerate(configurations if self.columns else ()):
            offered = self._number(one, self._offered, self._concurrency or 1.0)
            replicas = self._number(one, self._replicas, 1.0) * self._services
            admitted = self._number(one, self._admitted, math.inf) * (self._services if self._in_all else replicas)
            if not self._told:
                out[at] = math.log(min(admitted, self._most * replicas)) / _REACH
                continue
            running = min(offered, admitted)
            queue = math.tanh(_SHARP * math.log(offered / admitted)) if math.isfinite(admitted) else -1.0
            out[at] = math.log(running) / _REACH, math.log(running / replicas) / _REACH, queue / 2
        return out

    def trend(self, figure: str | None) -> Floats:
        """What a logarithm rises by along each column: of the objective (null), or of a limit's figure by its text."""
        slopes = np.zeros(len(self.columns))
        if self._told and (figure is None or figure.startswith(_WAITING + _PER_TOKEN)):
            slopes[0] = _RISE * _REACH
            slopes[2] = 2 * _QUEUED * (figure is not None and figure.startswith(_WAITING))
        return slopes

    def _number(self, one: Mapping[str, Value], name: str | None, otherwise: float) -> float:
        return max(1.0, number(self._space, one, name, otherwise))


def _largest(space: Space, name: str | None) -> float:
    """Of a parameter's range: where it is absent, the engine admits what its memory holds."""
    domain = space.domains.get(name) if name is not None else None
    most = domain and (domain.values[-1] if domain.values else domain.high)
    return float(most) if isinstance(most, int | float) else _MANY
