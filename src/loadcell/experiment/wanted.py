"""A value of a type that its place does not take -> what to write there instead, in a person's words. Pure.

msgspec says where and what; a struct's own fields say what is wanted. Where the place is none of theirs, msgspec's text stands.
"""

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from loadcell.experiment.spec import Place

_WORDS: Final = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
_SEVERAL: Final = {int: "whole numbers", float: "numbers", str: "texts"}
_MOST_SHOWN: Final = 60
_MAY_BE_SECRET: Final = ("env", "args", "config", "files")


def refusal(text: str, tree: Mapping[str, Any], kind: type[Struct], path: Place) -> str:
    """`text` is msgspec's; `path` leads from the tree, and from its type, to the value."""
    there = _kind_at(kind, path)
    plain = text[0].lower() + text[1:]
    if there is None or not path or not text.startswith(("Expected `", "Invalid enum value")):
        return plain
    value: Any = tree
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return plain
    shown = "" if path[0] in _MAY_BE_SECRET else f"{_shown(value)}: "
    return f"{shown}{instead(there)}"


def instead(kind: Any) -> str:
    """What a place of this type takes: `choose one of any, apart`, `expected a whole number`."""
    kinds = _kinds(kind)
    words = [str(word) for one in kinds if get_origin(one) is Literal for word in get_args(one)]
    others = [_words(one) for one in kinds if get_origin(one) is not Literal and not (one is float and int in kinds)]
    if words and not others:
        return f"choose one of {', '.join(words)}"
    every = words + ["a number" if word == _WORDS[int] and float in kinds else word for word in others]
    return f"expected {', '.join(every[:-1])}{' or ' if every[1:] else ''}{every[-1]}"


def _words(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Struct):
        return "a table"
    origin = get_origin(kind)
    if origin in (tuple, list):
        return f"a list of {_several(next(one for one in get_args(kind) if one is not Ellipsis))}"
    if origin is dict:
        item = get_args(kind)[1]
        return "a table" if item is Any else f"a table of {_several(item)}"
    return _WORDS.get(kind, "another value")


def _several(kind: Any) -> str:
    return " or ".join(_SEVERAL.get(one, "lists" if get_origin(one) is tuple else "tables") for one in _kinds(kind))


def _kinds(kind: Any) -> list[Any]:
    """The members of a union, without null: TOML has none."""
    return [one for one in get_args(kind) if one is not NoneType] if get_origin(kind) in (Union, UnionType) else [kind]


def _kind_at(kind: Any, path: Place) -> Any:
    """The type of the place, null where it is not in the structs."""
    if not path:
        return kind
    part, rest = path[0], path[1:]
    for one in _kinds(kind):
        found = None
        if isinstance(one, type) and issubclass(one, Struct):
            found = next((field.type for field in msgspec.structs.fields(one) if field.name == part), None)
        elif get_origin(one) in (tuple, list) and isinstance(part, int):
            found = next(item for item in get_args(one) if item is not Ellipsis)
        elif get_origin(one) is dict:
            found = get_args(one)[1]
        if found is not None:
            return _kind_at(found, rest)
    return None


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
