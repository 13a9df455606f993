"""What the engine saw of the load's shape: rates, gaps, requests in flight, and who got which request."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from loadcell.api import BenchResult
from loadcell.sim.accesslog import AccessLine
from loadcell.sim.inprocess import RunningEngine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

Engines = Callable[..., RunningEngine]
Load = Callable[..., BenchResult]


def arrivals_s(lines: Iterable[AccessLine]) -> np.ndarray:
    return np.sort(np.array([line.arrival_ns for line in lines])) / 1e9


def most_at_once(lines: Iterable[AccessLine]) -> int:
    steps = sorted([(line.arrival_ns, 1) for line in lines] + [(line.end_ns, -1) for line in lines])
    return int(np.cumsum([step for _, step in steps]).max())


@pytest.mark.parametrize("workers", [1, 4])
def test_a_poisson_stream_is_one_where_it_arrives(engines: Engines, load: Load, workers: int) -> None:
    engine, rate, n = engines(), 160.0, 800
    load(engine, prompts=n, request_rate=rate, workers=workers, seed=11)
    at = arrivals_s(engine.generations(at_least=n))
    gaps = np.diff(at)
    assert len(at) == n
    assert (n - 1) / (at[-1] - at[0]) == pytest.approx(rate, rel=0.12)  # 3.5 standard deviations of a Poisson count
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(1, abs=0.13)
    bins = np.histogram(at, bins=np.arange(at[0], at[-1], 0.1))[0]
    dispersion = np.var(bins, ddof=1) / np.mean(bins)
    assert dispersion == pytest.approx(1, abs=3.5 * np.sqrt(2 / (len(bins) - 1)))
    lag_1 = np.corrcoef(gaps[:-1], gaps[1:])[0, 1]
    assert abs(lag_1) < 3.5 / np.sqrt(len(gaps))
    # Kolmogorov-Smirnov against the exponential distribution of the rate that was offered.
    ordered = np.sort(gaps)
    ideal = 1 - np.exp(-ordered / np.mean(gaps))
    steps = np.arange(1, len(gaps) + 1) / len(gaps)
    assert np.abs(steps - ideal).max() < 1.95 / np.sqrt(len(gaps))  # p = 0.001


@pytest.mark.parametrize("workers", [1, 4])
def test_a_constant_rate_does_not_drift(engines: Engines, load: Load, workers: int) -> None:
    engine, rate, n = engines(), 200.0, 800
    result = load(engine, prompts=n, request_rate=rate, arrival="constant", workers=workers)
    at = arrivals_s(engine.generations(at_least=n))
    off = at - at[0] - np.arange(n) / rate
    first, last = np.median(off[:100]), np.median(off[-100:])
    assert abs(last - first) < 0.002
    assert np.percentile(np.abs(off - np.median(off)), 95) < 0.02
    assert result.summary.whole.rates.achieved_per_s == pytest.approx(rate, rel=0.02)


@pytest.mark.parametrize(("workers", "flags"), [(1, {}), (3, {}), (1, {"request_rate": 2000}), (4, {"request_rate": 2000})])
def test_the_cap_is_reached_and_never_exceeded(engines: Engines, load: Load, workers: int, flags: dict[str, Any]) -> None:
    engine = engines(ttft_ms=40.0, itl_ms=2.0)
    result = load(engine, prompts=160, tokens=5, concurrency=16, workers=workers, **flags)
    assert most_at_once(engine.generations(at_least=160)) == 16
    assert result.summary.whole.concurrency.max == 16


@pytest.mark.parametrize("workers", [1, 3])
def test_retries_hold_their_slot(engines: Engines, load: Load, workers: int) -> None:
    """Every other request fails at first, and is asked for again elsewhere: the cap stands for all of it."""
    faults = ("reject,status=503,every=3", "stream_error,tokens=2,every=4")
    fleet = [engines(ttft_ms=20.0, itl_ms=2.0, fault=faults) for _ in range(2)]
    quiet = {"health_check_interval": 0, "health_max_failures": 1000, "request_max_retries": 4}
    result = load(*fleet, prompts=160, tokens=5, concurrency=12, workers=workers, **quiet)
    lines = [line for engine in fleet for line in engine.generations()]
    assert result.summary.whole.counts.retried > 20
    assert most_at_once(lines) <= 12
    assert result.summary.whole.concurrency.max <= 12
    assert len(lines) == result.summary.whole.counts.attempts


@pytest.mark.parametrize(("workers", "flags"), [(1, {"concurrency": 12}), (3, {"concurrency": 12}), (4, {"request_rate": 300})])
def test_round_robin_goes_by_the_arrivals_number(
    engines: Engines, load: Load, number_of: Callable[[AccessLine], int], workers: int, flags: dict[str, Any]
) -> None:
    fleet = [engines() for _ in range(3)]
    load(*fleet, prompts=120, workers=workers, **flags)
    for index, engine in enumerate(fleet):
        assert sorted(map(number_of, engine.generations(at_least=40))) == list(range(index, 120, 3))


@pytest.mark.parametrize("workers", [1, 4])
def test_every_ticket_is_drawn_once_and_the_counts_of_both_sides_are_the_same(
    engines: Engines, load: Load, number_of: Callable[[AccessLine], int], workers: int
) -> None:
    fleet = [engines(), engines()]
    result = load(*fleet, prompts=400, concurrency=20, workers=workers, num_warmups=16, lb_strategy="least_conn")
    lines = [line for engine in fleet for line in engine.generations()]
    assert len(lines) == 416
    assert sorted(record.index for record in result.records if record.phase == "measure") == list(range(400))
    if workers > 1:
        assert len({record.worker for record in result.records}) > 1
    for purity in result.summary.purity:
        assert (purity.state, purity.foreign, purity.tolerance) == ("pure", 0, 0), purity
        assert purity.counted == purity.sent
    assert sum(purity.counted or 0 for purity in result.summary.purity) == 416
