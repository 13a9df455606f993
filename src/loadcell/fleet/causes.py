"""A service's log, line by line -> why it cannot go on. Pure.

A named cause beats `fatal`, which only says that the end has come; among causes of one rank the first line counts: it is the root, what follows
are its consequences. Within a line the first pattern counts. An indented line goes on with the one before, which says what it is about: both
are told. Knows no engine: the patterns are the engine's, and the specification's before them.
"""

import re
from collections.abc import Sequence
from typing import Final

from loadcell.errors import UserError
from loadcell.fleet.spec import Cause, LogPattern

_LONGEST: Final = 4096
"""Characters of a line that are searched: a line without end is no message."""
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CONTINUED: Final = re.compile(r"(?:\([^()]*\bpid=\d+\) )?\s+(\S.*)")
"""A line that goes on with the one before, whether or not each begins with the process that wrote it."""


class CauseFinder:
    """`best`: (cause, the line that names it), null as long as nothing does. Raises UserError for a pattern that is no regular expression."""

    def __init__(self, patterns: Sequence[LogPattern]) -> None:
        self._patterns = [(one.cause, _compiled(one)) for one in patterns]
        self._best: tuple[Cause, str] | None = None
        self._before = ""

    def feed(self, line: str) -> None:
        if self._best is not None and self._best[0] != "fatal":
            return
        text = _COLOURS.sub("", line[:_LONGEST]).rstrip()
        cause = next((cause for cause, pattern in self._patterns if pattern.search(text)), None)
        if cause is not None and (self._best is None or cause != "fatal"):
            continued = _CONTINUED.fullmatch(text)
            self._best = cause, f"{self._before}: {continued[1]}" if continued and self._before else text
        self._before = text

    @property
    def best(self) -> tuple[Cause, str] | None:
        return self._best


def _compiled(one: LogPattern) -> re.Pattern[str]:
    try:
        return re.compile(one.pattern)
    except re.error as error:
        raise UserError(f"fleet.pattern: {one.pattern!r} ({one.cause}) is no regular expression: {error}") from None
