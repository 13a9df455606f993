"""Makes docs/cli.md from the flags, docs/spec.md and docs/study.md from the types. `--check` changes nothing and fails when a page is out of date."""

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import typer

from loadcell.cli.main import VERBS
from loadcell.cli.options import default_of, metavar_of
from loadcell.client.limits import Timeouts
from loadcell.endpoint.spec import EndpointSpec
from loadcell.experiment.spec import ExperimentSpec, ScenarioRow, TargetUrls
from loadcell.flags.flag import Flag
from loadcell.flags.refused import REFUSED, REFUSED_DATASETS, REFUSED_GROUPS
from loadcell.flags.table import ALREADY_SO, PANELS, aliases_of
from loadcell.fleet.spec import DockerSpec, FleetSpec, HostSpec, LogPattern, MultiHostSpec
from loadcell.metrics.slo import Slo
from loadcell.output import OutputSpec
from loadcell.scenario import SamplingSpec, Scenario, TargetSpec
from loadcell.schedule import ScheduleSpec
from loadcell.tune.expressions import FUNCTIONS
from loadcell.tune.offers import ENGINES, offered_constraints, offered_parameters
from loadcell.tune.parameters import Constraint, Parameter, Place
from loadcell.tune.spec import (
    BenchmarkTable,
    Budget,
    Confirm,
    FitnessTable,
    LoadTable,
    Objective,
    StudySpec,
    StudyTable,
    TrialTable,
    Warmup,
)
from loadcell.workload.spec import WorkloadSpec

HERE = Path(__file__).parent
MADE = "<!-- Made by `make docs` from the code. Do not edit. -->"
SPECS: tuple[type[msgspec.Struct], ...] = (
    Scenario,
    TargetSpec,
    ScheduleSpec,
    WorkloadSpec,
    SamplingSpec,
    EndpointSpec,
    Timeouts,
    Slo,
    OutputSpec,
)
EXPERIMENT: tuple[type[msgspec.Struct], ...] = (
    ExperimentSpec,
    ScenarioRow,
    TargetUrls,
    FleetSpec,
    HostSpec,
    DockerSpec,
    MultiHostSpec,
    LogPattern,
)
STUDY: tuple[type[msgspec.Struct], ...] = (
    StudySpec,
    StudyTable,
    Budget,
    Confirm,
    Objective,
    Parameter,
    Place,
    Constraint,
    LoadTable,
    Warmup,
    TrialTable,
    BenchmarkTable,
    FitnessTable,
)
HOW_TO_READ_A_STUDY = """\
The file is TOML. Keys may be written with `-` or `_`; one that is not known is refused, naming its line and the nearest right one. `[fleet]`, `[bench]` and
`[[slo]]` are those of an experiment ([spec.md](spec.md)); `--set`, `--env-file` and `cluster-file` work as there. `examples/tune_simulated.toml` is a whole file.

- **Places**: the keys of `Place` stand in `[[parameter]]` itself: `flag = "--max-num-seqs"`. `flag = "--enable-x/--no-enable-x"` names the words of a bool whose
  false has one. A `file` is JSON, TOML or YAML; a copy is changed, written into the replica's folder and named wherever `[fleet]` named the file. `load` is a flag of
  `loadcell bench`: such a parameter needs no restart. In texts of `[fleet]` and `[benchmark]`, `$name` stands for a parameter's value, `$$` for one `$`.
- **Values**: `int` and `float` have `low` and `high` (with `log`, or with `step`), or a `ladder`; `categorical` has `choices`, and numbers among themselves are taken in
  their order; `bool` has nothing. `low = high` is a value that is set, and not searched.
- **Default**: what `[fleet]` sets already goes before `default`; without either the parameter is left to the engine in the first trial. A default may lie outside
  the range.
- **Conditions**: `when` is an expression; a parameter whose `when` is false is not set. `derived` gives the value instead of a search, as in `devices // (tp * pp)`; one that is
  no whole number, or outside its `low` and `high`, makes the configuration illegal.
- **Expressions** know names of parameters, constants, numbers, texts, `+ - * / // %`, comparisons, `in (16, 32)`, `and`, `or`, `not`, `a if b else c`, and FUNCTIONS. A
  constraint that needs a parameter which is not set holds.
- **Repair**: a configuration that breaks a constraint with `repair` is moved to the nearest legal one; without, it is rejected. Both are counted.
"""
HOW_TO_READ = """\
The file is TOML. Keys may be written with `-` or `_`; one that is not known is refused, naming its line and the nearest right one. `loadcell init`
writes a commented file, `loadcell check FILE` says what it would run. In the file the keys of `ScenarioRow.flags` stand in `[[scenario]]` itself, and
`slo` may be tables: `metric = "ttft"`, `statistic = "p95"`, `limit = "200ms"`. `origins` is no key: it records where each value came from.

- **Flags**: `[bench]` and `[[scenario]]` hold flags of `loadcell bench`; a scenario's go before `[bench]`'s. A list multiplies, except for a flag that
  takes several texts (`header`, `goodput`): there a list of lists does. `num-prompts = "20x"` and `warmup-requests = "1x"` are per unit of concurrency.
- **Names**: a scenario without one is called by its load and lengths, and by what else differs: `c32-i512-o256`. Repeats are `NAME-r2`, `NAME-r3`.
- **Precedence**: `--set` before the file before defaults. The environment sets nothing. `--set KEY.KEY=VALUE` takes TOML values, and any other text as
  it stands; rows of a list by number from 0 or by name: `scenario.0.concurrency=8`.
- **`--env-file FILE`** offers `${KEY}` to the texts of the file (`$$` is one `$`); without it no `${KEY}` has a value. A text that is all one `${KEY}` is read
  as the type that its place wants; in an engine's own options it is text, but for `true` and `false`. The file holds assignments as a shell writes them, lists too; `$NAME`, `${NAME}` and `${NAME:-instead}` in it take
  earlier lines, or the environment. Nothing is executed: any other line, and `$(...)`, is refused.
- **Clusters**: `cluster-file = "FILE"` in `[fleet]` reads the cluster file of `multihost_infer` instead of `host` and `multi-host`; `true` reads the one that
  the variable `CLUSTER_CONFIG_PATH` names.
- **Paths** are relative to the folder in which loadcell runs.
- **Resume**: a finished cell is used again when its hash is the same. The hash is of the cell's flags and limits, and of `[fleet]` without its ports,
  time limits, restarts, log settings; without a fleet, of the target's URLs. What a data file holds is not in it.
"""


