"""Draws of token lengths: a distribution with a mean -> one whole number per prompt.

`fixed` with a range ratio is vLLM's uniform range. The others have the wanted length as their mean and `spread` as their
coefficient of variation, before they are rounded and held within [1, 32 · mean].
"""

import math
from collections.abc import Callable
from typing import Final

from loadcell.workload.draws import Draws
from loadcell.workload.spec import Distribution

Draw = Callable[[Draws], int]
NUMBERS_PER_LENGTH: Final = 2
_LONGEST_OVER_MEAN: Final = 32


def length_draw(distribution: Distribution, mean: int, ratio: float, spread: float, least: int) -> Draw:
    """How lengths of mean `mean` are drawn; none is below `least`."""
    if mean <= 0:
        return lambda _: least
    if distribution in ("fixed", "uniform"):
        return _range(mean, ratio, least)
    continuous = {
        "normal": _normal,
        "lognormal": _lognormal,
        "exponential": _exponential,
        "zipf": _zipf,
    }[distribution](mean, spread)
    most = _LONGEST_OVER_MEAN * mean
    return lambda draws: min(most, max(least, 1, round(continuous(draws))))


def _range(mean: int, ratio: float, least: int) -> Draw:
    """Uniform in [⌊mean·(1−ratio)⌋, ⌈mean·(1+ratio)⌉], both included, as `vllm bench serve --random-range-ratio`."""
    low = max(least, math.floor(mean * (1 - ratio)))
    high = max(low, math.ceil(mean * (1 + ratio)))
    if low == high:
        return lambda _: low
    width = high - low + 1
    return lambda draws: low + int(draws.uniform() * width)


def _normal(mean: int, spread: float) -> Callable[[Draws], float]:
    sigma = spread * mean
    return lambda draws: mean + sigma * draws.normal()


def _lognormal(mean: int, spread: float) -> Callable[[Draws], float]:
    variance = math.log1p(spread * spread)
    centre, sigma = math.log(mean) - variance / 2, math.sqrt(variance)
    return lambda draws: math.exp(centre + sigma * draws.normal())


def _exponential(mean: int, _: float) -> Callable[[Draws], float]:
    """Its coefficient of variation is 1, whatever the spread."""
    return lambda draws: -mean * math.log(draws.uniform())


def _zipf(mean: int, spread: float) -> Callable[[Draws], float]:
    """A rounded Pareto tail, P(length > x) = (x₀/x)^α: Zipf's law for sizes. α = 1 + √(1 + 1/spread²) gives the wanted variation."""
    alpha = 1 + math.sqrt(1 + 1 / (spread * spread))
    least = mean * (alpha - 1) / alpha
    return lambda draws: float(least * draws.uniform() ** (-1 / alpha))
