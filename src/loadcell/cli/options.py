"""The flags' table as options of a typer command: their help, by panel, and how typer is to read them."""

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from loadcell.flags.flag import Flag
from loadcell.flags.table import aliases_of, panel_of


def with_options(function: Callable[..., int], table: Sequence[Flag]) -> Callable[..., int]:
    """`function`, which takes any keyword, as one whose parameters are the flags of `table`."""

    def command(**given: Any) -> int:
        return function(**given)

    parameters = [_option(flag) for flag in table]
    # typer reads both: the signature for the order, the annotations for the types.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = function.__doc__
    return command


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


def _option(flag: Flag) -> inspect.Parameter:
    """Every value reaches `scenario_from_flags` as text: one place converts it, and says what is wrong with it."""
    names = [flag.spelling]
    kind: Any = str | None
    if flag.kind == "switch":
        kind = bool | None
        names = [f"{flag.spelling}/--{flag.off[0]}", *(f" /--{name}" for name in flag.off[1:])] if flag.off else names
    elif flag.kind == "texts":
        kind = list[str] | None
    words = words_of(flag).replace("[", "\\[")  # typer reads help as rich's markup
    panel = panel_of(flag)
    metavar = metavar_of(flag) or ""  # a switch takes no value: typer would print <bool>
    option = typer.Option(*names, help=words, rich_help_panel=panel, show_default=False, metavar=metavar, hidden=panel is None)
    return inspect.Parameter(flag.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])
