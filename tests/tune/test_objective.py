"""From a measured load to an objective, its error, and the margins to the limits."""

import math

import numpy as np
import pytest
from tests.metrics.build import attempt, endpoint, failed, record

from loadcell.errors import UserError
from loadcell.metrics.facts import RunFacts
from loadcell.metrics.slo import parse_slo
from loadcell.metrics.summarize import summarize
from loadcell.metrics.summary import Summary
from loadcell.records import RequestRecord
from loadcell.tune.objective import (
    Blocks,
    Score,
    blocks_of,
    cut_share,
    margin,
    percentiles,
    refuse_unmeasurable,
    score,
    standard_error,
    window_of,
)

SLOS = tuple(parse_slo(text) for text in ("ttft p95 <= 500ms", "success_rate >= 95%"))


def load(n: int = 100, broken: int = 0, ttft_ms: float = 300) -> tuple[Summary, list[RequestRecord]]:
    """Ten requests a second of five tokens each; the last ones fail."""
    good = [record(k, [attempt(k * 100, [k * 100 + ttft_ms + 10 * j for j in range(5)])]) for k in range(n - broken)]
    bad = [record(k, [failed(k * 100, k * 100 + 10, "connection_reset")]) for k in range(n - broken, n)]
    records = good + bad
    return summarize(RunFacts(endpoints=(endpoint(0),), slos=SLOS, offered_rate=10.0), records), records


def judged(summary: Summary, records: list[RequestRecord], slos=SLOS, metric="throughput", per="all", devices=1) -> Score:
    _, figures = window_of(summary)
    blocks, sent = blocks_of(records, figures.window, slos, open_loop=True)
    return score(summary, blocks, slos, metric, per, devices, cut_share(sent))


def test_units_are_seconds_and_shares_and_both_limits_are_met():
    """Two per cent of errors under a limit of five, and 300 ms under one of 0.5 s: a share is no percentage, and milliseconds are no seconds."""
    found = judged(*load(100, broken=2))
    assert found.figures["ttft_p95"] == pytest.approx(0.3)
    assert found.figures["success_rate"] == pytest.approx(0.98, abs=0.002)
    assert found.violations["ttft p95 <= 500ms"] == pytest.approx(math.log(0.3 / 0.5))
    assert found.violations["success_rate >= 95%"] < 0
    assert found.within
    assert found.window == "steady"
    assert found.n["ttft_p95"] == 98


def test_the_objective_is_a_rate_per_device_or_in_all_with_its_error():
    summary, records = load()
    whole = judged(summary, records)
    each = judged(summary, records, per="device", devices=4)
    assert whole.objective == pytest.approx(50, rel=0.06)
    assert each.objective == pytest.approx(whole.objective / 4)
    assert 0 <= whole.objective_se < 5
    assert each.objective_se == pytest.approx(whole.objective_se / 4)
    assert judged(summary, records, metric="request_rate").objective == pytest.approx(10, rel=0.06)
    assert judged(summary, records, metric="goodput").objective == pytest.approx(10, rel=0.06)


def test_goodput_counts_what_meets_the_limits():
    summary, records = load(ttft_ms=800)
    found = judged(summary, records, metric="goodput")
    assert found.objective == 0
    assert found.violations["ttft p95 <= 500ms"] == pytest.approx(math.log(1.6))
    assert not found.within


def test_a_short_load_is_judged_as_a_whole():
    found = judged(*load(10))
    assert found.window == "whole"
    assert found.cut_share is None


def test_a_limit_that_was_not_measured_is_unknown_and_never_met():
    slos = (parse_slo("tpot p50 <= 20ms"),)
    records = [record(k, [attempt(k * 100, [k * 100 + 50])]) for k in range(50)]
    summary = summarize(RunFacts(endpoints=(endpoint(0),), slos=slos, offered_rate=10.0), records)
    found = judged(summary, records, slos)
    assert found.unknown == ("tpot p50 <= 20ms",)
    assert not found.within


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_no_number_is_no_figure(value):
    assert margin(SLOS[0], value, 10) is None


def test_a_success_rate_of_nothing_stays_finite():
    assert margin(SLOS[1], 0.0, 100) == pytest.approx(math.log(0.95 / 0.005))


def test_percentiles_that_limits_name_are_asked_of_the_summary():
    assert percentiles([parse_slo("ttft p97.3 <= 1s"), parse_slo("e2e max <= 1s"), *SLOS]) == (95.0, 97.3)


def test_the_standard_error_is_that_of_correlated_series():
    """Overlapping batch means cover the true mean of an AR(1) series far better than the textbook formula, which ignores the correlation."""
    rng, covered, naive = np.random.default_rng(3), 0, 0
    for _ in range(300):
        x = np.zeros(120)
        for at in range(1, 120):
            x[at] = 0.5 * x[at - 1] + rng.standard_normal()
        covered += abs(x.mean()) <= 2 * (standard_error(list(x)) or 0)
        naive += abs(x.mean()) <= 2 * x.std(ddof=1) / math.sqrt(120)
    assert covered / 300 > 0.83
    assert naive / 300 < 0.8
    assert standard_error([1.0] * 4) is None


def test_mser_5_finds_where_a_start_ends():
    rng = np.random.default_rng(5)
    steady = list(1 + 0.05 * rng.standard_normal(400))
    assert cut_share(steady) < 0.5
    assert cut_share([3.0] * 100 + steady) == pytest.approx(0.2, abs=0.06)
    assert cut_share([1 + at / 100 for at in range(300)]) > 0.5
    assert cut_share(steady[:49]) is None


def test_blocks_are_the_whole_seconds_of_the_window():
    summary, records = load()
    blocks, _ = blocks_of(records, summary.whole.window, SLOS, open_loop=True)
    assert len(blocks.tokens) == int(summary.whole.window.duration_s)
    assert sum(blocks.completed) <= 100
    assert blocks.completed == blocks.good
    assert set(blocks.completed[1:-1]) == {10}
    assert Blocks().of("goodput") == []


@pytest.mark.parametrize(
    ("slos", "metric", "streamed", "offered", "words"),
    [
        (["e2e p95 <= 1s"], "throughput", False, None, None),
        (["ttft p95 <= 1s"], "throughput", False, None, "not streamed"),
        ([], "goodput", True, None, "no .* limits a request"),
        (["ttft mean <= 1s"], "throughput", True, {"throughput", "ttft_mean"}, None),
        (["ttft p99 <= 1s"], "throughput", True, {"throughput", "ttft_mean"}, "does not tell ttft p99"),
        ([], "goodput", True, {"throughput"}, "does not tell it"),
    ],
)
def test_what_could_never_be_measured_is_refused_before_anything_starts(slos, metric, streamed, offered, words):
    parsed = [parse_slo(text) for text in slos]
    if words is None:
        refuse_unmeasurable(parsed, metric, streamed=streamed, offered=offered)
        return
    with pytest.raises(UserError, match=words):
        refuse_unmeasurable(parsed, metric, streamed=streamed, offered=offered, who="x")
