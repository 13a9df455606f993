"""The run while it goes on: start the workers' phases, hear what they say, watch the endpoints, and decide when it has to end.

Control is never asked per request. It writes the board, the workers read it; they tell what control must decide (a failure, a refusal).
"""

import signal
from collections.abc import Callable
from typing import Final

from loadcell.clock import NS_PER_S, Clock
from loadcell.endpoint.board import Board, Flag, OfWorker
from loadcell.endpoint.pool import Pool
from loadcell.errors import EnvironmentFailure, LoadcellError
from loadcell.load.crew import Crew
from loadcell.load.journal import Journal
from loadcell.load.plan import Fatal, FieldDropped, FromWorker, PhaseDone, Ready, StartPhase, StopCode, Traffic, Trouble
from loadcell.load.producer import Producer
from loadcell.load.signals import held_back
from loadcell.load.snapshot import Snapshot
from loadcell.load.watch import Progress
from loadcell.records import Endpoint, Phase
from loadcell.scenario import Scenario
from loadcell.schedule import mode

_LOOP_S: Final = 0.05
_PRIME_S: Final = 0.02
_LEAD_NS: Final = 5_000_000
_SHOW_NS: Final = NS_PER_S // 4
INTERRUPT_DRAIN_NS: Final = 5 * NS_PER_S
_STUCK_NS: Final = 15 * NS_PER_S  # a worker cancels and writes what is in flight within moments, on a starved machine within seconds


