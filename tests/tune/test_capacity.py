"""The search for the largest load: bounds, brackets, cliffs, noise. Curves are simulated; how far it misses is measured."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from loadcell.tune.capacity import Ask, Capacity, Probe, Range, advance, monotone, root

Curve = Callable[[float], float]
DEAD = float("inf")


def searched(
    curve: Curve, limits: Range, noise: float = 0.0, seed: int = 0, saturates: float | None = None
) -> tuple[Capacity, list[Probe]]:
    """`curve`: load -> measured / limit; infinite: the service dies there."""
    rng, probes = np.random.default_rng(seed), []
    while True:
        said = advance(limits, probes)
        if isinstance(said, Capacity):
            return said, probes
        assert limits.low <= said.load <= limits.high
        assert len(probes) < limits.probes
        ratio = curve(said.load)
        margins = {} if ratio == DEAD else {"ttft p95 <= 1s": math.log(ratio) + noise * rng.standard_normal()}
        served = saturates if saturates is not None and said.load > saturates else None
        probes.append(Probe(said.load, margins, ratio == DEAD, served, said.why))


def test_a_range_that_is_within_the_limits_ends_at_its_bound_and_never_beyond():
    found, probes = searched(lambda _: 0.5, Range(4, 138))
    assert max(probe.load for probe in probes) == 138
    assert (found.status, found.load, found.interval, found.confirmed) == ("bound_reached", 138, (138, None), True)
    assert "bound reached, limit not found" in found.text


def test_a_bound_that_is_barely_within_is_reached_too():
    found, probes = searched(lambda load: 0.97 * (load / 138) ** 0.1, Range(4, 138))
    assert (found.load, found.status) == (138, "bound_reached")
    assert len(probes) <= 6


def test_the_lowest_load_that_misses_a_limit_is_the_answer_none():
    found, probes = searched(lambda _: 3.0, Range(4, 138))
    assert (found.status, found.load, found.interval) == ("none", None, (None, 4))
    assert probes[-1].load == 4
    assert found.binding == "ttft p95 <= 1s"


@pytest.mark.parametrize("start", [None, 1, 64, 1000])
def test_no_load_outside_the_range_is_asked_wherever_it_starts(start):
    found, probes = searched(lambda load: load / 100, Range(2, 128, start=start))
    assert all(2 <= probe.load <= 128 for probe in probes)
    assert found.load == pytest.approx(96, abs=6)


def test_a_service_that_dies_under_load_is_a_cliff_with_its_interval():
    found, probes = searched(lambda load: 0.6 if load <= 90 else DEAD, Range(1, 256))
    low, high = found.interval
    assert found.status == "cliff"
    assert low <= 90 < high
    assert found.load == low
    assert found.confirmed
    assert "by far" in found.text
    assert [probe.why for probe in probes][-1] == "confirm"


def test_neighbouring_integers_are_not_divided_further():
    found, probes = searched(lambda load: 0.9 if load <= 2 else 1.5, Range(1, 4))
    assert (found.load, found.interval) == (2, (2, 3))
    assert len(probes) <= 5


def test_a_range_of_one_load():
    found, probes = searched(lambda _: 0.9, Range(8, 8))
    assert (found.load, found.status, len(probes)) == (8, "bound_reached", 1)
    assert searched(lambda _: 1.2, Range(8, 8))[0].status == "none"


def test_a_confirmation_that_fails_is_followed_by_a_lower_one_or_told():
    steps = [Probe(10, {"a": -0.2}), Probe(20, {"a": 0.3}), Probe(13, {"a": 0.05}, why="confirm")]
    said = advance(Range(1, 100), steps)
    assert isinstance(said, Ask)
    assert said.why == "confirm"
    assert said.load < 13
    over = advance(Range(1, 100, probes=3), steps)
    assert isinstance(over, Capacity)
    assert (over.load, over.confirmed) == (10, False)
    assert "not confirmed" in over.text


def test_no_limits_at_all_means_the_highest_load():
    said = advance(Range(1, 64), [Probe(64)])
    assert isinstance(said, Capacity)
    assert said.status == "bound_reached"


def test_margins_are_made_monotone_by_pooling():
    probes = [Probe(load, {"a": margin}) for load, margin in ((1, -1.0), (4, 0.2), (8, -0.2), (16, 0.5), (16, 0.7))]
    loads, worst = monotone(probes)
    assert loads == [1, 4, 8, 16]
    assert worst == pytest.approx([-1.0, 0.0, 0.0, 0.6])


def test_the_root_of_a_line_is_its_zero():
    assert root([1, 10, 100], [-1.5, -0.5, 0.5], 10, 100) == pytest.approx(10**1.5)
    assert root([1, 2], [-1.0, -0.5], 1, 2) == 2
    assert root([1, 2], [0.5, 1.0], 1, 2) == 1


@pytest.mark.parametrize(("noise", "least"), [(0.0, 0.95), (0.03, 0.93)])
def test_how_far_smooth_curves_and_knees_are_missed(noise, least):
    """Measured over 400 of each: closed loops (latency rising with concurrency) and queues; medians 0.97 and 0.98 of the true capacity."""
    rng, shares = np.random.default_rng(7), []
    for seed in range(120):
        if seed % 2:
            scale, at, power = rng.uniform(0.03, 0.1), rng.uniform(3, 50), rng.uniform(0.7, 2)
            true = at * (1 / scale - 1) ** (1 / power)
            found, probes = searched(lambda x, s=scale, a=at, p=power: s * (1 + (x / a) ** p), Range(1, 1024), noise, seed)
        else:
            ratio, full = rng.uniform(0.05, 0.5), rng.uniform(2, 60)
            true = full * (1 - ratio)
            found, probes = searched(
                lambda x, r=ratio, f=full: r / (1 - x / f) if x < 0.98 * f else 60 * r, Range(0.25, 64, False), noise, seed, full
            )
        assert len(probes) <= 6
        if 1 < true < 1024:
            shares.append((found.load or 0) / true)
    assert np.median(shares) > least
    assert np.mean(shares) > 0.92
    assert np.mean(np.array(shares) > 1.05) < 0.02
