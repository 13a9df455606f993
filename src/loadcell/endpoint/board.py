"""What the control process and the workers of one run see of each other: int64 cells in shared memory, each written by one process.

No locks and no messages: an aligned 8-byte store is atomic on the machines we run on, and every cell has exactly one writer. Control
writes the run's flags and each endpoint's standing; a worker writes its own block: counters, in-flight counts and last-token times per
endpoint, and the last 64 TTFT and TPOT for the live display. All times are absolute CLOCK_MONOTONIC ns. The memory is an anonymous file
(memfd), so nothing is left behind when everybody has gone, and what a dead worker wrote stays readable.
"""

import mmap
import os
from enum import IntEnum
from typing import Final, Self

RING: Final = 64

_MAGIC: Final = 0x6C6F6164626F6172  # "loadboar": a stranger's file descriptor is told apart


class Standing(IntEnum):
    """An endpoint's health, as control last decided. A single endpoint takes requests whatever stands here."""

    HEALTHY = 0
    UNHEALTHY = 1
    TRIAL = 2


class Flag:
    """The run's cells, written by control alone. `VERSION` grows whenever an endpoint's cells have changed; 0 in a time is "not set"."""

    MAGIC: Final = 0
    N_ENDPOINTS: Final = 1
    N_WORKERS: Final = 2
    VERSION: Final = 3
    STOP_CODE: Final = 4
    STOP_AT_NS: Final = 5
    PHASE: Final = 6
    PRODUCED: Final = 7
    CONTROL_BEAT_NS: Final = 8
    KILL_AT_NS: Final = 9


class OfEndpoint:
    """An endpoint's cells, written by control alone. The trial cells offer one request in a half-open state to one worker, until a moment."""

    STANDING: Final = 0
    REST_UNTIL_NS: Final = 1
    TRIAL_NUMBER: Final = 2
    TRIAL_WORKER: Final = 3
    TRIAL_UNTIL_NS: Final = 4


class OfWorker:
    """A worker's own counters. TTFT and TPOT sums are µs, with the number of samples beside them (the rings' write positions too).

    `WAITING`: in flight, and nothing of the answer has come yet.
    """

    DONE: Final = 0
    OK: Final = 1
    FAILED: Final = 2
    DISPATCHED: Final = 3
    TOKENS: Final = 4
    IN_FLIGHT: Final = 5
    TTFT_SUM_US: Final = 6
    TTFT_N: Final = 7
    TPOT_SUM_US: Final = 8
    TPOT_N: Final = 9
    HEARTBEAT_NS: Final = 10
    STARVED_NS: Final = 11
    WAITING: Final = 12


class PerEndpoint:
    """A worker's counters of one endpoint. `TRIAL_TAKEN` is the number of the last trial that it took up."""

    IN_FLIGHT: Final = 0
    LAST_TOKEN_NS: Final = 1
    ATTEMPTS: Final = 2
    FAILURES: Final = 3
    SUCCESSES: Final = 4
    TRIAL_TAKEN: Final = 5


_FLAGS: Final = 10
_OF_ENDPOINT: Final = 5
_OF_WORKER: Final = 13
_PER_ENDPOINT: Final = 6


