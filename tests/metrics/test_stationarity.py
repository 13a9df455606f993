"""The trend test as a test: its null distribution, its size, its power."""

import itertools

import numpy as np
import pytest

from loadcell.metrics.stationarity import mann_kendall_p, trend


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_the_null_distribution_is_exact(n: int) -> None:
    scores = [
        sum((b > a) - (b < a) for a, b in itertools.combinations(order, 2))
        for order in itertools.permutations(range(n))
    ]  # fmt: skip
    for score in range(n * (n - 1) // 2 + 1):
        assert mann_kendall_p(score, n) == pytest.approx(sum(abs(one) >= score for one in scores) / len(scores))


def test_noise_is_stationary() -> None:
    """Lognormal noise with a heavy tail: not one false alarm in 300 runs at a level of 0.001."""
    generator = np.random.default_rng(1)
    seen = [trend(generator.lognormal(0, 0.8, 300)) for _ in range(300)]
    assert sum(one is not None and not one.stationary for one in seen) <= 1


def test_a_growing_queue_is_not() -> None:
    generator = np.random.default_rng(2)
    one = trend(50 + np.linspace(0, 400, 500) + generator.exponential(20, 500))
    assert one is not None
    assert not one.stationary
    assert one.change > 1


def test_a_tiny_but_certain_drift_is_of_no_account() -> None:
    one = trend(np.linspace(100, 103, 1000))
    assert one is not None
    assert one.p_value < 0.001
    assert one.stationary


@pytest.mark.parametrize("values", [np.ones(99), np.zeros(500)])
def test_too_little_or_nothing_to_compare_is_null(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> None:
    assert trend(values) is None
