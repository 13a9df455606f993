"""What a study is given, whom it asks to measure, and whom it tells what happens."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from loadcell.tune.events import Began, Record, TrialKind
from loadcell.tune.outcome import TrialResult
from loadcell.tune.parameters import Configuration
from loadcell.tune.space import Space
from loadcell.tune.spec import Confirm
from loadcell.tune.standing import Spent
from loadcell.tune.stopping import Budget


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

    def ended(self, result: TrialResult, spent: Spent) -> None:
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
