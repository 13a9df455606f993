"""A specification -> its cells: lists multiplied, defaults filled in, each cell named, ordered and hashed. Pure."""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, Final

import msgspec
from msgspec import Struct

from loadcell.errors import UserError
from loadcell.experiment.spec import NAME_RULE, ExperimentSpec, Place, ScenarioRow, SpecError, is_name
from loadcell.flags.table import ALIASES, FLAGS
from loadcell.metrics.slo import Slo, parse_slo
from loadcell.seeds import stream

# In a name these come first and short; whatever else differs between scenarios follows by its own name.
_SHORT: Final = {"concurrency": "c", "request_rate": "r", "input_len": "i", "output_len": "o"}
_COUNTS: Final = ("num_prompts", "warmup_requests")
_PER_CONCURRENCY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*x")
_MOST_CELLS: Final = 10_000
# What decides how long we wait for a service, where it listens and what we keep of it, but nothing of what a cell measures.
_SHAPES_NOTHING: Final = (
    "port", "start_timeout", "stall_timeout", "ready_request_timeout", "stop_timeout", "restarts", "log_cap", "pattern", "ready_pattern",
)  # fmt: skip


class Cell(Struct, frozen=True):
    """One load to run. `flags`: what `scenario_from_flags` takes, all but where the services are (`base_url`, `model` of a fleet).

    `repeat` counts from 0. `hash`: of all that shapes what the cell measures, its limits included; a finished cell of the same hash is
    the same measurement. `gate`: a missed limit of this cell counts for the exit code.
    """

    name: str
    scenario: str
    repeat: int
    flags: dict[str, Any]
    slos: tuple[Slo, ...]
    hash: str
    gate: bool = False


class _Row(Struct, frozen=True):
    """A scenario with one value per flag. `differs`: the flags of its row that held lists."""

    index: int
    row: ScenarioRow
    flags: dict[str, Any]
    differs: tuple[str, ...]


def matrix(spec: ExperimentSpec) -> tuple[Cell, ...]:
    """The cells in the order in which they run: all scenarios of one repeat, then those of the next. SpecError names the scenario.

    Empty where the specification has neither `[bench]` nor `[[scenario]]`.
    """
    rows = list(_rows(spec))
    total = sum(_repeats(spec, row) for row in rows)
    if total > _MOST_CELLS:
        raise SpecError(("repeats",), f"that makes {total:,} cells: more than {_MOST_CELLS:,} are a mistake")
    named = list(zip(_names(rows), rows, strict=True))
    cells = [
        _cell(spec, name, row, repeat)
        for repeat in range(max((_repeats(spec, row) for row in rows), default=0))
        for name, row in _ordered(spec, [(name, row) for name, row in named if repeat < _repeats(spec, row)], repeat)
    ]
    _refuse_twins([cell.name for cell in cells])
    return tuple(cells)


def only(cells: Sequence[Cell], globs: Sequence[str]) -> tuple[Cell, ...]:
    """The cells that any pattern names, by cell or by scenario. UserError for a pattern that names none."""
    for glob in globs:
        if not any(_named(cell, glob) for cell in cells):
            names = ", ".join(dict.fromkeys(cell.scenario for cell in cells))
            raise UserError(f"--only {glob}: no scenario has such a name; there are {names}")
    return tuple(cell for cell in cells if not globs or any(_named(cell, glob) for glob in globs))


def flag_of(name: str) -> str:
    """The flag that `name` means: itself, or the one that it is another name of."""
    alias = ALIASES.get(name)
    return alias.alias_of or name if alias else name


def _named(cell: Cell, glob: str) -> bool:
    return fnmatchcase(cell.name, glob) or fnmatchcase(cell.scenario, glob)


def _rows(spec: ExperimentSpec) -> Iterable[_Row]:
    given = spec.scenario or ((ScenarioRow(),) if spec.bench else ())
    for index, row in enumerate(given):
        own = {flag_of(name) for name in row.flags}
        merged = {**{name: value for name, value in spec.bench.items() if flag_of(name) not in own}, **row.flags}
        axes = {name: values for name, value in merged.items() if (values := _values(name, value, _place(row, index, name))) is not None}
        count = math.prod(map(len, axes.values()))
        if count > _MOST_CELLS:
            raise SpecError(("scenario", index), f"its lists multiply to {count:,} scenarios: more than {_MOST_CELLS:,} are a mistake")
        for chosen in product(*axes.values()):
            yield _Row(index, row, {**merged, **dict(zip(axes, chosen, strict=True))}, tuple(axes))


def _place(row: ScenarioRow, index: int, name: str) -> Place:
    """Where a flag of a row stands: in the row, or in [bench]."""
    return ("scenario", index, name) if name in row.flags else ("bench", name)


def _values(name: str, value: Any, place: Place) -> Sequence[Any] | None:
    """The values that a list multiplies by; null where `value` is one value. A flag that takes several texts multiplies by lists of them."""
    if not isinstance(value, (list, tuple)):
        return None
    flag = FLAGS.get(flag_of(name))
    if flag is not None and flag.kind == "texts" and not (value and all(isinstance(item, (list, tuple)) for item in value)):
        return None
    if not value:
        raise SpecError(place, "an empty list leaves nothing to run: give a value, or leave the key out")
    if len({_canonical(item) for item in value}) < len(value):
        raise SpecError(place, f"{list(value)} holds a value twice: use repeats to run a scenario again")
    return value


