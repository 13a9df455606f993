"""Values by name, as they were given -> values by flag, checked one by one. Conflicts between flags are the next step's."""

from collections.abc import Mapping
from typing import Any

from loadcell.errors import UserError
from loadcell.flags.flag import Flag, spelling
from loadcell.flags.refused import substitute_for
from loadcell.flags.table import ALIASES, ALREADY_SO, FLAGS


class Values:
    """`values["x"]` is what was said, else the default; `said("x")` tells which."""

    def __init__(self, said: dict[str, Any], spelled: dict[str, str]) -> None:
        self._said = said
        self._spelled = spelled

    def __getitem__(self, name: str) -> Any:
        return self._said[name] if name in self._said else FLAGS[name].default

    def said(self, *names: str) -> bool:
        """Whether any of these flags was given."""
        return any(name in self._said for name in names)

    def spelled(self, name: str) -> str:
        """The flag as the user wrote it (`--max-concurrency` for `concurrency`)."""
        return self._spelled.get(name, spelling(name))

    def refuse_together(self, one: str, *others: str, why: str = "give one of them") -> None:
        """UserError when `one` and any of `others` were given."""
        for other in others:
            if self.said(one) and self.said(other):
                raise UserError(f"{self.spelled(one)} with {self.spelled(other)}: {why}")

    def require(self, one: str, *others: str, why: str = "") -> None:
        """UserError when `one` was given but none of `others`."""
        if self.said(one) and not self.said(*others):
            needed = " or ".join(spelling(other) for other in others)
            raise UserError(f"{self.spelled(one)} needs {needed}{why and ': ' + why}")


def read(given: Mapping[str, Any]) -> Values:
    """Null means "not given". UserError for a name that is none, a value that does not fit, and two names of one thing that disagree."""
    said: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    named = given.get("dataset_name")
    dataset = FLAGS["dataset_name"].parse(named) if named else FLAGS["dataset_name"].default
    for name, value in given.items():
        if value is None or name in ALREADY_SO:
            continue
        flag = _flag(name)
        target = flag.alias_of or name
        parsed = flag.parse(value)
        if flag.dataset not in (None, dataset):
            raise UserError(f"{flag.spelling} is for --dataset-name {flag.dataset}; this run uses {dataset}: leave it out")
        if target in said and said[target] != parsed:
            raise UserError(f"{spelled[target]} {said[target]} with {flag.spelling} {parsed}: two names of one thing, give one of them")
        said[target] = parsed
        spelled[target] = flag.spelling
    return Values(said, spelled)


def _flag(name: str) -> Flag:
    flag = FLAGS.get(name) or ALIASES.get(name)
    if flag is None:
        raise UserError(unknown(name))
    return flag


def unknown(name: str) -> str:
    """What to say of a flag that is none of ours: the substitute for one of vLLM's, else the nearest right one."""
    instead = substitute_for(name)
    if instead:
        return f"{spelling(name)} has no meaning here: {instead}"
    from difflib import get_close_matches

    near = get_close_matches(name, [*FLAGS, *ALIASES, *ALREADY_SO], n=1)
    return f"unknown flag {spelling(name)}" + (f": did you mean {spelling(near[0])}?" if near else ": see `loadcell bench --help`")