def cell(text: str) -> str:
    """Text as it stands in a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def flag_row(flag: Flag) -> str:
    value = metavar_of(flag)
    names = [f"`{flag.spelling}{' ' + value if value else ''}`".replace("|", "\\|")]
    names += [f"`--{name}`" for name in flag.off] + [f"`{alias.spelling}`" for alias in aliases_of(flag.name)]
    return f"| {', '.join(names)} | {cell(default_of(flag) or '')} | {cell(flag.help)} |"


def bench_section() -> Iterator[str]:
    yield "Each flag is also a keyword of `loadcell.bench()` in Python, with `_` for `-`. On the command line `_` is taken for `-`, too."
    for panel, flags in PANELS.items():
        yield from (f"\n### {panel}\n", "| flag | default | meaning |", "| --- | --- | --- |")
        yield from map(flag_row, flags)
    yield from ("\n### Taken, without effect\n", "| flag | why |", "| --- | --- |")
    yield from (f"| `--{name.replace('_', '-')}` | {cell(why)} |" for name, why in ALREADY_SO.items())
    yield from ("\n### Refused, with a substitute\n", "| flag of vllm bench serve | instead |", "| --- | --- |")
    yield from (f"| `--{name.replace('_', '-')}` | {cell(instead)} |" for name, instead in REFUSED.items())
    yield from (f"| `--{name.replace('_', '-')}*` | {cell(instead)} |" for name, instead in REFUSED_GROUPS.items())
    yield from (f"| `--dataset-name {name}` | {cell(instead)} |" for name, instead in REFUSED_DATASETS.items())


def verb_section(function: Any) -> Iterator[str]:
    """The parameters of a verb that is not bench, as typer reads them."""
    app = typer.Typer(add_completion=False)
    app.command()(function)
    parameters: list[Any] = typer.main.get_command(app).params
    yield from ("| flag | default | meaning |", "| --- | --- | --- |")
    for parameter in parameters:
        if parameter.name in ("help", "install_completion", "show_completion") or getattr(parameter, "hidden", False):
            continue
        is_option = parameter.param_type_name == "option"
        name = (
            ", ".join(f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts))
            if is_option
            else f"`{parameter.metavar or parameter.name.upper()}`"
        )
        yield f"| {name} | {cell(plain(parameter.default))} | {cell((parameter.help or '').replace(chr(92) + '[', '['))} |"


def plain(default: Any) -> str:
    if default is None or default in ((), []):
        return ""
    return {True: "on", False: "off"}.get(default, str(default)) if isinstance(default, bool) else str(default)


def cli_page() -> str:
    lines = ["# The command line", "", MADE, "", "`loadcell COMMAND --help` prints the same."]
    for verb, (module, words) in VERBS.items():
        function = getattr(importlib.import_module(module), verb.replace("-", "_"))
        lines += ["", f"## loadcell {verb}", "", words, ""]
        lines += bench_section() if verb == "bench" else verb_section(function)
    return "\n".join(lines) + "\n"


def type_name(kind: Any) -> str:
    """A type as a reader writes it; the same text under every version of Python."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " | ".join(f'"{word}"' for word in arguments)
    if origin in (Union, UnionType):
        return " | ".join(map(type_name, arguments))
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(type_name, arguments))}]"
    return {type(None): "null", Ellipsis: "..."}.get(kind) or str(getattr(kind, "__name__", kind))


