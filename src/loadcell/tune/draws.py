"""A space -> many legal configurations: by small moves from known ones, by uniform draws, or all there are. Pure; randomness is an argument."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from loadcell.tune.parameters import Configuration, Value

if TYPE_CHECKING:
    import numpy as np

    from loadcell.tune.space import Space

MOST_COUNTED: Final = 20_000
_MOST_VISITED: Final = 200_000  # configurations looked at to find the legal ones of a finite space
_TRIES: Final = 12  # times as many draws as are wanted, before a space counts as scarce


def candidates(space: "Space", rng: "np.random.Generator", n: int, near: Sequence[Mapping[str, Value]]) -> list[Configuration]:
    """As `Space.candidates` says."""
    if n <= 0:
        return []
    size = space.size()
    if size is not None and size <= n:
        return list(space.enumerate())
    found: dict[str, Configuration] = {}
    for moved in _around(space, rng, near, n // 2):
        found.setdefault(space.key(moved), moved)
    broken: list[Configuration] = []
    for _ in range(_TRIES):
        if len(found) >= n:
            break
        for position in rng.random((max(n - len(found), 16), len(space.searched))).tolist():
            drawn = space.from_unit(position)
            space.counts.drawn += 1
            if space.legality.allowed(drawn):
                found.setdefault(space.key(drawn), drawn)
            else:
                space.counts.rejected += 1
                broken.append(drawn)
    wanted = min(max(n - len(found), n // 16), n) if any(rule.movable for _, rule in space.legality.rules) else 0
    for one in broken[:wanted]:
        repaired = space.repair(one)
        if repaired is not None:
            found.setdefault(space.key(repaired[0]), repaired[0])
    return list(found.values())[:n] if len(found) <= n else _thinned(list(found.values()), n, rng)


def _around(space: "Space", rng: "np.random.Generator", near: Sequence[Mapping[str, Value]], most: int) -> list[Configuration]:
    """One parameter moved, then two or three at once; taken in turn from each of `near`, at most `most`."""
    share = most // len(near) if near else 0
    found: dict[str, Configuration] = {}
    for centre in near:
        own = 0
        whole = {
            name: centre[name] if name in centre else space.domains[name].at(float(rng.random())) for name in space.domains
        }  # what a switched category makes active needs a value
        for moved in _moves(space, rng, whole, share):
            if own >= share:
                break
            space.counts.drawn += 1
            if not space.legality.allowed(moved):
                space.counts.rejected += 1
                continue
            key = space.key(moved)
            own += key not in found
            found.setdefault(key, moved)
    return list(found.values())


def _moves(space: "Space", rng: "np.random.Generator", centre: Mapping[str, Value], several: int) -> Iterator[Configuration]:
    steps = {name: space.domains[name].neighbours(centre[name]) for name in space.searched}
    for name, values in steps.items():
        for value in values:
            yield space.complete({**centre, name: value})
    movable = [name for name, values in steps.items() if values]
    for _ in range(several if len(movable) > 1 else 0):
        names = rng.choice(len(movable), size=min(len(movable), int(rng.integers(2, 4))), replace=False)
        change = {movable[at]: steps[movable[at]][int(rng.integers(len(steps[movable[at]])))] for at in names}
        yield space.complete({**centre, **change})


def all_legal(space: "Space") -> tuple[Configuration, ...] | None:
    """All, or null where there are too many to count."""
    raw = 1
    for name in space.searched:
        raw *= space.domains[name].size or MOST_COUNTED + 1
        if raw > _MOST_VISITED:
            return None
    found: dict[str, Configuration] = {}
    for whole in _all(space, {}, [name for name in space.legality.order if name in space.searched]):
        if space.legality.allowed(whole):
            found.setdefault(space.key(whole), whole)
            if len(found) > MOST_COUNTED:
                return None
    return tuple(found.values())


def _all(space: "Space", values: dict[str, Value], names: Sequence[str]) -> Iterator[Configuration]:
    """Depth first; a parameter that earlier ones make inactive is not multiplied out."""
    if not names:
        yield space.complete(values)
        return
    name, rest = names[0], names[1:]
    if space.legality.when and name in space.legality.when and name not in space.active(values):
        yield from _all(space, values, rest)
        return
    for value in space.domains[name].values:
        yield from _all(space, {**values, name: value}, rest)


def _thinned(found: list[Configuration], n: int, rng: "np.random.Generator") -> list[Configuration]:
    kept = sorted(rng.choice(len(found), size=n, replace=False).tolist())
    return [found[at] for at in kept]
