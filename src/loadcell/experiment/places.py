"""Where a key of a TOML text stands: path -> line. Good enough for a message: it reads headers and keys, not strings over several lines. Pure."""

import re
from typing import Final

from loadcell.experiment.spec import Place

_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?")
_KEY: Final = re.compile(r"\s*((?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+)(?:\s*\.\s*(?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+))*)\s*=")
_PART: Final = re.compile(r"\"([^\"]*)\"|'([^']*)'|([A-Za-z0-9_-]+)")


def line_of(text: str, place: Place) -> int | None:
    """The line (from 1) of the key at `place`, or of the nearest table around it; null where nothing of it is found."""
    wanted = _normal(place)
    best: tuple[int, int] | None = None
    for number, path in _paths(text):
        length = len(path)
        if length and path == wanted[:length] and (best is None or length > best[0]):
            best = (length, number)
    return best[1] if best else None


def _paths(text: str) -> list[tuple[int, Place]]:
    """Each header and each key with its line."""
    out: list[tuple[int, Place]] = []
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
            out.append((number, table))
            continue
        key_found = _KEY.match(line)
        if key_found is not None:
            out.append((number, (*table, *_parts(key_found[1]))))
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
