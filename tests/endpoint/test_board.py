"""The board across processes: what one writes the other reads, and a dead worker leaves its counts behind."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from loadcell.endpoint.board import RING, Board, Flag, OfEndpoint, OfWorker, PerEndpoint, Standing

WORKER = """
import sys
from loadcell.endpoint.board import Board, Flag, OfWorker, PerEndpoint, Standing
board = Board.attach(int(sys.argv[1]))
block = board.workers[1]
assert (board.n_endpoints, board.n_workers) == (3, 2)
assert board.standing(2) == Standing.UNHEALTHY and board.flag(Flag.STOP_AT_NS) == 1 << 60
block.add(OfWorker.DONE, 7)
block.add_at(PerEndpoint.IN_FLIGHT, 2, 5)
block.put_at(PerEndpoint.LAST_TOKEN_NS, 0, 123456789012345)
print("written", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.create(3, 2)
    yield board
    board.close()


def test_two_processes_share_it_and_a_killed_worker_stays_readable(board: Board) -> None:
    board.set_endpoint(2, Standing.UNHEALTHY, 0)
    board.set_flag(Flag.STOP_AT_NS, 1 << 60)
    command = [sys.executable, "-c", WORKER, str(board.fd)]
    with subprocess.Popen(command, pass_fds=[board.fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        assert board.in_flight() == [0, 0, 5]
        process.kill()
    board.workers[0].add_at(PerEndpoint.IN_FLIGHT, 2)
    assert board.workers[1].get(OfWorker.DONE) == 7
    assert board.last_token_ns(0) == 123456789012345
    assert board.in_flight() == [0, 0, 6]
    board.workers[1].clear_presence()
    assert board.in_flight() == [0, 0, 1]
    assert board.total(OfWorker.DONE) == 7


def test_every_cell_has_a_place_of_its_own(board: Board) -> None:
    counters = range(OfWorker.STARVED_NS + 1)
    per_endpoint = range(PerEndpoint.TRIAL_TAKEN + 1)
    for block in board.workers:
        for counter in counters:
            block.put(counter, 1000 * block.worker + counter)
        for counter in per_endpoint:
            for endpoint in range(3):
                block.put_at(counter, endpoint, 1000 * block.worker + 100 + 10 * counter + endpoint)
    for flag in range(Flag.VERSION + 1, Flag.CONTROL_BEAT_NS + 1):
        board.set_flag(flag, -flag)
    for endpoint in range(3):
        board.set_endpoint(endpoint, Standing.TRIAL, -100 - endpoint)
    for block in board.workers:
        assert [block.get(counter) for counter in counters] == [1000 * block.worker + counter for counter in counters]
        for counter in per_endpoint:
            assert block.row(counter) == [1000 * block.worker + 100 + 10 * counter + endpoint for endpoint in range(3)]
    assert [board.flag(flag) for flag in range(Flag.STOP_CODE, Flag.CONTROL_BEAT_NS + 1)] == [-4, -5, -6, -7, -8]
    assert [board.endpoint(OfEndpoint.REST_UNTIL_NS, endpoint) for endpoint in range(3)] == [-100, -101, -102]
    assert (board.n_endpoints, board.flag(Flag.N_ENDPOINTS), board.flag(Flag.N_WORKERS)) == (3, 3, 2)


def test_rings_keep_the_last_samples(board: Board) -> None:
    block = board.workers[1]
    assert block.recent_ttft_us() == []
    for us in range(RING + 6):
        block.add_ttft(us)
    block.add_tpot(9)
    assert sorted(block.recent_ttft_us()) == list(range(6, RING + 6))
    assert block.recent_tpot_us() == [9]
    assert block.get(OfWorker.TTFT_N) == RING + 6
    assert block.get(OfWorker.TTFT_SUM_US) == sum(range(RING + 6))
    assert board.workers[0].recent_ttft_us() == []


def test_a_trial_is_for_one_worker_once_and_for_a_while(board: Board) -> None:
    version = board.flag(Flag.VERSION)
    board.set_endpoint(1, Standing.TRIAL, 0)
    assert not board.trial_taken(1)
    assert not any(board.trial_offered(1, worker, 5) for worker in (0, 1))
    board.offer_trial(1, worker=1, until_ns=100)
    assert board.flag(Flag.VERSION) == version + 2
    assert [board.trial_offered(1, worker, 99) for worker in (0, 1)] == [False, True]
    assert not board.trial_offered(1, 1, 100)
    assert not board.trial_offered(0, 1, 99)
    board.take_trial(1, 1)
    assert board.trial_taken(1)
    assert not board.trial_offered(1, 1, 99)
    board.offer_trial(1, worker=1, until_ns=300)
    assert board.trial_offered(1, 1, 200)
    assert not board.trial_taken(1)
    board.set_endpoint(1, Standing.HEALTHY, 0)
    assert not board.trial_offered(1, 1, 200)


def test_a_stranger_is_no_board() -> None:
    for size in (0, 4096):
        fd = os.memfd_create("stranger")
        os.ftruncate(fd, size)
        with pytest.raises(ValueError, match="no board"):
            Board.attach(fd)
        os.close(fd)
