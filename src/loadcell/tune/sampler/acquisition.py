"""Predicted means and deviations -> how much a trial there is worth, in logarithms. Pure.

Expected improvement under constraints (Gardner et al. 2014): EI · Π P(limit holds) · P(survives), per second. In logarithms, so that a small chance
still tells better from worse where the product would be 0 (Ament et al. 2023, "Unexpected Improvements to Expected Improvement").
"""

from typing import Final

import numpy as np
from scipy.special import erfcx, log_ndtr

from loadcell.tune.sampler.kernel import Floats

_C1: Final = 0.5 * np.log(2 * np.pi)
_C2: Final = 0.5 * np.log(0.5 * np.pi)
_FAR: Final = -1e6


def log_h(z: Floats) -> Floats:
    """log(φ(z) + z Φ(z)), exact to rounding for every z (Ament et al. 2023, equation 9)."""
    z = np.asarray(z, dtype=np.float64)
    out = np.empty_like(z)
    near, far = z > -1, z <= _FAR
    middle = ~near & ~far
    up = z[near]
    out[near] = np.log(np.exp(-0.5 * up * up - _C1) + up * np.exp(log_ndtr(up)))
    mid = z[middle]
    small = np.log(erfcx(-mid * np.sqrt(0.5)) * np.abs(mid)) + _C2
    out[middle] = -0.5 * mid * mid - _C1 + _log1mexp(np.minimum(small, -1e-300))
    out[far] = -0.5 * z[far] ** 2 - _C1 - 2 * np.log(np.abs(z[far]))
    return out


def log_expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """Of a maximised value over `best`."""
    return log_h((mean - best) / deviation) + np.log(deviation)


def log_within(mean: Floats, deviation: Floats) -> Floats:
    """log P(value ≤ 0): a limit's margin log(measured/limit) holds."""
    return np.asarray(log_ndtr(-mean / deviation))


def _log1mexp(x: Floats) -> Floats:
    """log(1 - e^x) for x < 0 (Mächler 2012)."""
    return np.where(x > -np.log(2), np.log(-np.expm1(x)), np.log1p(-np.exp(np.minimum(x, -np.log(2)))))
