"""Which configurations survived -> the chance that another one does. Gaussian process classification (probit, Laplace). Pure.

Rasmussen & Williams 2006, algorithms 3.1, 3.2 and 5.1. Where nothing is known a configuration is more likely to live than not: what an engine's
adapter offers was legal before it was tried.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, solve_triangular
from scipy.optimize import minimize
from scipy.special import log_ndtr

from loadcell.tune.sampler.kernel import Floats, Kernel, cholesky, jittered

_PRIOR: Final = 1.6  # probit of living, before anything is known: about 0.65 with the kernel's deviation
_LENGTHSCALE: Final = 0.5  # of a distance of 1 in every parameter
_DEVIATION: Final = 2.8  # what a memory allows is a sharp edge
_SPREAD: Final = (1.0, 0.7)
_BOUND: Final = 2.5
_ITERATIONS: Final = 6


class Survival:
    """`alive`: one per row; `squares`: (groups, n, n) between them. `theta`: hyperparameters to begin from."""

    def __init__(
        self, kernel: Kernel, squares: Floats, alive: npt.ArrayLike, theta: Floats | None = None, *, iterations: int = _ITERATIONS
    ) -> None:
        self._kernel = kernel
        self._sign = np.where(np.asarray(alive) > 0, 1.0, -1.0)
        self._mean, self._sd = kernel.prior(_LENGTHSCALE, (_DEVIATION, _DEVIATION), *_SPREAD)
        self._f = np.zeros(len(self._sign))
        self.theta = self._fitted(squares, self._mean if theta is None else theta, iterations)
        _, self._slope, self._w, self._root = self._mode(jittered(kernel.of(self.theta, squares)))

    def log_chance(self, squares: Floats) -> Floats:
        """log P(survives); `squares`: (groups, n, m) between tried and new rows."""
        cross = self._kernel.of(self.theta, squares)
        half = solve_triangular(self._root, np.sqrt(self._w)[:, None] * cross, lower=True, check_finite=False)
        variance = np.maximum(self._kernel.variance(self.theta) - (half * half).sum(axis=0), 0.0)
        return np.asarray(log_ndtr((_PRIOR + cross.T @ self._slope) / np.sqrt(1 + variance)))

    def _mode(self, covariance: Floats) -> tuple[float, Floats, Floats, Floats]:
        """Newton to the mode of f: (log marginal likelihood, its slope there, W, the root of B). Begins where the last call ended."""
        f, last = self._f, -np.inf
        for _ in range(30):
            slope, w = self._likelihood(f)
            half = np.sqrt(w)
            root = cholesky(np.eye(len(f)) + half[:, None] * covariance * half[None])
            b = w * f + slope
            a = b - half * cho_solve((root, True), half * (covariance @ b), check_finite=False)
            f = covariance @ a
            value = float(-0.5 * a @ f + log_ndtr(self._sign * (f + _PRIOR)).sum())
            if abs(value - last) < 1e-6:
                break
            last = value
        self._f = f
        slope, w = self._likelihood(f)
        half = np.sqrt(w)
        root = cholesky(np.eye(len(f)) + half[:, None] * covariance * half[None])
        return value - float(np.log(np.diag(root)).sum()), slope, w, root

    def _likelihood(self, f: Floats) -> tuple[Floats, Floats]:
        """First derivative of log Φ(sign · (f + prior)), and minus the second."""
        z = self._sign * (f + _PRIOR)
        ratio = np.exp(-0.5 * z * z - log_ndtr(z)) / np.sqrt(2 * np.pi)
        return self._sign * ratio, np.maximum(ratio * (ratio + z), 1e-9)

    def _fitted(self, squares: Floats, start: Floats, iterations: int) -> Floats:
        if len(set(self._sign)) < 2:  # all alive, or all dead: nothing to learn a shape from
            return np.asarray(start)
        low, high = self._mean - _BOUND * self._sd, self._mean + _BOUND * self._sd
        found = minimize(
            self._loss, np.clip(start, low, high), args=(squares,), jac=True, method="L-BFGS-B", bounds=np.column_stack([low, high]),
            options={"maxiter": iterations, "ftol": 1e-4},
        )  # fmt: skip
        return np.asarray(found.x)

    def _loss(self, theta: Floats, squares: Floats) -> tuple[float, Floats]:
        off = (theta - self._mean) / self._sd
        covariance, slopes = self._kernel.with_gradient(theta, squares)
        covariance = jittered(covariance)
        likelihood, slope, w, root = self._mode(covariance)
        half = np.sqrt(w)
        # Algorithm 5.1: the explicit part, and that of the mode's own movement.
        r = half[:, None] * cho_solve((root, True), np.diag(half), check_finite=False)
        c = solve_triangular(root, half[:, None] * covariance, lower=True, check_finite=False)
        z = self._sign * (self._f + _PRIOR)
        ratio = self._sign * slope
        third = self._sign * (2 * ratio**3 + 3 * z * ratio**2 + (z * z - 1) * ratio)
        second = 0.5 * (np.diag(covariance) - (c * c).sum(axis=0)) * third
        explicit = 0.5 * (slopes @ slope) @ slope - 0.5 * slopes.reshape(len(slopes), -1) @ r.ravel()
        moved = slopes @ slope
        implicit = (moved - moved @ r @ covariance) @ second
        return -(likelihood - 0.5 * float(off @ off)), -(explicit + implicit) + off / self._sd
