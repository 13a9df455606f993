"""Measured values over configurations -> mean and deviation of the value anywhere. Gaussian process regression, MAP hyperparameters. Pure.

Rasmussen & Williams 2006, algorithm 2.1 and equation 5.9. Values are logarithms, standardised; priors are weak (`kernel`) and hold for any engine.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.linalg import cho_solve, solve_triangular
from scipy.optimize import minimize

from loadcell.tune.sampler.kernel import Floats, Kernel, cholesky, jittered

_NOISE_MEAN: Final = float(np.log(0.1))  # log deviation, of standardised values
_NOISE_SD: Final = 1.0
_BOUND: Final = 3.5  # prior deviations
_ITERATIONS: Final = 12
_MEMBERS: Final = 3


class Regression:
    """`squares`: (groups, n, n) between the rows that `y` was measured at. `thetas`: hyperparameters of earlier fits, the newest last: the mode is
    sought from there, and predictions are averaged over the last few with it: the mode alone is overconfident with so few trials. `shift`: by how many prior
    deviations this fit's prior is moved; modes under randomly moved priors are draws from about the posterior of the hyperparameters (randomised MAP,
    Bardsley et al. 2014).
    """

    def __init__(
        self, kernel: Kernel, squares: Floats, y: Floats, thetas: Sequence[Floats] = (), shift: Floats | None = None, *,
        iterations: int = _ITERATIONS,
    ) -> None:  # fmt: skip
        self._kernel = kernel
        self.centre = float(np.mean(y))
        self.scale = max(float(np.std(y)), 1e-3)
        self._y = (y - self.centre) / self.scale
        mean = np.append(kernel.prior_mean, _NOISE_MEAN)
        self._sd = np.append(kernel.prior_sd, _NOISE_SD)
        self._low, self._high = mean - _BOUND * self._sd, mean + _BOUND * self._sd
        self._mean = mean if shift is None else mean + shift * self._sd
        self.theta = self._fitted(squares, thetas[-1] if thetas else mean, iterations)
        self._members = [self._solved(theta, squares) for theta in (*thetas[-_MEMBERS + 1 :], self.theta)]

    @property
    def noise(self) -> float:
        """Deviation of one measurement, in units of y."""
        return float(np.exp(self.theta[-1])) * self.scale

    @property
    def lengthscales(self) -> Floats:
        return np.asarray(np.exp(self.theta[: self._kernel.d]))

    def predict(self, squares: Floats) -> tuple[Floats, Floats]:
        """Mean and deviation of the noise-free value; `squares`: (groups, n, m) between measured and new rows."""
        means, variances = [], []
        for theta, root, alpha in self._members:
            cross = self._kernel.of(theta[:-1], squares)
            half = solve_triangular(root, cross, lower=True, check_finite=False)
            means.append(cross.T @ alpha)
            variances.append(np.maximum(self._kernel.variance(theta[:-1]) - (half * half).sum(axis=0), 1e-10))
        mean = np.mean(means, axis=0)
        variance = np.mean(variances, axis=0) + np.var(means, axis=0)
        return mean * self.scale + self.centre, np.sqrt(variance) * self.scale

    def _solved(self, theta: Floats, squares: Floats) -> tuple[Floats, Floats, Floats]:
        covariance = self._kernel.of(theta[:-1], squares)
        covariance[np.diag_indices_from(covariance)] += np.exp(2 * theta[-1])
        root = cholesky(jittered(covariance))
        return theta, root, np.asarray(cho_solve((root, True), self._y, check_finite=False))

    def _fitted(self, squares: Floats, start: Floats, iterations: int) -> Floats:
        found = minimize(
            self._loss, np.clip(start, self._low, self._high), args=(squares,), jac=True, method="L-BFGS-B",
            bounds=np.column_stack([self._low, self._high]), options={"maxiter": iterations, "ftol": 1e-4},
        )  # fmt: skip
        return np.asarray(found.x)

    def _loss(self, theta: Floats, squares: Floats) -> tuple[float, Floats]:
        """Negative log posterior of the hyperparameters, and its gradient."""
        off = (theta - self._mean) / self._sd
        covariance, slopes = self._kernel.with_gradient(theta[:-1], squares)
        noise = np.exp(2 * theta[-1])
        covariance[np.diag_indices_from(covariance)] += noise
        root = cholesky(jittered(covariance))
        inverse = cho_solve((root, True), np.eye(len(self._y)), check_finite=False)
        alpha = inverse @ self._y
        weight = np.outer(alpha, alpha) - inverse
        gradient = np.append(0.5 * slopes.reshape(len(slopes), -1) @ weight.ravel(), noise * np.trace(weight))
        loss = 0.5 * self._y @ alpha + np.log(np.diag(root)).sum() + 0.5 * off @ off
        return float(loss), -gradient + off / self._sd