class WorkerBlock:
    """One worker's cells. The worker writes; anyone may read. `cells` is the whole board's memory."""

    __slots__ = ("_cells", "_n", "_own", "_per", "_tpot", "_ttft", "worker")

    def __init__(self, cells: "memoryview[int]", start: int, n_endpoints: int, worker: int) -> None:
        self.worker = worker
        self._cells = cells
        self._n = n_endpoints
        self._own = start
        self._per = start + _OF_WORKER
        self._ttft = self._per + _PER_ENDPOINT * n_endpoints
        self._tpot = self._ttft + RING

    def add(self, counter: int, amount: int = 1) -> None:
        """`counter`: an `OfWorker`."""
        self._cells[self._own + counter] += amount

    def put(self, counter: int, value: int) -> None:
        self._cells[self._own + counter] = value

    def get(self, counter: int) -> int:
        return self._cells[self._own + counter]

    def add_at(self, counter: int, endpoint: int, amount: int = 1) -> None:
        """`counter`: a `PerEndpoint`."""
        self._cells[self._per + counter * self._n + endpoint] += amount

    def put_at(self, counter: int, endpoint: int, value: int) -> None:
        self._cells[self._per + counter * self._n + endpoint] = value

    def get_at(self, counter: int, endpoint: int) -> int:
        return self._cells[self._per + counter * self._n + endpoint]

    def row(self, counter: int) -> list[int]:
        """One `PerEndpoint` counter for all endpoints."""
        start = self._per + counter * self._n
        return self._cells[start : start + self._n].tolist()

    def add_ttft(self, us: int) -> None:
        """Count a TTFT and keep it in the ring. Sum and count come after the ring, so that a reader never counts a missing sample."""
        self._sample(self._ttft, OfWorker.TTFT_SUM_US, us)

    def add_tpot(self, us: int) -> None:
        self._sample(self._tpot, OfWorker.TPOT_SUM_US, us)

    def recent_ttft_us(self) -> list[int]:
        """Up to the last 64, in no order that means anything."""
        return self._recent(self._ttft, OfWorker.TTFT_N)

    def recent_tpot_us(self) -> list[int]:
        return self._recent(self._tpot, OfWorker.TPOT_N)

    def clear_presence(self) -> None:
        """For control, of a worker that is gone: nothing of it is in flight any more. What it did stays counted."""
        self._cells[self._own + OfWorker.IN_FLIGHT] = 0
        for endpoint in range(self._n):
            self.put_at(PerEndpoint.IN_FLIGHT, endpoint, 0)

    def _sample(self, ring: int, total: int, us: int) -> None:
        cells, own = self._cells, self._own
        count = cells[own + total + 1]
        cells[ring + count % RING] = us
        cells[own + total] += us
        cells[own + total + 1] = count + 1

    def _recent(self, ring: int, counter: int) -> list[int]:
        return self._cells[ring : ring + min(RING, self.get(counter))].tolist()


