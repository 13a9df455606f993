"""optuna's storage, held open for one study: ask, take up again, tell. A journal file of the study's folder, or a database that machines share.

The events of the folder are the truth: what they know and the storage does not (a process was killed between the two) is told to it at the next
opening. Numbers of trials are optuna's, so that they are the same in its dashboard, in this folder, and on every machine that shares the storage.
"""

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.seeds import derive
from loadcell.tune.events import Record
from loadcell.tune.outcome import TrialResult
from loadcell.tune.parameters import Configuration
from loadcell.tune.sampler import SearchSpec, make_sampler
from loadcell.tune.space import Space

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna.storages import BaseStorage

    from loadcell.tune.sampler.told import Asked

BY: Final = "loadcell:by"
FINGERPRINT: Final = "loadcell:fingerprint"
CONFIRMED_BY: Final = "loadcell:confirmed_by"
_FROM_STORAGE: Final = ("model", "pso", "qmc", "grid", "cmaes")
"""Samplers whose next proposal depends on the stored trials and the seed alone."""


class Book:
    """`by`: the study's folder, as others that share the storage see it. `second`: the figure that is the second objective of a Pareto front."""

    def __init__(self, study: "OptunaStudy", space: Space, known: Sequence[Configuration], by: str, second: str | None = None) -> None:
        self._study, self._space, self._known, self._by, self._second = study, space, tuple(known), by, second
        self.finished = False
        """The sampler has said that nothing is left."""

    def ask(self) -> "Asked":
        """The next configuration of the search."""
        from loadcell.tune.sampler.told import ask

        asked = ask(self._study, self._space, self._known)
        if asked.configuration is not None:
            asked.trial.set_user_attr(BY, self._by)
        return asked

    def further(self, configuration: Configuration) -> Any:
        """A trial that the search did not ask for: a control, a confirmation."""
        from optuna.samplers import RandomSampler

        from loadcell.tune.sampler.told import distributions, parameters_of

        self._study.enqueue_trial(parameters_of(self._space, configuration))
        sampler, self._study.sampler = self._study.sampler, RandomSampler(seed=0)  # what is enqueued is known: no model is fitted for it
        try:
            trial = self._study.ask(distributions(self._space))
        finally:
            self._study.sampler = sampler
        trial.set_user_attr(BY, self._by)
        return trial

    def take_up(self, number: int) -> Any:
        """The trial of this number, which began before and was cut off."""
        from optuna.trial import Trial

        frozen = next((one for one in self._study.get_trials(deepcopy=False) if one.number == number), None)
        if frozen is None or frozen.state.is_finished():
            raise EnvironmentFailure(f"trial {number} is not in the study's storage as it was left; was the storage changed or replaced?")
        return Trial(self._study, frozen._trial_id)  # noqa: SLF001 - optuna has no other name for it

    def tell(self, trial: Any, result: TrialResult) -> None:
        """How it ended."""
        from loadcell.tune.sampler.told import tell

        try:
            tell(self._study, trial, result, self._second)
        except (RuntimeError, KeyError):
            # optuna's GridSampler ends a study that it does not run when its grid is through; the result is stored by then.
            if type(self._study.sampler).__name__ != "GridSampler":
                raise
            self.finished = True

    def pass_over(self, trial: Any) -> None:
        """It is not run."""
        from loadcell.tune.sampler.told import pass_over

        pass_over(self._study, trial)

    def add_prior(self, results: Sequence[TrialResult]) -> None:
        """Trials that were made elsewhere, once."""
        import optuna

        from loadcell.tune.sampler.told import RESULT, distributions, parameters_of  # fmt: skip
        from loadcell.tune.sampler.told import results as told

        there = {one.number for one in told(self._study)}
        for result in results:
            if result.number in there:
                continue
            import msgspec

            alive = result.objective is not None and self._second is None
            self._study.add_trial(
                optuna.create_trial(
                    state=optuna.trial.TrialState.COMPLETE if alive else optuna.trial.TrialState.PRUNED,
                    value=result.objective if alive else None,
                    params=parameters_of(self._space, result.configuration),
                    distributions=distributions(self._space),
                    user_attrs={RESULT: msgspec.to_builtins(result)},
                )
            )

    def results(self) -> list[TrialResult]:
        """Of all machines that share the storage."""
        from loadcell.tune.sampler.told import results

        return results(self._study)

    def reconcile(self, record: Record, *, alone: bool) -> list[tuple[Any, Configuration]]:
        """Tell what the storage does not know; (trial, configuration) of what was asked and never began. `alone`: nobody else uses the storage."""
        from optuna.trial import Trial, TrialState

        from loadcell.tune.sampler.told import CONFIGURATION

        began, numbers = record.numbers(), {one.number: one for one in record.results.values()}
        again: list[tuple[Any, Configuration]] = []
        for frozen in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            trial = Trial(self._study, frozen._trial_id)  # noqa: SLF001
            ours = alone or frozen.user_attrs.get(BY) == self._by
            if not ours or (frozen.number in began and frozen.number not in numbers):
                continue
            if frozen.number in numbers:
                self.tell(trial, numbers[frozen.number])
            elif CONFIGURATION in frozen.user_attrs:
                again.append((trial, frozen.user_attrs[CONFIGURATION]))
            else:
                self.pass_over(trial)
        return again

    def may_confirm(self) -> bool:
        """One of several machines confirms: the first that comes to it."""
        held = self._study.user_attrs.get(CONFIRMED_BY)
        if held is None:
            self._study.set_user_attr(CONFIRMED_BY, self._by)
        return held in (None, self._by)

    def fingerprint(self, now: Mapping[str, str | None]) -> dict[str, str | None]:
        """What the study in the storage was begun with; `now` where it begins."""
        before: dict[str, str | None] | None = self._study.user_attrs.get(FINGERPRINT)
        if before is None:
            self._study.set_user_attr(FINGERPRINT, dict(now))
        return dict(now) if before is None else before


