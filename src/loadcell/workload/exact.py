"""Random bytes + a length -> text that a tokenizer encodes to exactly that many tokens, where that can be reached.

Words are drawn until their known costs leave a rest; words that pay the rest to the token finish the text. The tokenizer then counts
the whole, once as a rule. Where it disagrees, words are dropped and added, and at last single characters, in a few rounds; what
still misses is returned with its true count, and shows in the report.
"""

from bisect import bisect_right
from itertools import accumulate
from operator import itemgetter
from typing import Final

from loadcell.workload.compose import BYTES_PER_WORD
from loadcell.workload.tokenizer import Tokenizer
from loadcell.workload.units import Units, learn_units

_ROUNDS: Final = 10
_DRAWS: Final = 1 << 16


class ExactComposer:
    """Composes for one tokenizer. Costs one count a text, and a count for each round of repair."""

    def __init__(self, tokenizer: Tokenizer, units: Units | None = None) -> None:
        self._count = tokenizer.count
        units = learn_units(tokenizer) if units is None else units
        self._units = units
        self.anchor_cost = units.anchor_cost
        size = len(units.words)
        self._word = tuple(units.words[i % size] for i in range(_DRAWS))
        self._cost = tuple(units.costs[i % size] for i in range(_DRAWS))
        self._cost_of = dict(zip(units.words, units.costs, strict=True))
        self._mean_cost = sum(units.costs) / size
        self._of_cost: dict[int, list[str]] = {}
        for word, cost in zip(units.words, units.costs, strict=True):
            self._of_cost.setdefault(cost, []).append(word)
        self._payment = _payments(sorted(self._of_cost, reverse=True))

    def compose(self, tokens: int, noise: bytes, before: str = "", before_tokens: int = 0) -> tuple[str, int]:
        if tokens < 1:
            return before, self._count(before)
        picks = memoryview(noise)[: BYTES_PER_WORD * tokens].cast("H")
        words = self._choose(tokens, picks, spaced=bool(before))
        text = " ".join((before, *words) if before else words)
        want = before_tokens + tokens
        got = self._count(text)
        return (text, got) if got == want else self._repair(before, words, want, got)

    def _choose(self, tokens: int, picks: memoryview, *, spaced: bool) -> list[str]:
        """Words whose costs add up to `tokens`, by what is known of them."""
        opener: list[str] = []
        left = tokens
        if not spaced:
            openers = self._units.openers
            first = picks[0] % len(openers)
            opener, left = [openers[first]], tokens - self._units.opener_costs[first]
        if left < 1:
            return opener
        likely = int(left / self._mean_cost * 1.2) + 16
        body = picks[:likely] if likely < len(picks) else picks
        paid = list(accumulate(map(self._cost.__getitem__, body), initial=0))
        if paid[-1] < left and len(body) < len(picks):
            body, paid = picks, list(accumulate(map(self._cost.__getitem__, picks), initial=0))
        taken = bisect_right(paid, left) - 1
        while taken and left - paid[taken] not in self._payment:
            taken -= 1
        words = itemgetter(*body[:taken])(self._word) if taken > 1 else (self._word[pick] for pick in body[:taken])
        return [*opener, *words, *self._pay(left - paid[taken], picks[taken % len(picks)])]

    def _pay(self, rest: int, pick: int) -> list[str]:
        """Words that cost `rest` together; fewer where that cannot be paid exactly."""
        words = []
        while rest in self._payment and rest > 0:
            cost = self._payment[rest]
            choice = self._of_cost[cost]
            words.append(choice[pick % len(choice)])
            pick = pick // 3 + 7
            rest -= cost
        return words

    def _repair(self, before: str, words: list[str], want: int, got: int) -> tuple[str, int]:
        """Fewer or more words, then characters, until the count is right; the nearest text seen when it never is."""
        best: tuple[int, str, int] | None = None
        for step in range(_ROUNDS + 1):
            text = " ".join((before, *words) if before else words)
            if step:
                got = self._count(text)
            miss = abs(want - got)
            if best is None or miss < best[0]:
                best = (miss, text, got)
            if not miss:
                break
            words = self._longer(words, want - got) if got < want else self._shorter(words, got - want)
        assert best is not None
        return best[1], best[2]

    def _longer(self, words: list[str], missing: int) -> list[str]:
        if missing > max(self._payment):
            filler = [self._units.words[i % len(self._units.words)] for i in range(int(missing / self._mean_cost))]
            return words + filler
        more = self._pay(missing, len(words))
        # Nothing costs so little: a character more is the smallest step there is.
        return words + more if more else [*words[:-1], words[-1] + "."] if words else ["."]

    def _shorter(self, words: list[str], excess: int) -> list[str]:
        kept, freed = list(words), 0
        while len(kept) > 1 and freed < excess:
            freed += self._cost_of.get(kept.pop(), 1)
        if freed >= excess:
            return kept + self._pay(freed - excess, len(words))
        return [kept[0][:-1]] if kept and len(kept[0]) > 1 else kept


def _payments(costs: list[int]) -> dict[int, int]:
    """For every small sum that can be paid in these costs, the cost to pay first. `costs` falling, so that few words are needed."""
    first = {0: 0}
    for total in range(1, 8 * costs[0] + 1):
        for cost in costs:
            if total - cost in first:
                first[total] = cost
                break
    return first
