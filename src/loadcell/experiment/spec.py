"""What an experiment is: services to start (or running ones), defaults of every load, rows that differ, limits. Frozen; pure."""

import re
from typing import Any, Final

from msgspec import Struct

from loadcell.errors import UserError
from loadcell.fleet.spec import FleetSpec

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,79}")
NAME_RULE: Final = "it names files: use letters, digits, . _ and -, at most 80"

Place = tuple[str | int, ...]
"""Where something stands in the tree of a file: ("scenario", 2, "concurrency")."""


class SpecError(UserError):
    """Something in a specification that cannot be used. `place` lets the reader of the file name its line."""

    def __init__(self, place: Place, text: str) -> None:
        super().__init__(f"{shown(place)}: {text}" if place else text)
        self.place = place


class TargetUrls(Struct, frozen=True, forbid_unknown_fields=True):
    """Services that run already. What else is said to them (headers, a key, a path) is a flag, in `[bench]`."""

    base_url: tuple[str, ...]


class ScenarioRow(Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[scenario]]`: flags of `loadcell bench` over those of `[bench]`; a list in place of a value multiplies.

    `slo`: limits besides the experiment's; one on the same metric and statistic replaces it, an empty list drops all. Null: the experiment's.
    """

    flags: dict[str, Any] = {}
    name: str | None = None
    slo: tuple[str, ...] | None = None
    gate: bool | None = None
    repeats: int | None = None


class ExperimentSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole experiment. Flags stand under their snake_case names, as they were given.

    `seed` null: 0 for services that are started for the run; a new one, recorded, for services that run already and may have seen its prompts.
    `shuffle`: the order of scenarios within a repeat is drawn from the seed; null: the first repeat in the file's order,
    further ones drawn. `slo`: in the text form, `ttft p95 <= 200ms`. `gate`: a missed limit makes the run exit with 3.
    `origins`: dotted path -> where an effective value comes from (`experiment.toml:12`, `--set`, `config.env: KEY`); absent: a default.
    """

    name: str
    seed: int | None = None
    repeats: int = 1
    shuffle: bool | None = None
    gate: bool = False
    output_dir: str | None = None
    fleet: FleetSpec | None = None
    target: TargetUrls | None = None
    bench: dict[str, Any] = {}
    scenario: tuple[ScenarioRow, ...] = ()
    slo: tuple[str, ...] = ()
    origins: dict[str, str] = {}


def shown(place: Place) -> str:
    """("scenario", 2, "concurrency") -> `[[scenario]] 3, concurrency`; ("fleet", "port") -> `[fleet] port`."""
    head, rest = place[0], place[1:]
    if rest and isinstance(rest[0], int):
        return f"[[{head}]] {rest[0] + 1}" + (f", {dotted(rest[1:])}" if rest[1:] else "")
    return f"[{head}] {dotted(rest)}" if rest else str(head)


def is_name(name: str) -> bool:
    """Whether it can be a part of a file's name everywhere."""
    return _NAME.fullmatch(name) is not None


def dotted(place: Place) -> str:
    """("scenario", 2, "concurrency") -> `scenario[2].concurrency`."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
