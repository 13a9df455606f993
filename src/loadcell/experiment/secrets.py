"""A specification as it may stand in a file: without keys, passwords and header values, wherever they were written. Pure.

What is secret is known by its name: a key or option that names one (`api_key`, `HF_TOKEN`, `--api-key`), a header, a user in a URL.
Its value is then taken out of every text, so that a command line or a copied file does not tell it either.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from loadcell.load.redact import HIDDEN, hidden, names_a_secret

_SHORTEST: Final = 6  # a shorter value is more often a word of the language; its own key is emptied all the same
_USERINFO: Final = re.compile(r"(?<=://)([^/@\s]+)@")
_ASSIGNED: Final = re.compile(r"""^(\s*(?:export\s+)?["']?([A-Za-z0-9_.-]+)["']?\s*=\s*)\S.*$""", re.MULTILINE)
_HEADERS: Final = ("header", "headers")
_ORIGINS: Final = "origins"
"""Of a specification: where each setting comes from. Its keys are names of settings, its values no secrets, whatever those are called."""


class Hider:
    """`of(tree)` knows the secrets of a tree of plain data (a specification)."""

    def __init__(self, values: Iterable[str]) -> None:
        self._values = sorted({value for value in values if len(value) >= _SHORTEST}, key=len, reverse=True)

    @classmethod
    def of(cls, tree: Any) -> "Hider":
        return cls(_secrets(tree))

    def text(self, text: str) -> str:
        """`text` without them: a command line, a message."""
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return _USERINFO.sub(f"{HIDDEN}@", text)

    def toml(self, text: str) -> str:
        """A file's text without them; what is assigned to a key that names a secret goes too, however short."""
        return _ASSIGNED.sub(lambda found: f'{found[1]}"{HIDDEN}"' if names_a_secret(found[2]) else found[0], self.text(text))

    def tree(self, tree: Any) -> Any:
        """Plain data without them."""
        shown = self._texts(_without_headers(hidden(tree)))
        if isinstance(tree, dict) and _ORIGINS in tree:
            shown[_ORIGINS] = self._texts(tree[_ORIGINS])
        return shown

    def _texts(self, tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: self._texts(value) for key, value in tree.items()}
        if isinstance(tree, list):
            return [self._texts(value) for value in tree]
        return self.text(tree) if isinstance(tree, str) else tree


def _secrets(tree: Any) -> Iterator[str]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if key == _ORIGINS:
                continue
            if names_a_secret(str(key)):
                yield from _leaves(value)
            elif key in _HEADERS:
                yield from _header_values(value)
            else:
                yield from _secrets(value)
    elif isinstance(tree, (list, tuple)):
        yield from _of_words(tree)
    elif isinstance(tree, str):
        yield from _USERINFO.findall(tree)


def _of_words(words: Iterable[Any]) -> Iterator[str]:
    """Words of a command line: `--api-key VALUE`, `--api-key=VALUE`, `HF_TOKEN=VALUE`."""
    before = ""
    for word in words:
        if isinstance(word, str):
            name, equals, value = word.partition("=")
            if equals and names_a_secret(name):
                yield value
            elif before.startswith("--") and "=" not in before and names_a_secret(before):
                yield word
        before = word if isinstance(word, str) else ""
        yield from _secrets(word)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for inner in value:
            yield from _leaves(inner)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _header_values(items: Any) -> Iterator[str]:
    """`KEY=VALUE`, `Key: value`: the value and each of its words."""
    for item in [items] if isinstance(items, str) else items if isinstance(items, (list, tuple)) else ():
        value = re.split(r"[=:]", str(item), maxsplit=1)[-1].strip()
        yield from (value, *value.split())


def _without_headers(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {
            key: [_header_name(item) for item in value] if key in _HEADERS and isinstance(value, list) else _without_headers(value)
            for key, value in tree.items()
        }
    return [_without_headers(value) for value in tree] if isinstance(tree, list) else tree


def _header_name(item: Any) -> str:
    found = re.match(r"\s*([^=:\s]+)\s*([=:])", str(item))
    return f"{found[1]}{found[2]}{HIDDEN}" if found else HIDDEN
