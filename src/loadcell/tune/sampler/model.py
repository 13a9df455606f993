"""Our search as an optuna sampler: the study's trials in, parameters of the next one out. Randomness derives from the seed and the trial's number."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState
from threadpoolctl import ThreadpoolController

from loadcell.seeds import derive
from loadcell.tune.parameters import Configuration
from loadcell.tune.sampler.inflight import InFlight
from loadcell.tune.sampler.search import Observation, Proposal, Search, observed
from loadcell.tune.sampler.told import CONFIGURATION, RESULT, distributions, parameters_of, results
from loadcell.tune.space import Space


class ModelSampler(optuna.samplers.BaseSampler):
    """`proposals`: by trial number, exact where optuna's parameters can only be near (a default outside its range). `ask` takes them from there."""

    def __init__(
        self, space: Space, seed: int, limits: Sequence[str] = (), known: Sequence[Configuration] = (), second: str | None = None,
        *, per_second: bool = False, in_flight: InFlight | None = None,
    ) -> None:  # fmt: skip
        self._space, self._seed, self._second = space, seed, second
        self._search = Search(space, limits, known, per_second=per_second, in_flight=in_flight)
        self._threads = ThreadpoolController()
        self.proposals: dict[int, Proposal] = {}

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        return distributions(self._space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]  # noqa: ARG002
    ) -> dict[str, Any]:  # fmt: skip
        history = [observed(result, self._second) for result in results(study)]
        # What other machines are trying is taken; it teaches nothing yet. So is what never gave a result.
        for one in study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.FAIL)):
            if CONFIGURATION in one.user_attrs and RESULT not in one.user_attrs:
                history.append(Observation(one.user_attrs[CONFIGURATION], None))
        rng = np.random.default_rng(derive(self._seed, "sampler", trial.number))
        # Matrices of a few dozen rows: a second thread would mostly wait for the first, on cores that a service under test may share.
        with self._threads.limit(limits=1, user_api="blas"):
            proposal = self._search.propose(history, rng)
        if proposal is None:
            return {}
        self.proposals[trial.number] = proposal
        return parameters_of(self._space, proposal.configuration)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution  # noqa: ARG002
    ) -> Any:  # fmt: skip
        """For a trial that was not proposed: the parameter's middle."""
        return self._space.domains[param_name].at(0.5)
