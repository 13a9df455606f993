"""Encoded configurations -> covariances and their gradients: what may be alike, before anything is measured. Pure.

k = s² · Matérn 5/2 over all parameters (one lengthscale each) + a² · mean over parameters of its own Matérn 5/2, in [0, 1]. The first knows
interactions; the additive one (Duvenaud et al. 2011) learns a parameter's effect from every trial, whatever the other parameters were: in
logarithms, throughput is nearly a product of such effects.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_ROOT5: Final = np.sqrt(5.0)
_LENGTHSCALE: Final = 0.35
_LENGTHSCALE_SPREAD: Final = 0.5
_JOINT: Final = 0.7  # deviations of standardised values; the second is shared by all parameters: with ten, each alone has 0.8
_ALONE: Final = 2.5
_DEVIATION_SPREAD: Final = 0.4
_JITTER: Final = 1e-8


@dataclass(frozen=True)
class Columns:
    """The columns of an encoding, by the parameter that each belongs to: the choices of one category share a lengthscale."""

    groups: tuple[npt.NDArray[np.intp], ...]
    scales: Floats  # per column: two choices of a category are 1 apart, as are false and true

    @classmethod
    def of(cls, names: Sequence[str]) -> "Columns":
        """`names`: the parameter behind each column (`Space.columns`); an indicator `name?` counts to its parameter."""
        owners = [name.removesuffix("?") for name in names]
        distinct = list(dict.fromkeys(owners))
        groups = tuple(np.array([at for at, owner in enumerate(owners) if owner == name]) for name in distinct)
        scales = np.ones(len(names))
        for group in groups:
            plain = [at for at in group if not names[at].endswith("?")]
            if len(plain) > 1:
                scales[plain] = np.sqrt(0.5)
        return cls(groups, scales)

    def scaled(self, x: Floats) -> Floats:
        return (x - 0.5) * self.scales

    def squares(self, a: Floats, b: Floats) -> Floats:
        """(groups, n, m): squared distances by parameter, of scaled rows."""
        out = np.empty((len(self.groups), len(a), len(b)))
        for at, group in enumerate(self.groups):
            difference = a[:, None, group] - b[None, :, group]
            out[at] = (difference * difference).sum(axis=2)
        return out


class Kernel:
    """Hyperparameters are logarithms: a lengthscale per parameter, then the deviations s and a."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.d = len(columns.groups)
        self.size = self.d + 2
        self.prior_mean, self.prior_sd = self.prior(_LENGTHSCALE, (_JOINT, _ALONE), _LENGTHSCALE_SPREAD, _DEVIATION_SPREAD)

    def prior(self, length: float, deviations: tuple[float, float], length_spread: float, deviation_spread: float) -> tuple[Floats, Floats]:
        """Means and deviations of the hyperparameters: medians of the lengthscale, in units of the distance of 1 in every parameter (Hvarfner et al.
        2024: they grow with the root of d), and of s and a; spreads in logarithms.
        """
        lengths = np.full(self.d, np.log(length * np.sqrt(max(self.d, 1))))
        return np.concatenate([lengths, np.log(deviations)]), np.concatenate([np.full(self.d, length_spread), np.full(2, deviation_spread)])

    def of(self, theta: Floats, squares: Floats) -> Floats:
        """(n, m), from `Columns.squares` of two sets of rows."""
        lengths, (s, extra) = np.exp(theta[: self.d]), np.exp(2 * theta[self.d :])
        joint = _matern(np.sqrt(np.tensordot(lengths**-2, squares, axes=1)))
        own = _matern(np.sqrt(squares) * (1 / self._own(lengths))[:, None, None]).mean(axis=0)
        return np.asarray(s * joint + extra * own)

    def variance(self, theta: Floats) -> float:
        return float(np.exp(2 * theta[self.d :]).sum())

    def with_gradient(self, theta: Floats, squares: Floats) -> tuple[Floats, Floats]:
        """(n, n) and its derivatives by each hyperparameter (size, n, n)."""
        lengths, (s, extra) = np.exp(theta[: self.d]), np.exp(2 * theta[self.d :])
        inverse = (lengths**-2)[:, None, None]
        r = np.sqrt(np.tensordot(lengths**-2, squares, axes=1))
        joint, slope = _with_slope(r)
        own_squares = squares * (self._own(lengths) ** -2)[:, None, None]
        owns, own_slope = _with_slope(np.sqrt(own_squares))
        own = owns.mean(axis=0)
        out = np.empty((self.size, *joint.shape))
        out[: self.d] = (s * slope)[None] * squares * inverse + extra / self.d * own_slope * own_squares
        out[self.d :] = 2 * s * joint, 2 * extra * own
        return s * joint + extra * own, out

    def _own(self, lengths: Floats) -> Floats:
        """Alone a parameter needs no share of the distance: its lengthscale does not grow with d."""
        return np.asarray(lengths / np.sqrt(self.d))


def _matern(r: Floats) -> Floats:
    scaled = _ROOT5 * r
    return np.asarray((1 + scaled + scaled * scaled / 3) * np.exp(-scaled))


def _with_slope(r: Floats) -> tuple[Floats, Floats]:
    """k, and dk/d log lengthscale over r²."""
    scaled = _ROOT5 * r
    falling = np.exp(-scaled)
    return np.asarray((1 + scaled + scaled * scaled / 3) * falling), np.asarray(5 / 3 * (1 + scaled) * falling)


def jittered(k: Floats) -> Floats:
    k = k.copy()
    k[np.diag_indices_from(k)] += _JITTER * (1 + float(np.trace(k)) / len(k))
    return k


def cholesky(k: Floats) -> Floats:
    """The lower root."""
    return np.asarray(np.linalg.cholesky(k))
