"""A study's parameters and constraints as a space: one configuration checked, repaired, encoded, named; many drawn, counted. Pure.

Randomness is an argument. Which configurations are legal is `legal`'s, how one is repaired `repair`'s, how many are drawn `draws`'.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from loadcell.tune import draws
from loadcell.tune.legal import Legality
from loadcell.tune.parameters import Configuration, Constraint, Parameter, Value
from loadcell.tune.repair import repaired

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NEUTRAL: Final = 0.5


@dataclass
class Counts:
    """Of all that was drawn: how much broke a constraint, and how much of that was repaired. Positions that a caller repairs count too."""

    drawn: int = 0
    rejected: int = 0
    repaired: int = 0


class Space:
    """`constants`: further names that expressions may use, such as the devices of a replica. SpecError names the parameter's place.

    `domains`: the values of each parameter that is not derived. `searched`: those of them that have more than one.
    """

    def __init__(
        self, parameters: Sequence[Parameter], constraints: Sequence[Constraint] = (), constants: Mapping[str, Value] | None = None
    ) -> None:
        self.parameters, self.constraints, self.constants = tuple(parameters), tuple(constraints), dict(constants or {})
        self.legality = Legality(self.parameters, self.constraints, self.constants)
        self.domains = self.legality.domains
        self.searched = tuple(name for name, domain in self.domains.items() if not domain.fixed)
        self.counts = Counts()
        self._by_name = self.legality.by_name
        self._optional = {name for name in self.searched if name in self.legality.when or self._by_name[name].default is None}

    # One configuration

    def active(self, values: Mapping[str, Value]) -> frozenset[str]:
        """The parameters that have a say where the others have `values`."""
        return self.legality.active(values)

    def complete(self, values: Mapping[str, Value]) -> Configuration:
        """With what is derived, without what is inactive; in the parameters' order. What is missing stays so: `legal` tells."""
        return self.legality.complete(values)

    def legal(self, configuration: Configuration) -> str | None:
        """Null, or why it may not run. Each parameter's default is legal for itself, even outside its range."""
        return self.legality.legal(configuration)

    def repair(self, configuration: Mapping[str, Value]) -> tuple[Configuration, tuple[str, ...]] | None:
        """A legal configuration near it, and the parameters that were moved; null: none is found by moving what constraints allow to move."""
        found = repaired(self.legality, configuration, reverse=bool(self.counts.repaired % 2))
        self.counts.repaired += found is not None
        return found

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
        return draws.candidates(self, rng, n, near)

    @cached_property
    def _legal_ones(self) -> tuple[Configuration, ...] | None:
        return draws.all_legal(self)

    def size(self) -> int | None:
        """How many configurations are legal; null: more than 20,000, or too many to look at."""
        return None if self._legal_ones is None else len(self._legal_ones)

    def enumerate(self) -> Iterable[Configuration]:
        """All legal configurations of a space that has a size. ValueError for another."""
        if self._legal_ones is None:
            raise ValueError("the space has no size: draw candidates")
        return (dict(one) for one in self._legal_ones)


def _canonical(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value == int(value) else float(f"{value:.12g}")
    return value
