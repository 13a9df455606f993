"""Retry-After -> seconds (RFC 9110 10.2.3). Reads no clock: a date counts from the response's own Date, else from the time it is given."""

import re
from datetime import UTC, datetime
from typing import Final

_NUMBER: Final = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DATES: Final = (
    re.compile(r"[A-Za-z]{3}, (?P<d>\d\d) (?P<m>[A-Za-z]{3}) (?P<y>\d{4}) (?P<t>\d\d:\d\d:\d\d) GMT\Z", re.ASCII),
    re.compile(r"[A-Za-z]{6,9}, (?P<d>\d\d)-(?P<m>[A-Za-z]{3})-(?P<y>\d\d) (?P<t>\d\d:\d\d:\d\d) GMT\Z", re.ASCII),
    re.compile(r"[A-Za-z]{3} (?P<m>[A-Za-z]{3}) (?P<d>[ \d]\d) (?P<t>\d\d:\d\d:\d\d) (?P<y>\d{4})\Z", re.ASCII),
)


def retry_after_s(value: str | None, date: str | None, milliseconds: str | None = None, wall_s: float | None = None) -> float | None:
    """Seconds >= 0 from a Retry-After value, given the Date header's; null when absent or unreadable.

    `milliseconds`: the value of Retry-After-Ms, which OpenAI's own service sends beside it and which is the finer one. `wall_s`: seconds
    since 1970 at which the response was read, for a date from a server that sends no Date.
    """
    fine, text = (milliseconds or "").strip(), (value or "").strip()
    if _NUMBER.fullmatch(fine):
        return float(fine) / 1000
    if _NUMBER.fullmatch(text):
        return float(text)
    until, now = http_date_s(text), http_date_s((date or "").strip())
    if now is None:
        now = wall_s
    return max(0.0, until - now) if until is not None and now is not None else None


def http_date_s(text: str) -> float | None:
    """Seconds since 1970 of an HTTP date in any of its three forms; null when it is none."""
    matched = next((found for pattern in _DATES if (found := pattern.match(text))), None)
    if matched is None or matched["m"].lower() not in _MONTHS:
        return None
    hour, minute, second = (int(part) for part in matched["t"].split(":"))
    year = int(matched["y"])
    if len(matched["y"]) == 2:
        year += 2000 if year < 70 else 1900
    try:
        # A leap second (60) is the last of its minute here.
        moment = datetime(year, _MONTHS.index(matched["m"].lower()) + 1, int(matched["d"]), hour, minute, min(second, 59), tzinfo=UTC)
    except ValueError:
        return None
    return moment.timestamp()
