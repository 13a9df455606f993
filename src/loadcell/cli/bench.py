"""`loadcell bench`: the flags' table as a typer command. What the flags mean is `loadcell.flags`' business."""

import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from loadcell.client.limits import Timeouts
from loadcell.flags.flag import Flag
from loadcell.flags.table import ALIASES, ALREADY_SO, FLAGS, PANELS, aliases_of

LISTS = tuple(flag.spelling for flag in FLAGS.values() if flag.kind == "texts" and flag.name != "slo")


def bench(**given: Any) -> None:
    """Load one or many endpoints, and report what they deliver.

    The run is written to a folder: its records, a summary in JSON, and a report in Markdown. The flags of vllm bench serve that keep
    their meaning are taken under their names; those that have none here are refused, naming the substitute.
    """
    from loadcell.flags.resolve import scenario_from_flags, with_api_key

    scenario, output = scenario_from_flags({name: value for name, value in given.items() if value not in (None, [], ())})
    for notice in _notices(given, scenario.target.api_key_env):
        print(f"loadcell: {notice}", file=sys.stderr)
    if output.progress:
        print(f"loadcell: {_timeouts(scenario.timeouts)}", file=sys.stderr)
    # After the checks: wrong use is answered before the machinery is loaded.
    from loadcell.api import run_scenario
    from loadcell.cli.watch import TerminalWatcher
    from loadcell.load.signals import ignored

    watcher = TerminalWatcher(sys.stderr, silent=not output.progress)
    try:
        result = run_scenario(with_api_key(scenario, os.environ), output, watcher)
    finally:
        watcher.stop()
    if result.facts.stop_signal is not None:
        ignored()  # one more Ctrl-C must not take the table from who has just asked for it
    if not output.quiet:
        from loadcell.report.terminal import show

        out = sys.stderr if output.output_file == "-" else sys.stdout
        show(result.summary, out)
        print(f"\n{result.report}", file=out)
    raise typer.Exit(result.exit_code)


def _timeouts(limits: Timeouts) -> str:
    """How long a silence may last, said before it does."""
    first, idle = f"first output {limits.first_output_s:g} s", f"idle {limits.idle_s:g} s"
    return f"timeouts: connect {limits.connect_s:g} s, {first}, {idle}, total {limits.total_s:g} s"


def _notices(given: Mapping[str, Any], key_variable: str) -> Iterator[str]:
    """What is done otherwise than it was written."""
    from loadcell.wire.url import any_address_notice

    addresses = [*(given.get("base_url") or ()), given.get("host") or ""]
    yield from filter(None, map(any_address_notice, addresses))
    if given.get("api_key_env") and not os.environ.get(key_variable):
        yield f"{key_variable} is not set: requests carry no key"


def default_of(flag: Flag) -> str | None:
    """What texts print as the flag's default; null where its absence says it all."""
    if flag.shown is not None:
        return flag.shown
    if flag.default is None:
        return None
    if flag.kind == "switch":
        return "on" if flag.default else "off"
    return f"{flag.default:g}" if isinstance(flag.default, float) else str(flag.default)


def words_of(flag: Flag) -> str:
    """The flag's help with its other names and its default."""
    also = ", ".join(alias.spelling for alias in aliases_of(flag.name))
    default = default_of(flag)
    return flag.help + (f" (Also {also}.)" if also else "") + (f" [default: {default}]" if default else "")


def metavar_of(flag: Flag) -> str | None:
    """What stands for the value in texts; null for a switch."""
    if flag.kind == "switch":
        return None
    return flag.metavar or "|".join(flag.choices) or {"int": "N", "float": "X"}.get(flag.kind, "TEXT")


def _option(flag: Flag, panel: str, hidden: bool = False) -> inspect.Parameter:
    """Every value reaches `scenario_from_flags` as text: one place converts it, and says what is wrong with it."""
    names = [flag.spelling]
    kind: Any = str | None
    if flag.kind == "switch":
        kind = bool | None
        names = [f"{flag.spelling}/--{flag.off[0]}", *(f" /--{name}" for name in flag.off[1:])] if flag.off else names
    elif flag.kind == "texts":
        kind = list[str] | None
    words = words_of(flag).replace("[", "\\[")  # typer reads help as rich's markup
    option = typer.Option(*names, help=words, rich_help_panel=panel, show_default=False, metavar=metavar_of(flag), hidden=hidden)
    return inspect.Parameter(flag.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def _parameters() -> list[inspect.Parameter]:
    shown = [_option(flag, panel) for panel, flags in PANELS.items() for flag in flags]
    others = [*ALIASES.values(), *(Flag(name, "switch", why) for name, why in ALREADY_SO.items())]
    return shown + [_option(flag, "", hidden=True) for flag in others]


_PARAMETERS = _parameters()
# typer reads both: the signature for the order, the annotations for the types.
bench.__signature__ = inspect.Signature(_PARAMETERS)  # type: ignore[attr-defined]
bench.__annotations__ = {parameter.name: parameter.annotation for parameter in _PARAMETERS}
