"""Numbers -> text for people. One rule for units everywhere: ms below 10 s, then s, then min. A missing value is a dash.

No thousands separators in times, so that a figure can be searched for; counts and rates have them.
"""

from typing import Final

MISSING: Final = "–"
TOO_FEW: Final = "†"
METHOD_NOTE: Final = "Percentiles are order statistics of the pooled samples, interpolated linearly."
TOO_FEW_NOTE: Final = f"{TOO_FEW} fewer samples than this percentile needs (p99 needs 100): read it as an anecdote."


def ms(value: float | None) -> str:
    """A time given in ms: `0.123 ms`, `45.23 ms`, `2168 ms`, `12.35 s`, `1 min 1.5 s`."""
    if value is None:
        return MISSING
    if round(abs(value)) < 10_000:
        return f"{_trimmed(value)} ms"
    seconds = value / 1000
    if round(abs(seconds), 2) < 60:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds, 1), 60)
    return f"{minutes:.0f} min {rest:.1f} s"


def seconds(value: float | None) -> str:
    return ms(None if value is None else value * 1000)


def us(value: float | None) -> str:
    return ms(None if value is None else value / 1000)


def _trimmed(value: float) -> str:
    """At least three significant digits, none after the point from 1000 on."""
    size = abs(value)
    if size >= 1000:
        return f"{value:.0f}"
    if size >= 100:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 or size == 0 else f"{value:.3f}"


def rate(value: float | None, unit: str = "/s") -> str:
    """Per second: `51.88 /s`, `12,345 /s`."""
    if value is None:
        return MISSING
    if abs(value) >= 1000:
        return f"{value:,.0f} {unit}"
    return f"{value:.1f} {unit}" if abs(value) >= 100 else f"{value:.2f} {unit}"


def count(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"


def number(value: float | None) -> str:
    """A mean of counts."""
    return MISSING if value is None else f"{value:,.1f}"


def share(value: float | None) -> str:
    """A fraction as a percentage. What is not quite all never prints as 100 %, what is not quite none never as 0 %."""
    if value is None:
        return MISSING
    for digits in (1, 2, 3):
        text = f"{value * 100:.{digits}f}"
        if not 0 < value < 1 or float(text) not in (0.0, 100.0):
            return f"{text} %"
    return "> 99.999 %" if value > 0.5 else "< 0.001 %"


def yes_no(value: bool | None, yes: str = "yes", no: str = "no") -> str:
    return MISSING if value is None else yes if value else no


def one_line(text: str, limit: int = 200) -> str:
    """Text from outside, safe to print: one line, no control characters, not longer than `limit`."""
    flat = "".join(char if char.isprintable() else " " for char in text)
    flat = " ".join(flat.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
