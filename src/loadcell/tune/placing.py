"""One configuration -> what is started and what loads it: options, variables, copies of files, flags of the load. Pure.

In every text of `[fleet]` and `[benchmark]` that has words (`args`, `env`, `command`, `config`), `$name` and `${name}` of a parameter stand for its value (`$$` is
one `$`, another `$x` stays as it is). An empty value adds nothing: a word of a list that is all `$name` is left out where the parameter has no value, and
becomes several where the value holds an option with its value, `--compilation-config '{"level": 3}'`.

A file is never changed in place: a copy is rendered into each replica's folder, and the words that named the file name the copy.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec
from msgspec import Struct

from loadcell.errors import UserError
from loadcell.experiment.matrix import flag_of as load_flag_of
from loadcell.experiment.spec import SpecError
from loadcell.fleet.command_line import Args, flag_of, without
from loadcell.fleet.engines.mindie import place as place_in
from loadcell.fleet.engines.vllm import NEGATABLE
from loadcell.fleet.spec import FleetSpec
from loadcell.tune.parameters import Configuration, Parameter, Value
from loadcell.tune.spec import BenchmarkTable, StudySpec

_PARALLEL: Final = frozenset(
    flag_of(name)
    for name in (
        "-tp",
        "-pp",
        "-dp",
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "data-parallel-size",
        "tp-size",
        "pp-size",
        "dp-size",
    )
)
_NAMED: Final = re.compile(r"\$(?:\$|\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")


class Placed(Struct, frozen=True):
    """`bench`: flags of the load, those of `[bench]` with what the configuration says. `load`: concurrency and request rate among them, as numbers."""

    fleet: FleetSpec
    bench: dict[str, Any]
    benchmark: BenchmarkTable
    load: dict[str, float]


def placed(spec: StudySpec, configuration: Configuration, sources: Mapping[str, str]) -> Placed:
    """`sources`: content of the files that parameters change, by the path that the specification writes. Raises UserError."""
    fleet, bench = spec.fleet, dict(spec.bench)
    args: Args = fleet.args
    env, config = dict(fleet.env), dict(fleet.config)
    changes: dict[str, list[tuple[Parameter, Value]]] = {}
    for one in spec.parameter:
        where = one.place
        value = configuration.get(one.name)
        if value is None:
            continue
        if where.flag is not None:
            args = with_option(args, where.flag, value, NEGATABLE if fleet.engine in ("vllm", "simulated") else ())
        elif where.env is not None:
            env[where.env] = as_text(value)
        elif where.load is not None:
            bench = _with_flag(bench, where.load, value)
        elif where.path is not None and where.file in (None, fleet.config_file):
            config[where.path] = value
        elif where.file is not None:
            changes.setdefault(where.file, []).append((one, value))
    words = _Words({one.name: configuration.get(one.name) for one in spec.parameter})
    fleet = msgspec.structs.replace(fleet, args=args, env=env, config=config)
    if any(one.place.flag is not None and flag_of(one.place.flag) in _PARALLEL for one in spec.parameter):
        fleet = msgspec.structs.replace(fleet, devices_per_replica=None)  # each configuration says how many it needs
    for path, changed in changes.items():
        fleet = _with_copy(fleet, path, rendered(path, sources[path], changed))
    fleet = msgspec.structs.replace(
        fleet,
        args=words.deep(fleet.args),
        env={name: words.text(value) for name, value in fleet.env.items()},
        command=words.deep(fleet.command),
        config=words.deep(fleet.config),
    )
    benchmark = msgspec.structs.replace(
        spec.benchmark,
        args=words.deep(spec.benchmark.args),
        env={name: words.text(value) for name, value in spec.benchmark.env.items()},
    )
    load = {name: float(bench[name]) for name in ("concurrency", "request_rate") if _is_number(bench.get(name))}
    return Placed(fleet, bench, benchmark, load)


def names_in(tree: Any) -> set[str]:
    """Those that stand as `$name` in its texts."""
    if isinstance(tree, str):
        return {found[1] or found[2] for found in _NAMED.finditer(tree) if found[1] or found[2]}
    items = [*tree, *tree.values()] if isinstance(tree, Mapping) else tree if isinstance(tree, list | tuple) else ()
    return {name for item in items for name in names_in(item)}


def with_option(args: Args, flag: str, value: Value, negatable: Collection[str] = ()) -> Args:
    """`args` with one option of this value instead of any that it had; a key `--enable-x/--no-enable-x` names the words of a bool.

    `negatable`: flags of the engine whose false is `--no-…` even where the key does not say so.
    """
    positive, _, negative = flag.partition("/")
    spoken = bool(negative) or flag_of(positive) in negatable
    negative = negative or "--no-" + flag_of(positive).removeprefix("--")
    left = without(args, positive, negative)
    if isinstance(left, Mapping):
        key = flag if isinstance(value, bool) else positive
        return {**left, key: value}
    if isinstance(value, bool):
        return (*left, flag_of(positive)) if value else (*left, flag_of(negative)) if spoken else tuple(left)
    return (*left, flag_of(positive), as_text(value))


def as_text(value: Value) -> str:
    """A value as a word or a variable has it: `true`, 0.9, 64."""
    return str(value).lower() if isinstance(value, bool) else f"{value:.12g}" if isinstance(value, float) else str(value)


def rendered(path: str, text: str, changes: list[tuple[Parameter, Value]]) -> str:
    """The file's content with other values at dotted paths; entries of a list by number. UserError for what is not JSON, TOML or YAML."""
    read, write = _FORMATS[_format_of(path)]
    try:
        tree = read(text)
    except Exception as error:  # noqa: BLE001 - each parser has errors of its own
        raise UserError(f"{path}: no {_format_of(path).upper()}: {error}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path}: expected names and values at its top")
    for one, value in changes:
        place_in(tree, str(one.place.path), value, f"{path}: {one.place.path}")
    return str(write(tree))


