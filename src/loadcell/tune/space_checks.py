"""A study's parameters, constants and constraints, refused where they could never mean what is written. Pure."""

import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadcell.experiment.conform import BENCH_ONLY, ELSEWHERE
from loadcell.experiment.matrix import flag_of as load_flag_of
from loadcell.experiment.spec import Place as FilePlace
from loadcell.experiment.spec import SpecError
from loadcell.flags.table import ALIASES, FLAGS
from loadcell.fleet.command_line import flag_of
from loadcell.tune.expressions import FUNCTIONS
from loadcell.tune.parameters import Constraint, Parameter
from loadcell.tune.placing import names_in
from loadcell.tune.space import Space
from loadcell.tune.spec import StudySpec

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DRAWS: Final = 64


def check_constants(spec: StudySpec) -> None:
    """Names that expressions can speak of, and that nothing else has. SpecError."""
    taken = {one.name for one in spec.parameter}
    for name in spec.study.constants:
        place: FilePlace = ("study", "constants", name)
        if not _VARIABLE.fullmatch(name) or _is_word(name):
            raise SpecError(place, f"{name!r}: expressions speak of it: use letters, digits and _")
        if name in taken:
            raise SpecError(place, f"{name} is a [[parameter]], too: give it once")


def check_parameters(spec: StudySpec) -> None:
    """Each goes to one place, which is no other's. SpecError."""
    places: dict[tuple[str, ...], Parameter] = {}
    for at, one in enumerate(spec.parameter):
        if _is_word(one.name):
            raise SpecError(("parameter", at, "name"), f"{one.name!r} means something in expressions: choose another name")
        _check_place(one, spec, ("parameter", at))
        own = _where(one)
        other = places.setdefault(own, one)
        # Two that are never active together may share a place.
        if own and other is not one and (one.when is None or other.when is None):
            raise SpecError(("parameter", at), f"{one.name} goes to {own[-1]}, as {other.name} does: one of them would be lost")
    spoken = names_in(_texts(spec)) | {name for one in spec.parameter if one.derived for name in _VARIABLE.findall(one.derived)}
    for at, one in enumerate(spec.parameter):
        if one.place.word and one.derived is None and one.name not in spoken:
            raise SpecError(("parameter", at, "word"), f"{one.name}: no text of [fleet] or [benchmark] says ${one.name}: write it there")


def check_constraints(spec: StudySpec, space: Space) -> None:
    """What a repair moves must have a say in the expression. SpecError."""
    for at, rule in enumerate(spec.constraint):
        names = _behind(rule, space)
        for name in rule.movable:
            if name not in names:
                said = ", ".join(sorted(names)) or "no parameter"
                raise SpecError(("constraint", at, "repair"), f"{name}: moving it changes nothing here: the expression speaks of {said}")


def check_some_legal(space: Space) -> None:
    """SpecError for constraints that leave nothing."""
    why = space.legal(space.default())
    if why is None or space.size():
        return
    if space.size() is None:
        import numpy as np

        if space.candidates(np.random.default_rng(0), _DRAWS):
            return
    raise SpecError(("constraint",), f"no configuration is legal; the default is not: {why}")


def _is_word(name: str) -> bool:
    return keyword.iskeyword(name) or name in FUNCTIONS


def _behind(rule: Constraint, space: Space) -> set[str]:
    """Parameters that an expression speaks of, and those that these are made of or depend on."""
    legality = space.legality
    names: set[str] = set()
    new = {name for own, one in legality.rules if one is rule for name in own.names}
    while new:
        names |= new
        further = {used for table in (legality.derived, legality.when) for name in new if name in table for used in table[name].names}
        new = further - names
    return names & set(legality.by_name)


def _where(one: Parameter) -> tuple[str, ...]:
    where = one.place
    if where.flag is not None:
        return ("flag", flag_of(where.flag.partition("/")[0]))
    if where.load is not None:
        return ("load", "--" + load_flag_of(where.load.lstrip("-").replace("-", "_")).replace("_", "-"))
    if where.env is not None:
        return ("env", where.env)
    return () if where.path is None else ("file", where.file or "", where.path)


def _texts(spec: StudySpec) -> Sequence[Any]:
    fleet, benchmark = spec.fleet, spec.benchmark
    return (fleet.args, fleet.env, fleet.command, fleet.config, benchmark.args, benchmark.env)


def _check_place(one: Parameter, spec: StudySpec, place: FilePlace) -> None:
    where = one.place
    for key in ("flag", "env", "file", "path", "load"):
        value = getattr(where, key)
        if value is not None and (not value.strip() or (key not in ("file", "path") and any(char.isspace() for char in value))):
            raise SpecError((*place, key), f"{one.name}: {value!r}: one word is expected")
    if where.env is not None and not _VARIABLE.fullmatch(where.env):
        raise SpecError((*place, "env"), f"{one.name}: {where.env!r}: no name that a variable can have, such as VLLM_USE_V1")
    given = [key for key in ("flag", "env", "path", "load", "word") if getattr(where, key) not in (None, False)]
    if where.file is not None and where.path is None:
        raise SpecError((*place, "file"), f"{one.name}: say where in {where.file}: path = 'a.b.c'")
    if not given and one.derived is not None:
        return  # it may be there for constraints alone
    if len(given) != 1:
        said = "goes to " + " and to ".join(given) if given else "goes nowhere"
        raise SpecError(place, f"{one.name} {said}: give one of flag, env, file with path, load, or word = true")
    engine = spec.fleet.engine
    if where.flag is not None and engine == "mindie":
        raise SpecError(
            (*place, "flag"), f"{one.name}: MindIE reads a file, not options: give path = 'BackendConfig.ScheduleConfig.maxBatchSize'"
        )
    if where.flag is not None and engine == "command":
        raise SpecError(
            (*place, "flag"), f"{one.name}: a command of your own has no place for flags: write ${one.name} into it, and word = true here"
        )
    if where.path is not None and where.file is None and engine != "mindie":
        raise SpecError((*place, "path"), f"{one.name}: say which file: file = 'conf.json'")
    if where.load is not None:
        _check_load_flag(one.name, where.load, (*place, "load"))


def _check_load_flag(name: str, flag: str, place: FilePlace) -> None:
    known = flag.lstrip("-").replace("-", "_")
    elsewhere: Mapping[str, str] = {**ELSEWHERE, **BENCH_ONLY}
    if known in elsewhere:
        raise SpecError(place, f"{name}: {flag} is not the load's: it cannot be searched")
    if load_flag_of(known) not in FLAGS and known not in ALIASES:
        raise SpecError(place, f"{name}: {flag} is no flag of `loadcell bench`")
