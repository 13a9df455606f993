"""A study from its first trial to its answer: search, confirmation, reverting. Decisions are pure functions' (`stopping`, `drift`, `confirm`), the
sampler's, and are taken over the record; what happens is appended to it before the next step. So a study that was killed goes on where it was.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from loadcell.clock import NS_PER_S, Clock
from loadcell.errors import LoadcellError
from loadcell.fleet.events import now_text
from loadcell.load.signals import leave
from loadcell.tune import drift, stopping
from loadcell.tune.confirming import Confirmed, confirmed, reverted, settled, shortlisted
from loadcell.tune.events import (
    SEARCH,
    Announced,
    Answered,
    Began,
    Closed,
    Drifted,
    Ended,
    Event,
    Record,
    Rejected,
    Searched,
    StudyState,
    TrialKind,
)
from loadcell.tune.outcome import MEASURED, TEACHES_DEATH, TrialResult
from loadcell.tune.parameters import Configuration
from loadcell.tune.space import Space
from loadcell.tune.spec import Confirm
from loadcell.tune.standing import Spent, failure_text, front, seconds_of, spent_of
from loadcell.tune.stopping import Budget, Progress
from loadcell.tune.storage import Book
from loadcell.tune.study_folder import StudyFolder

_NOTHING_NEW: Final = 50
"""Proposals in a row that were measured before, or are not legal: the sampler has nothing left."""
_LEAST_PER_PARAMETER: Final = 2
"""Trials for each parameter before an expected improvement counts as small: a model of fewer takes a gain of a few deviations for noise."""
SECOND: Final = "second"
"""The figure that is the second objective of a Pareto front; larger is better."""


class Measurer(Protocol):
    """What measures one configuration. `trial.Trial` does."""

    def measure(self, configuration: Configuration, number: int, kind: TrialKind) -> TrialResult:
        """Never raises for what the configuration or the machine did: that is a result."""

    def remember(self, result: TrialResult) -> None:
        """An earlier result, of this study."""


class Reports(Protocol):
    """Who writes down what a study has found. `reporting.Reporter` does."""

    def after_trial(self, record: Record, elapsed_s: float) -> None:
        """What there is so far: cheap. Raises LoadcellError."""

    def write(self, record: Record, *, running: bool = False, others: Sequence[TrialResult] = ()) -> object:
        """At its end, everything. `others`: trials of other machines that share the storage. Raises LoadcellError."""


class StudyWatcher:
    """What a study tells while it goes on. Override what is of interest."""

    def stage(self, text: str) -> None:
        """Search, confirmation, reverting begins."""

    def began(self, began: Began) -> None:
        """A trial is about to be measured."""

    def ended(self, result: TrialResult, spent: "Spent") -> None:
        """With what it gave."""

    def note(self, text: str) -> None:
        """Something that a person wants to know."""


class Setting(Struct, frozen=True):
    """What a study is given. `limits`: keys of `violations`. `second`: result -> the second objective of a front. `prior`: trials made elsewhere.

    `importance`: of each parameter, from the results of the search.
    """

    space: Space
    budget: Budget = Budget()
    confirm: Confirm = Confirm()
    known: tuple[Configuration, ...] = ()
    limits: tuple[str, ...] = ()
    second: Callable[[TrialResult], float | None] | None = None
    prior: tuple[TrialResult, ...] = ()
    shared: bool = False
    importance: Callable[[Space, Sequence[TrialResult]], Mapping[str, float]] = lambda space, results: {}  # noqa: ARG005


class Interrupted(Exception):
    """The user has asked for the end."""


class Study:
    """`execute` once. `again`: trials that the storage had asked for and that never began."""

    def __init__(
        self,
        setting: Setting,
        folder: StudyFolder,
        book: Book,
        measurer: Measurer,
        clock: Clock,
        watcher: StudyWatcher | None = None,
        again: Sequence[tuple[Any, Configuration]] = (),
        reports: Reports | None = None,
    ) -> None:
        self._reports = reports
        self.reported: object = None
        """What the reports gave at its end."""
        self._setting, self._folder, self._book, self._measurer, self._clock = setting, folder, book, measurer, clock
        self._watcher = watcher or StudyWatcher()
        self._again = list(again)
        self._record = folder.record
        self._before_s, self._since_ns = self._record.elapsed_s, clock.now_ns()
        self._nothing_new = 0
        self._exhausted = False
        self._measuring = False
        self.signal: int | None = None

    @property
    def space(self) -> Space:
        return self._setting.space

    # --- from start to end

    def execute(self) -> Closed:
        """To its end, or as far as it gets. Raises LoadcellError for what the user must change; the record is closed before."""
        for result in self._record.results.values():
            self._measurer.remember(result)
        try:
            return self._through()
        except Interrupted:
            return self._close("interrupted", "none", "the user ended it")
        except LoadcellError as failure:
            self._close("stopped", "none", str(failure), quietly=True)
            raise

    def on_signal(self, number: int) -> None:
        """For a signal's handler: between two trials the study ends, a second one leaves at once. During a trial it is the trial's to handle."""
        if self.signal is not None and not self._measuring:
            raise leave(number)
        self.signal = self.signal or number

    def _through(self) -> Closed:
        searched = self._record.searched or self._searched()
        results = self._corrected()
        if searched.failed or not any(one.outcome in MEASURED for one in results):
            return self._close("failed", "none", failure_text(searched.text, self._record.searching()))
        if self._setting.second is not None:
            count = len(front(results, self._setting.second))
            return self._close("complete", "front", f"a front of {count} configuration{'' if count == 1 else 's'} within the limits")
        return self._answer(results)

    def _answer(self, results: Sequence[TrialResult]) -> Closed:
        space, how, limits = self._setting.space, self._setting.confirm, self._setting.limits
        default = space.default()
        candidates = self._record.shortlist
        if candidates is None:
            candidates = shortlisted(self, results, default, space, how.candidates)
        if not candidates:
            text = "no reliable improvement: nothing else than the default was measured to be within the limits"
            return self._close("complete", "no_reliable_improvement", text, default)
        if not how.max_rounds or not self._book.may_confirm():
            who = "confirmation is turned off" if not how.max_rounds else "another machine of this study confirms"
            return self._close("complete", "not_confirmed", f"{who}: no claim is made", default)
        self._watcher.stage(f"confirmation: {len(candidates)} candidate{'' if len(candidates) == 1 else 's'} and the default, in rounds")
        legal = default if space.legal(default) is None else None
        found = confirmed(self, how, candidates, legal, limits)
        if found.winner is None:
            return self._no_winner(found, default)
        self._watcher.stage("reverting what does not matter")
        best = reverted(self, found, default, space, self._setting.importance(space, results), limits, keep=2 * how.min_rounds)
        if best != found.winner:
            self._watcher.stage("what is left is measured in rounds with the default, too")
            final = settled(self, how, best, legal, limits)
            if final.winner is not None:
                return self._won(final, best)
            self.note("without what was reverted the gain is not reliable: the winner stays as it was confirmed")
        return self._won(found, found.winner)

    def _won(self, found: Confirmed, best: Configuration) -> Closed:
        assert found.decision is not None
        verdict: Announced = "default_fails" if found.decision.verdict == "default_fails" else "winner"
        return self._close("complete", verdict, found.decision.text, best)

    def _no_winner(self, found: Confirmed, default: Configuration) -> Closed:
        if found.decision is None or not (found.enough or len(found.rounds) >= self._setting.confirm.min_rounds):
            text = f"not confirmed: {found.ended} after {len(found.rounds)} rounds, so no claim is made"
            return self._close("complete", "not_confirmed", text, default)
        return self._close("complete", "no_reliable_improvement", found.decision.text, default)

    def _close(
        self, state: StudyState, announced: Announced, text: str, best: Configuration | None = None, *, quietly: bool = False
    ) -> Closed:
        closed = Closed(now_text(), state, announced, text, best)
        try:
            self.append(closed)
        except LoadcellError:
            if not quietly:
                raise
        self._report_all(quietly=quietly)
        return closed

    # --- reports

    def _report_all(self, *, quietly: bool) -> None:
        if self._reports is None:
            return
        try:
            self.reported = self._reports.write(self._record, others=self._of_others())
        except LoadcellError as failure:
            if not quietly:
                raise
            self._watcher.note(str(failure))

    def _report_so_far(self) -> None:
        """A report that cannot be written ends no study: its record is what counts."""
        if self._reports is None:
            return
        try:
            self._reports.after_trial(self._record, self.spent().elapsed_s)
        except LoadcellError as failure:
            self._watcher.note(str(failure))

    def _of_others(self) -> list[TrialResult]:
        if not self._setting.shared:
            return []
        numbers = {one.number for one in self._record.results.values()}
        return [one for one in self._book.results() if one.number >= 0 and one.number not in numbers and one.kind in SEARCH]

    # --- the search

    def _searched(self) -> Searched:
        self._watcher.stage("search")
        self._from_before()
        while True:
            why = self._stop()
            if why is not None:
                searched = Searched(now_text(), why.reason, why.text, why.failed)
                self.append(searched)
                self._watcher.note(f"the search ends: {why.text}")
                return searched
            self._next()

    def _from_before(self) -> None:
        """What was in flight when an earlier session ended, and what was asked for and never began."""
        for began in self._record.in_flight():
            if began.kind in SEARCH or began.kind == "drift":
                self._measured_now(began, self._book.take_up(began.number))
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
                self.append(Rejected(now_text(), asked.trial.number))
            return
        earlier = self._earlier(asked.configuration)
        if earlier is not None:
            self._nothing_new += 1
            self._book.tell(asked.trial, earlier)
            self.append(Answered(now_text(), asked.trial.number, earlier.number))
            return
        self._nothing_new = 0
        self._asked(asked.trial, asked.configuration, asked.kind, asked.gain)

    def _asked(self, trial: Any, configuration: Configuration, kind: TrialKind, gain: float | None) -> None:
        began = Began(now_text(), trial.number, kind, f"search/{trial.number}", configuration, gain)
        self._measured_now(began, trial)
        if kind == "default":
            self._book.add_prior([self._with_second(one) for one in self._setting.prior])

    def _control(self, done: Sequence[TrialResult]) -> None:
        """The baseline again; what follows is told as it would have been without the drift."""
        baseline = drift.baseline_of(done)
        assert baseline is not None
        trial = self._book.further(baseline)
        self._measured_now(Began(now_text(), trial.number, "drift", f"drift/{trial.number}", baseline), trial)

    def _earlier(self, configuration: Configuration) -> TrialResult | None:
        """What the record answers: a result that says something of this very configuration."""
        key = self._setting.space.key(configuration)
        for one in self._book.results() if self._setting.shared else self._record.results.values():
            if one.number >= 0 and one.outcome in MEASURED | TEACHES_DEATH and self._setting.space.key(one.configuration) == key:
                return one
        return None

    def _stop(self) -> stopping.Stop | None:
        self._may_go_on()
        every = self._record.searching()
        counted = len(every)
        if self._setting.shared:
            counted = sum(one.number >= 0 and (one.kind in SEARCH or one.kind == "drift") for one in self._book.results())
        spent = self.spent()
        progress = Progress(
            elapsed_s=spent.elapsed_s,
            trials=counted,
            launches=spent.launches,
            ended=[(one.outcome, one.phase) for one in every[self._record.failed_at :]],
            gains=self._record.gains() if len(every) >= _LEAST_PER_PARAMETER * len(self.space.searched) else (),
            exhausted=self._exhausted or self._book.finished or self._nothing_new >= _NOTHING_NEW,
        )
        return stopping.stop(progress, self._for_search())

    def _for_search(self) -> Budget:
        how = self._setting.confirm
        if not how.max_rounds or self._setting.second is not None:
            return self._setting.budget
        rounds = (how.min_rounds + how.max_rounds + 1) // 2
        return stopping.reserve(self._setting.budget, rounds * (how.candidates + 1), self._trial_s())

    # --- one measurement

    def measured(self, tag: str, kind: TrialKind, configuration: Configuration) -> TrialResult:
        """Of a confirmation: as the record knows it, or measured now."""
        if tag in self._record.results:
            return self._record.results[tag]
        self._may_go_on()
        before = self._record.began.get(tag)
        trial = self._book.take_up(before.number) if before is not None else self._book.further(configuration)
        return self._measured_now(Began(now_text(), trial.number, kind, tag, configuration), trial)

    def _measured_now(self, began: Began, trial: Any) -> TrialResult:
        self.append(began)
        self._watcher.began(began)
        with self._in_trial():
            result = self._measurer.measure(began.configuration, began.number, began.kind)
        result = self._with_second(result)
        self.append(Ended(now_text(), began.tag, result, round(self.spent().elapsed_s, 3)))
        self._watcher.ended(result, self.spent())
        self._report_so_far()
        if result.outcome == "cancelled":
            self.signal = self.signal or int(result.extra.get("signal") or 2)
            raise Interrupted
        if result.kind == "drift":
            self._drifted(result)
        counted = result.kind in SEARCH or result.kind == "drift"
        self._book.tell(trial, drift.corrected(self._record.searching())[-1] if counted else result)
        return result

    def _drifted(self, result: TrialResult) -> None:
        change = drift.change(self._record.searching())
        self.append(Drifted(now_text(), result.number, change.ratio, change.significant, change.text))
        if change.significant:
            self._watcher.note(change.text)

    def _with_second(self, result: TrialResult) -> TrialResult:
        if self._setting.second is None:
            return result
        return replace(result, figures={**result.figures, SECOND: self._setting.second(result)})

    def _corrected(self) -> list[TrialResult]:
        own = drift.corrected(self._record.searching())
        if not self._setting.shared:
            return own
        numbers = {one.number for one in own}
        return own + [one for one in self._book.results() if one.number >= 0 and one.number not in numbers and one.kind in SEARCH]

    @contextmanager
    def _in_trial(self) -> Iterator[None]:
        self._measuring = True
        try:
            yield
        finally:
            self._measuring = False

    def _may_go_on(self) -> None:
        if self.signal is not None:
            raise Interrupted

    # --- the record and the budget

    def append(self, event: Event) -> None:
        self._folder.append(event)

    def note(self, text: str) -> None:
        self._watcher.note(text)

    def known(self, tag: str) -> bool:
        return tag in self._record.results

    def room(self, launches: int) -> str | None:
        """Why the budget does not allow so many more launches; null: it does."""
        budget, spent = self._setting.budget, self.spent()
        if budget.launches is not None and spent.launches + launches > budget.launches:
            return f"the budget of {budget.launches} launches is used up"
        if budget.wall_s is not None and spent.elapsed_s + launches * self._trial_s() > budget.wall_s:
            return f"the budget of {budget.wall_s:.0f} s is used up"
        return None

    def spent(self) -> Spent:
        """Over all sessions."""
        return spent_of(self._record, self._before_s + (self._clock.now_ns() - self._since_ns) / NS_PER_S)

    def _trial_s(self) -> float:
        """What a measured trial takes."""
        took = [seconds_of(one) for one in self._record.results.values() if one.outcome in ("ok", "slo_violated")]
        return sum(took) / len(took) if took else 0.0
