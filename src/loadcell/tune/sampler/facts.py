"""All that is known of a configuration before it runs: what will be in flight, and what it asks of a device. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np

from loadcell.tune.parameters import Value
from loadcell.tune.sampler.compute import Compute
from loadcell.tune.sampler.inflight import InFlight
from loadcell.tune.sampler.kernel import Floats
from loadcell.tune.space import Space


class Facts:
    """Columns that the models get beside the encoded parameters. They know parameters by the names that vLLM, SGLang and MindIE give them; of others
    nothing is said. `concurrency`: of the load, where no parameter sets it. `services`: how many share it.
    """

    def __init__(self, space: Space, concurrency: float | None = None, services: int = 1) -> None:
        self._flight, self._compute = InFlight(space, concurrency, services), Compute(space)
        self.columns = (*self._flight.columns, *self._compute.columns)

    def of(self, configurations: Sequence[Mapping[str, Value]]) -> Floats:
        """(n, columns)."""
        return np.hstack([self._flight.of(configurations), self._compute.of(configurations)])

    def trend(self, figure: str | None) -> Floats:
        """What a logarithm rises by along each column: of the objective (null), or of a limit's figure by its text."""
        return np.concatenate([self._flight.trend(figure), np.zeros(len(self._compute.columns))])
