"""A study from its first trial to its answer: search, confirmation, reverting. Decisions are pure functions' (`stopping`, `drift`, `confirm`), the
sampler's, and are taken over the record; what happens is appended to it before the next step. So a study that was killed goes on where it was.
"""

from collections.abc import Sequence
from typing import Any

from loadcell.clock import Clock
from loadcell.errors import LoadcellError
from loadcell.fleet.events import now_text
from loadcell.tune.confirming import Confirmed, confirmed, reverted, settled, shortlisted
from loadcell.tune.events import Announced, Closed, StudyState
from loadcell.tune.measuring import Interrupted, Measuring
from loadcell.tune.outcome import MEASURED, TrialResult
from loadcell.tune.parameters import Configuration
from loadcell.tune.searching import Search
from loadcell.tune.setting import Measurer, Reports, Setting, StudyWatcher
from loadcell.tune.space import Space
from loadcell.tune.standing import Spent, failure_text, front
from loadcell.tune.storage import Book
from loadcell.tune.study_folder import StudyFolder


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
        self._setting, self._book, self._measurer = setting, book, measurer
        self._watcher = watcher or StudyWatcher()
        self._measuring = Measuring(setting, folder, book, measurer, clock, self._watcher, reports)
        self._search = Search(self._measuring, again)
        self._record = folder.record

    @property
    def space(self) -> Space:
        return self._setting.space

    @property
    def signal(self) -> int | None:
        """That ended it."""
        return self._measuring.signal

    @property
    def reported(self) -> object:
        """What the reports gave at its end."""
        return self._measuring.reported

    def spent(self) -> Spent:
        """Over all sessions."""
        return self._measuring.spent()

    def on_signal(self, number: int) -> None:
        """For a signal's handler."""
        self._measuring.on_signal(number)

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

    def _through(self) -> Closed:
        searched = self._record.searched or self._search.run()
        results = self._measuring.corrected()
        if searched.failed or not any(one.outcome in MEASURED for one in results):
            return self._close("failed", "none", failure_text(searched.text, self._record.searching()))
        if self._setting.second is not None:
            count = len(front(results, self._setting.second))
            if not count:
                return self._close("failed", "none", f"nothing was measured within the limits, so that there is no front; {searched.text}")
            return self._close(
                "complete",
                "front",
                f"a front of {count} configuration{'' if count == 1 else 's'} within the limits; none of them is confirmed",
            )
        return self._answer(results)

    def _answer(self, results: Sequence[TrialResult]) -> Closed:
        space, how, limits = self._setting.space, self._setting.confirm, self._setting.limits
        default = space.default()
        candidates = self._record.shortlist
        if candidates is None:
            candidates = shortlisted(self._measuring, results, default, space, how.candidates)
        if not candidates:
            some = any(one.feasible for one in results)
            text = f"no reliable improvement: nothing {'else than the default ' if some else ''}was measured to be within the limits"
            return self._close("complete", "no_reliable_improvement", text, default)
        if not how.max_rounds or not self._book.may_confirm():
            who = "confirmation is turned off" if not how.max_rounds else "another machine of this study confirms"
            return self._close("complete", "not_confirmed", f"{who}: no claim is made", default)
        legal = default if space.legal(default) is None else None
        beside = "and the default, in rounds" if legal is not None else "in rounds; the default is not legal"
        self._watcher.stage(f"confirmation: {len(candidates)} candidate{'' if len(candidates) == 1 else 's'} {beside}")
        found = confirmed(self._measuring, how, candidates, legal, limits)
        if found.winner is None:
            return self._no_winner(found, default)
        self._watcher.stage("reverting what does not matter")
        best = reverted(self._measuring, how, found, default, space, self._setting.importance(space, results), limits)
        if best != found.winner:
            self._watcher.stage("what is left is measured in rounds with the default, too")
            final = settled(self._measuring, how, best, legal, limits)
            if final.winner is not None:
                return self._won(final, best)
            why = "its gain is not reliable" if final.enough else f"{final.ended} after {len(final.rounds)} rounds"
            self._measuring.note(f"what reverting left is not confirmed ({why}): the winner stays as it was")
        return self._won(found, found.winner)

    def _won(self, found: Confirmed, best: Configuration) -> Closed:
        assert found.decision is not None
        verdict: Announced = "default_fails" if found.decision.verdict == "default_fails" else "winner"
        why = self.space.legal(self.space.default())
        text = found.decision.text if why is None else f"the default is not legal ({why}), this one is within every limit"
        return self._close("complete", verdict, text, best)

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
            self._measuring.append(closed)
        except LoadcellError:
            if not quietly:
                raise
        self._measuring.report_all(quietly=quietly)
        return closed
