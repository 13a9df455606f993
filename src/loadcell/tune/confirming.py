"""The search's best and the default, measured again in rounds -> what is announced; then the winner without the changes that do not matter.

`confirm` decides, purely; here it is asked what to measure, and that is measured. Every measurement has a tag, so that one that the record knows is
not made again: a resumed study walks the same way, and measures from where it was cut off.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct

from loadcell.fleet.events import now_text
from loadcell.tune import confirm
from loadcell.tune.confirm import Decision, Measured, Round
from loadcell.tune.events import Event, Judged, Reverted, Settled, Shortlisted, TrialKind
from loadcell.tune.outcome import MEASURED, TEACHES_DEATH, TrialResult
from loadcell.tune.parameters import Configuration
from loadcell.tune.space import Space
from loadcell.tune.spec import Confirm

REVERT_ROUNDS: Final = 2
DEFAULT: Final = 0
VOID_ROUNDS: Final = 2
"""Rounds that compare nothing, even measured twice, and are made anew at the end. With more of them it is the machine that cannot measure."""


class Ways(Protocol):
    """What a confirmation needs of the study."""

    def measured(self, tag: str, kind: TrialKind, configuration: Configuration) -> TrialResult:
        """Measured now, or before under this tag."""

    def known(self, tag: str) -> bool:
        """Whether it was measured before."""

    def room(self, launches: int) -> str | None:
        """Why the budget does not allow so many more; null: it does."""

    def append(self, event: Event) -> None:
        """To the record."""

    def note(self, text: str) -> None:
        """To the user."""


class Confirmed(Struct, frozen=True):
    """`decision` null: there was nothing to compare. `ended`: why no further round was made. `rounds` as `confirm.decide` takes them."""

    candidates: tuple[Configuration, ...]
    decision: Decision | None
    ended: str
    rounds: tuple[Round, ...] = ()

    @property
    def winner(self) -> Configuration | None:
        """The configuration that clears the default."""
        if self.decision is None or self.decision.winner is None or not self.enough:
            return None
        return self.candidates[self.decision.winner - 1]

    @property
    def enough(self) -> bool:
        """The budget did not end it before the least rounds."""
        return self.decision is not None and (self.decision.final or self.decision.winner is not None)


def confirmed(
    ways: Ways, how: Confirm, candidates: tuple[Configuration, ...], default: Configuration | None, limits: Sequence[str]
) -> Confirmed:  # fmt: skip
    """Rounds over the default and the candidates until the answer is known. `default` null: it is not legal, so that there is nothing to clear."""
    return _in_rounds(
        ways, how, candidates, default, limits, "confirm",
        lambda rounds, decision, ended: ways.append(Judged(now_text(), rounds, decision, ended)),
    )  # fmt: skip


def settled(ways: Ways, how: Confirm, best: Configuration, default: Configuration | None, limits: Sequence[str]) -> Confirmed:
    """The same for what reverting has left: what is announced was measured as it is."""

    def told(rounds: int, decision: Decision, ended: str | None) -> None:
        if ended is not None:
            ways.append(Settled(now_text(), best, rounds, decision, ended))

    return _in_rounds(ways, how, (best,), default, limits, "final", told)


def _in_rounds(
    ways: Ways,
    how: Confirm,
    candidates: tuple[Configuration, ...],
    default: Configuration | None,
    limits: Sequence[str],
    prefix: str,
    told: Callable[[int, Decision, str | None], None],
) -> Confirmed:
    rounds: list[Round] = []
    decision: Decision | None = None
    ended = "every round was made"
    void = 0
    while len(rounds) < how.max_rounds:
        number = len(rounds) + void
        dead = {one for done in rounds for one, measured in done.items() if measured.dead}
        out = dead | {standing.candidate for standing in (decision.standings if decision else ()) if standing.candidate and standing.out}
        wanted = [one for one in confirm.order(number, len(candidates)) if one not in out and (one != DEFAULT or default is not None)]
        missing = sum(not ways.known(f"{prefix}/{number}/{one}") for one in wanted)
        why = ways.room(missing) if missing else None
        if why is not None:
            ended = why
            break
        this: dict[int, Measured] = {} if default is not None else {DEFAULT: Measured(None, dead=True)}
        for one in wanted:
            configuration = candidates[one - 1] if one != DEFAULT else default
            assert configuration is not None
            this[one] = _twice_if_void(ways, f"{prefix}/{number}/{one}", "confirm", configuration)
        if not _compares(this):
            void += 1
            ways.note(f"round {number + 1} says nothing: what could not be measured was void twice")
            if void > VOID_ROUNDS:
                ended = f"{void} rounds could not be measured"
                break
            continue
        rounds.append(this)
        decision = confirm.decide(rounds, len(candidates), limits, least=how.min_rounds, most=how.max_rounds)
        if decision.final:
            ended = "the answer is known"
            break
        told(len(rounds), decision, None)
    if decision is not None:
        told(len(rounds), decision, ended)
    return Confirmed(candidates, decision, ended, tuple(rounds))


def _compares(this: Round) -> bool:
    """Whether some candidate was measured, or died, in the same round as the default. A default that is dead is not waited for."""
    default = this.get(DEFAULT)
    others = [measured for one, measured in this.items() if one != DEFAULT]
    if default is not None and not default.dead and default.value is None:
        return any(measured.dead for measured in others)
    return any(measured.dead or measured.value is not None for measured in others)


def _twice_if_void(ways: Ways, tag: str, kind: TrialKind, configuration: Configuration) -> Measured:
    """Measured once; where that is void (the client was the bottleneck, the machine or the benchmark failed), once more: a round needs all."""
    result = ways.measured(tag, kind, configuration)
    if result.outcome in MEASURED | TEACHES_DEATH:
        return measurement(result)
    if not ways.known(f"{tag}/again") and ways.room(1) is not None:
        return measurement(result)
    return measurement(ways.measured(f"{tag}/again", kind, configuration))


def measurement(result: TrialResult) -> Measured:
    """A result as `confirm` takes it. One that is void says nothing, whatever its figures are."""
    if result.outcome not in MEASURED:
        return Measured(None, dead=result.outcome in TEACHES_DEATH)
    return Measured(None if result.outcome == "early_stopped" else result.objective, result.violations)


def shortlisted(ways: Ways, results: Sequence[TrialResult], default: Configuration, space: Space, count: int) -> tuple[Configuration, ...]:
    """The candidates, written down before the first of them is measured."""
    found = confirm.shortlist(results, default, space.key, count)
    ways.append(Shortlisted(now_text(), found))
    return found


def reverted(
    ways: Ways, how: Confirm, found: Confirmed, default: Configuration, space: Space, importance: Mapping[str, float], limits: Sequence[str]
) -> Configuration:  # fmt: skip
    """The winner, as near to the default as it stays as good. Launches to settle what is left afterwards are kept back."""
    winner = found.winner
    assert winner is not None and found.decision is not None and found.decision.winner is not None  # noqa: PT018 - for the types
    of_winner = [one[found.decision.winner] for one in found.rounds if found.decision.winner in one]
    # What the default configuration does not have, for it is not active there, goes back to its own default.
    plain = {**{one.name: one.default for one in space.parameters if one.default is not None and one.derived is None}, **default}
    current, refused, spent = winner, frozenset[str](), 0
    while True:
        step = confirm.next_revert(current, plain, importance, refused, space.searched, space.complete, space.legal)
        if step is None:
            return current
        name, configuration = step
        if configuration == default:  # it was measured in every round, and is worse
            refused |= {name}
            continue
        tags = [f"revert/{name}/{at}" for at in range(REVERT_ROUNDS)]
        if spent + len(tags) > how.revert_launches:
            ways.note(
                f"reverting may use {how.revert_launches} launches (confirm.revert_launches): what else differs from the default stays as it is"
            )
            return current
        why = ways.room(sum(not ways.known(tag) for tag in tags) + 2 * how.min_rounds)
        if why is not None and not all(map(ways.known, tags)):
            ways.note(f"{why}: what else differs from the default stays as it is")
            return current
        accepted = _holds(ways, of_winner, tags, configuration, limits, how.tolerance)
        spent += sum(ways.known(tag) + ways.known(f"{tag}/again") for tag in tags)
        ways.append(Reverted(now_text(), name, accepted, configuration))
        if accepted:
            current = configuration
        else:
            refused |= {name}


def _holds(
    ways: Ways, winner: Sequence[Measured], tags: Sequence[str], configuration: Configuration, limits: Sequence[str], tolerance: float
) -> bool:  # fmt: skip
    """A first measurement that is far off needs no second."""
    own: list[Measured] = []
    for tag in tags:
        own.append(_twice_if_void(ways, tag, "revert", configuration))
        if not confirm.revert_holds(winner, own, limits, tolerance):
            return False
    return True
