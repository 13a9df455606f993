"""Parameters and constraints -> the legal configurations: checked, repaired, encoded, drawn, counted. Pure; randomness is an argument.

A configuration names what is active in it. A parameter is absent where its `when` is false, where its `when` or `derived` needs an absent
one, and in the default configuration where nobody knows what the engine does without it. A constraint that needs an absent one holds.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from loadcell.errors import UserError
from loadcell.experiment.spec import Place, SpecError, is_name
from loadcell.tune.domain import Domain
from loadcell.tune.expressions import Expression, NotComputable, Unset, parse
from loadcell.tune.parameters import Configuration, Constraint, Parameter, Value

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_COUNTED: Final = 20_000
_MOST_VISITED: Final = 200_000  # configurations looked at to find the legal ones of a finite space
_TRIES: Final = 12  # times as many draws as are wanted, before a space counts as scarce
_NEUTRAL: Final = 0.5
_PARTNERS: Final = 257  # values of a second parameter that a repair looks at


@dataclass
class Counts:
    """Of all that was drawn: how much broke a constraint, and how much of that was repaired. Positions that a caller repairs count too."""

    drawn: int = 0
    rejected: int = 0
    repaired: int = 0


class Space:
    """`constants`: further names that expressions may use, such as the devices of a replica. SpecError names the parameter's place."""

    def __init__(
        self, parameters: Sequence[Parameter], constraints: Sequence[Constraint] = (), constants: Mapping[str, Value] | None = None
    ) -> None:
        self.parameters, self.constraints = tuple(parameters), tuple(constraints)
        self.constants = dict(constants or {})
        self.counts = Counts()
        self._by_name = {parameter.name: parameter for parameter in parameters}
        self._check_names()
        self._when: dict[str, Expression] = {}
        self._derived: dict[str, Expression] = {}
        self.domains: dict[str, Domain] = {}
        for at, parameter in enumerate(self.parameters):
            self._read(parameter, ("parameter", at))
        self._rules = [(self._parsed(rule.expression, ("constraint", at, "expression")), rule) for at, rule in enumerate(self.constraints)]
        for at, rule in enumerate(self.constraints):
            for name in rule.movable:
                if name not in self.domains:
                    raise SpecError(("constraint", at, "repair"), f"{name}: name a parameter that is searched: {', '.join(self.domains)}")
        self._order = self._ordered()
        self.searched = tuple(name for name in self._by_name if name in self.domains and not self.domains[name].fixed)
        self._optional = {name for name in self.searched if name in self._when or self._by_name[name].default is None}

    # What stands in the file

    def _check_names(self) -> None:
        for at, parameter in enumerate(self.parameters):
            place: Place = ("parameter", at, "name")
            if not parameter.name.isidentifier() or not is_name(parameter.name):
                raise SpecError(place, f"{parameter.name!r}: expressions speak of it: use letters, digits and _, as in max_num_seqs")
            if parameter.name in self.constants or self._by_name[parameter.name] is not parameter:
                raise SpecError(place, f"{parameter.name}: the name is taken")

    def _parsed(self, text: str, place: Place) -> Expression:
        try:
            return parse(text, (*self._by_name, *self.constants))
        except UserError as wrong:
            raise SpecError(place, str(wrong)) from None

    def _read(self, parameter: Parameter, place: Place) -> None:
        if parameter.when is not None:
            self._when[parameter.name] = self._parsed(parameter.when, (*place, "when"))
        if parameter.derived is None:
            self.domains[parameter.name] = Domain(parameter, place)
            self._check_default(parameter, place)
            return
        self._derived[parameter.name] = self._parsed(parameter.derived, (*place, "derived"))
        if parameter.default is not None or parameter.ladder or parameter.step is not None:
            raise SpecError((*place, "derived"), f"{parameter.name}: the expression gives its value: leave default, step and ladder out")

    def _check_default(self, parameter: Parameter, place: Place) -> None:
        default, kind = parameter.default, parameter.kind
        if default is None:
            return
        numeric = isinstance(default, int | float) and not isinstance(default, bool)
        if kind == "bool" and not isinstance(default, bool):
            raise SpecError((*place, "default"), f"{parameter.name}: {default!r}: false or true is expected")
        if kind in ("int", "float") and (not numeric or (kind == "int" and default != int(default))):
            raise SpecError(
                (*place, "default"), f"{parameter.name}: {default!r}: {'a whole number' if kind == 'int' else 'a number'} is expected"
            )

    def _ordered(self) -> tuple[str, ...]:
        """Every parameter after those that decide whether it is active, or what it is."""
        needs = {
            name: {used for table in (self._when, self._derived) if name in table for used in table[name].names if used in self._by_name}
            for name in self._by_name
        }
        order: list[str] = []
        while len(order) < len(needs):
            ready = next((name for name, used in needs.items() if name not in order and used <= set(order)), None)
            if ready is None:
                at, name = next((at, one.name) for at, one in enumerate(self.parameters) if one.name not in order)
                key = "when" if name in self._when else "derived"
                raise SpecError(("parameter", at, key), f"{name} depends on itself through {', '.join(sorted(needs[name]))}")
            order.append(ready)
        return tuple(order)

    # One configuration

    def active(self, values: Mapping[str, Value]) -> frozenset[str]:
        """The parameters that have a say where the others have `values`; a derived one whose value cannot be computed is among them."""
        known: dict[str, Value] = {**self.constants}
        active: set[str] = set()
        for name in self._order:
            if self._is_active(name, known):
                active.add(name)
                if name in self._derived:
                    self._derive(name, known)
                elif name in values:
                    known[name] = values[name]
        return frozenset(active)

    def complete(self, values: Mapping[str, Value]) -> Configuration:
        """With what is derived, without what is inactive; in the parameters' order. What is missing stays so: `legal` tells."""
        known: dict[str, Value] = {**self.constants}
        when, derived, domains = self._when, self._derived, self.domains
        for name in self._order:
            if name in when and not self._is_active(name, known):
                continue
            if name in values and name not in derived:
                known[name] = values[name]
            elif name in derived:
                self._derive(name, known)
            elif domains[name].fixed:
                known[name] = domains[name].values[0]
        return {name: known[name] for name in self._by_name if name in known}

    def _is_active(self, name: str, known: Mapping[str, Value]) -> bool:
        when = self._when.get(name)
        if when is None:
            return True
        try:
            return when.holds(known)
        except (NotComputable, Unset):
            return False

    def _derive(self, name: str, known: dict[str, Value]) -> None:
        try:
            value = self._derived[name].value(known)
        except (NotComputable, Unset):
            return
        kind = self._by_name[name].kind
        if kind == "int" and isinstance(value, float) and abs(value - round(value)) < 1e-9:
            value = round(value)
        elif kind == "bool":
            value = bool(value)
        elif kind == "float" and isinstance(value, int):
            value = float(value)
        known[name] = value

    def legal(self, configuration: Configuration) -> str | None:
        """Null, or why it may not run. Each parameter's default is legal for itself, even outside its range."""
        unknown = [name for name in configuration if name not in self._by_name]
        if unknown:
            return f"{unknown[0]} is no parameter"
        whole = self.complete(configuration)
        for name in self._by_name:
            why = self._legal_value(name, configuration, whole)
            if why:
                return why
        broken = self._broken({**self.constants, **whole})
        return None if broken is None else broken[1]

    def _legal_value(self, name: str, given: Configuration, whole: Configuration) -> str | None:
        if name in self._derived:
            if name not in whole:
                return self._underivable(name, whole)
            if name not in given or given[name] != whole[name]:
                return f"{name} is {given.get(name)!r}, where {self._derived[name].text} is {whole[name]!r}"
            return self._outside(name, whole[name])
        if name not in given:
            if name not in whole and (self._by_name[name].default is None or name not in self.active(whole)):
                return None
            return f"{name} has no value"
        if name not in whole:
            return f"{name} has a value where {self._when[name].text} is false"
        default = self._by_name[name].default
        if self.domains[name].has(given[name]) or (default is not None and given[name] == default):
            return None
        return f"{name} = {given[name]!r} is outside its range"

    def _underivable(self, name: str, whole: Configuration) -> str | None:
        known = {**self.constants, **whole}
        if not self._is_active(name, known):
            return None
        try:
            self._derived[name].value(known)
        except Unset:
            return None
        except NotComputable as why:
            return f"{name} = {self._derived[name].text}: {why}"
        return None

    def _outside(self, name: str, value: Value) -> str | None:
        """What is derived must be of its kind, and within the range that is given for it."""
        parameter = self._by_name[name]
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        text = f"{name} = {self._derived[name].text} = {value:g}" if numeric else f"{name} = {self._derived[name].text} = {value!r}"
        if parameter.kind == "int" and not (numeric and value == int(value)):
            return f"{text}: no whole number"
        if parameter.kind == "float" and not numeric:
            return f"{text}: no number"
        if numeric and not (_or(parameter.low, -math.inf) <= float(value) <= _or(parameter.high, math.inf)):
            return f"{text}: outside its range"
        if parameter.choices and value not in parameter.choices:
            return f"{text}: none of its choices"
        return None

    def _broken(self, known: Mapping[str, Value]) -> tuple[int, str] | None:
        """The first constraint that does not hold, by its index in `_rules`, and why."""
        for index, (expression, _) in enumerate(self._rules):
            try:
                if not expression.holds(known):
                    shown = ", ".join(f"{name} = {known[name]}" for name in sorted(expression.names) if name in known)
                    return index, f"{expression.text} is false with {shown}" if shown else f"{expression.text} is false"
            except Unset:
                continue
            except NotComputable as why:
                return index, f"{expression.text}: {why}"
        return None

    def repair(self, configuration: Mapping[str, Value]) -> tuple[Configuration, tuple[str, ...]] | None:
        """A legal configuration near it, and the parameters that were moved; null: none is found by moving what constraints allow to move.

        Values outside their range go to its nearest one first; what is missing gets its default. Then, for each constraint that is
        broken, the parameter that it names goes to the nearest value that makes it hold.
        """
        values = {name: self._nearest(name, configuration.get(name)) for name in self.domains}
        for _ in range(2 * len(self._rules) + 1):
            whole = self.complete(values)
            if self.legal(whole) is None:
                moved = tuple(
                    name for name in self.domains if name in whole and name in configuration and whole[name] != configuration[name]
                )
                self.counts.repaired += 1
                return whole, moved
            broken = self._broken({**self.constants, **whole})
            names = self._rules[broken[0]][1].movable if broken is not None else ()
            if broken is None or not names or any(name not in whole for name in names):
                return None
            change = self._change(broken[0], names, values)
            if change is None:
                return None
            values |= change
        return None

    def _change(self, rule: int, names: tuple[str, ...], values: Mapping[str, Value]) -> dict[str, Value] | None:
        """One parameter alone; then, of the others' values nearest first, the first with which it suffices."""
        if self._rules[rule][1].alternate and self.counts.repaired % 2:
            names = tuple(reversed(names))
        first, *others = names
        alone = self._moved(first, rule, values)
        if alone is not None:
            return {first: alone}
        if others:
            rest = [list(self.domains[name].nearest_first(values[name]))[:_PARTNERS] for name in reversed(others)]
            for chosen in product(*rest):
                together = dict(zip(reversed(others), chosen, strict=True))
                moved = self._moved(first, rule, {**values, **together})
                if moved is not None:
                    return {first: moved, **together}
        return None

    def _moved(self, name: str, rule: int, values: Mapping[str, Value]) -> Value | None:
        """The nearest value of one parameter that makes a constraint hold: exact in a row, by halving in a long range."""
        domain, outside = self.domains[name], values[name]
        inside = next((value for value in domain.nearest_first(outside) if self._holds(rule, name, value, values)), None)
        if inside is None or domain.values:
            return inside
        for _ in range(20):
            middle = domain.between(outside, inside)
            if middle in (outside, inside):
                break
            if self._holds(rule, name, middle, values):
                inside = middle
            else:
                outside = middle
        return inside

    def _nearest(self, name: str, value: Value | None) -> Value:
        if value is None:
            value = self._by_name[name].default
        if value is None:
            return self.domains[name].at(_NEUTRAL)
        return value if value == self._by_name[name].default else self.domains[name].snap(value)

    def _holds(self, rule: int, name: str, value: Value, values: Mapping[str, Value]) -> bool:
        """This constraint with one value in place of another, and every derived value of its kind."""
        known: dict[str, Value] = {**self.constants, **self.complete({**values, name: value})}
        try:
            if not self._rules[rule][0].holds(known):
                return False
        except Unset:
            pass
        except NotComputable:
            return False
        return all(derived not in known or self._outside(derived, known[derived]) is None for derived in self._derived)

    def default(self) -> Configuration:
        """What the engine does when nothing is said. Where a default is not known the parameter is absent; it may break a constraint."""
        return self.complete({name: default for name in self.domains if (default := self._by_name[name].default) is not None})

    def key(self, configuration: Mapping[str, Value]) -> str:
        """One text for equal configurations: 1 and 1.0 are equal, the order does not count."""
        plain = {name: _canonical(value) for name, value in sorted(configuration.items())}
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))

    # Many

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The parameter behind each column of `encode`; a name with `?` is the indicator of one that may be absent."""
        found: list[str] = []
        for name in self.searched:
            found += [name] * self.domains[name].columns
            if name in self._optional:
                found.append(f"{name}?")
        return tuple(found)

    def encode(self, configurations: Sequence[Mapping[str, Value]]) -> "NDArray[np.float64]":
        """(n, d) in [0, 1]: one column for a number or an ordered choice, one for each choice of a category; a parameter that may be
        absent has one more, 1 where it is there, and stands in the middle where it is not. Fixed and derived ones have none.
        """
        import numpy as np

        out = np.empty((len(configurations), len(self.columns)))
        at = 0
        for name in self.searched:
            domain = self.domains[name]
            given = [configuration.get(name) for configuration in configurations]
            if domain.one_hot:
                for choice in domain.values:
                    out[:, at] = [float(value == choice) for value in given]
                    at += 1
            else:
                out[:, at] = [_NEUTRAL if value is None else domain.unit(value) for value in given]
                at += 1
            if name in self._optional:
                out[:, at] = [float(value is not None) for value in given]
                at += 1
        return out

    def from_unit(self, position: Sequence[float]) -> Configuration:
        """A place in the unit cube, one coordinate per name of `searched` -> the configuration there; it need not be legal."""
        return self.complete({name: self.domains[name].at(float(unit)) for name, unit in zip(self.searched, position, strict=True)})

    def to_unit(self, configuration: Mapping[str, Value]) -> list[float]:
        """The inverse; the middle for what is absent."""
        return [self.domains[name].unit(configuration[name]) if name in configuration else _NEUTRAL for name in self.searched]

    def candidates(self, rng: "np.random.Generator", n: int, near: Sequence[Mapping[str, Value]] = ()) -> list[Configuration]:
        """At most `n` legal configurations, none twice: all of a space that is no larger; else up to half by small moves from `near`, nearest
        moves first, the rest drawn uniformly. Where few draws are legal, those that constraints can repair come in.
        """
        if n <= 0:
            return []
        size = self.size()
        if size is not None and size <= n:
            return list(self.enumerate())
        found: dict[str, Configuration] = {}
        for moved in self._around(rng, near, n // 2):
            found.setdefault(self.key(moved), moved)
        broken: list[Configuration] = []
        for _ in range(_TRIES):
            if len(found) >= n:
                break
            for position in rng.random((max(n - len(found), 16), len(self.searched))).tolist():
                drawn = self.from_unit(position)
                self.counts.drawn += 1
                if self._allowed(drawn):
                    found.setdefault(self.key(drawn), drawn)
                else:
                    self.counts.rejected += 1
                    broken.append(drawn)
        wanted = min(max(n - len(found), n // 16), n) if any(rule.movable for _, rule in self._rules) else 0
        for one in broken[:wanted]:
            repaired = self.repair(one)
            if repaired is not None:
                found.setdefault(self.key(repaired[0]), repaired[0])
        return list(found.values())[:n] if len(found) <= n else _thinned(list(found.values()), n, rng)

    def _allowed(self, drawn: Configuration) -> bool:
        """`legal` for what `complete` made of values within their ranges."""
        known = {**self.constants, **drawn} if self.constants else drawn
        if self._broken(known) is not None:
            return False
        for name in self._derived:
            if (self._outside(name, drawn[name]) if name in drawn else self._underivable(name, drawn)) is not None:
                return False
        return True

    def _around(self, rng: "np.random.Generator", near: Sequence[Mapping[str, Value]], most: int) -> list[Configuration]:
        """One parameter moved, then two or three at once; taken in turn from each of `near`, at most `most`."""
        share = most // len(near) if near else 0
        found: dict[str, Configuration] = {}
        for centre in near:
            own = 0
            whole = {
                name: centre[name] if name in centre else self.domains[name].at(float(rng.random())) for name in self.domains
            }  # what a switched category makes active needs a value
            for moved in self._moves(rng, whole, share):
                if own >= share:
                    break
                self.counts.drawn += 1
                if not self._allowed(moved):
                    self.counts.rejected += 1
                    continue
                key = self.key(moved)
                own += key not in found
                found.setdefault(key, moved)
        return list(found.values())

    def _moves(self, rng: "np.random.Generator", centre: Mapping[str, Value], several: int) -> Iterator[Configuration]:
        steps = {name: self.domains[name].neighbours(centre[name]) for name in self.searched}
        for name, values in steps.items():
            for value in values:
                yield self.complete({**centre, name: value})
        movable = [name for name, values in steps.items() if values]
        for _ in range(several if len(movable) > 1 else 0):
            names = rng.choice(len(movable), size=min(len(movable), int(rng.integers(2, 4))), replace=False)
            change = {movable[at]: steps[movable[at]][int(rng.integers(len(steps[movable[at]])))] for at in names}
            yield self.complete({**centre, **change})

    @cached_property
    def _legal_ones(self) -> tuple[Configuration, ...] | None:
        """All, or null where there are too many to count."""
        raw = 1
        for name in self.searched:
            raw *= self.domains[name].size or MOST_COUNTED + 1
            if raw > _MOST_VISITED:
                return None
        found: dict[str, Configuration] = {}
        for whole in self._all({}, [name for name in self._order if name in self.searched]):
            if self._allowed(whole):
                found.setdefault(self.key(whole), whole)
                if len(found) > MOST_COUNTED:
                    return None
        return tuple(found.values())

    def _all(self, values: dict[str, Value], names: Sequence[str]) -> Iterator[Configuration]:
        """Depth first; a parameter that earlier ones make inactive is not multiplied out."""
        if not names:
            yield self.complete(values)
            return
        name, rest = names[0], names[1:]
        if self._when and name in self._when and name not in self.active(values):
            yield from self._all(values, rest)
            return
        for value in self.domains[name].values:
            yield from self._all({**values, name: value}, rest)

    def size(self) -> int | None:
        """How many configurations are legal; null: more than 20,000, or too many to look at."""
        return None if self._legal_ones is None else len(self._legal_ones)

    def enumerate(self) -> Iterable[Configuration]:
        """All legal configurations of a space that has a size. ValueError for another."""
        if self._legal_ones is None:
            raise ValueError("the space has no size: draw candidates")
        return (dict(one) for one in self._legal_ones)


def _or(limit: float | None, instead: float) -> float:
    return instead if limit is None else limit


def _canonical(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value == int(value) else float(f"{value:.12g}")
    return value


def _thinned(found: list[Configuration], n: int, rng: "np.random.Generator") -> list[Configuration]:
    kept = sorted(rng.choice(len(found), size=n, replace=False).tolist())
    return [found[at] for at in kept]
