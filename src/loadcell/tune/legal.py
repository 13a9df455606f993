"""Parameters and constraints -> which configurations may run: conditions, derived values, constraints, and why not. Pure.

A configuration names what is active in it. A parameter is absent where its `when` is false, where its `when` or `derived` needs an absent
one, and in the default configuration where nobody knows what the engine does without it. A constraint that needs an absent one holds.
"""

import math
from collections.abc import Mapping, Sequence

from loadcell.errors import UserError
from loadcell.experiment.spec import Place, SpecError, is_name
from loadcell.tune.domain import Domain
from loadcell.tune.expressions import Expression, NotComputable, Unset, parse
from loadcell.tune.parameters import Configuration, Constraint, Parameter, Value


class Legality:
    """`constants`: further names that expressions may use. `rules`: each constraint with its expression. SpecError names the parameter's place."""

    def __init__(self, parameters: Sequence[Parameter], constraints: Sequence[Constraint], constants: Mapping[str, Value]) -> None:
        self.parameters, self.constants = tuple(parameters), dict(constants)
        self.by_name = {parameter.name: parameter for parameter in parameters}
        self._check_names()
        self.when: dict[str, Expression] = {}
        self.derived: dict[str, Expression] = {}
        self.domains: dict[str, Domain] = {}
        for at, parameter in enumerate(self.parameters):
            self._read(parameter, ("parameter", at))
        self.rules = [(self._parsed(rule.expression, ("constraint", at, "expression")), rule) for at, rule in enumerate(constraints)]
        for at, rule in enumerate(constraints):
            for name in rule.movable:
                if name not in self.domains:
                    raise SpecError(("constraint", at, "repair"), f"{name}: name a parameter that is searched: {', '.join(self.domains)}")
        self.order = self._ordered()

    # What stands in the file

    def _check_names(self) -> None:
        for at, parameter in enumerate(self.parameters):
            place: Place = ("parameter", at, "name")
            if not parameter.name.isidentifier() or not is_name(parameter.name):
                raise SpecError(place, f"{parameter.name!r}: expressions speak of it: use letters, digits and _, as in max_num_seqs")
            if parameter.name in self.constants or self.by_name[parameter.name] is not parameter:
                raise SpecError(place, f"{parameter.name}: the name is taken")

    def _parsed(self, text: str, place: Place) -> Expression:
        try:
            return parse(text, (*self.by_name, *self.constants))
        except UserError as wrong:
            raise SpecError(place, str(wrong)) from None

    def _read(self, parameter: Parameter, place: Place) -> None:
        if parameter.when is not None:
            self.when[parameter.name] = self._parsed(parameter.when, (*place, "when"))
        if parameter.derived is None:
            self.domains[parameter.name] = Domain(parameter, place)
            self._check_default(parameter, place)
            return
        self.derived[parameter.name] = self._parsed(parameter.derived, (*place, "derived"))
        if parameter.default is not None or parameter.ladder or parameter.step is not None:
            raise SpecError((*place, "derived"), f"{parameter.name}: the expression gives its value: leave default, step and ladder out")

    def _check_default(self, parameter: Parameter, place: Place) -> None:
        default, kind = parameter.default, parameter.kind
        if default is None:
            return
        numeric = isinstance(default, int | float) and not isinstance(default, bool)
        if kind == "bool" and not isinstance(default, bool):
            raise SpecError((*place, "default"), f"{parameter.name}: {default!r}: false or true is expected")
        if isinstance(default, float) and not math.isfinite(default):
            raise SpecError((*place, "default"), f"{parameter.name}: {default!r}: a finite number is expected")
        if kind in ("int", "float") and (not numeric or (kind == "int" and default != int(default))):
            raise SpecError(
                (*place, "default"), f"{parameter.name}: {default!r}: {'a whole number' if kind == 'int' else 'a number'} is expected"
            )

    def _ordered(self) -> tuple[str, ...]:
        """Every parameter after those that decide whether it is active, or what it is."""
        needs = {
            name: {used for table in (self.when, self.derived) if name in table for used in table[name].names if used in self.by_name}
            for name in self.by_name
        }
        order: list[str] = []
        while len(order) < len(needs):
            ready = next((name for name, used in needs.items() if name not in order and used <= set(order)), None)
            if ready is None:
                at, name = next((at, one.name) for at, one in enumerate(self.parameters) if one.name not in order)
                key = "when" if name in self.when else "derived"
                raise SpecError(("parameter", at, key), f"{name} depends on itself through {', '.join(sorted(needs[name]))}")
            order.append(ready)
        return tuple(order)

    # One configuration

    def active(self, values: Mapping[str, Value]) -> frozenset[str]:
        """The parameters that have a say where the others have `values`; a derived one whose value cannot be computed is among them."""
        known: dict[str, Value] = {**self.constants}
        active: set[str] = set()
        for name in self.order:
            if self._is_active(name, known):
                active.add(name)
                if name in self.derived:
                    self._derive(name, known)
                elif name in values:
                    known[name] = values[name]
        return frozenset(active)

    def complete(self, values: Mapping[str, Value]) -> Configuration:
        """With what is derived, without what is inactive; in the parameters' order. What is missing stays so: `legal` tells."""
        known: dict[str, Value] = {**self.constants}
        when, derived, domains = self.when, self.derived, self.domains
        for name in self.order:
            if name in when and not self._is_active(name, known):
                continue
            if name in values and name not in derived:
                known[name] = values[name]
            elif name in derived:
                self._derive(name, known)
            elif domains[name].fixed:
                known[name] = domains[name].values[0]
        return {name: known[name] for name in self.by_name if name in known}

    def _is_active(self, name: str, known: Mapping[str, Value]) -> bool:
        when = self.when.get(name)
        if when is None:
            return True
        try:
            return when.holds(known)
        except (NotComputable, Unset):
            return False

    def _derive(self, name: str, known: dict[str, Value]) -> None:
        try:
            value = self.derived[name].value(known)
        except (NotComputable, Unset):
            return
        kind = self.by_name[name].kind
        if kind == "int" and isinstance(value, float) and abs(value - round(value)) < 1e-9:
            value = round(value)
        elif kind == "bool":
            value = bool(value)
        elif kind == "float" and isinstance(value, int):
            value = float(value)
        known[name] = value

    def legal(self, configuration: Configuration) -> str | None:
        """Null, or why it may not run. Each parameter's default is legal for itself, even outside its range."""
        unknown = [name for name in configuration if name not in self.by_name]
        if unknown:
            return f"{unknown[0]} is no parameter"
        whole = self.complete(configuration)
        for name in self.by_name:
            why = self._legal_value(name, configuration, whole)
            if why:
                return why
        broken = self.broken({**self.constants, **whole})
        return None if broken is None else broken[1]

    def _legal_value(self, name: str, given: Configuration, whole: Configuration) -> str | None:
        if name in self.derived:
            if name not in whole:
                return self._underivable(name, whole)
            if name not in given or given[name] != whole[name]:
                return f"{name} is {given.get(name)!r}, where {self.derived[name].text} is {whole[name]!r}"
            return self._outside(name, whole[name])
        if name not in given:
            if name not in whole and (self.by_name[name].default is None or name not in self.active(whole)):
                return None
            return f"{name} has no value"
        if name not in whole:
            return f"{name} has a value where {self.when[name].text} is false"
        default = self.by_name[name].default
        if self.domains[name].has(given[name]) or (default is not None and given[name] == default):
            return None
        return f"{name} = {given[name]!r} is outside its range"

    def _underivable(self, name: str, whole: Configuration) -> str | None:
        known = {**self.constants, **whole}
        if not self._is_active(name, known):
            return None
        try:
            self.derived[name].value(known)
        except Unset:
            return None
        except NotComputable as why:
            return f"{name} = {self.derived[name].text}: {why}"
        return None

    def _outside(self, name: str, value: Value) -> str | None:
        """What is derived must be of its kind, and within the range that is given for it."""
        parameter = self.by_name[name]
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        text = f"{name} = {self.derived[name].text} = {value:g}" if numeric else f"{name} = {self.derived[name].text} = {value!r}"
        if parameter.kind == "int" and not (numeric and value == int(value)):
            return f"{text}: no whole number"
        if parameter.kind == "float" and not numeric:
            return f"{text}: no number"
        if numeric and not (_or(parameter.low, -math.inf) <= float(value) <= _or(parameter.high, math.inf)):
            return f"{text}: outside its range"
        if parameter.choices and value not in parameter.choices:
            return f"{text}: none of its choices"
        return None

    def broken(self, known: Mapping[str, Value]) -> tuple[int, str] | None:
        """The first constraint that does not hold, by its index in `_rules`, and why."""
        for index, (expression, _) in enumerate(self.rules):
            try:
                if not expression.holds(known):
                    shown = ", ".join(f"{name} = {known[name]}" for name in sorted(expression.names) if name in known)
                    return index, f"{expression.text} is false with {shown}" if shown else f"{expression.text} is false"
            except Unset:
                continue
            except NotComputable as why:
                return index, f"{expression.text}: {why}"
        return None

    def allowed(self, drawn: Configuration) -> bool:
        """`legal` for what `complete` made of values within their ranges."""
        known = {**self.constants, **drawn} if self.constants else drawn
        if self.broken(known) is not None:
            return False
        why = (self._outside(name, drawn[name]) if name in drawn else self._underivable(name, drawn) for name in self.derived)
        return not any(why)

    def holds(self, rule: int, values: Mapping[str, Value]) -> bool:
        """One constraint with these values, and every derived value of its kind."""
        known: dict[str, Value] = {**self.constants, **self.complete(values)}
        try:
            if not self.rules[rule][0].holds(known):
                return False
        except Unset:
            pass
        except NotComputable:
            return False
        return all(name not in known or self._outside(name, known[name]) is None for name in self.derived)


def _or(limit: float | None, instead: float) -> float:
    return instead if limit is None else limit
