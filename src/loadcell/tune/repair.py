"""An illegal configuration -> a legal one near it, by moving what its constraints allow to move. Pure."""

from collections.abc import Mapping
from itertools import product
from typing import Final

from loadcell.tune.legal import Legality
from loadcell.tune.parameters import Configuration, Value

_PARTNERS: Final = 257  # values of a second parameter that a repair looks at
_MIDDLE: Final = 0.5


def repaired(
    legality: Legality, configuration: Mapping[str, Value], *, reverse: bool = False
) -> tuple[Configuration, tuple[str, ...]] | None:
    """The legal one, and the parameters that were moved; null: none is found. `reverse`: constraints that alternate take theirs in reverse order.

    Values outside their range go to its nearest one first; what is missing gets its default. Then, for each constraint that is
    broken, the parameter that it names goes to the nearest value that makes it hold.
    """
    values = {name: _nearest(legality, name, configuration.get(name)) for name in legality.domains}
    for _ in range(2 * len(legality.rules) + 1):
        whole = legality.complete(values)
        if legality.legal(whole) is None:
            here = (name for name in legality.domains if name in whole and name in configuration)
            return whole, tuple(name for name in here if whole[name] != configuration[name])
        broken = legality.broken({**legality.constants, **whole})
        names = legality.rules[broken[0]][1].movable if broken is not None else ()
        if broken is None or not names or any(name not in whole for name in names):
            return None
        if reverse and legality.rules[broken[0]][1].alternate:
            names = tuple(reversed(names))
        change = _change(legality, broken[0], names, values)
        if change is None:
            return None
        values |= change
    return None


def _change(legality: Legality, rule: int, names: tuple[str, ...], values: Mapping[str, Value]) -> dict[str, Value] | None:
    """One parameter alone; then, of the others' values nearest first, the first with which it suffices."""
    first, *others = names
    alone = _moved(legality, first, rule, values)
    if alone is not None:
        return {first: alone}
    if others:
        rest = [list(legality.domains[name].nearest_first(values[name]))[:_PARTNERS] for name in reversed(others)]
        for chosen in product(*rest):
            together = dict(zip(reversed(others), chosen, strict=True))
            moved = _moved(legality, first, rule, {**values, **together})
            if moved is not None:
                return {first: moved, **together}
    return None


def _moved(legality: Legality, name: str, rule: int, values: Mapping[str, Value]) -> Value | None:
    """The nearest value of one parameter that makes a constraint hold: exact in a row, by halving in a long range."""
    domain, outside = legality.domains[name], values[name]

    def holds(value: Value) -> bool:
        return legality.holds(rule, {**values, name: value})

    inside = next((value for value in domain.nearest_first(outside) if holds(value)), None)
    if inside is None or domain.values:
        return inside
    for _ in range(20):
        middle = domain.between(outside, inside)
        if middle in (outside, inside):
            break
        if holds(middle):
            inside = middle
        else:
            outside = middle
    return inside


def _nearest(legality: Legality, name: str, value: Value | None) -> Value:
    default = legality.by_name[name].default
    value = default if value is None else value
    if value is None:
        return legality.domains[name].at(_MIDDLE)
    return value if value == default else legality.domains[name].snap(value)
