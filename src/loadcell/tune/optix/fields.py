"""A `target_field` of an optix configuration -> parameters and constraints of ours. Pure.

What optix decodes from a particle is a parameter here, a derived one, or both: `ratio` becomes its ratio (searched) and the product (derived). Where optix
repairs a product that does not divide, a constraint does, keeping one of the two fields as the priority policy says; where no pair of values can ever
be legal it clamps, and so do we, saying so. Facts of the format: optix/config/config.py of msmodeling.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from loadcell.errors import UserError
from loadcell.tune.parameters import Constraint, Kind, Parameter, Place, Value

Dtype = Literal[
    "int", "float", "bool", "str", "enum", "range", "ratio", "share", "factories", "times", "ternary_factories", "ternary_times", "le_enum"
]
CONCURRENCY: Final = ("CONCURRENCY", "MAXCONCURRENCY")
REQUEST_RATE: Final = ("REQUESTRATE",)
_LOG_FROM: Final = 10  # a range of a decade or more, above 0, is searched by its logarithm: optix searched it linearly
_ENUMERABLE: Final = 256


class Field(Struct, frozen=True, forbid_unknown_fields=True):
    """As it stands in the file. `value`: the baseline; null: not given. Fixed where `constant` is set, or min = max and nothing is derived."""

    name: str
    config_position: str = "BackendConfig.ScheduleConfig.maxBatchSize"
    min: float = 0.0
    max: float = 100.0
    dtype: Dtype = "float"
    value: int | float | bool | str | None = None
    dtype_param: Any = None
    constant: int | float | bool | str | None = None

    @property
    def fixed(self) -> bool:
        return self.constant is not None or self.dtype == "str" or math.isclose(self.min, self.max, rel_tol=1e-5)


class Fields(Struct, frozen=True):
    """`notes`: what is taken otherwise than optix takes it."""

    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...]
    notes: tuple[str, ...]


def identifier(name: str) -> str:
    """A field's name as expressions can say it."""
    plain = re.sub(r"\W", "_", name)
    return f"_{plain}" if plain[:1].isdigit() or not plain else plain


def fields_from(fields: Sequence[Field], place_of: Callable[[Field], Place]) -> Fields:
    """`place_of`: where a field's value goes. UserError for a field that optix could not use either."""
    made = _Made(fields, place_of)
    for field in fields:
        made.add(field)
    made.conditions()
    return Fields(tuple(made.parameters), tuple(made.constraints), tuple(made.notes))