class Control:
    """Of one run. `show` is told how far it is, several times a second."""

    def __init__(
        self,
        scenario: Scenario,
        endpoints: list[Endpoint],
        crew: Crew,
        board: Board,
        pool: Pool,
        journal: Journal,
        clock: Clock,
        show: Callable[[Snapshot], None],
    ) -> None:
        self._scenario, self._endpoints, self._crew, self._board = scenario, endpoints, crew, board
        self._pool, self._journal, self._clock, self._show = pool, journal, clock, show
        self._done: set[int] = set()
        self._called_off: str | None = None

    def call_off(self, detail: str) -> None:
        """End the load before its time, at the next turn; what is in flight is cancelled. May be called from another thread."""
        self._called_off = self._called_off or detail

    def await_ready(self) -> None:
        """Return when every worker can start. Raises EnvironmentFailure when one cannot."""
        ready: set[int] = set()
        while len(ready) < len(self._crew) and self._journal.stop is None:
            for worker, message in self._crew.messages(_LOOP_S):
                if isinstance(message, Ready):
                    ready.add(worker)
                elif isinstance(message, Trouble):
                    raise EnvironmentFailure(message.text)
                elif message is None:
                    raise EnvironmentFailure(f"worker {worker} did not start ({self._crew.exit_text(worker)})")
            self._pool.tick(self._clock.now_ns())

    def prime(self, producer: Producer) -> None:
        """Return when the first requests are ready to be sent. Raises LoadcellError when they cannot be made."""
        while not producer.wait_primed(_PRIME_S) and self._journal.stop is None:
            self._pool.tick(self._clock.now_ns())
        if producer.error is not None:
            raise _failure(producer.error) from producer.error

    def run_phase(
        self,
        phase: Phase,
        producer: Producer,
        progress: Progress,
        length_ns: int | None,
        started: Callable[[], None],
        *,
        lasts: bool = False,
    ) -> None:
        """Run one phase in all workers until each has nothing left; where it `lasts`, not before its time is over.

        `started` is called when it has begun.
        """
        journal, board = self._journal, self._board
        start = self._clock.now_ns() + _LEAD_NS
        stop_at = start + length_ns if length_ns is not None else 0
        self._set_end(stop_at, stop_at + round(self._scenario.drain_s * NS_PER_S) if stop_at else 0)
        if phase == "measure":
            journal.start_ns = start
        self._done = set()
        self._crew.tell_all(StartPhase(phase=phase, start_ns=start))
        progress.begin(phase, start)
        journal.event(f"{phase}_started", start)
        started()
        shown = 0
        while len(self._done.union(self._crew.lost)) < len(self._crew) or (
            lasts and journal.stop is None and self._clock.now_ns() < stop_at
        ):
            for worker, message in self._crew.messages(_LOOP_S):
                self._hear(worker, message)
            now = self._clock.now_ns()
            self._pool.tick(now)
            self._decide(phase, producer, now)
            self._end_the_stuck(now)
            if now - shown >= _SHOW_NS:
                shown = now
                stopping_at = board.flag(Flag.STOP_AT_NS)
                self._show(progress.snapshot(now, draining=bool(stopping_at) and now >= stopping_at))
        now = self._clock.now_ns()
        if phase == "measure":
            self._show(progress.snapshot(now, draining=True))
            if journal.stop is None:
                journal.stop = ("duration" if stop_at and now >= stop_at else "count", None)
        journal.event(f"{phase}_ended", now)

    def interrupt(self, number: int) -> None:
        """A first SIGINT or SIGTERM while requests are under way."""
        code: StopCode = "interrupt" if number == signal.SIGINT else "terminated"
        text = f"{signal.Signals(number).name}: draining for {INTERRUPT_DRAIN_NS // NS_PER_S} s; once more to leave at once"
        self._halt(code, text, self._clock.now_ns(), INTERRUPT_DRAIN_NS)

    def leave_at_once(self) -> None:
        """What is in flight is cancelled."""
        self._board.set_flag(Flag.KILL_AT_NS, self._clock.now_ns())

    def _set_end(self, stop_at: int, kill_at: int) -> None:
        """The phase's own end, unless the run has been stopped in the meantime."""
        with held_back():  # a signal between these lines would have its end overwritten
            if self._journal.stop is None:
                self._board.set_flag(Flag.KILL_AT_NS, kill_at)
                self._board.set_flag(Flag.STOP_AT_NS, stop_at)

    def _hear(self, worker: int, message: FromWorker | None) -> None:
        now = self._clock.now_ns()
        if message is None:
            self._mourn(worker, now)
        elif isinstance(message, Traffic):
            self._pool.on_traffic(
                message.endpoint,
                message.outcome,
                message.status,
                message.retry_after_s,
                message.at_ns,
                dispatched_ns=message.dispatched_ns,
                error_code=message.error_code,
            )
        elif isinstance(message, Fatal | Trouble):
            self._halt("fatal", message.text, now)
        elif isinstance(message, FieldDropped):
            self._journal.field_dropped(self._endpoints[message.endpoint].name, message.field, message.said, now)
        elif isinstance(message, PhaseDone):
            self._done.add(worker)
            if message.phase == "measure":
                self._journal.reports.append(message.report)

    def _end_the_stuck(self, now: int) -> None:
        """A worker that is still there long after all its requests had to end (stopped, or stuck in the kernel) would be waited for without end."""
        kill_at = self._board.flag(Flag.KILL_AT_NS)
        if kill_at and now > kill_at + _STUCK_NS:
            for worker in set(range(len(self._crew))) - self._done:
                self._crew.kill(worker)  # that it was lost is told by `messages`

    def _mourn(self, worker: int, now: int) -> None:
        how = self._crew.exit_text(worker)
        self._journal.lost.append(worker)
        self._pool.worker_lost(worker)
        self._journal.event("worker_lost", now, how)
        self._halt("worker_lost", f"worker {worker} was lost ({how}): the results are partial", now, INTERRUPT_DRAIN_NS)

    def _decide(self, phase: Phase, producer: Producer, now: int) -> None:
        """Whether the run has to end before its time."""
        if producer.error is not None:
            self._halt("fatal", str(_failure(producer.error)), now)
        if self._journal.failed is not None:
            self._halt("fatal", self._journal.failed, now)
        if self._called_off is not None:
            self._halt("called_off", self._called_off, now)
        limit = self._scenario.max_failures
        failed = self._board.total(OfWorker.FAILED)
        if limit is not None and phase == "measure" and failed > limit:
            self._halt("max_failures", f"{failed} requests failed, more than --max-failures {limit}", now)
        open_loop = mode(self._scenario.schedule) != "closed"
        if self._pool.verdict_without_endpoint(now, open_loop=open_loop) == "end":
            patience = self._scenario.endpoint.patience_s
            self._halt("patience", f"no endpoint was available for {patience:g} s (--patience)", now)

    def _halt(self, code: StopCode, detail: str, now: int, drain_ns: int = 0) -> None:
        """Stop dispatching now. What is in flight may run on for `drain_ns`. The first reason stands."""
        if self._journal.stop is not None:
            return
        self._journal.stop = (code, detail)
        self._board.set_flag(Flag.KILL_AT_NS, now + drain_ns)
        self._board.set_flag(Flag.STOP_AT_NS, now)
        self._journal.event("stopping", now, detail)
        self._journal.note(detail)


def _failure(error: Exception) -> LoadcellError:
    return error if isinstance(error, LoadcellError) else EnvironmentFailure(f"a prompt could not be made: {error}")
