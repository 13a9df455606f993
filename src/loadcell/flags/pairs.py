"""Lists and pairs in text: headers, metadata, steps, percentiles."""

import re
from collections.abc import Iterable
from typing import Final

from loadcell.errors import UserError

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_VALUE: Final = re.compile(r"[\x20-\x7e\x80-\xff\t]*")  # RFC 9110, 5.5
_OURS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "content-type", "accept-encoding"})


def headers(items: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """`KEY=VALUE` (as vLLM takes them) or `Key: value` -> pairs; whichever sign comes first separates. Values are never quoted in errors."""
    pairs = []
    for item in items:
        name, sign, value = _split(item)
        if not sign or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            named = f" {name}" if sign and _TOKEN.fullmatch(name) else ""
            raise UserError(f"--header{named}: give KEY=VALUE or 'Key: value', printable and in Latin-1")
        if name.lower() in _OURS:
            raise UserError(f"--header {name}: this header belongs to the client and cannot be set")
        pairs.append((name, value))
    return tuple(pairs)


def _split(item: str) -> tuple[str, str, str]:
    at = min((at for at in (item.find("="), item.find(":")) if at >= 0), default=-1)
    return (item, "", "") if at < 0 else (item[:at].strip(), item[at], item[at + 1 :].strip())


def metadata(items: Iterable[str]) -> dict[str, str]:
    """`KEY=VALUE` -> a mapping; a key that comes twice is refused."""
    facts: dict[str, str] = {}
    for item in items:
        key, sign, value = item.partition("=")
        key = key.strip()
        if not sign or not key:
            raise UserError(f"--metadata {item}: give KEY=VALUE")
        if key in facts:
            raise UserError(f"--metadata {item}: the key {key} is given twice")
        facts[key] = value.strip()
    return facts


def steps(text: str) -> tuple[tuple[float, float], ...]:
    """`2:30,4:30` -> ((2.0, 30.0), (4.0, 30.0)): rate in 1/s, seconds."""
    try:
        pairs = [tuple(float(part) for part in item.split(":")) for item in text.split(",")]
        return tuple((step_rate, seconds) for step_rate, seconds in pairs)
    except ValueError:
        raise UserError(f"--steps {text}: give RATE:SECONDS pairs separated by commas, such as 2:30,4:30") from None


def percentiles(text: str) -> tuple[float, ...]:
    """`50,90,99.9` -> numbers in (0, 100)."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 < number < 100 for number in numbers):
        raise UserError(f"--metric-percentiles {text}: give numbers between 0 and 100, separated by commas")
    return numbers
