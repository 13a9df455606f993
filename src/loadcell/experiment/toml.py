"""A TOML text -> its tree. What is wrong with it is said with its line, its key and what to do: tomllib's own words know neither key nor remedy. Pure."""

import re
import tomllib
from pathlib import Path
from typing import Any, Final

from loadcell.errors import UserError
from loadcell.experiment.places import Entry, entries
from loadcell.experiment.spec import shown

_QUOTES: Final = 'a text stands in "quotes", also one with a unit ("30s"); a switch is true or false'
_REMEDIES: Final = {
    "Invalid value": _QUOTES,
    "Expected newline or end of document after a statement": f"{_QUOTES}; a number has no leading 0",
    "Expected '=' after a key in a key/value pair": "a line is KEY = VALUE, and a key has no blanks",
    "Illegal character '\\n'": 'a text ends in its line: a " is missing',
    "Expected ']' at the end of a table declaration": "a table is [NAME], a row of a list [[NAME]]",
    "Expected ']]' at the end of an array declaration": "a table is [NAME], a row of a list [[NAME]]",
    "Unclosed array": "a ] is missing, or a comma before this",
}
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*=")


def parsed(text: str, path: Path) -> dict[str, Any]:
    """Raises UserError, with `path` and the line."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        said, _, where = str(wrong).partition(" (at ")
        number = where.removeprefix("line ").partition(",")[0]
        line = int(number) if number.isdigit() else text.count("\n") + 1
        if said.startswith(("Cannot", "Duplicate")):
            line, told = _twice(said, text, line)
        else:
            told = _unreadable(said, text, line)
    raise UserError(f"{path}:{line}: {told}")


def _unreadable(said: str, text: str, line: int) -> str:
    lines = text.split("\n")
    key = _KEY.match(lines[line - 1]) if line <= len(lines) else None
    remedy = _REMEDIES.get(said)
    return f"{f'{key[1]}: ' if key else ''}not TOML: {said}" + (f": {remedy}" if remedy else "")


def _twice(said: str, text: str, line: int) -> tuple[int, str]:
    """Something stands twice; tomllib tells where the second one ends. The line where that begins, and what to do."""
    known = [entry for entry in entries(text) if entry.line <= line]
    if not known or said.startswith("Duplicate"):
        name = said.partition("'")[2].rstrip("'")
        return line, f"{name or said}: given twice in one {{ }}: keep one" if name else f"not TOML: {said}"
    second, before = known[-1], known[:-1]
    first = _first(second, before)
    if first is None:
        return second.line, f"{_shown(second)}: not TOML: {said}"
    if first.header == second.header and first.place == second.place:
        what = "put its keys together" if second.header else "keep one"
        return second.line, f"{_shown(second)}: given twice, first in line {first.line}: {what}"
    return (
        second.line,
        f"{_shown(second)}: {_shown(first)}{'' if first.header else ' = …'} in line {first.line} gives the same in another form: write all of it in one of the two",
    )


def _first(second: Entry, before: list[Entry]) -> Entry | None:
    """What `second` repeats: the same place, else a value that it would be put into, else what is already below it."""
    place = second.place[:-1] if second.header == "[[" else second.place
    same = [entry for entry in before if entry.place == place]
    around = [entry for entry in before if not entry.header and place[: len(entry.place)] == entry.place]
    below = [entry for entry in before if entry.place[: len(place)] == place]
    return next(iter((*same, *around, *below)), None)


def _shown(entry: Entry) -> str:
    """As it is written: `[[slo]]`, `[bench]`, `[bench] num_prompts`."""
    if entry.header:
        name = ".".join(str(part) for part in entry.place if isinstance(part, str))
        return f"[[{name}]]" if entry.header == "[[" else f"[{name}]"
    return shown(entry.place)
