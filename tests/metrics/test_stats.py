"""Order statistics against numpy, against each other, and against their own promise of coverage."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import bdtr

from loadcell.metrics.stats import NS_PER_MS, Distribution, GapPool, SplitPool, interval_ranks, needs_more, stats_of

SAMPLES = st.lists(st.integers(min_value=-(10**9), max_value=10**12), min_size=1, max_size=200)


@given(SAMPLES, st.floats(min_value=0, max_value=100))
def test_percentiles_are_numpys(samples: list[int], percent: float) -> None:
    assert Distribution.of(samples).percentile(percent) == pytest.approx(float(np.percentile(samples, percent)), rel=1e-12, abs=1e-3)


@given(SAMPLES)
def test_percentiles_never_leave_the_range(samples: list[int]) -> None:
    found = Distribution.of(samples)
    ladder = [found.min(), *(found.percentile(percent) for percent in (50, 75, 90, 95, 99, 99.9)), found.max()]
    assert ladder == sorted(ladder, key=lambda value: value if value is not None else 0)


@pytest.mark.parametrize("samples", [[575], list(range(1, 54)), [*range(49), 596]])
def test_the_known_traps_of_bucketed_percentiles(samples: list[int]) -> None:
    found = stats_of(Distribution.of([sample * NS_PER_MS for sample in samples]))
    assert found.max_ms == max(samples)
    values = [value for value in found.percentiles_ms.values() if value is not None]
    assert found.min_ms is not None
    assert [found.min_ms, *values, found.max_ms] == sorted([found.min_ms, *values, found.max_ms])


def test_one_sample_is_every_percentile_and_flagged() -> None:
    found = stats_of(Distribution.of([7 * NS_PER_MS]))
    assert set(found.percentiles_ms.values()) == {7.0}
    assert found.too_few == ["p50", "p75", "p90", "p95", "p99", "p99.9"]
    assert (found.std_ms, found.intervals_ms) == (None, {})


def test_no_sample_is_null_everywhere() -> None:
    found = stats_of(Distribution.of([]), (80,))
    assert (found.n, found.mean_ms, found.std_ms, found.min_ms, found.max_ms) == (0, None, None, None, None)
    assert found.percentiles_ms == dict.fromkeys(["p50", "p75", "p80", "p90", "p95", "p99", "p99.9"])
    assert found.intervals_ms == {}


@pytest.mark.parametrize(
    ("percent", "n"), [(50, 2), (75, 4), (90, 10), (95, 20), (99, 100), (99.9, 1000), (1, 100)], ids=lambda value: f"{value:g}"
)
def test_how_many_samples_a_percentile_needs(percent: float, n: int) -> None:
    assert needs_more(n - 1, percent)
    assert not needs_more(n, percent)


def test_mean_and_deviation_are_those_of_a_sample() -> None:
    found = stats_of(Distribution.of([value * NS_PER_MS for value in (2, 4, 4, 4, 5, 5, 7, 9)]))
    assert found.mean_ms == 5.0
    assert found.std_ms == pytest.approx(2.13809, abs=1e-5)


def test_a_users_percentile_stands_among_the_others() -> None:
    assert list(stats_of(Distribution.of([1]), (99.99, 80)).percentiles_ms) == ["p50", "p75", "p80", "p90", "p95", "p99", "p99.9", "p99.99"]


def test_known_interval_ranks() -> None:
    """The 95 % interval of the median of ten samples is [X2, X9] (tables of the sign test); five samples allow none."""
    assert interval_ranks(10, 50) == (2, 9)
    assert interval_ranks(6, 50) == (1, 6)
    assert interval_ranks(5, 50) is None
    assert interval_ranks(100, 99) is None


@pytest.mark.parametrize("percent", [1, 25, 50, 90, 99, 99.9])
def test_interval_ranks_are_those_of_the_binomial_distribution(percent: float) -> None:
    tail, share = 0.025, percent / 100
    for n in (1, 2, 7, 100, 999, 12_345, 1_000_000):
        cumulative = bdtr(np.arange(n + 1, dtype=np.float64), n, share)
        low, high = int(np.searchsorted(cumulative, tail, side="right")), int(np.searchsorted(cumulative, 1 - tail)) + 1
        assert interval_ranks(n, percent) == ((low, high) if low >= 1 and high <= n else None)


@pytest.mark.parametrize(("percent", "n"), [(50, 40), (90, 200), (99, 1000)])
def test_intervals_cover_the_true_quantile_as_often_as_they_say(percent: float, n: int) -> None:
    generator = np.random.default_rng(20_260_101)
    truth = -np.log(1 - percent / 100)
    ranks = interval_ranks(n, percent)
    assert ranks is not None
    draws = np.sort(generator.exponential(size=(2000, n)), axis=1)
    covered = float(np.mean((draws[:, ranks[0] - 1] <= truth) & (truth <= draws[:, ranks[1] - 1])))
    assert 0.935 <= covered <= 0.99


GAPS = st.lists(st.tuples(st.integers(0, 5_000_000_000), st.integers(1, 9)), min_size=1, max_size=300)


@given(GAPS)
def test_a_pool_of_gaps_is_the_plain_list(pairs: list[tuple[int, int]]) -> None:
    gaps = [gap for gap, _tokens in pairs]
    pool = GapPool()
    for start in range(0, len(gaps), 7):
        pool.add(gaps[start : start + 7])
        pool.settled()
    assert stats_of(Distribution.merged([pool])) == stats_of(Distribution.of([gap * 1000 for gap in gaps]))


@given(GAPS)
def test_a_split_pool_counts_every_token(pairs: list[tuple[int, int]]) -> None:
    pool = SplitPool()
    pool.add([gap for gap, _tokens in pairs], [tokens for _gap, tokens in pairs])
    expanded = [gap * 1000 / tokens for gap, tokens in pairs for _ in range(tokens)]
    found, plain = Distribution.merged([pool]), Distribution.of(expanded)
    assert found.n == plain.n
    for percent in (0, 50, 99, 100):
        assert found.percentile(percent) == pytest.approx(plain.percentile(percent), abs=1)


def test_pools_of_different_units_merge() -> None:
    single, split, empty = GapPool(), SplitPool(), GapPool()
    single.add([10_000, 10_000, 20_000])
    split.add([30_000, 10_000], [3, 1])
    found = Distribution.merged([single, empty, split])
    assert found.n == 7
    assert (found.min(), found.max(), found.percentile(50)) == (10e6, 20e6, 10e6)
    assert found.counts is not None
    assert found.counts.tolist() == [6, 1]
    assert Distribution.merged([]).n == 0
