"""Pools give numpy's figures, whatever the size of the gaps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadcell.metrics.stats import GapPool
from loadcell.report.pool import TimePool, gap_samples, statistics

ASKED = (0, 25, 50, 90, 99, 99.9, 100)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 5_000_000), min_size=1, max_size=200))
def test_pooled_gaps_agree_with_numpy(gaps_us: list[int]) -> None:
    pool = GapPool()
    pool.add(gaps_us[:7])
    pool.add(gaps_us[7:])
    samples = gap_samples(pool)
    assert samples.n == len(gaps_us)
    assert samples.mean() == pytest.approx(np.mean(gaps_us) / 1000)
    assert samples.std() == pytest.approx(np.std(gaps_us) / 1000, abs=1e-6)
    assert [samples.percentile(p) for p in ASKED] == pytest.approx(list(np.percentile(gaps_us, ASKED) / 1000))


def test_the_names_are_those_of_the_formats() -> None:
    pool = TimePool()
    for value in (1.0, None, 3.0):
        pool.add(value)
    assert statistics("ttft", pool.samples(), (95, 99.9)) == {
        "mean_ttft_ms": 2.0,
        "median_ttft_ms": 2.0,
        "std_ttft_ms": pytest.approx(1.0),
        "p95_ttft_ms": pytest.approx(2.9),
        "p99.9_ttft_ms": pytest.approx(2.998),
    }


def test_an_empty_pool_is_null() -> None:
    for samples in (TimePool().samples(), gap_samples(GapPool())):
        assert set(statistics("x", samples, (50, 99)).values()) == {None}
