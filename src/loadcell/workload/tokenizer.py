"""Text <-> tokens: the seam, and the estimate that needs no model."""

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Counts the tokens of plain text, without the special tokens that a server adds around it.

    `exact` false: the counts are an estimate and are marked so. `specials`: tokens that a server adds to a plain prompt (a BOS).
    An estimate has no token ids: `encode` and `decode` are called on exact ones only.
    """

    name: str
    exact: bool

    @property
    def specials(self) -> int: ...

    def count(self, text: str) -> int:
        """Tokens of `text`."""
        ...

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        ...


class WordTokenizer:
    """The estimate: one token a whitespace-separated word."""

    name = "words"
    exact = False
    specials = 0

    def count(self, text: str) -> int:
        return len(text.split())

    def counts(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError(f"{self.name} is an estimate: {len(text)} characters have no token ids")

    def decode(self, ids: Sequence[int]) -> str:
        raise NotImplementedError(f"{self.name} is an estimate: {len(ids)} ids have no text")
