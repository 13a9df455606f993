import math

import numpy as np
import pytest
from scipy.stats import norm

from loadcell.tune.sampler.acquisition import log_expected_improvement, log_h, log_within


def test_log_h_is_the_logarithm_of_expected_improvement() -> None:
    z = np.linspace(-6, 5, 200)
    plain = norm.pdf(z) + z * norm.cdf(z)
    assert log_h(z) == pytest.approx(np.log(plain), rel=1e-6)


@pytest.mark.parametrize("z", [-30.0, -1e3, -1e5, -1e7, -1e9])
def test_log_h_far_below_is_finite_and_as_its_asymptote(z: float) -> None:
    """φ(z)/z² (1 - 3/z² ...) for z -> -inf."""
    asymptote = -0.5 * z * z - 0.5 * math.log(2 * math.pi) - 2 * math.log(-z)
    assert float(log_h(np.array([z]))[0]) == pytest.approx(asymptote, rel=1e-5, abs=0.01)


def test_log_h_rises_across_its_seams() -> None:
    z = np.concatenate([np.linspace(-1.001, -0.999, 101), np.linspace(-1.0001e6, -0.9999e6, 101)])
    for part in np.split(z, 2):
        assert (np.diff(log_h(part)) > 0).all()


def test_improvement_scales_with_the_deviation() -> None:
    small, large = log_expected_improvement(np.zeros(2), np.array([0.1, 1.0]), 0.0)
    assert large - small == pytest.approx(math.log(10))


def test_within_a_limit() -> None:
    chance = np.exp(log_within(np.array([-1.0, 0.0, 1.0]), np.ones(3)))
    assert chance == pytest.approx([norm.cdf(1), 0.5, norm.cdf(-1)])
