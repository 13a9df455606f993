"""Choices are functions of the arrival and of what is seen of the endpoints: tables where they are exact, statistics where they are drawn."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadcell.endpoint.choice import PENALTY_HALF_LIFE_NS, choose, penalty_after, ranking
from loadcell.endpoint.spec import Strategy

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


def pick(
    strategy: Strategy,
    arrival: int,
    available: Sequence[int],
    in_flight: Sequence[int] = (0,) * 16,
    penalty: Sequence[float] = (0.0,) * 16,
    n_total: int = 4,
    key: str | None = None,
    tried: Sequence[int] = (),
    seed: int = 0,
) -> int | None:
    return choose(strategy, arrival, available, in_flight, penalty, n_total=n_total, key=key, tried=tried, seed=seed)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_none_and_one_available(strategy: Strategy) -> None:
    assert pick(strategy, 7, []) is None
    assert pick(strategy, 7, [2]) == 2
    assert pick(strategy, 7, [2], tried=[2]) == 2  # the only one is asked again
    assert pick(strategy, 7, [1, 2], tried=[2]) == 1


@given(
    strategy=st.sampled_from(STRATEGIES),
    arrival=st.integers(0, 2**40),
    n_total=st.integers(1, 16),
    key=st.none() | st.text(),
    seed=st.integers(),
    data=st.data(),
)
def test_always_an_available_one_and_untried_while_there_is_one(
    strategy: Strategy, arrival: int, n_total: int, key: str | None, seed: int, data: st.DataObject
) -> None:
    available = sorted(data.draw(st.sets(st.integers(0, n_total - 1), min_size=1)))
    tried = data.draw(st.lists(st.integers(0, n_total - 1), max_size=3))
    in_flight = data.draw(st.lists(st.integers(0, 1000), min_size=n_total, max_size=n_total))
    chosen = pick(strategy, arrival, available, in_flight, n_total=n_total, key=key, tried=tried, seed=seed)
    assert chosen in (set(available) - set(tried) or set(available))
    assert chosen == pick(strategy, arrival, available, in_flight, n_total=n_total, key=key, tried=tried, seed=seed)


@given(first=st.integers(0, 10**9), n_total=st.integers(1, 9))
def test_round_robin_is_even_over_any_whole_round(first: int, n_total: int) -> None:
    counts = Counter(pick("round_robin", arrival, range(n_total), n_total=n_total) for arrival in range(first, first + 3 * n_total))
    assert counts == dict.fromkeys(range(n_total), 3)


@given(n_total=st.integers(3, 9), data=st.data())
def test_round_robin_deals_an_absent_share_to_all_others_alike(n_total: int, data: st.DataObject) -> None:
    away = data.draw(st.sets(st.integers(0, n_total - 1), min_size=1, max_size=n_total - 2))
    here = [index for index in range(n_total) if index not in away]
    rounds = 10 * len(here)
    counts = Counter(pick("round_robin", arrival, here, n_total=n_total) for arrival in range(rounds * n_total))
    assert set(counts.values()) == {rounds * n_total // len(here)}
    stay = [arrival for arrival in range(rounds * n_total) if arrival % n_total in here]
    assert all(pick("round_robin", arrival, here, n_total=n_total) == arrival % n_total for arrival in stay)


def test_random_is_even_independent_and_of_the_seed() -> None:
    picks = [pick("random", arrival, range(4)) for arrival in range(8000)]
    expected = 8000 / 16
    pairs = Counter(pairwise(picks))
    assert sum((count - expected) ** 2 / expected for count in pairs.values()) < 37.7  # chi², 15 degrees of freedom, p = 0.001
    assert picks != [pick("random", arrival, range(4), seed=1) for arrival in range(8000)]


def test_least_conn_takes_the_least_and_rotates_ties() -> None:
    assert pick("least_conn", 9, [0, 1, 2, 3], [4, 2, 1, 3]) == 2
    assert pick("least_conn", 9, [0, 1, 3], [4, 2, 1, 3]) == 1
    assert pick("least_conn", 9, [0, 1, 2, 3], [1, 1, 1, 1], [0, 2.5, 2.5, 2.5]) == 0
    counts = Counter(pick("least_conn", arrival, [0, 1, 2, 3], [5, 3, 3, 3]) for arrival in range(4000))
    assert counts[0] == 0
    assert set(counts) == {1, 2, 3}
    assert [pick("least_conn", arrival, [0, 1, 2]) for arrival in range(4)] == [0, 1, 2, 0]


def test_power_of_two_never_takes_the_most_loaded_and_prefers_the_least() -> None:
    counts = Counter(pick("power_of_two", arrival, [0, 1, 2, 3], [0, 1, 2, 3]) for arrival in range(6000))
    assert counts[3] == 0
    for index, share in ((0, 3 / 6), (1, 2 / 6), (2, 1 / 6)):
        assert counts[index] / 6000 == pytest.approx(share, abs=0.03)


def test_least_conn_does_not_flood_the_endpoint_that_fails_fastest() -> None:
    """Endpoint 0 refuses at once, 1 and 2 hold each request for 100 arrivals (1 ms each). Nothing ejects."""
    in_flight, penalty, at_ns = [0, 0, 0], [0.0, 0.0, 0.0], [0, 0, 0]
    held: list[tuple[int, int]] = []
    refused = 0
    for arrival in range(5000):
        now_ns = arrival * 1_000_000
        while held and held[0][0] <= arrival:
            in_flight[held.pop(0)[1]] -= 1
        penalty = [penalty_after(value, now_ns - then) for value, then in zip(penalty, at_ns, strict=True)]
        at_ns = [now_ns] * 3
        chosen = pick("least_conn", arrival, [0, 1, 2], in_flight, penalty, n_total=3)
        if chosen == 0:
            refused += 1
            penalty[0] = penalty_after(penalty[0], 0, failures=1, busiest=max(in_flight))
        elif chosen is not None:
            in_flight[chosen] += 1
            held.append((arrival + 100, chosen))
    assert 1 <= refused <= 25


def test_penalty_halves_and_is_forgotten() -> None:
    assert penalty_after(0.0, 10**9) == 0.0
    assert penalty_after(0.0, 0, failures=1, busiest=7) == 8.0
    assert penalty_after(8.0, PENALTY_HALF_LIFE_NS) == 4.0
    assert penalty_after(8.0, PENALTY_HALF_LIFE_NS, failures=2, busiest=0) == 6.0
    assert penalty_after(8.0, 8 * PENALTY_HALF_LIFE_NS) == 0.0


@given(key=st.text(), n_total=st.integers(2, 20), data=st.data())
def test_a_session_stays_unless_its_own_endpoint_leaves(key: str, n_total: int, data: st.DataObject) -> None:
    home = pick("session", 0, range(n_total), n_total=n_total, key=key)
    gone = data.draw(st.integers(0, n_total - 1))
    rest = [index for index in range(n_total) if index != gone]
    arrival = data.draw(st.integers(0, 10**6))
    moved = pick("session", arrival, rest, n_total=n_total, key=key)
    assert moved == home if gone != home else moved == ranking(key, n_total)[1]


def test_sessions_spread_evenly_and_move_evenly() -> None:
    keys = [f"session-{number}" for number in range(9000)]
    homes = Counter(ranking(key, 9)[0] for key in keys)
    seconds = Counter(ranking(key, 9)[1] for key in keys if ranking(key, 9)[0] == 4)
    assert all(850 < count < 1150 for count in homes.values())
    assert len(homes) == 9
    assert len(seconds) == 8
    assert max(seconds.values()) < 2 * min(seconds.values())


def test_no_session_goes_round() -> None:
    assert [pick("session", arrival, range(4)) for arrival in range(5)] == [0, 1, 2, 3, 0]
