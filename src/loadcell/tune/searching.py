"""The search of a study: what the sampler asks for, controls of drift, what the record answers, until a reason to stop holds."""

from collections.abc import Sequence
from typing import Any, Final

from loadcell.fleet.events import now_text
from loadcell.tune import drift, stopping
from loadcell.tune.events import SEARCH, Answered, Began, Rejected, Searched, TrialKind
from loadcell.tune.measuring import Measuring
from loadcell.tune.outcome import MEASURED, TEACHES_DEATH, TrialResult
from loadcell.tune.parameters import Configuration
from loadcell.tune.stopping import Budget, Progress

_NOTHING_NEW: Final = 50
"""Proposals in a row that were measured before, or are not legal: the sampler has nothing left."""
_LEAST_PER_PARAMETER: Final = 2
"""Trials for each parameter before an expected improvement counts as small: a model of fewer takes a gain of a few deviations for noise."""


class Search:
    """`run` once. `again`: trials that the storage had asked for and that never began."""

    def __init__(self, measuring: Measuring, again: Sequence[tuple[Any, Configuration]] = ()) -> None:
        self._measuring, self._setting, self._book, self._record = measuring, measuring.setting, measuring.book, measuring.record
        self._again = list(again)
        self._nothing_new = 0
        self._exhausted = False

    def run(self) -> Searched:
        """To its end, or on from where an earlier session was. Raises Interrupted."""
        self._measuring.watcher.stage("search")
        self._from_before()
        while True:
            why = self._stop()
            if why is not None:
                searched = Searched(now_text(), why.reason, why.text, why.failed)
                self._measuring.append(searched)
                self._measuring.watcher.stage(f"the search ends: {why.text}")
                return searched
            self._next()

    def _from_before(self) -> None:
        """What was in flight when an earlier session ended, and what was asked for and never began."""
        for began in self._record.in_flight():
            if began.kind in SEARCH or began.kind == "drift":
                self._measuring.measured_now(began, self._book.take_up(began.number))
        for trial, configuration in self._again:
            key = self._setting.space.key(configuration)
            default = key == self._setting.space.key(self._setting.space.default())
            self._asked(trial, configuration, "default" if default else "search", None)

    def _next(self) -> None:
        """One step: a control, or what the sampler asks for."""
        done = self._record.searching()
        if drift.due(done):
            self._control(done)
            return
        asked = self._book.ask()
        if asked.configuration is None:
            self._book.pass_over(asked.trial)
            self._exhausted = self._exhausted or asked.exhausted
            if not asked.exhausted:
                self._nothing_new += 1
                self._measuring.append(Rejected(now_text(), asked.trial.number))
            return
        earlier = self._earlier(asked.configuration)
        if earlier is not None:
            self._nothing_new += 1
            self._book.tell(asked.trial, earlier)
            self._measuring.append(Answered(now_text(), asked.trial.number, earlier.number))
            return
        self._nothing_new = 0
        self._asked(asked.trial, asked.configuration, asked.kind, asked.gain)

    def _asked(self, trial: Any, configuration: Configuration, kind: TrialKind, gain: float | None) -> None:
        began = Began(now_text(), trial.number, kind, f"search/{trial.number}", configuration, gain)
        self._measuring.measured_now(began, trial)
        if kind == "default":
            self._book.add_prior([self._measuring.with_second(one) for one in self._setting.prior])

    def _control(self, done: Sequence[TrialResult]) -> None:
        """The baseline again; what follows is told as it would have been without the drift."""
        baseline = drift.baseline_of(done)
        assert baseline is not None
        trial = self._book.further(baseline)
        self._measuring.measured_now(Began(now_text(), trial.number, "drift", f"drift/{trial.number}", baseline), trial)

    def _earlier(self, configuration: Configuration) -> TrialResult | None:
        """What the record answers: a result that says something of this very configuration."""
        key = self._setting.space.key(configuration)
        for one in self._book.results() if self._setting.shared else self._record.results.values():
            if one.number >= 0 and one.outcome in MEASURED | TEACHES_DEATH and self._setting.space.key(one.configuration) == key:
                return one
        return None

    def _stop(self) -> stopping.Stop | None:
        self._measuring.may_go_on()
        every = self._record.searching()
        counted = len(every)
        if self._setting.shared:
            counted = sum(one.number >= 0 and (one.kind in SEARCH or one.kind == "drift") for one in self._book.results())
        spent = self._measuring.spent()
        progress = Progress(
            elapsed_s=spent.elapsed_s,
            trials=counted,
            launches=spent.launches,
            ended=[(one.outcome, one.phase) for one in every[self._record.failed_at :]],
            gains=self._record.gains() if len(every) >= _LEAST_PER_PARAMETER * len(self._setting.space.searched) else (),
            exhausted=self._exhausted or self._book.finished or self._nothing_new >= _NOTHING_NEW,
        )
        return stopping.stop(progress, self._for_search())

    def _for_search(self) -> Budget:
        how = self._setting.confirm
        if not how.max_rounds or self._setting.second is not None:
            return self._setting.budget
        rounds = (how.min_rounds + how.max_rounds + 1) // 2
        return stopping.reserve(self._setting.budget, rounds * (how.candidates + 1), self._measuring.trial_s())
