"""A command line that spells a table's flags as they stand there -> their values by name. Pure.

It needs no typer: to make 130 options of the table takes that library longer than a run takes to start. Whatever else is on the line
(`--help`, a word that is no flag, a value that is missing) is typer's to answer.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from loadcell.flags.flag import Flag


def values_of(words: Sequence[str], table: Iterable[Flag]) -> dict[str, Any] | None:
    """What typer would hand over for words as `argv.normal` leaves them, without the flags that are absent. Null: ask typer."""
    switches: dict[str, tuple[str, bool]] = {}
    valued: dict[str, Flag] = {}
    for flag in table:
        if flag.kind == "switch":
            switches |= {flag.spelling: (flag.name, True), **{f"--{off}": (flag.name, False) for off in flag.off}}
        else:
            valued[flag.spelling] = flag
    given: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        if word in switches:
            name, on = switches[word]
            given[name] = on
            continue
        spelled, equals, value = word.partition("=")
        if spelled not in valued:
            return None
        if not equals:
            value = next(rest, "-")
            if value.startswith("-"):  # a negative number, or a flag where a value should be
                return None
        flag = valued[spelled]
        given[flag.name] = [*given.get(flag.name, ()), value] if flag.kind == "texts" else value
    return given
