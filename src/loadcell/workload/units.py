"""Tokenizer -> what each word of the vocabulary costs in tokens, learnt in a few calls.

Tokenizers split text at white space before anything else, so the tokens of " w1 w2 w3" are those of " w1", of " w2" and of " w3" in
turn. The list of words is encoded forwards and backwards: the ids of word i are then the shortest stretch at the same place in
the first, and, counted from the end, in the second. Two calls tell the cost of hundreds of words, which matters when each call goes
to a server. What is built on these costs is verified text by text; they only have to be good guesses.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from loadcell.workload.compose import ANCHOR
from loadcell.workload.tokenizer import Tokenizer
from loadcell.workload.vocabulary import WORDS

_CHUNK: Final = 256
_ENOUGH: Final = 200
_OPENERS: Final = WORDS[:: len(WORDS) // 12]


class Units(Struct, frozen=True):
    """`words` as they follow a space, `costs` their tokens. `openers` begin a text: no space before them, which may cost otherwise.
    The cheapest opener stands first.

    `anchor_cost`: tokens of the word ANCHOR at the beginning of a text.
    """

    words: tuple[str, ...]
    costs: tuple[int, ...]
    openers: tuple[str, ...]
    opener_costs: tuple[int, ...]
    anchor_cost: int


def learn_units(tokenizer: Tokenizer) -> Units:
    """Costs of the vocabulary's words, from at most 2 calls for every 256 words and one for each opener."""
    lead = tokenizer.encode(ANCHOR)
    cost: dict[str, int] = {}
    for start in range(0, len(WORDS), _CHUNK):
        chunk = WORDS[start : start + _CHUNK]
        forward = tokenizer.encode(" ".join((ANCHOR, *chunk)))
        backward = tokenizer.encode(" ".join((ANCHOR, *reversed(chunk))))
        if forward[: len(lead)] == lead == backward[: len(lead)]:
            cost.update(zip(chunk, run_lengths(forward[len(lead) :], backward[len(lead) :], len(chunk)), strict=False))
    if len(cost) < _ENOUGH:
        some = WORDS[:: len(WORDS) // _ENOUGH]
        counts = tokenizer.counts([f"{ANCHOR} {word}" for word in some])
        cost = {word: max(1, count - len(lead)) for word, count in zip(some, counts, strict=True)}
    # The cheapest words too, for prompts of one or two tokens.
    openers = tuple(dict.fromkeys((*_OPENERS, *sorted(cost, key=cost.__getitem__)[: len(_OPENERS)])))
    priced = sorted(zip(tokenizer.counts(openers), openers, strict=True))
    return Units(
        words=tuple(cost),
        costs=tuple(cost.values()),
        openers=tuple(opener for _, opener in priced),
        opener_costs=tuple(max(1, count) for count, _ in priced),
        anchor_cost=len(lead),
    )


def run_lengths(forward: Sequence[int], backward: Sequence[int], words: int) -> list[int]:
    """How many ids each of `words` words has, from the ids of the words in order and in reverse order; empty when they do not tell."""
    size = len(forward)
    mirrored = list(reversed(backward))
    lengths: list[int] = []
    at = 0
    while at < size and len(lengths) < words:
        length = 1
        while at + length <= size and list(forward[at : at + length]) != mirrored[at : at + length][::-1]:
            length += 1
        lengths.append(length)
        at += length
    return lengths if len(lengths) == words and at == size == len(mirrored) else []
