"""Where a key of a TOML text stands: path -> line. Good enough for a message: it reads headers and keys, not strings over several lines. Pure."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from loadcell.errors import UserError
from loadcell.experiment.spec import Place

_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?")
_KEY: Final = re.compile(r"\s*((?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+)(?:\s*\.\s*(?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+))*)\s*=")
_FLEET_KEY: Final = re.compile(r"fleet(?:\.[A-Za-z0-9_-]+)+")
_PART: Final = re.compile(r"\"([^\"]*)\"|'([^']*)'|([A-Za-z0-9_-]+)")


class Entry(Struct, frozen=True):
    """`header`: `[` or `[[`; empty for a key."""

    line: int
    place: Place
    header: str


def line_of(text: str, place: Place) -> int | None:
    """The line (from 1) of the key at `place`, or of the nearest table around it; null where nothing of it is found."""
    wanted = _normal(place)
    best: tuple[int, int] | None = None
    for entry in entries(text):
        length = len(entry.place)
        if length and entry.place == wanted[:length] and (best is None or length > best[0]):
            best = (length, entry.line)
    return best[1] if best else None


@contextmanager
def refusals_placed(origins: Mapping[str, str]) -> Iterator[None]:
    """A UserError of the block that begins with a key of the fleet gets the place that gave the key: the fleet knows no file. `origins`: by dotted path."""
    try:
        yield
    except UserError as wrong:
        raise UserError(_placed(str(wrong), origins)) from None


def _placed(text: str, origins: Mapping[str, str]) -> str:
    found = _FLEET_KEY.match(text)
    key = found[0].replace("-", "_") if found else ""
    while "." in key:
        origin = next((given for path, given in origins.items() if path == key or path.startswith((f"{key}.", f"{key}["))), None)
        if origin is not None:
            return f"{origin}: {text}"
        key = key.rpartition(".")[0]
    return text


def entries(text: str) -> list[Entry]:
    """Each header and each key, in their order."""
    out: list[Entry] = []
    counts: dict[Place, int] = {}
    table: Place = ()
    for number, line in enumerate(text.split("\n"), 1):
        header = _HEADER.fullmatch(line)
        if header is not None:
            names = _parts(header[2])
            if header[1] == "[[":
                around = _with_indices(names[:-1], counts)
                key = (*around, names[-1])
                counts[key] = counts.get(key, -1) + 1
                table = (*key, counts[key])
            else:
                table = _with_indices(names, counts)
            out.append(Entry(number, table, header[1]))
            continue
        key_found = _KEY.match(line)
        if key_found is not None:
            out.append(Entry(number, (*table, *_parts(key_found[1])), ""))
    return out


def _with_indices(names: Place, counts: dict[Place, int]) -> Place:
    """`[host.docker]` after the second `[[host]]` -> ("host", 1, "docker")."""
    place: Place = ()
    for name in names:
        place = (*place, name)
        if place in counts:
            place = (*place, counts[place])
    return place


def _parts(text: str) -> Place:
    return _normal(tuple(next(filter(None, found), "") for found in _PART.findall(text)))


def _normal(place: Place) -> Place:
    return tuple(part.replace("-", "_") if isinstance(part, str) else part for part in place)
