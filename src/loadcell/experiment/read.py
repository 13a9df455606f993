"""A specification's file, `--set` and an env file -> ExperimentSpec, checked to the last flag. Executes nothing, starts nothing.

What is said later wins: default, file (with what `${KEY}` offers), --set. The environment says nothing that the env file does not ask of it.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from loadcell.errors import UserError
from loadcell.experiment.conform import SWITCHES, experiment_from
from loadcell.experiment.matrix import Cell, matrix
from loadcell.experiment.offered import UndefinedError, Value, read_env_file, substituted
from loadcell.experiment.places import line_of
from loadcell.experiment.spec import ExperimentSpec, Place, SpecError, dotted, shown
from loadcell.experiment.toml import parsed
from loadcell.flags.resolve import scenario_from_flags
from loadcell.fleet.cluster_file import parse_cluster, with_cluster
from loadcell.fleet.spec import FleetSpec

_CLUSTER_FILE: Final = "cluster_file"
_CLUSTER_VARIABLE: Final = "CLUSTER_CONFIG_PATH"
Made = TypeVar("Made")
GATE_EXAMPLE: Final = 'slo = ["ttft p95 <= 200ms"]'
_NO_LIMIT: Final = f"there is no limit to hold: give one, as in {GATE_EXAMPLE}, or leave the gate out"
_SOMEWHERE: Final = "http://127.0.0.1:1"  # a fleet's own URLs are known when it is ready; its flags are checked before


def read_experiment(
    path: Path,
    *,
    sets: Sequence[str] = (),
    env_file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> ExperimentSpec:
    """Raises UserError naming file, line, key and what to do. `environment`: what the env file may ask for by `$NAME`, and
    `cluster-file = true` by CLUSTER_CONFIG_PATH. `note` is told what is taken otherwise than it is written.
    """

    def made(tree: dict[str, Any], origins: Origins) -> ExperimentSpec:
        cluster = cluster_file(tree, environment or {})
        spec = experiment_from(tree, name_of(path))
        if cluster is not None and spec.fleet is not None:
            own = spec.fleet.env
            spec = msgspec.structs.replace(spec, fleet=over_cluster(spec.fleet, cluster, note))
            origins.cluster(cluster, spec.fleet.env.keys() - own.keys() if spec.fleet else ())
        spec = msgspec.structs.replace(spec, origins=origins.found)
        cells = matrix(spec)
        for cell in cells:
            check_cell(spec, cell)
        refuse_idle_gates(spec, cells)
        return spec

    return read_tree(path, made, sets=sets, env_file=env_file, environment=environment)


def read_tree(
    path: Path,
    made: "Callable[[dict[str, Any], Origins], Made]",
    *,
    sets: Sequence[str] = (),
    env_file: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Made:
    """What `made` makes of the file's tree, after `${KEY}` and `--set`; a SpecError of it gets the file and the line of its place."""
    text = text_of(path)
    tree = parsed(text, path)
    offer = read_env_file(text_of(env_file), environment or {}, str(env_file)) if env_file is not None else {}
    origins = Origins(path, text, env_file)
    try:
        tree = substituted(tree, offer, origins.took)
    except UndefinedError as missing:
        raise UserError(_undefined(missing, offer, path, text, env_file)) from None
    origins.file(tree)
    for item in sets:
        origins.set_by(item, _set(tree, item))
    try:
        return made(tree, origins)
    except SpecError as wrong:
        raise UserError(f"{origins.of(wrong.place)}: {wrong}") from None


def cluster_file(tree: dict[str, Any], environment: Mapping[str, str]) -> Path | None:
    """The file of `[fleet] cluster-file`, which is taken out of the tree: it stands for `host` and `multi_host`."""
    fleet = tree.get("fleet")
    key = next((key for key in fleet if key.replace("-", "_") == _CLUSTER_FILE), None) if isinstance(fleet, dict) else None
    if key is None or fleet is None:
        return None
    value = fleet.pop(key)
    if value is True:
        value = environment.get(_CLUSTER_VARIABLE)
        if not value:
            raise SpecError(("fleet", key), f"true asks for the file that {_CLUSTER_VARIABLE} names, and it is not set: give the path")
    if value is False:
        return None
    if not isinstance(value, str) or not value:
        raise SpecError(("fleet", key), f"{value!r}: give the path of a cluster file, or true for the one that {_CLUSTER_VARIABLE} names")
    return Path(str(value))


