"""Text -> limits, and what is refused."""

import pytest

from loadcell.errors import UserError
from loadcell.metrics.slo import parse_goodput, parse_slo, percentile_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft p95 <= 200ms", ("ttft", "p95", 200.0)),
        ("ttft_p95<=0.2s", ("ttft", "p95", 200.0)),
        ("p95 ttft < 200 ms", ("ttft", "p95", 200.0)),
        ("p95_ttft ≤ 200ms", ("ttft", "p95", 200.0)),
        ("TTFT P95 <= 200MS", ("ttft", "p95", 200.0)),
        ("tpot p99.9 <= 1500us", ("tpot", "p99.9", 1.5)),
        ("itl p99_9 <= 1500µs", ("itl", "p99.9", 1.5)),
        ("e2e mean <= 1min", ("e2e", "mean", 60_000.0)),
        ("e2e mean <= 1m", ("e2e", "mean", 60_000.0)),
        ("e2el avg <= 1e3ms", ("e2e", "mean", 1000.0)),
        ("max_stall max <= 1s", ("max_stall", "max", 1000.0)),
        ("scheduled_ttft_p50 <= 1s", ("scheduled_ttft", "p50", 1000.0)),
        ("queue_delay median <= 1s", ("queue_delay", "p50", 1000.0)),
        ("icl p100 <= 1s", ("icl", "max", 1000.0)),
        ("success_rate >= 99%", ("success_rate", "mean", 0.99)),
        ("success_rate>=0.999", ("success_rate", "mean", 0.999)),
    ],
)
def test_what_is_understood(text: str, expected: tuple[str, str, float]) -> None:
    slo = parse_slo(text)
    assert (slo.metric, slo.statistic) == expected[:2]
    assert slo.limit == pytest.approx(expected[2])
    assert slo.text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a limit"),
        ("ttft", "is not a limit"),
        ("ttft p95 200ms", "is not a limit"),
        ("ttft p95 <= fast", "is not a limit"),
        ("ttft p95 <= 200", "no unit; use us, ms, s or min"),
        ("ttft p95 <= 200parsec", "'parsec' is no unit of time"),
        ("ttft p95 <= 0ms", "above 0"),
        ("ttft p95 <= 1.2.3ms", "'1.2.3' is not a number"),
        ("ttft p95 >= 200ms", "use <="),
        ("ttft <= 200ms", "names no statistic"),
        ("ttft p0 <= 200ms", "'p0' is no statistic"),
        ("ttft p101 <= 200ms", "no statistic"),
        ("ttft maximum <= 200ms", "use max"),
        ("ttft p95 p99 <= 200ms", "is not a limit"),
        ("ttfb p95 <= 200ms", "did you mean 'ttf[ta]'"),
        ("tpott p95 <= 200ms", "did you mean 'tpot'"),
        ("zzzz p95 <= 200ms", "known are ttft"),
        ("success_rate <= 99%", "use >="),
        ("success_rate >= 99ms", "no unit of a share"),
        ("success_rate >= 99", "99% or 0.99"),
        ("success_rate p95 >= 99%", "has no p95"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        parse_slo(text)
    assert str(caught.value).startswith(f"--slo {text!r}")


def test_goodput_as_vllm_writes_it() -> None:
    slos = parse_goodput(["ttft:200", "tpot:50 e2el:1000.5"])
    assert [(slo.metric, slo.statistic, slo.limit) for slo in slos] == [
        ("ttft", "each", 200),
        ("tpot", "each", 50),
        ("e2e", "each", 1000.5),
    ]
    assert parse_goodput([]) == ()


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("ttft=200", "write it like ttft:200"),
        ("ttft:fast", "'fast' is not a number"),
        ("ttft:nan", "above 0 and finite"),
        ("ttft:inf", "above 0 and finite"),
        ("ttft:-1", "above 0"),
        ("tttf:200", "did you mean 'ttft'"),
        ("success_rate:1", "use --slo"),
        ("ttft:1 ttft:2", "limited twice"),
    ],
)
def test_goodput_that_is_refused(item: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        parse_goodput([item])
    assert "--goodput" in str(caught.value)


def test_percentiles_by_name() -> None:
    assert (percentile_of("p95"), percentile_of("p99.9"), percentile_of("mean"), percentile_of("each")) == (95, 99.9, None, None)
