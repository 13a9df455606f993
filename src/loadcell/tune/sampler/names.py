"""Which of a space's parameters is the one that engines call by certain names. Pure."""

from collections.abc import Mapping

from loadcell.tune.parameters import Value
from loadcell.tune.space import Space


def named(space: Space, known: frozenset[str]) -> str | None:
    """The parameter or constant that is one of `known` (letters and digits only), by its own name or that of its flag, path or variable."""
    for one in space.parameters:
        if any(_plain(text) in known for text in (one.name, one.place.flag, one.place.path, one.place.env) if text):
            return one.name
    return next((name for name in space.constants if _plain(name) in known), None)


def number(space: Space, one: Mapping[str, Value], name: str | None, otherwise: float) -> float:
    """The value of `name` in configuration `one`, or as a constant; `otherwise` where it is absent or no number."""
    value = one.get(name, space.constants.get(name, otherwise)) if name is not None else otherwise
    return float(value) if isinstance(value, int | float) else otherwise


def varies(space: Space, name: str | None) -> bool:
    return name is not None and any(one.name == name and (one.derived is not None or name in space.searched) for one in space.parameters)


def _plain(text: str) -> str:
    return text.rsplit(".", 1)[-1].replace("-", "").replace("_", "").lower()
