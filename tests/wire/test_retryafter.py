import pytest

from loadcell.wire.retryafter import http_date_s, retry_after_s

NOW = "Sun, 06 Nov 1994 08:49:37 GMT"


@pytest.mark.parametrize(
    ("value", "date", "expected"),
    [
        ("120", None, 120.0),
        (" 0 ", None, 0.0),
        ("1.5", None, 1.5),
        ("Sun, 06 Nov 1994 08:50:07 GMT", NOW, 30.0),
        ("Sunday, 06-Nov-94 08:49:47 GMT", NOW, 10.0),
        ("Sun Nov  6 08:49:38 1994", NOW, 1.0),
        ("Sun, 06 Nov 1994 08:49:00 GMT", NOW, 0.0),
        ("Sun, 06 Nov 1994 08:50:07 GMT", None, None),
        ("Sun, 31 Feb 1994 08:50:07 GMT", NOW, None),
        ("Sun, 06 Nov 1994 08:50:60 GMT", "Sun, 06 Nov 1994 08:50:59 GMT", 0.0),
        ("Sun, 06 Xyz 1994 08:50:07 GMT", NOW, None),
        ("-5", None, None),
        ("soon", NOW, None),
        ("9" * 400, None, None),
        ("٣", None, None),
        ("", NOW, None),
        (None, NOW, None),
    ],
)
def test_retry_after(value: str | None, date: str | None, expected: float | None) -> None:
    assert retry_after_s(value, date) == expected


def test_a_date_counts_from_the_time_of_reading_where_the_server_tells_none() -> None:
    until = "Sun, 06 Nov 1994 08:50:07 GMT"
    now_s = http_date_s(NOW)
    assert now_s is not None
    assert retry_after_s(until, None, wall_s=now_s) == 30.0
    assert retry_after_s(until, NOW, wall_s=now_s + 20) == 30.0
    assert retry_after_s(until, None, wall_s=now_s + 60) == 0.0


def test_milliseconds_are_finer() -> None:
    assert retry_after_s("2", None, "1250") == 1.25
    assert retry_after_s(None, None, "300") == 0.3
    assert retry_after_s("2", None, "soon") == 2.0
