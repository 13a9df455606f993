"""A data set's file -> its JSON values with their places, so that an error can name `path:line`.

Byte-order marks and CRLF are accepted and no part of the data; blank lines are counted; the last newline may be missing.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from loadcell.errors import UserError

_MOST_TOKENS: Final = 1_000_000_000
_UTF8_MARK: Final = b"\xef\xbb\xbf"
_OTHER_MARKS: Final = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def read_file(path: str) -> bytes:
    """The bytes of a data set without a UTF-8 mark. UserError when it cannot be read or is UTF-16."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"--dataset-path {path}: cannot be read ({error.strerror})") from error
    encoding = _OTHER_MARKS.get(content[:2])
    if encoding:
        raise UserError(f"{path}:1: is {encoding}; save it as UTF-8")
    return content.removeprefix(_UTF8_MARK)


class JsonLines:
    """The objects of a JSONL file with their line numbers, from 1. `blanks` counts empty lines once it is read through."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.blanks = 0

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        lines = read_file(self._path).split(b"\n")
        if not lines[-1]:
            lines.pop()  # what follows the last newline is no line
        for number, line in enumerate(lines, start=1):
            stripped = line.strip(b" \t\r")
            if stripped:
                yield number, parse_object(self._path, number, stripped)
            else:
                self.blanks += 1

    def place(self, number: int) -> str:
        return f"{self._path}:{number}"


def parse_object(path: str, number: int, line: bytes) -> dict[str, Any]:
    """The JSON object on one line."""
    check_utf8(path, number, line)
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UserError(f"{path}:{number}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        hint = "; this looks like one JSON array, but JSONL holds one object a line" if line.startswith(b"[") else ""
        raise UserError(f"{path}:{number}: expected a JSON object{hint}")
    return value


def check_utf8(path: str, number: int, content: bytes) -> None:
    """UserError that names the line and the byte; `content` begins at line `number`."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = number + content.count(b"\n", 0, error.start)
        column = error.start - (content.rfind(b"\n", 0, error.start) + 1) + 1
        raise UserError(f"{path}:{line}: not UTF-8 (byte 0x{content[error.start]:02x} at column {column}); save it as UTF-8") from error


def tokens(place: str, key: str, value: object) -> int:
    """A number of tokens. More than a billion is a mistake that no prompt and no request could hold."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_TOKENS:
        raise UserError(f"{place}: '{key}' is {value!r}: must be a whole number from 1 to {_MOST_TOKENS}")
    return value