class _Made:
    def __init__(self, fields: Sequence[Field], place_of: Callable[[Field], Place]) -> None:
        self.parameters: list[Parameter] = []
        self.constraints: list[Constraint] = []
        self.notes: list[str] = []
        self._fields, self._place_of = fields, place_of
        self._by_name = {field.name: field for field in fields}
        if len(self._by_name) < len(fields):
            names = [field.name for field in fields]
            raise UserError(f"target_field {next(name for name in names if names.count(name) > 1)} stands twice")

    def add(self, field: Field) -> None:
        if field.min > field.max:
            raise UserError(f"target_field {field.name}: min = {field.min:g} is above max = {field.max:g}")
        how: dict[str, Callable[[Field], None]] = {
            "ratio": self._ratio,
            "share": self._share,
            "factories": self._product,
            "times": self._product,
            "ternary_factories": self._ternary_factories,
            "ternary_times": self._product,
            "le_enum": self._le_enum,
        }
        how.get(field.dtype, self._searched)(field)

    # --- searched, or fixed

    def _searched(self, field: Field) -> None:
        if field.fixed:
            self._put(field, "categorical", choices=(_fixed_value(field),), default=_fixed_value(field))
        elif field.dtype == "bool":
            default = None if field.value is None else float(field.value) > 0.5 if not isinstance(field.value, str) else None
            self._put(field, "bool", default=default)
        elif field.dtype == "enum":
            self._put(field, "categorical", choices=_entries(field, field.dtype_param), default=field.value)
        elif field.dtype == "range":
            self._range(field)
        else:
            kind: Kind = "int" if field.dtype == "int" else "float"
            low, high = (math.ceil(field.min), math.floor(field.max)) if kind == "int" else (field.min, field.max)
            log = low > 0 and high >= _LOG_FROM * low
            self._put(field, kind, low=low, high=high, log=log, default=_number(field, kind))

    def _range(self, field: Field) -> None:
        step = field.dtype_param
        if isinstance(step, bool) or not isinstance(step, int | float) or int(step) < 1:
            raise UserError(f"target_field {field.name}: dtype range needs its step as dtype_param, not {step!r}")
        low, high = int(field.min), int(field.max)
        if (high - low) % int(step):
            self.notes.append(f"{field.name}: the last step ends below max = {high}; optix would go beyond it")
        self._put(field, "int", low=low, high=high, step=int(step), default=_number(field, "int"))

    def _le_enum(self, field: Field) -> None:
        """One of the entries that are at most another field: a larger one is moved down."""
        param = field.dtype_param
        if not isinstance(param, Mapping):
            raise UserError(f"target_field {field.name}: dtype le_enum needs dtype_param = {{target_name = ..., values = [...]}}")
        entries = _entries(field, next((param[key] for key in ("values", "enum", "choices") if key in param), None))
        target = self._target(field, param.get("target_name"))
        if field.constant is not None:
            self._put(field, "categorical", choices=(field.constant,), default=field.constant)
        else:
            self._put(field, "categorical", choices=entries, default=field.value)
        name = identifier(field.name)
        self.constraints.append(Constraint(f"{name} <= {target}", repair=None if field.constant is not None else name))

    # --- derived

    def _ratio(self, field: Field) -> None:
        """int(ratio × field): the ratio is searched; a baseline is given as the product."""
        target = self._target(field, field.dtype_param)
        ratio = f"{identifier(field.name)}_ratio"
        of = self._by_name[str(field.dtype_param)]
        base = _baseline(of)
        known = isinstance(field.value, int | float) and field.value and base
        default = round(float(field.value) / float(base), 6) if known else None  # type: ignore[arg-type]
        if math.isclose(field.min, field.max) or field.constant is not None:
            fixed = float(field.constant) if field.constant is not None else field.min
            self.parameters.append(Parameter(ratio, "float", Place(word=True), low=fixed, high=fixed, default=fixed))
        else:
            self.parameters.append(Parameter(ratio, "float", Place(word=True), low=field.min, high=field.max, default=default))
        product = f"floor({ratio} * {target} + 1e-9)"  # 0.1 * 30 is 3.0000000000000004, and 0.7 * 10 is 7 to a person
        counts = "maxPrefillBatchSize" in field.config_position or field.name.upper() in CONCURRENCY
        self._put(field, "int", derived=f"max(1, {product})" if counts else product)

    def _share(self, field: Field) -> None:
        target = self._target(field, field.dtype_param)
        of = self._by_name[str(field.dtype_param)]
        self._put(field, "int", derived=f"floor({of.min + of.max:g} - {target})")

    def _product(self, field: Field) -> None:
        """product / a, product × a, product × a × b."""
        targets, product, whole = self._operands(field)
        if field.dtype == "factories":
            text = f"{product:g} / {targets[0]}"
        else:
            text = " * ".join((f"{product:g}", *targets))
        self._put(field, "int" if whole else "float", derived=f"floor({text})" if whole else text)

    def _ternary_factories(self, field: Field) -> None:
        targets, product, whole = self._operands(field)
        param = field.dtype_param
        least = param.get("min_value", 1 if whole else None)
        most = param.get("max_value")
        divisor = f"({' * '.join(targets)})"
        parts = [f"{product:g} % {divisor} == 0"] if whole else []
        parts += [f"{product:g} / {divisor} >= {least:g}"] if least is not None else []
        parts += [f"{product:g} / {divisor} <= {most:g}"] if most is not None else []
        order, alternate = _priority(field, targets)
        rows = [self._row(name) for name in param["target_names"]]
        quotient = f"{product:g} / {divisor}"
        if all(rows) and any(_legal(product, a, b, least, most, whole=whole) for a in rows[0] or () for b in rows[1] or ()):
            movable = [name for name in order if not self._named(name).fixed]
            if parts:
                self.constraints.append(
                    Constraint(" and ".join(parts), repair=tuple(movable) or None, alternate=alternate and len(movable) > 1)
                )
            self._put(field, "int" if whole else "float", derived=quotient, low=least, high=most)
            return
        # No pair of values that can be found by trying is legal: optix clamps, and refuses what has to divide and does not.
        if whole:
            self.constraints.append(Constraint(parts[0]))
        clamped = f"max({least:g}, {quotient})" if least is not None else quotient
        clamped = f"min({most:g}, {clamped})" if most is not None else clamped
        if clamped != quotient:
            self.notes.append(f"{field.name}: clamped where {' × '.join(targets)} leaves it outside its limits, as optix does")
        self._put(field, "int" if whole else "float", derived=f"floor({clamped})" if whole else clamped)

    def _operands(self, field: Field) -> tuple[tuple[str, ...], float, bool]:
        param = field.dtype_param
        wanted = 2 if field.dtype.startswith("ternary") else 1
        names = param.get("target_names" if wanted == 2 else "target_name") if isinstance(param, Mapping) else None
        names = [names] if isinstance(names, str) else names
        if not isinstance(param, Mapping) or not isinstance(names, list | tuple) or len(names) != wanted:
            key = "target_names = [a, b]" if wanted == 2 else "target_name"
            raise UserError(f"target_field {field.name}: dtype {field.dtype} needs dtype_param = {{{key}, product, dtype}}")
        product = param.get("product", 1)
        if isinstance(product, bool) or not isinstance(product, int | float):
            raise UserError(f"target_field {field.name}: product = {product!r} is no number")
        return tuple(self._target(field, name) for name in names), product, param.get("dtype", "int") == "int"

    def _target(self, field: Field, name: Any) -> str:
        if name not in self._by_name or name == field.name:
            known = ", ".join(other for other in self._by_name if other != field.name)
            said = f"made of the field {name!r}, which is none: there are {known or 'no others'}" if name else "made of another field"
            raise UserError(f"target_field {field.name}: dtype {field.dtype} is {said}: name it in dtype_param")
        return identifier(str(name))

    def _named(self, name: str) -> Field:
        return next(field for field in self._fields if identifier(field.name) == name)

    def _row(self, name: str) -> tuple[float, ...]:
        """All values of a field, if they are few: those that a repair may choose from."""
        field = self._by_name[name]
        if field.fixed:
            value = _fixed_value(field)
            return (float(value),) if isinstance(value, int | float) else ()
        if field.dtype == "enum":
            return tuple(float(one) for one in _entries(field, field.dtype_param) if isinstance(one, int | float))
        if field.dtype == "range":
            return tuple(float(one) for one in range(int(field.min), int(field.max) + 1, int(field.dtype_param)))
        if field.dtype == "int" and field.max - field.min <= _ENUMERABLE:
            return tuple(float(one) for one in range(math.ceil(field.min), math.floor(field.max) + 1))
        return ()

    # --- both

    def _put(self, field: Field, kind: Kind, **more: Any) -> None:
        """A default of another kind than the choices is left out, as a value of 0 that stands for nothing."""
        default = more.get("default")
        if kind in ("int", "float") and default is not None and not isinstance(default, int | float):
            raise UserError(f"target_field {field.name}: value = {default!r} is no number")
        self.parameters.append(Parameter(identifier(field.name), kind, self._place_of(field), **more))

    def conditions(self) -> None:
        """MindIE looks at the times per request only where it selects batches by time."""
        switch = next(
            (f for f in self._fields if f.config_position.endswith("supportSelectBatch") and f.dtype == "bool" and not f.fixed), None
        )
        if switch is None:
            return
        for at, one in enumerate(self.parameters):
            path = one.place.path or ""
            if path.endswith(("prefillTimeMsPerReq", "decodeTimeMsPerReq")):
                more = {name: getattr(one, name) for name in one.__struct_fields__}
                self.parameters[at] = Parameter(**{**more, "when": identifier(switch.name)})


