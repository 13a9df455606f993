"""What an experiment would run, as text: services with their command lines, cells with their requests and limits, settings with their origin.

Pure: it is given the plan, and looks at nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from loadcell.experiment.matrix import Cell
from loadcell.experiment.secrets import Hider
from loadcell.experiment.spec import ExperimentSpec
from loadcell.flags.resolve import scenario_from_flags
from loadcell.fleet.command_line import shell_line
from loadcell.fleet.docker_command import start_line
from loadcell.fleet.spec import ServicePlan
from loadcell.scenario import Scenario
from loadcell.schedule import ScheduleSpec, describe

_ANYWHERE: Final = ("http://127.0.0.1:1",)


def title(spec: ExperimentSpec, cells: Sequence[Cell]) -> str:
    """One line: how much it is."""
    if not cells:
        return f"{spec.name}: services only; there is no [bench] and no [[scenario]] to run"
    scenarios = len({cell.scenario for cell in cells})
    counts = [requests_of(scenario_of(spec, cell).schedule) for cell in cells]
    known = sum(count for count in counts if count is not None)
    open_ended = counts.count(None)
    more = f", and {open_ended} {_plural(open_ended, 'cell')} that end by time" if open_ended else ""
    return (
        f"{spec.name}: {scenarios} {_plural(scenarios, 'scenario')}, {len(cells)} {_plural(len(cells), 'cell')}, "
        f"{known:,} requests{more}; {_seed(spec)}"
    )


def _seed(spec: ExperimentSpec) -> str:
    return "a new seed each run" if spec.seed is None and spec.fleet is None else f"seed {spec.seed or 0}"


def services(spec: ExperimentSpec, plans: Sequence[ServicePlan], cpus: str | None) -> Iterator[str]:
    """Each service: where, on what, and the line that would start it."""
    anew = ""
    if spec.fleet and spec.fleet.port == "auto":
        looked = any(plan.replica.port for plan in plans)
        anew = f"; port = auto: {'free ports are chosen again' if looked else '0 stands for a free port, chosen'} at the start"
    hosts = {host.name: host for host in spec.fleet.host} if spec.fleet else {}
    yield f"Services ({spec.fleet.engine if spec.fleet else 'running'}{anew})"
    yield from [f"  {cpus}"] if cpus else []
    for plan in plans:
        replica = plan.replica
        devices = f"devices {','.join(map(str, replica.devices))}" if replica.devices else "no devices of its own"
        where = plan.base_url or (f"{replica.host}, rank {replica.rank}, answers nobody" if not plan.serves else replica.host)
        yield f"  {plan.name}  {where}  {devices}" + (f"  host {replica.host}" if plan.base_url else "")
        yield from (f"    before $ {shell_line(launch)}" for launch in plan.before)
        yield f"    $ {start_line(plan, hosts.get(replica.host))}"
        yield from (f"    writes {path} ({len(content)} characters)" for path, content in plan.launch.files)
        yield from (f"    after  $ {shell_line(launch)}" for launch in plan.after)


def table(spec: ExperimentSpec, cells: Sequence[Cell]) -> Iterator[str]:
    """The cells in the order in which they run."""
    rows = [("#", "cell", "load", "input", "output", "requests", "warm-up", "limits")]
    for number, cell in enumerate(cells, 1):
        scenario = scenario_of(spec, cell)
        work, plan = scenario.workload, scenario.schedule
        lengths = (str(work.input_len), str(work.output_len)) if work.dataset == "random" else (work.dataset, "its own")
        warm = f"{scenario.warmup_requests}" if scenario.warmup_requests else ""
        warm += f"{'+' if warm else ''}{scenario.warmup_duration_s:g} s" if scenario.warmup_duration_s else ""
        limits = "; ".join(slo.text for slo in cell.slos) + (" (gate)" if cell.gate else "")
        rows.append((str(number), cell.name, describe(plan), *lengths, _ends(plan), warm or "0", limits))
    yield "Cells, in this order"
    yield from _aligned(rows)


def settings(spec: ExperimentSpec) -> Iterator[str]:
    """Every setting that was given, and where; then the fleet's defaults."""
    yield "Settings"
    tree = Hider.of(msgspec.to_builtins(spec)).tree(msgspec.to_builtins(spec))
    origins: dict[str, str] = {}
    for path, origin in spec.origins.items():
        at = path.partition(".")[0]
        origins.setdefault(at if at.startswith("slo[") else path, origin)  # a table there is one text here
    given = [(path, _value(tree, path), origin) for path, origin in origins.items()]
    known = {path.split(".")[1].partition("[")[0] for path in spec.origins if path.startswith("fleet.")}
    if spec.fleet is not None:
        given += [
            (f"fleet.{key}", _short(value), "default")
            for key, value in tree["fleet"].items()
            if key not in known and value not in (None, {}, [], ())
        ]
    yield from _aligned([(path, value, origin) for path, value, origin in given])


