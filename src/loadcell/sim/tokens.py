"""Text <-> token ids, without a vocabulary file: exact, deterministic, the same in every engine and run.

A token is an optional space, a letter, and up to two lower-case letters (` the`, `Hel`, `lo`), else one byte of UTF-8. English
runs at about three characters a token. The text of any ids of the range [FIRST_WORD, FIRST_WORD + WORDS), each a space and
three lower-case letters, gives the same ids back; a piece never spans a space in its middle, so counts add up at spaces.
Chat messages cost their content plus two tokens each, and one for the generation prompt.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

FIRST_WORD: Final = 256
WORDS: Final = 26**3
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_PIECE: Final = re.compile(r" ?[A-Za-z][a-z]{0,2}|[\s\S]")
# Groups of ids in order: (leading space, first letter a capital, letters). The first is the range of words.
_GROUPS: Final = [(space, capital, n) for capital in (False, True) for space in (True, False) for n in (3, 2, 1)]
_BASES: Final[dict[tuple[bool, bool, int], int]] = {}
_next = FIRST_WORD
for _group in _GROUPS:
    _BASES[_group] = _next
    _next += 26 ** _group[2]
_SPECIAL_TEXTS: Final = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")
FIRST_SPECIAL: Final = _next
VOCABULARY: Final = FIRST_SPECIAL + len(_SPECIAL_TEXTS)
END: Final = FIRST_SPECIAL + 4
_ROLES: Final = {"system": FIRST_SPECIAL, "developer": FIRST_SPECIAL, "assistant": FIRST_SPECIAL + 2, "tool": FIRST_SPECIAL + 3}
_USER: Final = FIRST_SPECIAL + 1


class _Pieces(dict[str, tuple[int, ...]]):
    """Piece -> ids, filled as pieces are met; bounded by the vocabulary plus the characters that a run uses."""

    def __missing__(self, piece: str) -> tuple[int, ...]:
        letters = piece.lstrip(" ")
        if letters.isascii() and letters.isalpha():
            base = _BASES[(piece[0] == " ", letters[0].isupper(), len(letters))]
            offset = 0
            for letter in letters.lower():
                offset = offset * 26 + ord(letter) - 97
            ids: tuple[int, ...] = (base + offset,)
        else:
            ids = tuple(piece.encode("utf-8", "surrogatepass"))
        self[piece] = ids
        return ids


_pieces = _Pieces()


def encode(text: str) -> list[int]:
    """Token ids of a text. Lone surrogates are encoded as they stand."""
    ids: list[int] = []
    for piece in _PIECE.findall(text):
        ids += _pieces[piece]
    return ids


def token_bytes(token: int) -> bytes:
    """The UTF-8 bytes of one id; raises ValueError outside the vocabulary."""
    if not 0 <= token < VOCABULARY:
        raise ValueError(f"token id {token} is out of vocabulary (0 to {VOCABULARY - 1})")
    if token < FIRST_WORD:
        return bytes((token,))
    if token >= FIRST_SPECIAL:
        return _SPECIAL_TEXTS[token - FIRST_SPECIAL].encode()
    group = next(g for g in reversed(_GROUPS) if _BASES[g] <= token)
    space, capital, n = group
    offset, letters = token - _BASES[group], ""
    for _ in range(n):
        offset, digit = divmod(offset, 26)
        letters = _LETTERS[digit] + letters
    return ((" " if space else "") + (letters.capitalize() if capital else letters)).encode()


def decode(ids: Iterable[int]) -> str:
    """The text of some ids; bytes that are no UTF-8 become U+FFFD, as in any byte-level tokenizer."""
    return b"".join(map(token_bytes, ids)).decode("utf-8", "replace")


def encode_chat(messages: Sequence[tuple[str, str]], generation_prompt: bool = True) -> list[int]:
    """Ids of (role, text) messages under the engine's chat template: role, content, end; then the assistant's role."""
    ids: list[int] = []
    for role, text in messages:
        ids.append(_ROLES.get(role, _USER))
        ids += encode(text)
        ids.append(END)
    if generation_prompt:
        ids.append(_ROLES["assistant"])
    return ids
