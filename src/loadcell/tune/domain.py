"""The values that one parameter may have: as numbers in [0, 1], the nearest, the next. Pure.

A finite domain is a row of values (a ladder, choices, steps, a whole number's range); another is a range of floats. Distances are by rank in a
row, else linear or logarithmic. Floats are rounded to a thousandth of their range: nobody wants 0.87345192 on a command line.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Final

from loadcell.experiment.spec import Place, SpecError
from loadcell.tune.parameters import Parameter, Value

_ROWS: Final = 4096  # whole numbers up to so many are a row; a longer range is drawn from as floats are, and rounded
_MOVES: Final = (0.01, 0.04, 0.15)  # of a range, up and down: small, middle and large steps to a neighbour


class Domain:
    """Of one parameter that is searched. `values`: the row, or empty for a range. `columns`: how many `encode` gives."""

    def __init__(self, parameter: Parameter, place: Place = ()) -> None:
        self.name, self.kind, self.log = parameter.name, parameter.kind, parameter.log
        self.low, self.high = parameter.low, parameter.high
        self.values = _row(parameter, place)
        self.one_hot = parameter.kind == "categorical" and not all(_numeric(choice) for choice in self.values)
        # A row of equal steps is measured as its range is: by value, or by its logarithm; a ladder by rank.
        self._by_rank = bool(self.values) and (parameter.kind in ("categorical", "bool") or bool(parameter.ladder))
        self._ranks = {_typed(value): rank for rank, value in enumerate(self.values)}
        self._whole = parameter.kind == "int" and not self._by_rank and parameter.step is None and not self.fixed
        self._decimals = 0 if parameter.kind == "int" else _decimals(self.low, self.high, log=self.log)
        if self.values and not self._by_rank:
            self.low, self.high = float(self.values[0]), float(self.values[-1])

    @property
    def fixed(self) -> bool:
        return len(self.values) == 1

    @property
    def size(self) -> int | None:
        """How many values; null: more than anyone would enumerate."""
        return len(self.values) or None

    @property
    def columns(self) -> int:
        return 0 if self.fixed else len(self.values) if self.one_hot else 1

    def has(self, value: Value) -> bool:
        if self.values:
            return _typed(value) in self._ranks
        assert self.low is not None
        assert self.high is not None
        if not _numeric(value) or (self.kind == "int" and value != int(value)):
            return False
        return self.low <= float(value) <= self.high

    def at(self, unit: float) -> Value:
        """The value at a place in [0, 1]; uniform places give every value of a row the same chance (of a logarithmic range its own)."""
        unit = min(max(unit, 0.0), 1.0)
        if self.values and (self._by_rank or not self.log):
            return self.values[min(int(unit * len(self.values)), len(self.values) - 1)]
        assert self.low is not None
        assert self.high is not None
        if self.kind == "int":  # the ends get their whole share, as if the range began half a step before
            low, high = (self.low - 0.5, self.high + 0.5) if self.low >= 1 else (self.low, self.high)
            return self.snap(_mix(low, high, unit, log=self.log))
        return self.snap(_mix(self.low, self.high, unit, log=self.log))

    def unit(self, value: Value) -> float:
        """Where a value stands in [0, 1]; one outside (a default may be) at the nearer end."""
        if self.fixed:
            return 0.5
        if self._by_rank:
            rank = self._ranks.get(_typed(value))
            if rank is not None:
                return rank / (len(self.values) - 1)
            return self._between(value)
        assert self.low is not None
        assert self.high is not None
        number = min(max(float(value), self.low), self.high)
        if self.log:
            return math.log(number / self.low) / math.log(self.high / self.low)
        return (number - self.low) / (self.high - self.low)

    def _between(self, value: Value) -> float:
        """A number that is not of the row: between its neighbours."""
        if not _numeric(value) or not all(_numeric(one) for one in self.values):
            return 0.5
        below = sum(float(one) < float(value) for one in self.values)
        return min(max((below - 0.5) / (len(self.values) - 1), 0.0), 1.0)

    def snap(self, value: Value) -> Value:
        """The nearest value that it may have. A text that is no choice becomes the first one."""
        rank = self._ranks.get(_typed(value))
        if rank is not None:
            return self.values[rank]
        if self.values and not (self._whole and _numeric(value)):
            if not _numeric(value) or isinstance(self.values[0], str):
                return self.values[0]
            near = [one for one in self.values if not isinstance(one, str)]
            return min(near, key=lambda one: abs(self._scaled(float(one)) - self._scaled(float(value))))
        assert self.low is not None
        assert self.high is not None
        number = min(max(float(value) if _numeric(value) else self.low, self.low), self.high)
        return min(max(round(number), math.ceil(self.low)), math.floor(self.high)) if self.kind == "int" else self._tidy(number)

    def _scaled(self, number: float) -> float:
        return math.log(number) if self.log and number > 0 else number

    def _tidy(self, number: float) -> float:
        assert self.low is not None
        assert self.high is not None
        decimals = self._decimals
        if self.log and number > 0:
            decimals = 3 - math.floor(math.log10(number))
        return min(max(round(number, decimals), self.low), self.high)

    def neighbours(self, value: Value) -> list[Value]:
        """A step down and up in a row, small and large moves in a range; all other choices of a category."""
        if self.one_hot or self.kind == "bool":
            return [one for one in self.values if _typed(one) != _typed(value)]
        found: list[Value] = []
        rank = self._ranks.get(_typed(value))
        if rank is not None:
            found += [self.values[at] for at in (rank - 1, rank + 1) if 0 <= at < len(self.values)]
        if not self._by_rank:
            unit = self.unit(value)
            found += [self.snap(self._value_at(unit + sign * move)) for move in _MOVES for sign in (-1, 1)]
        return [one for one in dict.fromkeys(found) if one != value]

    def _value_at(self, unit: float) -> float:
        assert self.low is not None
        assert self.high is not None
        return _mix(self.low, self.high, min(max(unit, 0.0), 1.0), log=self.log)

    def between(self, one: Value, other: Value) -> Value:
        """The middle of two values of a long range."""
        return self.snap(self._value_at((self.unit(one) + self.unit(other)) / 2))

    @cached_property
    def _grid(self) -> tuple[tuple[float, Value], ...]:
        """Places and values; of a long range 65."""
        values = self.values or dict.fromkeys(self.snap(self._value_at(step / 64)) for step in range(65))
        return tuple((self.unit(one), one) for one in values)

    def nearest_first(self, value: Value) -> Sequence[Value]:
        """All values by distance from `value`; of a long range 65 of them."""
        here = self.unit(value)
        return [one for _, one in sorted(self._grid, key=lambda pair: abs(pair[0] - here))]


def _row(parameter: Parameter, place: Place) -> tuple[Value, ...]:
    """The values of a finite domain; empty for a range. SpecError for what is no domain."""
    kind, low, high = parameter.kind, parameter.low, parameter.high
    if kind == "bool":
        _refuse(parameter, ("low", "high", "step", "ladder", "choices"), place, "a bool is false or true")
        return (False, True)
    if kind == "categorical":
        _refuse(parameter, ("low", "high", "step", "ladder"), place, "a categorical parameter has choices")
        if not parameter.choices:
            raise SpecError((*place, "choices"), f"{parameter.name}: give the values that it may have")
        if len({_typed(choice) for choice in parameter.choices}) < len(parameter.choices):
            raise SpecError((*place, "choices"), f"{parameter.name}: a choice is given twice")
        numeric = all(_numeric(choice) for choice in parameter.choices)
        return tuple(sorted(parameter.choices, key=float)) if numeric else parameter.choices
    _refuse(
        parameter,
        ("choices",),
        place,
        f"an {kind} has low and high, or a ladder" if kind == "int" else "a float has low and high, or a ladder",
    )
    if parameter.ladder:
        _refuse(parameter, ("low", "high", "step"), place, "a ladder says all its values")
        if list(parameter.ladder) != sorted(set(parameter.ladder)):
            raise SpecError((*place, "ladder"), f"{parameter.name}: give each value once, ascending")
        return tuple(_as(kind, value, (*place, "ladder"), parameter.name) for value in parameter.ladder)
    if low is None or high is None:
        key = "low" if low is None else "high"
        raise SpecError((*place, key), f"{parameter.name}: give low and high, or a ladder of values")
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise SpecError((*place, "low"), f"{parameter.name}: low = {low:g} is above high = {high:g}")
    if parameter.log and low <= 0:
        raise SpecError((*place, "log"), f"{parameter.name}: a logarithmic range begins above 0, not at {low:g}")
    if low == high:
        return (_as(kind, low, (*place, "low"), parameter.name),)
    if parameter.step is not None:
        return _steps(parameter, low, high, place)
    if kind == "float":
        return ()
    first, last = int(_as(kind, low, (*place, "low"), parameter.name)), int(_as(kind, high, (*place, "high"), parameter.name))
    return tuple(range(first, last + 1)) if last - first < _ROWS else ()


def _steps(parameter: Parameter, low: float, high: float, place: Place) -> tuple[Value, ...]:
    assert parameter.step is not None
    step = parameter.step
    if not step > 0:
        raise SpecError((*place, "step"), f"{parameter.name}: step = {step:g}: must be above 0")
    if parameter.log:
        raise SpecError((*place, "step"), f"{parameter.name}: a logarithmic range has no equal steps: give a ladder")
    count = math.floor((high - low) / step + 1e-9) + 1
    if count > 10_000:
        raise SpecError((*place, "step"), f"{parameter.name}: {count} steps: give a longer one")
    return tuple(_as(parameter.kind, round(low + at * step, 12), (*place, "step"), parameter.name) for at in range(count))


def _as(kind: str, value: float, place: Place, name: str) -> Value:
    if kind == "float":
        return float(value)
    if value != int(value):
        raise SpecError(place, f"{name}: {value:g} is no whole number")
    return int(value)


def _refuse(parameter: Parameter, keys: tuple[str, ...], place: Place, why: str) -> None:
    for key in keys:
        if getattr(parameter, key) not in (None, ()):
            raise SpecError((*place, key), f"{parameter.name}: {why}: leave {key} out")
    if parameter.log and parameter.kind not in ("int", "float"):
        raise SpecError((*place, "log"), f"{parameter.name}: {why}: leave log out")


def _typed(value: Value) -> tuple[bool, Value]:
    """True and 1 are two values."""
    return isinstance(value, bool), value


def _numeric(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _decimals(low: float | None, high: float | None, *, log: bool) -> int:
    """So many that a thousandth of the range can be told apart."""
    if low is None or high is None or high <= low or log:
        return 6
    return max(0, 3 - math.floor(math.log10(high - low)))


def _mix(low: float, high: float, unit: float, *, log: bool) -> float:
    return low * (high / low) ** unit if log else low + (high - low) * unit
