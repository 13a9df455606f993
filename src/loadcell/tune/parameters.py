"""What may vary in a study, and one choice of it. Pure data; `space` says which choices are legal, `placing` where a value goes."""

from typing import Literal

from msgspec import Struct

Value = int | float | str | bool
Configuration = dict[str, Value]
"""Name -> value of every parameter that is active in it (those whose `when` is false are absent). Derived ones included."""

Kind = Literal["int", "float", "categorical", "bool"]
Role = Literal["server", "load"]


class Place(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a value goes. Exactly one: a flag of the engine (for MindIE a dotted path in its configuration), a variable of its
    environment, or a dotted path in a JSON/TOML/YAML file (of which a copy is rendered). `load`: a flag of `loadcell bench` instead.
    `word`: nowhere but as `$name` in the texts of the fleet and the benchmark, where every parameter's `$name` stands for its value.
    """

    flag: str | None = None
    env: str | None = None
    file: str | None = None
    path: str | None = None
    load: str | None = None
    word: bool = False


class Parameter(Struct, frozen=True, forbid_unknown_fields=True):
    """`ladder`: the only values of a numeric parameter, ascending. `default`: what the engine does without it; null: nothing is set.

    `when`: an expression over other parameters; false makes it inactive. `derived`: an expression that gives its value; it is not searched.
    """

    name: str
    kind: Kind
    place: Place
    low: float | None = None
    high: float | None = None
    log: bool = False
    step: float | None = None
    ladder: tuple[float, ...] = ()
    choices: tuple[Value, ...] = ()
    default: Value | None = None
    when: str | None = None
    derived: str | None = None

    @property
    def role(self) -> Role:
        """`server`: a change needs a restart. `load`: it belongs to the load."""
        return "load" if self.place.load is not None else "server"


class Constraint(Struct, frozen=True, forbid_unknown_fields=True):
    """`expression` must be true. `repair`: this parameter is moved to the nearest legal value; null: such a configuration is rejected.

    Several names: the first alone, and where none of its values suffices, all of them. `alternate`: every second repair takes them in reverse order,
    so that none is favoured.
    """

    expression: str
    repair: str | tuple[str, ...] | None = None
    alternate: bool = False

    @property
    def movable(self) -> tuple[str, ...]:
        return (self.repair,) if isinstance(self.repair, str) else self.repair or ()
