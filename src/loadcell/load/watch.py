"""The board -> snapshots for a display: rates over the last second, medians of the last samples, time left."""

from collections import deque

from loadcell.clock import NS_PER_S
from loadcell.endpoint.board import Board, OfWorker
from loadcell.endpoint.pool import Pool
from loadcell.load.snapshot import LoadPhase, Snapshot
from loadcell.records import Phase
from loadcell.schedule import UNLIMITED, ScheduleSpec, cap_at


class Progress:
    """`begin` each phase, then `snapshot` at will. Times: monotonic ns."""

    def __init__(self, board: Board, pool: Pool, schedule: ScheduleSpec, warmup_requests: int) -> None:
        self._board, self._pool, self._schedule, self._warmup = board, pool, schedule, warmup_requests
        self._phase: Phase = "measure"
        self._start_ns = 0
        self._past: deque[tuple[int, int, int]] = deque()
        self._idle_ns = 0

    def begin(self, phase: Phase, start_ns: int) -> None:
        self._phase, self._start_ns = phase, start_ns
        self._past.clear()

    def snapshot(self, now_ns: int, *, draining: bool) -> Snapshot:
        board = self._board
        done, tokens = board.total(OfWorker.DONE), board.total(OfWorker.TOKENS)
        self._past.append((now_ns, done, tokens))
        while len(self._past) > 1 and now_ns - self._past[0][0] > NS_PER_S:
            self._past.popleft()
        then_ns, then_done, then_tokens = self._past[0]
        span_s = (now_ns - then_ns) / NS_PER_S
        elapsed_ns = max(0, now_ns - self._start_ns)
        planned = (self._warmup or None) if self._phase == "warmup" else self._schedule.num_prompts
        cap = cap_at(self._schedule, elapsed_ns)
        in_flight = sum(board.in_flight())
        if not in_flight:
            self._idle_ns = now_ns
        newest_ns = max(map(board.last_token_ns, range(board.n_endpoints)), default=0)
        phase: LoadPhase = "drain" if draining and self._phase == "measure" else self._phase
        return Snapshot(
            elapsed_s=elapsed_ns / NS_PER_S,
            phase=phase,
            done=done,
            ok=board.total(OfWorker.OK),
            failed=board.total(OfWorker.FAILED),
            planned=planned,
            in_flight=in_flight,
            cap=None if cap == UNLIMITED else cap,
            rate_rps=(done - then_done) / span_s if span_s > 0 else 0.0,
            tokens_per_s=(tokens - then_tokens) / span_s if span_s > 0 else 0.0,
            ttft_ms_p50=_median_ms([us for worker in board.workers for us in worker.recent_ttft_us()]),
            tpot_ms_p50=_median_ms([us for worker in board.workers for us in worker.recent_tpot_us()]),
            endpoints=[
                (endpoint, state, in_flight)
                for endpoint, state, in_flight in zip(self._pool.probe_counts(), self._pool.states(), board.in_flight(), strict=True)
            ],
            left_s=None if draining else self._left_s(done, planned, elapsed_ns / NS_PER_S),
            dispatched=board.total(OfWorker.DISPATCHED),
            waiting=board.total(OfWorker.WAITING),
            silent_s=max(0, now_ns - max(self._start_ns, self._idle_ns, newest_ns)) / NS_PER_S,
        )

    def _left_s(self, done: int, planned: int | None, elapsed_s: float) -> float | None:
        left = []
        if self._phase == "measure" and self._schedule.duration_s is not None:
            left.append(max(0.0, self._schedule.duration_s - elapsed_s))
        if planned and done:
            left.append(elapsed_s * max(0, planned - done) / done)
        return min(left, default=None)


def _median_ms(us: list[int]) -> float | None:
    return sorted(us)[len(us) // 2] / 1000 if us else None
