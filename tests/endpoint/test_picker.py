"""A worker's picks follow the board, its own failures, and the other workers' load."""

from collections import Counter
from collections.abc import Iterator

import pytest

from loadcell.endpoint.board import Board, PerEndpoint, Standing
from loadcell.endpoint.picker import Picker
from loadcell.endpoint.spec import EndpointSpec, Strategy

MS = 1_000_000


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.create(3, 2)
    yield board
    board.close()


def picker(board: Board, strategy: Strategy = "round_robin", worker: int = 0) -> Picker:
    return Picker(board, worker, EndpointSpec(strategy=strategy), seed=0)


def test_two_workers_go_round_by_the_arrivals_index(board: Board) -> None:
    workers = [picker(board, worker=0), picker(board, worker=1)]
    picks = [workers[arrival % 2].pick(arrival, now_ns=arrival) for arrival in range(9)]
    assert picks == [0, 1, 2] * 3


def test_an_ejected_endpoint_gets_nothing_and_returns(board: Board) -> None:
    ours = picker(board)
    board.set_endpoint(1, Standing.UNHEALTHY, 0)
    assert Counter(ours.pick(arrival, 5) for arrival in range(600)) == {0: 300, 2: 300}
    assert (ours.others(0, 5), ours.others(1, 5), ours.untried([0], 5)) == (1, 2, 1)
    board.set_endpoint(1, Standing.HEALTHY, 0)
    assert ours.pick(1, 5) == 1


def test_a_resting_endpoint_returns_by_the_clock(board: Board) -> None:
    ours = picker(board)
    board.set_endpoint(1, Standing.HEALTHY, 100)
    assert ours.pick(1, 99) != 1
    assert ours.pick(1, 100) == 1


def test_nobody_to_ask(board: Board) -> None:
    ours = picker(board)
    for index in range(3):
        board.set_endpoint(index, Standing.UNHEALTHY, 0)
    assert ours.pick(0, 5) is None
    assert ours.none_available(5)
    assert not ours.resting()
    board.set_endpoint(2, Standing.HEALTHY, 100)
    assert ours.none_available(5)
    assert ours.resting()
    assert not ours.none_available(100)


def test_one_trial_request_goes_first_and_only_where_it_was_offered(board: Board) -> None:
    ours, theirs = picker(board, worker=0), picker(board, worker=1)
    board.set_endpoint(1, Standing.TRIAL, 0)
    board.offer_trial(1, worker=1, until_ns=100)
    assert [ours.pick(arrival, 5) for arrival in (0, 1, 2)].count(1) == 0
    assert theirs.pick(0, 5, tried=[1]) != 1
    assert theirs.pick(0, 5) == 1
    assert theirs.pick(1, 5) != 1
    board.offer_trial(1, worker=0, until_ns=200)
    assert ours.pick(0, 200) != 1  # too late
    board.offer_trial(1, worker=0, until_ns=300)
    assert [ours.pick(0, 250), theirs.pick(1, 250)].count(1) == 1


def test_least_conn_sees_the_other_workers(board: Board) -> None:
    ours, theirs = picker(board, "least_conn", 0), picker(board, "least_conn", 1)
    picks: list[int | None] = []
    for arrival in range(30):
        worker = (ours, theirs)[arrival % 2]
        chosen = worker.pick(arrival, arrival * 2 * MS)
        assert chosen is not None
        worker.began(chosen)
        picks.append(chosen)
    assert board.in_flight() == [10, 10, 10]
    ours.landed(0)
    ours.ended(0, "ok", 100 * MS)
    assert theirs.pick(0, 100 * MS) == 0
    assert board.workers[0].row(PerEndpoint.FAILURES) == [0, 0, 0]


@pytest.mark.parametrize("strategy", ["least_conn", "power_of_two"])
def test_the_endpoint_that_fails_fastest_is_not_flooded(board: Board, strategy: Strategy) -> None:
    ours = picker(board, strategy)
    for arrival in range(60):
        chosen = ours.pick(arrival, arrival * MS)
        assert chosen is not None
        ours.began(chosen)
        if chosen == 0:
            ours.landed(0)
            ours.ended(0, "connect_error", arrival * MS)
    failures = board.workers[0].get_at(PerEndpoint.FAILURES, 0)
    assert 1 <= failures <= 8
    assert board.in_flight()[0] == 0
    now_ns = 60 * MS + 60_000 * MS
    picks = Counter(ours.pick(arrival, now_ns + arrival * 2 * MS) for arrival in range(12))
    assert picks[0] > 0  # forgotten in time


def test_what_the_client_does_wrong_weighs_nothing(board: Board) -> None:
    ours = picker(board, "least_conn")
    ours.began(0)
    ours.landed(0)
    ours.ended(0, "http_4xx", 5)
    ours.began(1)
    ours.landed(1)
    ours.ended(1, "cancelled", 5)
    assert Counter(ours.pick(arrival, 6) for arrival in range(9)) == {0: 3, 1: 3, 2: 3}
    assert board.workers[0].row(PerEndpoint.ATTEMPTS) == [1, 1, 0]


def test_control_hears_of_everything_but_success_at_a_healthy_endpoint(board: Board) -> None:
    ours = picker(board)
    for _ in range(4):
        ours.began(0)
    ours.landed(0)
    assert not ours.ended(0, "ok", 5)
    ours.landed(0)
    assert ours.ended(0, "connect_error", 5)
    ours.landed(0)
    assert ours.ended(0, "http_429", 5)
    board.set_endpoint(0, Standing.TRIAL, 0)
    ours.landed(0)
    assert ours.ended(0, "ok", 5)
    assert [board.workers[0].get_at(cell, 0) for cell in (PerEndpoint.IN_FLIGHT, PerEndpoint.SUCCESSES, PerEndpoint.FAILURES)] == [0, 2, 1]


def test_a_single_endpoint_takes_requests_whatever_its_health() -> None:
    board = Board.create(1, 1)
    ours = picker(board)
    board.set_endpoint(0, Standing.UNHEALTHY, 0)
    assert ours.pick(3, 5) == 0
    board.set_endpoint(0, Standing.TRIAL, 50)
    assert ours.pick(3, 5) is None  # it asked for a rest
    assert ours.resting()
    assert ours.pick(3, 50) == 0
    board.close()


def test_a_trial_goes_to_a_request_that_has_failed_there_when_nobody_else_can_be_asked(board: Board) -> None:
    """Else requests that have failed everywhere, and hold all the slots, wait for each other."""
    ours = picker(board)
    for endpoint in range(3):
        board.set_endpoint(endpoint, Standing.TRIAL if endpoint == 1 else Standing.UNHEALTHY, 0)
    board.offer_trial(1, worker=0, until_ns=100)
    assert ours.pick(0, 50, tried=(0, 1, 2)) == 1
    assert ours.pick(1, 50, tried=(0, 1, 2)) is None
    board.offer_trial(1, worker=0, until_ns=200)
    board.set_endpoint(2, Standing.HEALTHY, 0)
    assert ours.pick(2, 150, tried=(0, 1)) == 2
    assert ours.pick(3, 150, tried=(0,)) == 1