def _priority(field: Field, targets: tuple[str, ...]) -> tuple[tuple[str, ...], bool]:
    """Which of the two is moved first, and whether that alternates. `priority` names the one to keep first."""
    param = field.dtype_param
    policy = param.get("priority_policy", "balanced")
    if policy not in ("balanced", "fixed"):
        raise UserError(f"target_field {field.name}: priority_policy = {policy!r}: balanced or fixed is known")
    keep = tuple(identifier(str(name)) for name in param.get("priority", ())) if policy == "fixed" else ()
    if sorted(keep) != sorted(targets):
        keep = targets
    return tuple(reversed(keep)), policy == "balanced"


def _legal(product: float, a: float, b: float, least: float | None, most: float | None, *, whole: bool) -> bool:
    if not a * b or (whole and product % (a * b)):
        return False
    value = product / (a * b)
    return (least is None or value >= least) and (most is None or value <= most)


def _fixed_value(field: Field) -> Value:
    if field.constant is not None:
        return _typed(field, field.constant)
    if field.dtype in ("int", "float", "range"):
        return _typed(field, field.max)
    if field.dtype == "bool":
        return bool(field.max > 0.5) if field.value is None else _typed(field, field.value)
    if field.value is None and field.dtype == "enum":
        return _entries(field, field.dtype_param)[0]
    if field.value is None:
        raise UserError(f"target_field {field.name}: dtype {field.dtype} is fixed, and no value is given")
    return _typed(field, field.value)


def _typed(field: Field, value: Value) -> Value:
    if field.dtype == "str":
        return str(value)
    if field.dtype == "bool":
        return value if isinstance(value, bool) else not isinstance(value, str) and value > 0.5
    if field.dtype in ("int", "range") and isinstance(value, int | float):
        return int(value)
    if field.dtype == "float" and isinstance(value, int | float):
        return int(value) if value == int(value) else float(value)
    return value


def _number(field: Field, kind: Kind) -> float | int | None:
    value = field.value
    if value is None or isinstance(value, str):
        if isinstance(value, str):
            raise UserError(f"target_field {field.name}: value = {value!r} is no number")
        return None
    return int(value) if kind == "int" else float(value)


def _baseline(field: Field) -> Value | None:
    return _fixed_value(field) if field.fixed and field.dtype in ("int", "float", "range", "enum") else field.value


def _entries(field: Field, given: Any) -> tuple[Value, ...]:
    if not isinstance(given, list | tuple) or not given or not all(isinstance(one, int | float | str) for one in given):
        raise UserError(f"target_field {field.name}: dtype {field.dtype} needs the list of its values, not {given!r}")
    return tuple(dict.fromkeys(given))
