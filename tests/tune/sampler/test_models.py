"""The Gaussian processes: gradients against differences, and predictions against what is true."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import norm

from loadcell.tune.sampler.gp import Regression
from loadcell.tune.sampler.kernel import Columns, Floats, Kernel
from loadcell.tune.sampler.survival import Survival

COLUMNS = Columns.of(["a", "b", "kind", "kind", "kind", "c", "c?"])
KERNEL = Kernel(COLUMNS)


def rows(n: int, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    x = rng.random((n, 7))
    x[:, 2:5] = np.eye(3)[rng.integers(3, size=n)]
    x[:, 6] = x[:, 5] > 0.5
    return x


def between(x: Floats, y: Floats) -> Floats:
    return COLUMNS.squares(COLUMNS.scaled(x), COLUMNS.scaled(y))


def test_choices_of_a_category_share_a_lengthscale_and_are_one_apart() -> None:
    assert KERNEL.d == 4
    x = np.array([[0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0]], dtype=float)
    assert between(x, x)[2] == pytest.approx(np.array([[0, 1], [1, 0]]))


def test_gradients() -> None:
    x = rows(20, 0)
    squares = between(x, x)
    regression = Regression(KERNEL, squares, np.sin(3 * x[:, 0]), iterations=1)
    survival = Survival(KERNEL, squares, x[:, 0] + x[:, 1] < 1, iterations=1)
    rng = np.random.default_rng(1)
    for model in (regression, survival):
        theta = model._mean + 0.3 * rng.normal(size=len(model._mean))
        differences = approx_fprime(theta, lambda at, model=model: model._loss(at, squares)[0], 1e-5)
        assert model._loss(theta, squares)[1] == pytest.approx(differences, abs=2e-3)


def test_a_regression_learns_and_knows_how_much() -> None:
    def truth(x: Floats) -> Floats:
        return np.asarray(np.sin(3 * x[:, 0]) + 0.5 * x[:, 2] + x[:, 1] * x[:, 5])

    rng = np.random.default_rng(2)
    x, new = rows(40, 3), rows(300, 4)
    model = Regression(KERNEL, between(x, x), truth(x) + rng.normal(0, 0.05, 40))
    mean, deviation = model.predict(between(x, new))
    error = mean - truth(new)
    assert 1 - np.mean(error**2) / np.var(truth(new)) > 0.85
    assert np.mean(np.abs(error) < 2.5 * deviation) > 0.75  # one mode alone is too sure of itself
    assert 0.01 < model.noise < 0.15
    assert model.predict(between(x, x))[1].mean() < deviation.mean()


def test_several_modes_are_less_sure_than_one() -> None:
    x, new = rows(12, 5), rows(100, 6)
    y = np.sin(4 * x[:, 0]) + 0.1 * x[:, 1]
    squares = between(x, x)
    rng = np.random.default_rng(7)
    thetas: list[Floats] = []
    for _ in range(2):
        thetas.append(Regression(KERNEL, squares, y, thetas, rng.normal(size=KERNEL.size + 1)).theta)
    several = Regression(KERNEL, squares, y, thetas)
    alone = Regression(KERNEL, squares, y, thetas[-1:])
    assert len(several._members) == 3
    assert np.isfinite(several.predict(between(x, new))[1]).all()
    assert len(alone._members) == 2


def test_equal_values_do_no_harm() -> None:
    x = rows(5, 8)
    model = Regression(KERNEL, between(x, x), np.full(5, 7.0))
    mean, deviation = model.predict(between(x, rows(3, 9)))
    assert mean == pytest.approx([7.0] * 3)
    assert (deviation < 0.01).all()


def test_survival_learns_an_edge_and_is_calibrated() -> None:
    def alive(x: Floats) -> Floats:
        return np.asarray(x[:, 0] + 0.5 * x[:, 1] < 0.9)

    x, new = rows(60, 10), rows(400, 11)
    chance = np.exp(Survival(KERNEL, between(x, x), alive(x)).log_chance(between(x, new)))
    right = alive(new) > 0
    assert chance[right].mean() > 0.75
    assert chance[~right].mean() < 0.4
    assert np.mean((chance > 0.5) == right) > 0.85
    for low, high in ((0.0, 0.35), (0.65, 1.01)):
        inside = (chance >= low) & (chance < high)
        assert abs(right[inside].mean() - chance[inside].mean()) < 0.15


def test_without_a_death_everything_is_likely_to_live() -> None:
    x = rows(4, 12)
    chance = np.exp(Survival(KERNEL, between(x, x), [True] * 4).log_chance(between(x, rows(5, 13))))
    assert (chance > norm.cdf(0.4)).all()