def check_sources(spec: StudySpec, sources: Mapping[str, str]) -> None:
    """Refuse a file that cannot be changed, or that no service would read. SpecError."""
    for at, one in enumerate(spec.parameter):
        path = one.place.file
        if path is None:
            continue
        value = one.default if one.default is not None else one.choices[0] if one.choices else one.ladder[0] if one.ladder else one.low or 0
        try:
            rendered(path, sources[path], [(one, value)])
        except UserError as wrong:
            raise SpecError(("parameter", at, "file"), str(wrong)) from None
        if path != spec.fleet.config_file and not _names(spec.fleet, path):
            raise SpecError(
                ("parameter", at, "file"),
                f"{path}: nothing in [fleet] names it, so that no service would read its copy: name it in args, env or command as it is written here",
            )


def _format_of(path: str) -> str:
    suffix = PurePosixPath(path).suffix.lower()
    kind = {".json": "json", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}.get(suffix)
    if kind is None:
        raise UserError(f"{path}: a file that ends in .json, .toml, .yaml or .yml is expected")
    return kind


def _read_yaml(text: str) -> Any:
    import yaml

    return yaml.safe_load(text)


def _write_yaml(tree: Any) -> str:
    import yaml

    return str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))


def _write_toml(tree: Any) -> str:
    import tomli_w

    return str(tomli_w.dumps(tree))


_FORMATS: Final[dict[str, tuple[Any, Any]]] = {
    "json": (json.loads, lambda tree: json.dumps(tree, indent=2, ensure_ascii=False) + "\n"),
    "toml": (tomllib.loads, _write_toml),
    "yaml": (_read_yaml, _write_yaml),
}


def _with_copy(fleet: FleetSpec, path: str, content: str) -> FleetSpec:
    """The copy is named where the file was. Two files of one name get different ones."""
    name = PurePosixPath(path).name
    if name in fleet.files:
        name = f"{len(fleet.files)}-{name}"
    copy = f"{{folder}}/{name}"
    return msgspec.structs.replace(
        fleet,
        files={**fleet.files, name: content},
        args=_renamed(fleet.args, path, copy),
        env=_renamed(fleet.env, path, copy),
        command=_renamed(fleet.command, path, copy),
    )


def _renamed(tree: Any, path: str, copy: str) -> Any:
    """Words that are the path, or end in it after `=`."""
    if isinstance(tree, str):
        return copy if tree == path else tree[: -len(path)] + copy if tree.endswith("=" + path) else tree
    if isinstance(tree, Mapping):
        return {key: _renamed(value, path, copy) for key, value in tree.items()}
    return type(tree)(_renamed(item, path, copy) for item in tree) if isinstance(tree, list | tuple) else tree


def _names(fleet: FleetSpec, path: str) -> bool:
    return any(_renamed(tree, path, "") != tree for tree in (fleet.args, fleet.env, fleet.command))


def _with_flag(bench: Mapping[str, Any], flag: str, value: Value) -> dict[str, Any]:
    name = load_flag_of(flag.lstrip("-").replace("-", "_"))
    return {**{key: given for key, given in bench.items() if load_flag_of(key) != name}, name: value}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class _Words:
    """`$name` -> its value, at any depth."""

    def __init__(self, values: Mapping[str, Value | None]) -> None:
        self._values = values

    def deep(self, tree: Any) -> Any:
        if isinstance(tree, str):
            return self.text(tree)
        if isinstance(tree, Mapping):
            return {key: self.deep(value) for key, value in tree.items() if not self._empty(value)}
        if isinstance(tree, list | tuple):
            return type(tree)(word for item in tree for word in self._items(item))
        return tree

    def _items(self, item: Any) -> list[Any]:
        if not isinstance(item, str) or _NAMED.fullmatch(item) is None:
            return [self.deep(item)]
        text = self.text(item)
        if text.startswith("-") and any(char.isspace() for char in text):
            return shlex.split(text)
        return [text] if text else []

    def text(self, text: str) -> str:
        return _NAMED.sub(self._one, text)

    def _one(self, found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name is None:
            return "$"
        if name not in self._values:
            return found[0]
        value = self._values[name]
        return "" if value is None else as_text(value)

    def _empty(self, item: Any) -> bool:
        """A word that is all `$name` of a parameter without a value."""
        return isinstance(item, str) and _NAMED.fullmatch(item) is not None and self.text(item) == ""
