"""Pools give numpy's figures, exactly, whatever the size of the gaps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadcell.report.pool import GapPool, TimePool

ASKED = (0, 25, 50, 90, 99, 99.9, 100)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 5_000_000), min_size=1, max_size=200))
def test_a_gap_pool_agrees_with_numpy(gaps_us: list[int]) -> None:
    pool = GapPool()
    pool.add(gaps_us[:7])
    pool.add(gaps_us[7:])
    assert pool.n == len(gaps_us)
    assert pool.mean() == pytest.approx(np.mean(gaps_us) / 1000)
    assert pool.std() == pytest.approx(np.std(gaps_us) / 1000, abs=1e-6)
    assert pool.percentiles(ASKED) == pytest.approx(list(np.percentile(gaps_us, ASKED) / 1000))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_percentiles_lie_between_the_extremes_in_order(values: list[float]) -> None:
    pool = TimePool()
    for value in values:
        pool.add(value)
    found = [value for value in pool.percentiles(ASKED) if value is not None]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (min(values), max(values))


def test_an_empty_pool_is_null() -> None:
    for pool in (TimePool(), GapPool()):
        assert (pool.n, pool.mean(), pool.std(), pool.percentiles([50, 99])) == (0, None, None, [None, None])