def _names(rows: Sequence[_Row]) -> list[str]:
    """Each row's own name, with the values of its lists; else what it says of load and lengths, and what else differs between rows."""
    by_flag = [{flag_of(name): value for name, value in row.flags.items()} for row in rows]
    unnamed = [flags for row, flags in zip(rows, by_flag, strict=True) if row.row.name is None]
    keys = dict.fromkeys(name for flags in unnamed for name in flags)
    differing = [name for name in keys if len({_canonical(flags.get(name)) for flags in unnamed}) > 1]
    names = []
    for row, flags in zip(rows, by_flag, strict=True):
        if row.row.name is not None:
            parts = [row.row.name, *_parts(flags, [flag_of(name) for name in row.differs])]
        else:
            parts = _parts(flags, [*_SHORT, *differing]) or ["load"]
        names.append("-".join(parts)[:80].rstrip("-."))
    for row, name in zip(rows, names, strict=True):
        if not is_name(name):
            raise SpecError(("scenario", row.index, "name"), f"{name!r}: {NAME_RULE}")
    _refuse_twins(names)
    return names


def _parts(flags: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    ordered = sorted(dict.fromkeys(names), key=lambda name: list(_SHORT).index(name) if name in _SHORT else len(_SHORT))
    return [_SHORT.get(name, f"{name}-") + _slug(flags[name]) for name in ordered if name in flags]


def _slug(value: Any) -> str:
    text = {True: "on", False: "off"}[value] if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
    if len(text) > 24 or isinstance(value, (dict, list, tuple)):
        return hashlib.sha256(_canonical(value).encode()).hexdigest()[:6]
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.")


def _refuse_twins(names: Sequence[str]) -> None:
    twins = [name for name, count in Counter(names).items() if count > 1]
    if twins:
        raise SpecError(("scenario",), f"two scenarios are called {twins[0]}: give each a name of its own; repeats runs one again")


def _ordered(spec: ExperimentSpec, rows: list[tuple[str, _Row]], repeat: int) -> list[tuple[str, _Row]]:
    if spec.shuffle if spec.shuffle is not None else repeat > 0:
        stream(spec.seed or 0, "order of scenarios", repeat).shuffle(rows)
    return rows


def _repeats(spec: ExperimentSpec, row: _Row) -> int:
    return spec.repeats if row.row.repeats is None else row.row.repeats


def _cell(spec: ExperimentSpec, name: str, row: _Row, repeat: int) -> Cell:
    slos = _limits(spec, row.row, row.index)
    # Cells draw their prompts from one seed by scenario and repeat, so that no cell meets another's in the server's cache.
    flags = {**_own_flags(spec, row.flags), **_counted(row), "seed": spec.seed or 0, "cell": name, "repeat": repeat}
    if slos:
        flags["slo"] = [slo.text for slo in slos]
    gate = spec.gate if row.row.gate is None else row.row.gate
    called = name if repeat == 0 else f"{name}-r{repeat + 1}"
    return Cell(
        name=called, scenario=name, repeat=repeat, flags={**flags, "name": called}, slos=slos, hash=_hash(spec, flags), gate=gate and bool(slos)
    )  # fmt: skip


def _own_flags(spec: ExperimentSpec, said: Mapping[str, Any]) -> dict[str, Any]:
    """What the fleet tells of the load, where no flag tells it. How many devices it has is known when it is planned."""
    told = {"endpoint_type", "backend", "endpoint"} & said.keys()
    return {"endpoint_type": spec.fleet.api} if spec.fleet is not None and not told else {}


def _counted(row: _Row) -> dict[str, Any]:
    """The row's flags, `20x` made the number that it means at its concurrency."""
    flags = dict(row.flags)
    spelled, concurrency = next(((name, value) for name, value in flags.items() if flag_of(name) == "concurrency"), ("", None))
    for name, value in row.flags.items():
        found = _PER_CONCURRENCY.fullmatch(value) if flag_of(name) in _COUNTS and isinstance(value, str) else None
        if found is None:
            continue
        try:
            flags[name] = math.ceil(float(found[1]) * int(concurrency))  # type: ignore[arg-type]
        except (TypeError, ValueError):
            if concurrency not in (None, "unlimited"):
                raise SpecError(_place(row.row, row.index, spelled), f"{concurrency!r}: expected a whole number, or 'unlimited'") from None
            raise SpecError(
                _place(row.row, row.index, name),
                f"{value} is per concurrency, and this scenario has none: set concurrency, or give a number",
            ) from None
    return flags


def _limits(spec: ExperimentSpec, row: ScenarioRow, index: int) -> tuple[Slo, ...]:
    if row.slo is not None and not row.slo:
        return ()
    found: dict[tuple[str, str], Slo] = {}
    for place, texts in ((("slo",), spec.slo), (("scenario", index, "slo"), row.slo or ())):
        for text in texts:
            try:
                slo = parse_slo(text, "limit")
            except UserError as wrong:
                raise SpecError(place, str(wrong)) from None
            found[slo.metric, slo.statistic] = slo
    return tuple(found.values())


def _hash(spec: ExperimentSpec, flags: Mapping[str, Any]) -> str:
    """16 hex digits over the flags and, of the services, all that can change what is measured."""
    services: dict[str, Any] = {}
    if spec.fleet is not None:
        services = {name: value for name, value in msgspec.to_builtins(spec.fleet).items() if name not in _SHAPES_NOTHING}
    elif spec.target is not None:
        services = {"base_url": list(spec.target.base_url)}
    return hashlib.sha256(_canonical({"services": services, "flags": flags}).encode()).hexdigest()[:16]


def _canonical(value: Any) -> str:
    """The same text for the same value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
