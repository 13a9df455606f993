"""A file of arrival times -> offsets in seconds, the first at 0."""

import json
import math
from pathlib import Path

from loadcell.errors import UserError


def read_trace(path: str) -> tuple[float, ...]:
    """One offset in seconds a line, or JSON lines whose `timestamp` is in milliseconds (Mooncake's unit). Blank lines and # comments are skipped.

    Times are taken relative to the first one. UserError names the line that is no time, or earlier than the one before.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as wrong:
        raise UserError(f"--trace {path}: {wrong.strerror or wrong}") from None
    except UnicodeDecodeError:
        raise UserError(f"--trace {path}: not a text in UTF-8") from None
    times: list[float] = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        seconds = _seconds(line)
        if seconds is None:
            raise UserError(f"{path}:{number}: expected seconds, or a JSON object with `timestamp` in milliseconds")
        if times and seconds < times[-1]:
            raise UserError(f"{path}:{number}: earlier than the line before; sort the trace by time")
        times.append(seconds)
    if not times:
        raise UserError(f"--trace {path}: holds no times")
    return tuple(seconds - times[0] for seconds in times)


def mooncake_times(path: str) -> tuple[float, ...]:
    """When the requests of a Mooncake trace came, in seconds since its first one. UserError by line, as when its rows are read."""
    from loadcell.workload.lines import JsonLines
    from loadcell.workload.mooncake import read_trace as read_rows

    return tuple(row.timestamp_s for row in read_rows(JsonLines(path), path))


def _seconds(line: str) -> float | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    if isinstance(value, dict):
        value, scale = value.get("timestamp"), 1e-3
    else:
        scale = 1.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        return None
    return value * scale
