"""One measurement of a study after the other: each is in the record before the next begins, told to the sampler, and taken off the budget."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from loadcell.clock import NS_PER_S, Clock
from loadcell.errors import LoadcellError
from loadcell.fleet.events import now_text
from loadcell.signals import leave
from loadcell.tune import drift
from loadcell.tune.events import SEARCH, Began, Drifted, Ended, Event, TrialKind
from loadcell.tune.outcome import TrialResult
from loadcell.tune.parameters import Configuration
from loadcell.tune.setting import Measurer, Reports, Setting, StudyWatcher
from loadcell.tune.standing import SECOND, Spent, seconds_of, spent_of
from loadcell.tune.storage import Book
from loadcell.tune.study_folder import StudyFolder


class Interrupted(Exception):
    """The user has asked for the end."""


class Measuring:
    """What search and confirmation measure with. `reported`: what the reports gave at the study's end."""

    def __init__(
        self,
        setting: Setting,
        folder: StudyFolder,
        book: Book,
        measurer: Measurer,
        clock: Clock,
        watcher: StudyWatcher,
        reports: Reports | None,
    ) -> None:
        self.setting, self.book, self.watcher, self.record = setting, book, watcher, folder.record
        self._folder, self._measurer, self._clock, self._reports = folder, measurer, clock, reports
        self._before_s, self._since_ns = self.record.elapsed_s, clock.now_ns()
        self._measuring = False
        self.signal: int | None = None
        self.reported: object = None

    def on_signal(self, number: int) -> None:
        """Between two trials the study ends, a second signal leaves at once. During a trial it is the trial's to handle."""
        if self.signal is not None and not self._measuring:
            raise leave(number)
        self.signal = self.signal or number

    def may_go_on(self) -> None:
        """Raises Interrupted where the user has asked for the end."""
        if self.signal is not None:
            raise Interrupted

    # --- one measurement

    def measured(self, tag: str, kind: TrialKind, configuration: Configuration) -> TrialResult:
        """Of a confirmation: as the record knows it, or measured now."""
        if tag in self.record.results:
            return self.record.results[tag]
        self.may_go_on()
        before = self.record.began.get(tag)
        trial = self.book.take_up(before.number) if before is not None else self.book.further(configuration)
        return self.measured_now(Began(now_text(), trial.number, kind, tag, configuration), trial)

    def measured_now(self, began: Began, trial: Any) -> TrialResult:
        self.append(began)
        self.watcher.began(began)
        with self._in_trial():
            result = self._measurer.measure(began.configuration, began.number, began.kind)
        result = self.with_second(result)
        self.append(Ended(now_text(), began.tag, result, round(self.spent().elapsed_s, 3)))
        self.watcher.ended(result, self.spent())
        self._report_so_far()
        if result.outcome == "cancelled":
            self.signal = self.signal or int(result.extra.get("signal") or 2)
            raise Interrupted
        if result.kind == "drift":
            self._drifted(result)
        counted = result.kind in SEARCH or result.kind == "drift"
        self.book.tell(trial, drift.corrected(self.record.searching())[-1] if counted else result)
        return result

    def _drifted(self, result: TrialResult) -> None:
        change = drift.change(self.record.searching())
        self.append(Drifted(now_text(), result.number, change.ratio, change.significant, change.text))
        if change.significant:
            self.watcher.note(change.text)

    def with_second(self, result: TrialResult) -> TrialResult:
        if self.setting.second is None:
            return result
        return replace(result, figures={**result.figures, SECOND: self.setting.second(result)})

    def corrected(self) -> list[TrialResult]:
        own = drift.corrected(self.record.searching())
        if not self.setting.shared:
            return own
        numbers = {one.number for one in own}
        return own + [one for one in self.book.results() if one.number >= 0 and one.number not in numbers and one.kind in SEARCH]

    @contextmanager
    def _in_trial(self) -> Iterator[None]:
        self._measuring = True
        try:
            yield
        finally:
            self._measuring = False

    # --- the record and the budget

    def append(self, event: Event) -> None:
        self._folder.append(event)

    def note(self, text: str) -> None:
        self.watcher.note(text)

    def known(self, tag: str) -> bool:
        return tag in self.record.results

    def room(self, launches: int) -> str | None:
        """Why the budget does not allow so many more launches; null: it does."""
        budget, spent = self.setting.budget, self.spent()
        if budget.launches is not None and spent.launches + launches > budget.launches:
            return f"too little is left of the budget of {budget.launches} launches"
        if budget.wall_s is not None and spent.elapsed_s + launches * self.trial_s() > budget.wall_s:
            return f"too little is left of the budget of {budget.wall_s:.0f} s"
        return None

    def spent(self) -> Spent:
        """Over all sessions."""
        return spent_of(self.record, self._before_s + (self._clock.now_ns() - self._since_ns) / NS_PER_S)

    def trial_s(self) -> float:
        """What a measured trial takes; once there are rounds, in those: half of them are the default, which may be the slower one."""
        told = [one for one in self.record.results.values() if one.outcome in ("ok", "slo_violated")]
        took = [seconds_of(one) for one in [one for one in told if one.kind == "confirm"] or told]
        return sum(took) / len(took) if took else 0.0

    # --- reports

    def report_all(self, *, quietly: bool) -> None:
        if self._reports is None:
            return
        try:
            self.reported = self._reports.write(self.record, others=self._of_others())
        except LoadcellError as failure:
            if not quietly:
                raise
            self.watcher.note(str(failure))

    def _report_so_far(self) -> None:
        """A report that cannot be written ends no study: its record is what counts."""
        if self._reports is None:
            return
        try:
            self._reports.after_trial(self.record, self.spent().elapsed_s)
        except LoadcellError as failure:
            self.watcher.note(str(failure))

    def _of_others(self) -> list[TrialResult]:
        if not self.setting.shared:
            return []
        numbers = {one.number for one in self.record.results.values()}
        return [one for one in self.book.results() if one.number >= 0 and one.number not in numbers and one.kind in SEARCH]
