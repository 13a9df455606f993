"""Random bytes + a length -> text of that many tokens: the seam, and the composer for word estimates."""

from operator import itemgetter
from typing import Final, Protocol

from loadcell.workload.vocabulary import WORDS

BYTES_PER_WORD: Final = 2
ANCHOR: Final = "the"


class Composer(Protocol):
    """Makes text of a wanted length. Equal bytes give equal text; a longer text of the same bytes begins with the same words, but for
    the last few of the shorter one.
    """

    @property
    def anchor_cost(self) -> int:
        """Tokens of the word ANCHOR alone."""
        ...

    def compose(self, tokens: int, noise: bytes, before: str = "", before_tokens: int = 0) -> tuple[str, int]:
        """`before` and then words, `before_tokens + tokens` tokens in all; and how many tokens the whole really has.

        `noise`: 2 bytes for each token.
        """
        ...

    def trust(self) -> None:
        """Ask the tokenizer no more: from now on the count is what the words are known to cost."""
        ...

    @property
    def repaired(self) -> int:
        """Texts so far whose first count was not the wanted one."""
        ...

    @property
    def unverified(self) -> int:
        """Texts so far that no tokenizer has counted."""
        ...


class WordComposer:
    """Text of so many words, each drawn from the vocabulary."""

    anchor_cost = 1
    repaired = 0
    unverified = 0

    def trust(self) -> None:
        """Words are counted here anyway."""

    def __init__(self) -> None:
        # One entry for every 16-bit draw: a look-up instead of a division per word.
        self._word = (WORDS * ((1 << 16) // len(WORDS) + 1))[: 1 << 16]

    def compose(self, tokens: int, noise: bytes, before: str = "", before_tokens: int = 0) -> tuple[str, int]:
        picks = memoryview(noise)[: BYTES_PER_WORD * tokens].cast("H")
        words = itemgetter(*picks)(self._word) if tokens > 1 else [self._word[pick] for pick in picks]
        text = " ".join(words)
        if before:
            text = f"{before} {text}" if text else before
        return text, before_tokens + tokens