class Board:
    """The whole of the shared memory. `create` in control, `attach` in each worker with the file descriptor that it was given."""

    def __init__(self, fd: int, memory: mmap.mmap) -> None:
        self.fd = fd
        self._memory = memory
        self._cells: memoryview[int] = memoryview(memory).cast("q")
        self.n_endpoints = self._cells[Flag.N_ENDPOINTS]
        self.n_workers = self._cells[Flag.N_WORKERS]
        workers = _FLAGS + _OF_ENDPOINT * self.n_endpoints
        block = _block_cells(self.n_endpoints)
        self.workers = [WorkerBlock(self._cells, workers + block * worker, self.n_endpoints, worker) for worker in range(self.n_workers)]

    @classmethod
    def create(cls, n_endpoints: int, n_workers: int) -> Self:
        """All cells zero: every endpoint healthy, nothing sent, no trial offered."""
        size = 8 * (_FLAGS + _OF_ENDPOINT * n_endpoints + _block_cells(n_endpoints) * n_workers)
        fd = os.memfd_create("loadcell-board", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        memory = mmap.mmap(fd, size)
        with memoryview(memory) as raw, raw.cast("q") as cells:
            cells[Flag.MAGIC], cells[Flag.N_ENDPOINTS], cells[Flag.N_WORKERS] = _MAGIC, n_endpoints, n_workers
        return cls(fd, memory)

    @classmethod
    def attach(cls, fd: int) -> Self:
        """Map the board behind `fd` (inherited or passed on). The descriptor stays the caller's until `close`.

        Raises ValueError when it is no board.
        """
        size = os.fstat(fd).st_size
        if size < 8 * _FLAGS:
            raise ValueError(f"descriptor {fd} holds no board")
        memory = mmap.mmap(fd, size)
        with memoryview(memory) as raw, raw.cast("q") as cells:
            fits = cells[Flag.MAGIC] == _MAGIC
        if not fits:
            memory.close()
            raise ValueError(f"descriptor {fd} holds no board")
        return cls(fd, memory)

    def close(self) -> None:
        """Unmap and close the descriptor. The blocks in `workers` must not be used afterwards."""
        self._cells.release()
        self._memory.close()
        os.close(self.fd)

    def flag(self, which: int) -> int:
        """`which`: a `Flag`."""
        return self._cells[which]

    def set_flag(self, which: int, value: int) -> None:
        self._cells[which] = value

    def standing(self, endpoint: int) -> int:
        """A `Standing`, as its number."""
        return self._cells[_FLAGS + _OF_ENDPOINT * endpoint]

    def endpoint(self, which: int, endpoint: int) -> int:
        """`which`: an `OfEndpoint`."""
        return self._cells[_FLAGS + _OF_ENDPOINT * endpoint + which]

    def set_endpoint(self, endpoint: int, standing: Standing, rest_until_ns: int) -> None:
        """For control: this endpoint's standing from now on; workers see the version move."""
        start = _FLAGS + _OF_ENDPOINT * endpoint
        self._cells[start + OfEndpoint.STANDING] = standing
        self._cells[start + OfEndpoint.REST_UNTIL_NS] = rest_until_ns
        self._cells[Flag.VERSION] += 1

    def offer_trial(self, endpoint: int, worker: int, until_ns: int) -> int:
        """For control: let `worker` send one request to an endpoint on trial, if it starts before `until_ns`. Returns the trial's number.

        An offer that nobody took runs out by the clock, so the next one cannot make two.
        """
        start = _FLAGS + _OF_ENDPOINT * endpoint
        number = self._cells[start + OfEndpoint.TRIAL_NUMBER] + 1
        self._cells[start + OfEndpoint.TRIAL_UNTIL_NS] = 0  # closed while the rest changes, so that nobody takes half an offer
        self._cells[start + OfEndpoint.TRIAL_NUMBER] = number
        self._cells[start + OfEndpoint.TRIAL_WORKER] = worker
        self._cells[start + OfEndpoint.TRIAL_UNTIL_NS] = until_ns
        self._cells[Flag.VERSION] += 1
        return number

    def trial_offered(self, endpoint: int, worker: int, now_ns: int) -> bool:
        """Whether `worker` may send the one trial request of this endpoint now."""
        start = _FLAGS + _OF_ENDPOINT * endpoint
        cells = self._cells
        return (
            cells[start] == Standing.TRIAL
            and cells[start + OfEndpoint.TRIAL_WORKER] == worker
            and now_ns < cells[start + OfEndpoint.TRIAL_UNTIL_NS]
            and self.workers[worker].get_at(PerEndpoint.TRIAL_TAKEN, endpoint) != cells[start + OfEndpoint.TRIAL_NUMBER]
        )

    def take_trial(self, endpoint: int, worker: int) -> None:
        """For the worker, just before it sends the trial request."""
        number = self.endpoint(OfEndpoint.TRIAL_NUMBER, endpoint)
        self.workers[worker].put_at(PerEndpoint.TRIAL_TAKEN, endpoint, number)

    def trial_taken(self, endpoint: int) -> bool:
        """Whether the offer of the current number has been taken up."""
        worker = self.endpoint(OfEndpoint.TRIAL_WORKER, endpoint)
        taken = self.workers[worker].get_at(PerEndpoint.TRIAL_TAKEN, endpoint)
        return taken == self.endpoint(OfEndpoint.TRIAL_NUMBER, endpoint) != 0

    def in_flight(self) -> list[int]:
        """Requests in flight per endpoint, over all workers."""
        if self.n_workers == 1:
            return self.workers[0].row(PerEndpoint.IN_FLIGHT)
        rows = (block.row(PerEndpoint.IN_FLIGHT) for block in self.workers)
        return list(map(sum, zip(*rows, strict=True)))

    def last_token_ns(self, endpoint: int) -> int:
        """When any worker last saw output of this endpoint; 0 = never."""
        return max(block.get_at(PerEndpoint.LAST_TOKEN_NS, endpoint) for block in self.workers)

    def total(self, counter: int) -> int:
        """An `OfWorker` counter over all workers."""
        return sum(block.get(counter) for block in self.workers)


def _block_cells(n_endpoints: int) -> int:
    return _OF_WORKER + _PER_ENDPOINT * n_endpoints + 2 * RING
