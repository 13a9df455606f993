"""Numbers in people's units: one rule everywhere."""

import pytest

from loadcell.report import figures


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0.00 ms"),
        (0.1234, "0.123 ms"),
        (9.876, "9.88 ms"),
        (45.23, "45.23 ms"),
        (130.0, "130.0 ms"),
        (1500.0, "1500 ms"),
        (2168.0, "2168 ms"),
        (9999.4, "9999 ms"),
        (9999.6, "10.00 s"),
        (12345.0, "12.35 s"),
        (59_994.0, "59.99 s"),
        (59_999.0, "1 min 0.0 s"),
        (61_500.0, "1 min 1.5 s"),
        (119_960.0, "2 min 0.0 s"),
        (3_600_000.0, "60 min 0.0 s"),
    ],
)
def test_times_are_ms_below_ten_seconds_then_s_then_min(value: float | None, text: str) -> None:
    assert figures.ms(value) == text
    assert figures.seconds(None if value is None else value / 1000) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0.0 %"),
        (1.0, "100.0 %"),
        (0.003, "0.3 %"),
        (0.9999, "99.99 %"),
        (0.0004, "0.04 %"),
        (1e-9, "< 0.001 %"),
        (1 - 1e-9, "> 99.999 %"),
    ],
)
def test_a_share_that_is_not_all_never_reads_as_all(value: float | None, text: str) -> None:
    assert figures.share(value) == text


def test_rates() -> None:
    assert [figures.rate(v) for v in (None, 0.0, 51.876, 518.76, 51876.4)] == ["–", "0.00 /s", "51.88 /s", "518.8 /s", "51,876 /s"]


def test_text_from_outside_becomes_one_printable_line() -> None:
    assert figures.one_line("a\nb\x1b[31m\r\tc\u202ed\ud800") == "a b [31m c d"
    assert figures.one_line("x" * 300) == "x" * 199 + "…"