def spec_page() -> str:
    lines = ["# The types of an experiment and of a load", "", MADE, "", "## The file of an experiment", "", HOW_TO_READ.rstrip("\n")]
    for struct in EXPERIMENT:
        lines += struct_section(struct)
    lines += ["", "## A load", "", "A run's header holds the whole `Scenario`, without the values of its headers."]
    for struct in SPECS:
        lines += struct_section(struct)
    return "\n".join(lines) + "\n"


def study_page() -> str:
    functions = ", ".join(f"`{name}`" for name in FUNCTIONS)
    lines = ["# The file of a study", "", MADE, "", HOW_TO_READ_A_STUDY.rstrip("\n").replace("FUNCTIONS", functions)]
    lines += [
        "",
        "## What engines offer",
        "",
        '`parameters = "vllm-default"` offers these; `tensor_parallel_size` only where `[fleet]` tells the devices of a replica.',
    ]
    for engine in ENGINES:
        lines += offered_section(engine)
    lines += ["", "## Keys"]
    for struct in STUDY:
        lines += struct_section(struct)
    return "\n".join(lines) + "\n"


def offered_section(engine: Any) -> Iterator[str]:
    parameters = offered_parameters(engine, ("devices",))
    if not parameters:
        return
    yield from ("", f"### {engine}-default", "", "| parameter | place | values | default |", "| --- | --- | --- | --- |")
    for one in parameters:
        values = ", ".join(map(str, one.choices)) or (
            "false, true" if one.kind == "bool" else f"{one.low:g} to {one.high:g}{', log' if one.log else ''}"
        )
        yield f"| `{one.name}` | `{one.place.flag or one.place.path}` | {values} | {plain(one.default) if one.kind != 'bool' else str(one.default).lower()} |"
    names = [one.name for one in parameters]
    rules = offered_constraints(engine, names, names, {"devices": 1, "max_model_len": 1})
    if rules:
        yield from ("", "Legal together: " + "; ".join(f"`{rule.expression}`" for rule in rules) + ".")


def struct_section(struct: type[msgspec.Struct]) -> Iterator[str]:
    yield from ("", f"### {struct.__name__}", "", inspect.getdoc(struct) or "", "", "| field | type | default |", "| --- | --- | --- |")
    for field in msgspec.structs.fields(struct):
        yield f"| `{field.name}` | {cell(type_name(field.type))} | {cell(default_text(field))} |"


def default_text(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(default, msgspec.Struct):
        return f"see {type(default).__name__}"
    return f"`{msgspec.json.encode(default).decode()}`"


def main(check: bool) -> int:
    stale = [
        path.name
        for path, text in ((HERE / "cli.md", cli_page()), (HERE / "spec.md", spec_page()), (HERE / "study.md", study_page()))
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if check and stale:
        print(f"out of date: {', '.join(stale)}; run `make docs`", file=sys.stderr)
        return 1
    if not check:
        (HERE / "cli.md").write_text(cli_page(), encoding="utf-8")
        (HERE / "spec.md").write_text(spec_page(), encoding="utf-8")
        (HERE / "study.md").write_text(study_page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
