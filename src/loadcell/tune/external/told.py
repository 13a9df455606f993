"""What an external benchmark is asked, and what it told: the nouns that its adapters turn into each other. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from loadcell.fleet.command_line import fill, fill_args, option, words
from loadcell.metrics.slo import Slo, percentile_of
from loadcell.tune.spec import BenchmarkTable

LATENCIES: Final = ("ttft", "tpot", "itl", "e2e")


class BenchFailedError(Exception):
    """It ran and told nothing that can be used; the text says what is missing, and in which file."""


class Asked(Struct, frozen=True):
    """One load. `model`: the name under which the service answers; `path`: what it was started with, for the tokenizer. `folder`: of this load.

    `load`: concurrency and request rate, where the study gives them. `seed`: the study's, so that the prompts are the same for all configurations.
    """

    base_url: str
    host: str
    port: int
    model: str
    path: str | None
    api: str
    folder: Path
    load: Mapping[str, float] = {}
    slos: Sequence[Slo] = ()
    seed: int = 0

    def placeholders(self) -> dict[str, str]:
        return {
            "base_url": self.base_url,
            "host": self.host,
            "port": str(self.port),
            "model": self.model,
            "path": self.path or self.model,
            "folder": str(self.folder),
        }


class Told(Struct, frozen=True):
    """`figures`: by the names of `objective.figures_of`, in s, tokens/s, requests/s; `n`: samples behind each.

    `requests`: what the tool counts as sent; `extra`: requests that it may send besides (a check before the load, a warm-up).
    """

    figures: dict[str, float | None]
    n: dict[str, int]
    requests: int
    completed: int
    extra: int = 0


class Command(Struct, frozen=True):
    """`results`: below which its files will be."""

    argv: tuple[str, ...]
    env: dict[str, str]
    results: Path


class Adapter(Struct, frozen=True):
    """One tool. `program`: its usual words. `defaults`: (what was asked, the arguments that were given) -> options that are added where none is given.

    `results`: where the arguments say that it writes; null: in the load's folder. `read`: files that are new since its start -> what it told, or
    BenchFailedError. `offered`: figures that it tells with these arguments. `prepare`: files of its own to render before, and options that name them.
    """

    program: tuple[str, ...]
    defaults: Callable[[Asked, "Given"], dict[str, Any]]
    results: tuple[str, ...]
    read: Callable[[Sequence[Path], "Given"], Told]
    offered: Callable[["Given"], frozenset[str]]
    prepare: "Callable[[Asked, Given, tuple[str, ...], dict[str, str]], dict[str, Any]] | None" = None


class Given(Struct, frozen=True):
    """The arguments as they are given, placeholders filled."""

    args: Any

    def option(self, *names: str) -> Any:
        return option(self.args, *names)

    def has(self, *names: str) -> bool:
        return self.option(*names) is not None

    def text(self, *names: str) -> str | None:
        value = self.option(*names)
        return None if value is None or isinstance(value, bool) else str(value)


def command(adapter: Adapter, table: BenchmarkTable, asked: Asked) -> Command:
    """The words to run. What the study gives stands as it is; what it leaves out is added. Raises UserError for a placeholder that is not known."""
    given = Given(fill_args(table.args, asked.placeholders(), "benchmark.args"))
    env = {name: fill(value, asked.placeholders(), f"benchmark.env.{name}") for name, value in table.env.items()}
    program = _program(adapter, table)
    added = adapter.defaults(asked, given)
    if adapter.prepare is not None:
        added |= adapter.prepare(asked, given, program, env)
    at = table.output_dir and fill(table.output_dir, asked.placeholders(), "benchmark.output_dir")
    named = given.text(*adapter.results)
    if named is None:
        added[adapter.results[0]] = named = at or str(asked.folder / "results")
    argv = (*program, *words(given.args, key="benchmark.args"), *words(added, key="benchmark"))
    return Command(argv, env, Path(at or named).expanduser())


def _program(adapter: Adapter, table: BenchmarkTable) -> tuple[str, ...]:
    """A program alone is followed by the tool's usual words; a list is all of them."""
    if table.executable is None:
        return adapter.program
    if isinstance(table.executable, str):
        return (table.executable, *adapter.program[1:])
    return table.executable if len(table.executable) > 1 else (*table.executable, *adapter.program[1:])


def wanted_percentiles(slos: Sequence[Slo]) -> str:
    """`50,95,99` and what the limits name, for tools that compute only what they are asked for."""
    found = {50.0, 95.0, 99.0} | {percent for slo in slos if (percent := percentile_of(slo.statistic)) is not None}
    return ",".join(f"{percent:g}" for percent in sorted(found))


def figure(value: Any, name: str, where: Path, *, positive: bool = True) -> float:
    """A number that has to be there: a missing one is a failure, never 0. Raises BenchFailedError."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BenchFailedError(f"{where} has no {name} (it says {value!r})") from None
    if not math.isfinite(number) or (positive and number <= 0):
        raise BenchFailedError(f"{where} says {name} = {value!r}, which is no measurement")
    return number


def whole(value: Any, name: str, where: Path) -> int:
    """As `figure`, of a count; 0 is one."""
    return round(figure(value, name, where, positive=False))


def tree(path: Path) -> Any:
    """A JSON file. Raises BenchFailedError."""
    try:
        return msgspec.json.decode(path.read_bytes().replace(b"NaN", b"null").replace(b"Infinity", b"null"))
    except (OSError, msgspec.DecodeError) as error:
        raise BenchFailedError(f"{path} cannot be read: {error}") from None
