"""`${KEY}` in a specification, and the file of `KEY=value` lines that offers them. Nothing is executed. Pure.

A file such as the seed's `config.env` is read as a shell would read its assignments, and nothing else of it: a text in single quotes stands
as it is; in double quotes or bare, `$OTHER`, `${OTHER}` and `${OTHER:-instead}` take earlier lines, or the environment, which thus says only
what the file asks it; `NAME=(...)` is a list. A command substitution, or any line that is no assignment, is refused.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from loadcell.errors import UserError
from loadcell.experiment.spec import Place

Value = str | tuple[str, ...]

_TOKEN: Final = re.compile(r"\$\$|\$\{([^{}]*)\}")
_ASSIGN: Final = re.compile(r"[ \t]*(?:(?:export|readonly|declare(?:[ \t]+-[a-zA-Z]+)*|typeset)[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=")
_VARIABLE: Final = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?-)([^{}$`]*))?\}|([A-Za-z_][A-Za-z0-9_]*))")


class Offered(str):
    """A text that is all of a `${KEY}`: it is read as the type that its place wants, and quotes around it mean nothing."""

    __slots__ = ()


class UndefinedError(Exception):
    """`${key}` at `place` has no value. `known`: the names that there are."""

    def __init__(self, place: Place, key: str) -> None:
        super().__init__(key)
        self.place, self.key = place, key


def substituted(tree: Any, offer: Mapping[str, Value], took: Callable[[Place, str], None], place: Place = ()) -> Any:
    """The tree with every `${KEY}` in its texts replaced, `$$` by one `$`; keys stay as they are. `took(place, KEY)` is told of each."""
    if isinstance(tree, Mapping):
        return {key: substituted(value, offer, took, (*place, key)) for key, value in tree.items()}
    if isinstance(tree, list):
        return [substituted(value, offer, took, (*place, at)) for at, value in enumerate(tree)]
    return _text(tree, offer, took, place) if isinstance(tree, str) else tree


def _text(text: str, offer: Mapping[str, Value], took: Callable[[Place, str], None], place: Place) -> Any:
    def value(key: str) -> Value:
        if key not in offer:
            raise UndefinedError(place, key)
        took(place, key)
        return offer[key]

    whole = _TOKEN.fullmatch(text)
    if whole is not None and whole[1] is not None:
        found = value(whole[1])
        return Offered(found) if isinstance(found, str) else [Offered(item) for item in found]

    def one(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        found = value(match[1])
        return found if isinstance(found, str) else " ".join(found)

    return _TOKEN.sub(one, text)


def read_env_file(text: str, environment: Mapping[str, str], name: str) -> dict[str, Value]:
    """KEY -> its text, or texts of a list. UserError names the line that is no assignment, or that would run something."""
    return _Assignments(text, environment, name).read()


class _Assignments:
    """A scanner over the file. `_at` moves on; what is assigned is known to later lines."""

    def __init__(self, text: str, environment: Mapping[str, str], name: str) -> None:
        self._text, self._environment, self._name = text, environment, name
        self._at = 0
        self._known: dict[str, Value] = {}

    def read(self) -> dict[str, Value]:
        while self._at < len(self._text):
            self._skip_blank()
            if self._at >= len(self._text):
                break
            found = _ASSIGN.match(self._text, self._at)
            if found is None:
                line = self._text[self._at :].partition("\n")[0].strip()
                raise self._refusal(f"{line!r} is no assignment: only KEY=value lines are read, nothing is executed")
            self._at = found.end()
            self._known[found[1]] = self._list() if self._next() == "(" else self._word()
            self._end_of_line()
        return self._known

    def _skip_blank(self) -> None:
        while self._next() and (self._next() in " \t\r\n;" or self._next() == "#"):
            if self._next() == "#":
                self._to_line_end()
            else:
                self._at += 1

    def _list(self) -> tuple[str, ...]:
        opened, self._at = self._at, self._at + 1
        words: list[str] = []
        while True:
            self._skip_blank()
            if not self._next():
                self._at = opened
                raise self._refusal("the list has no closing parenthesis")
            if self._next() == ")":
                self._at += 1
                return tuple(words)
            words.append(self._word())

    def _word(self) -> str:
        out: list[str] = []
        while self._next() and self._next() not in " \t\r\n;)":
            char = self._next()
            if char in "(&|<>`":
                raise self._refusal(f"{char} would run something or go elsewhere: quote it, nothing is executed")
            if char == "'":
                out.append(self._single())
            elif char == '"':
                out.append(self._double())
            elif char == "\\":
                out.append(self._text[self._at + 1 : self._at + 2].replace("\n", ""))
                self._at += 2
            elif char == "$":
                out.append(self._variable())
            else:
                out.append(char)
                self._at += 1
        return "".join(out)

    def _single(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise self._refusal("the quote ' is not closed")
        inside, self._at = self._text[self._at + 1 : end], end + 1
        return inside

    def _double(self) -> str:
        opened, self._at = self._at, self._at + 1
        out: list[str] = []
        while self._next() != '"':
            char = self._next()
            if not char:
                self._at = opened
                raise self._refusal('the quote " is not closed')
            if char == "`":
                raise self._refusal("a command in backticks would run: nothing is executed")
            if char == "$":
                out.append(self._variable())
                continue
            if char == "\\" and self._text[self._at + 1 : self._at + 2] in tuple('$`"\\\n'):
                self._at += 1
                char = self._next().replace("\n", "")
            out.append(char)
            self._at += 1
        self._at += 1
        return "".join(out)

    def _variable(self) -> str:
        found = _VARIABLE.match(self._text, self._at)
        if found is None:
            after = self._text[self._at + 1 : self._at + 2]
            if after in ("(", "{", "["):
                raise self._refusal(f"${after}...: only $NAME, ${{NAME}} and ${{NAME:-instead}} are read, nothing is executed")
            self._at += 1
            return "$"
        name = found[1] or found[4]
        value = self._known.get(name, self._environment.get(name))
        if value is None or (value in ("", ()) and found[2] == ":-"):
            value = found[3]
        if value is None:
            raise self._refusal(f"${name} has no value: neither an earlier line nor the environment gives one")
        self._at = found.end()
        return value if isinstance(value, str) else " ".join(value)

    def _end_of_line(self) -> None:
        while self._next() and self._next() in " \t\r;":
            self._at += 1
        if self._next() == "#":
            self._to_line_end()
        if self._next() not in ("", "\n") and _ASSIGN.match(self._text, self._at) is None:
            raise self._refusal("more follows the value: quote a value that holds spaces")

    def _to_line_end(self) -> None:
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _refusal(self, text: str) -> UserError:
        return UserError(f"{self._name}:{self._text.count(chr(10), 0, self._at) + 1}: {text}")
