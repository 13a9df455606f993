"""Random bytes + a length -> text that a tokenizer encodes to exactly that many tokens, where that can be reached.

Words are drawn until their known costs leave a rest; words that pay the rest to the token finish the text. The tokenizer then counts
the whole, once as a rule. Where it disagrees, words are dropped and added, and at last single characters, in a few rounds; what
still misses is returned with its true count, and shows in the report.
"""

from bisect import bisect_right
from itertools import accumulate, cycle, islice
from operator import itemgetter
from typing import Final, NamedTuple

from loadcell.workload.compose import BYTES_PER_WORD
from loadcell.workload.tokenizer import Tokenizer
from loadcell.workload.units import Units, learn_units

_WORD_ROUNDS: Final = 4
_LETTER_ROUNDS: Final = 12
_DRAWS: Final = 1 << 16
_STEPS_BACK: Final = 8
_LARGEST_PAYMENT: Final = 8
_MARKS: Final = ".,;:!?"


class _Try(NamedTuple):
    """A text behind what must stay, its count, and by how much it misses."""

    miss: int
    body: str
    got: int


class ExactComposer:
    """Composes for one tokenizer. Costs one count a text, and a count for each round of repair."""

    def __init__(self, tokenizer: Tokenizer, units: Units | None = None) -> None:
        self._count = tokenizer.count
        units = learn_units(tokenizer) if units is None else units
        self._units = units
        self._trusting = False
        self.repaired = 0
        self.unverified = 0
        self.anchor_cost = units.anchor_cost
        size = len(units.words)
        self._word = (tuple(units.words) * (_DRAWS // size + 1))[:_DRAWS]
        self._cost = (tuple(units.costs) * (_DRAWS // size + 1))[:_DRAWS]
        self._cost_of = dict(zip(units.words, units.costs, strict=True))
        self._mean_cost = sum(units.costs) / size
        self._of_cost: dict[int, list[str]] = {}
        for word, cost in zip(units.words, units.costs, strict=True):
            self._of_cost.setdefault(cost, []).append(word)
        self._payment = _payments(sorted(self._of_cost, reverse=True))
        self._most_paid = max(self._payment)

    def compose(self, tokens: int, noise: bytes, before: str = "", before_tokens: int = 0) -> tuple[str, int]:
        if tokens < 1:
            return before, self._count(before)
        picks = memoryview(noise)[: BYTES_PER_WORD * tokens].cast("H")
        words = self._choose(tokens, picks, spaced=bool(before))
        text = " ".join((before, *words) if before else words)
        want = before_tokens + tokens
        if self._trusting:
            self.unverified += 1
            return text, want
        got = self._count(text)
        if got == want:
            return text, got
        self.repaired += 1
        return self._repair(before, words, want, got)

    def trust(self) -> None:
        self._trusting = True

    def _choose(self, tokens: int, picks: memoryview, *, spaced: bool) -> list[str]:
        """Words whose costs add up to `tokens`, by what is known of them."""
        opener: list[str] = []
        left = tokens
        if not spaced:
            costs = self._units.opener_costs
            first = picks[0] % max(1, bisect_right(costs, tokens))
            opener, left = [self._units.openers[first]], tokens - costs[first]
        if left < 1:
            return opener
        likely = int(left / self._mean_cost * 1.2) + 16
        body = picks[:likely] if likely < len(picks) else picks
        paid = list(accumulate(map(self._cost.__getitem__, body), initial=0))
        if paid[-1] < left and len(body) < len(picks):
            body, paid = picks, list(accumulate(map(self._cost.__getitem__, picks), initial=0))
        most = bisect_right(paid, left) - 1
        fewer = range(most, max(-1, most - _STEPS_BACK), -1)
        taken = next((n for n in fewer if left - paid[n] in self._payment), most)
        words = itemgetter(*body[:taken])(self._word) if taken > 1 else (self._word[pick] for pick in body[:taken])
        return [*opener, *words, *self._pay(left - paid[taken], picks[taken % len(picks)])]

    def _pay(self, rest: int, pick: int) -> list[str]:
        """Words that cost `rest` together, or as much of it as can be paid exactly."""
        while rest not in self._payment:
            rest -= 1
        words = []
        while rest:
            cost = self._payment[rest]
            choice = self._of_cost[cost]
            words.append(choice[pick % len(choice)])
            pick = pick // 3 + 7
            rest -= cost
        return words

    def _repair(self, before: str, words: list[str], want: int, got: int) -> tuple[str, int]:
        """Fewer or more words, then characters, until the count is right; the nearest text seen when it never is."""
        lead = before + " " if before else ""
        best = _Try(abs(want - got), " ".join(words), got)
        for _ in range(_WORD_ROUNDS):
            words = self._longer(words, want - got) if got < want else self._shorter(words, got - want)
            best, got = self._judge(best, lead, " ".join(words), want)
            if got == want:
                return lead + best.body, got
        body, got = best.body, best.got
        for _ in range(_LETTER_ROUNDS):
            body = _nudged(body, want - got)
            best, got = self._judge(best, lead, body, want)
            if got == want:
                break
        return lead + best.body, best.got

    def _judge(self, best: _Try, lead: str, body: str, want: int) -> tuple[_Try, int]:
        """The nearer of the best try and a new one, and what the new one counts."""
        got = self._count(lead + body)
        miss = abs(want - got)
        return (_Try(miss, body, got) if miss < best.miss else best), got

    def _longer(self, words: list[str], missing: int) -> list[str]:
        if missing <= self._most_paid:
            return words + self._pay(missing, len(words))
        return words + [self._word[(i * 7919) % _DRAWS] for i in range(int(missing / self._mean_cost))]

    def _shorter(self, words: list[str], excess: int) -> list[str]:
        kept, freed = list(words), 0
        while len(kept) > 1 and freed < excess:
            freed += self._cost_of.get(kept.pop(), 1)
        return kept + self._pay(freed - excess, len(words)) if freed > excess else kept


def _nudged(text: str, missing: int) -> str:
    """A few characters more, or fewer: the smallest step there is. Unlike characters seldom merge into one token."""
    if missing > 0:
        return text + "".join(islice(cycle(_MARKS), max(1, missing // 2)))
    return text[: max(1, len(text) - max(1, -missing // 2))]


def _payments(costs: list[int]) -> dict[int, int]:
    """For every small sum that can be paid in these costs, the cost to pay first. `costs` falling, so that few words are needed."""
    first = {0: 0}
    for total in range(1, _LARGEST_PAYMENT * costs[0] + 1):
        for cost in costs:
            if total - cost in first:
                first[total] = cost
                break
    return first