def over_cluster(fleet: FleetSpec, path: Path, note: Callable[[str], None]) -> FleetSpec:
    cluster = parse_cluster(text_of(path), str(path))
    for text in cluster.notes:
        note(text)
    try:
        return with_cluster(fleet, cluster)
    except UserError as wrong:
        raise SpecError(("fleet", _CLUSTER_FILE), str(wrong)) from None


def check_cell(spec: ExperimentSpec, cell: Cell) -> None:
    """Its flags as a scenario, so that what would be refused is refused before anything starts. SpecError names the cell."""
    urls = list(spec.target.base_url) if spec.target is not None else [_SOMEWHERE]
    try:
        scenario_from_flags({**cell.flags, "base_url": urls})
    except UserError as wrong:
        raise SpecError(_place_of(spec, cell, str(wrong)), f"in scenario {cell.scenario}: {wrong}") from None


def refuse_idle_gates(spec: ExperimentSpec, cells: Sequence[Cell]) -> None:
    """A gate that has no limit to hold would pass whatever is measured."""
    if spec.gate and cells and not any(cell.slos for cell in cells):
        raise SpecError(("gate",), f"true, and {_NO_LIMIT}")
    for index, row in enumerate(spec.scenario):
        if row.gate and not (spec.slo if row.slo is None else row.slo):
            raise SpecError(("scenario", index, "gate"), f"true, and {_NO_LIMIT}")


def _place_of(spec: ExperimentSpec, cell: Cell, text: str) -> Place:
    """The flag that a refusal speaks of first, where a row or [bench] gives it."""
    spoken = [word.strip(":,").removeprefix("--").replace("-", "_") for word in text.split() if word.startswith("--")]
    for name in spoken:
        for index, row in enumerate(spec.scenario):
            if name in row.flags and _matches(row.flags[name], cell.flags.get(name)):
                return ("scenario", index, name)
        if name in spec.bench:
            return ("bench", name)
    return ()


def _matches(given: Any, value: Any) -> bool:
    return given == value or (isinstance(given, (list, tuple)) and value in given)


class Origins:
    """Where each effective value comes from, by dotted path."""

    def __init__(self, path: Path, text: str, env_file: Path | None) -> None:
        self._path, self._text, self._env_file = path, text, env_file
        self._offered: dict[Place, list[str]] = {}
        self.found: dict[str, str] = {}

    def took(self, place: Place, key: str) -> None:
        self._offered.setdefault(place, []).append(key)

    def file(self, tree: Mapping[str, Any]) -> None:
        for place in _leaves(tree):
            keys = [key for offered, names in self._offered.items() if offered[: len(place)] == place for key in names]
            self.found[_key(place)] = self.of(place) + (f" ({self._env_file}: {', '.join(keys)})" if keys else "")

    def set_by(self, item: str, place: Place) -> None:
        key = _key(place)
        for below in [name for name in self.found if name == key or name.startswith((f"{key}.", f"{key}["))]:
            del self.found[below]
        self.found[key] = f"--set {item.partition('=')[0]}"

    def cluster(self, path: Path, variables: Iterable[str] = ()) -> None:
        """Hosts and how they form one service come from the file that `cluster-file` names, and these `variables`."""
        said = self.found.pop(f"fleet.{_CLUSTER_FILE}", str(self._path))
        given = ("fleet.host", "fleet.multi_host", *(f"fleet.env.{name}" for name in sorted(variables)))
        self.found |= dict.fromkeys(given, f"{path} ({said})")

    def of(self, place: Place) -> str:
        """`experiment.toml:12`, or the --set that said it."""
        for length in range(len(place), 0, -1):
            origin = self.found.get(_key(place[:length]), "")
            if origin.startswith("--set"):
                return origin
        line = line_of(self._text, place)
        return f"{self._path}:{line}" if line else str(self._path)


