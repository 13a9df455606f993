"""Retry-After -> seconds (RFC 9110 10.2.3). Reads no clock: a date counts from the response's own Date."""

import re
from datetime import UTC, datetime
from typing import Final

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DATES: Final = (
    re.compile(r"[A-Za-z]{3}, (?P<d>\d\d) (?P<m>[A-Za-z]{3}) (?P<y>\d{4}) (?P<t>\d\d:\d\d:\d\d) GMT\Z", re.ASCII),
    re.compile(r"[A-Za-z]{6,9}, (?P<d>\d\d)-(?P<m>[A-Za-z]{3})-(?P<y>\d\d) (?P<t>\d\d:\d\d:\d\d) GMT\Z", re.ASCII),
    re.compile(r"[A-Za-z]{3} (?P<m>[A-Za-z]{3}) (?P<d>[ \d]\d) (?P<t>\d\d:\d\d:\d\d) (?P<y>\d{4})\Z", re.ASCII),
)


def retry_after_s(value: str | None, date: str | None) -> float | None:
    """Seconds >= 0 from a Retry-After value, given the Date header's; null when absent, unreadable, or a date without a Date."""
    text = (value or "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII):
        return float(text)
    until, now = http_date_s(text), http_date_s((date or "").strip())
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
