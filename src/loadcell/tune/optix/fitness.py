"""optix's fitness of a trial, for the column that its users know. Smaller is better; it decides nothing here. Pure.

Its faults, which is why it decides nothing: a weighted sum lets a trial that breaks a limit beat one that keeps it, where the rest is fast enough.
"""

import math
from collections.abc import Mapping

from loadcell.tune.spec import FitnessTable

_SPEED, _TTFT, _TPOT, _SUCCESS = 0.4, 0.2, 0.3, 0.1
_MOST = 700.0  # of an exponent: e^709 is the last number


def fitness_of(table: FitnessTable, figures: Mapping[str, float | None]) -> float | None:
    """`figures`: throughput (tokens/s), ttft_mean and tpot_mean (s), success_rate (share). Null where one that counts was not measured.

    0.4·target/speed + 0.2·e^(k·(ttft/slo − 1)) + 0.3·e^(k·(tpot/slo − 1)) + 0.1·e^(k·(slo/success − 1))
    """
    speed, success = figures.get("throughput"), figures.get("success_rate")
    ttft, tpot = figures.get("ttft_mean"), figures.get("tpot_mean")
    if not speed or not success or ttft is None or tpot is None:
        return None
    return (
        _SPEED * table.generate_speed_target / speed
        + _TTFT * _penalty(table.ttft_penalty, ttft / table.ttft_slo)
        + _TPOT * _penalty(table.tpot_penalty, tpot / table.tpot_slo)
        + _SUCCESS * _penalty(table.success_rate_penalty, table.success_rate_slo / success)
    )


def _penalty(weight: float, share: float) -> float:
    return math.exp(min(weight * (share - 1), _MOST))