def scenario_of(spec: ExperimentSpec, cell: Cell) -> Scenario:
    """The cell's scenario, at the URLs of [target] or, where a fleet's are not known yet, at one that stands for them."""
    urls = spec.target.base_url if spec.target is not None else _ANYWHERE
    return scenario_from_flags({**cell.flags, "base_url": list(urls)})[0]


def requests_of(plan: ScheduleSpec) -> int | None:
    """How many requests will be sent; an expectation where arrivals are drawn; null where only time ends a closed loop."""
    by_time: float | None = None
    if plan.steps:
        by_time = sum(rate * seconds for rate, seconds in plan.steps)
    elif plan.trace_s:
        by_time = sum(1 for at in plan.trace_s if plan.duration_s is None or at < plan.duration_s)
    elif plan.duration_s is not None and plan.request_rate not in (None, float("inf")) and plan.ramp_up_strategy is None:
        by_time = plan.request_rate * plan.duration_s
    if by_time is None:
        return plan.num_prompts
    return round(by_time) if plan.num_prompts is None else min(round(by_time), plan.num_prompts)


def _ends(plan: ScheduleSpec) -> str:
    count = requests_of(plan)
    time = f"{plan.duration_s:g} s" if plan.duration_s is not None else ""
    if count is None:
        return f"for {time}" if time else "?"
    if count != plan.num_prompts and not plan.trace_s:  # arrivals are drawn, and time ends them
        return f"≈ {count:,}"
    return f"{count:,}" + (f", at most {time}" if time else "")


def _value(tree: Mapping[str, Any], path: str) -> str:
    """The effective value at a dotted path of the file."""
    here: Any = tree
    parts = [part for part in path.replace("[", ".").replace("]", "").split(".") if part]
    if parts[0] == "scenario" and len(parts) > 2 and parts[2] not in ("name", "slo", "gate", "repeats"):
        parts.insert(2, "flags")
    for at, part in enumerate(parts):
        here = _step(here, part, ".".join(parts[at:]))
    return _short(here)


def _step(here: Any, part: str, rest: str) -> Any:
    """One key further down; keys of an engine's own tables may hold dots, and hyphens where an origin has underscores."""
    if isinstance(here, (list, tuple)) and part.isdigit() and int(part) < len(here):
        return here[int(part)]
    if isinstance(here, Mapping):
        return next((value for key, value in here.items() if key.replace("-", "_") in (part, rest)), here)
    return here


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 70 else text[:67] + "..."


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    for row in rows:
        yield "  " + "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"


def report(spec: ExperimentSpec, cells: Sequence[Cell], plans: Sequence[ServicePlan] | None, *, cpus: str | None = None) -> Iterator[str]:
    """All of it, without secrets. `plans` null: the services are not looked at. `cpus`: which ones services and client get, in words."""
    hider = Hider.of(msgspec.to_builtins(spec))
    yield from map(hider.text, _report(spec, cells, plans, cpus))


def _report(spec: ExperimentSpec, cells: Sequence[Cell], plans: Sequence[ServicePlan] | None, cpus: str | None) -> Iterator[str]:
    yield title(spec, cells)
    if plans is not None:
        yield from ("", *services(spec, plans, cpus))
    elif spec.target is not None:
        yield from ("", "Services (running)", *(f"  {url}" for url in spec.target.base_url))
    if cells:
        yield from ("", *table(spec, cells))
    yield from ("", *settings(spec))