def open_book(
    url: str | None, journal: Path, name: str, sampler: str, search: SearchSpec, by: str, *, directions: int = 1
) -> Book:  # fmt: skip
    """`url` null: the journal file. UserError for a storage that cannot be opened."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="optuna")
        study = optuna.create_study(
            storage=_journal(journal) if url is None else _database(url),
            study_name=name,
            directions=["maximize"] * directions,
            load_if_exists=True,
        )
    asked = len(study.get_trials(deepcopy=False))
    if asked and sampler not in _FROM_STORAGE:
        # optuna's own draw from a generator that begins anew: with the same seed a resumed study would be proposed what it has tried.
        search = replace(search, seed=derive(search.seed, "session", by, asked))
    study.sampler = make_sampler(sampler, search)
    return Book(study, search.space, search.known, by, search.second)


def _journal(path: Path) -> "BaseStorage":
    """Of this process alone: whatever a killed one left, half a line or a lock, is cleared away."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    path.with_name(path.name + ".lock").unlink(missing_ok=True)
    if path.exists():
        body = path.read_bytes()
        if body and not body.endswith(b"\n"):
            os.truncate(path, body.rfind(b"\n") + 1)
    return JournalStorage(JournalFileBackend(str(path)))


def _database(url: str) -> "BaseStorage":
    from optuna.storages import get_storage

    try:
        return get_storage(url)
    except ImportError as missing:
        driver = missing.name or str(missing).splitlines()[0]
        raise UserError(f"[study] storage = {_shown(url)!r}: its driver is not installed ({driver})") from None
    except Exception as wrong:  # noqa: BLE001 - each driver has errors of its own
        said = str(wrong).splitlines()[0]
        raise UserError(f"[study] storage = {_shown(url)!r} cannot be opened: {said}; give a URL such as sqlite:///study.db") from None


def _shown(url: str) -> str:
    """Without a password."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:…@", url)