def _key(place: Place) -> str:
    return dotted(tuple(part.replace("-", "_") if isinstance(part, str) else part for part in place))


def _leaves(tree: Any, place: Place = ()) -> list[Place]:
    if isinstance(tree, Mapping):
        return [leaf for key, value in tree.items() for leaf in _leaves(value, (*place, key))]
    if isinstance(tree, list) and any(isinstance(item, Mapping) for item in tree):
        return [leaf for at, value in enumerate(tree) for leaf in _leaves(value, (*place, at))]
    return [place]


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text in UTF-8") from None


def _undefined(missing: UndefinedError, offer: Mapping[str, Value], path: Path, text: str, env_file: Path | None) -> str:
    line = next((at for at, words in enumerate(text.split("\n"), 1) if f"${{{missing.key}}}" in words.partition("#")[0]), None)
    line = line or line_of(text, missing.place)
    instead = f"add it to {env_file}" if env_file is not None else "give --env-file FILE with a line for it"
    if ":-" in missing.key:
        name = missing.key.partition(":-")[0]
        instead = f"a default is for the env file: say {name}=${{{missing.key}}} there, and ${{{name}}} here"
    known = f" (it offers {', '.join(offer)})" if offer else ""
    where = f"{path}:{line}" if line else str(path)
    return f"{where}: {shown(missing.place)}: ${{{missing.key}}} has no value: {instead}{known}, or write $${{{missing.key}}} for the text itself"


def _set(tree: dict[str, Any], item: str) -> Place:
    """Put `KEY.KEY=VALUE` into the tree; the place that it went to. VALUE is TOML, or else the text itself."""
    key, equals, value = item.partition("=")
    try:
        parts = _chain(tomllib.loads(f"{key} = 0")) if equals and "\n" not in key else []
    except tomllib.TOMLDecodeError:
        parts = []
    if not parts:
        raise UserError(f"--set {item}: give KEY=VALUE, such as fleet.replicas=2 or scenario.0.concurrency=8")
    try:
        read: Any = tomllib.loads(f"v = {value}")["v"] if "\n" not in value else value
    except tomllib.TOMLDecodeError:
        read = SWITCHES.get(value, value)
    return _put(tree, parts, read, item)


def _chain(tree: Any) -> list[str]:
    parts: list[str] = []
    while isinstance(tree, dict):
        key, tree = next(iter(tree.items()))
        parts.append(key)
    return parts


def _put(tree: dict[str, Any], parts: Sequence[str], value: Any, item: str) -> Place:
    here: Any = tree
    place: Place = ()
    for part in parts[:-1]:
        key = _existing(here, part, item)
        if isinstance(here, dict):
            here.setdefault(key, {})
        here, place = here[key], (*place, key)
        if not isinstance(here, (dict, list)):
            raise UserError(f"--set {item}: {dotted(place)} is no table")
    last = _existing(here, parts[-1], item)
    here[last] = value
    return (*place, last)


def _existing(here: Any, part: str, item: str) -> Any:
    """The key as the file spells it, with - or _; of a list, its row by number (from 0) or by name."""
    if isinstance(here, dict):
        return next((key for key in here if key.replace("-", "_") == part.replace("-", "_")), part)
    named = [at for at, row in enumerate(here) if isinstance(row, dict) and row.get("name") == part]
    at = named[0] if named else int(part) if part.isdigit() else -1
    if not 0 <= at < len(here):
        rows = [*map(str, range(len(here))), *(row["name"] for row in here if isinstance(row, dict) and isinstance(row.get("name"), str))]
        raise UserError(f"--set {item}: there is no {part}: " + (f"choose one of {', '.join(rows)}" if rows else "the list is empty"))
    return at


def name_of(path: Path) -> str:
    """A file's name as an experiment's."""
    return "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in path.stem).strip("-.") or "experiment"
