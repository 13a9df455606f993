import math

import numpy as np
import pytest

from loadcell.tune.parameters import Parameter, Place
from loadcell.tune.sampler.inflight import InFlight
from loadcell.tune.space import Space

SEQS = Parameter("seqs", "int", Place(flag="--max-num-seqs"), low=8, high=512, log=True, default=64)
RANKS = Parameter("data_parallel_size", "int", Place(flag="--data-parallel-size"), ladder=(1, 2, 4), default=1)
USERS = Parameter("users", "int", Place(load="concurrency"), low=8, high=512, log=True, default=64)
OTHER = Parameter("block", "int", Place(flag="--block-size"), ladder=(8, 16), default=16)


def running(flight: InFlight, **values: int) -> tuple[float, float, float]:
    """Requests that run, in each rank, and the sign of the queue."""
    whole, each, queue = flight.of([values])[0]
    return math.exp(5.5 * whole), math.exp(5.5 * each), queue


def test_what_runs_is_the_smaller_of_what_is_offered_and_what_is_admitted() -> None:
    flight = InFlight(Space((SEQS, RANKS, USERS)))
    assert running(flight, seqs=64, data_parallel_size=1, users=32)[:2] == pytest.approx((32, 32))
    assert running(flight, seqs=64, data_parallel_size=1, users=400)[:2] == pytest.approx((64, 64))
    assert running(flight, seqs=64, data_parallel_size=4, users=200)[:2] == pytest.approx((200, 50))


def test_the_queue_grows_with_what_is_offered_beyond() -> None:
    flight = InFlight(Space((SEQS, RANKS, USERS)))
    queue = [running(flight, seqs=64, data_parallel_size=2, users=users)[2] for users in (16, 100, 128, 160, 512)]
    assert queue == sorted(queue)
    assert queue[2] == pytest.approx(0)
    assert np.ptp(queue) <= 1


def test_services_and_a_fixed_load_count() -> None:
    flight = InFlight(Space((SEQS,)), concurrency=300, services=2)
    assert running(flight, seqs=64)[:2] == pytest.approx((128, 64))
    assert running(flight, seqs=256)[:2] == pytest.approx((300, 150))


def test_sglang_admits_over_all_ranks() -> None:
    admitted = Parameter("running", "int", Place(flag="--max-running-requests"), low=8, high=512, default=64)
    flight = InFlight(Space((admitted, RANKS, USERS)))
    assert running(flight, running=64, data_parallel_size=4, users=400)[:2] == pytest.approx((64, 16))


def test_where_nothing_is_known_nothing_is_said() -> None:
    flight = InFlight(Space((OTHER,)), concurrency=64)
    assert flight.columns == ()
    assert flight.of([{"block": 8}]).shape == (1, 0)
    assert flight.trend(None).shape == (0,)


def test_throughput_and_latencies_rise_with_what_runs_and_waiting_shows_in_the_first_token() -> None:
    flight = InFlight(Space((SEQS, USERS)))
    few, many, too_many = flight.of([{"seqs": 64, "users": 16}, {"seqs": 64, "users": 64}, {"seqs": 64, "users": 256}])
    for figure in (None, "ttft p95 <= 1s", "tpot mean <= 12ms"):
        assert few @ flight.trend(figure) < many @ flight.trend(figure)
    assert many @ flight.trend("ttft p95 <= 1s") < too_many @ flight.trend("ttft p95 <= 1s")
    assert many @ flight.trend("tpot p95 <= 1s") == pytest.approx(too_many @ flight.trend("tpot p95 <= 1s"))
    assert not flight.trend("success_rate mean >= 99%").any()
