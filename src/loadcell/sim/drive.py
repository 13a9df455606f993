"""The drive of the timelines: requests in, tokens out at their moments, and the book of running answers.

A kernel timer wakes it when the model has tokens; whatever is due then is sent in one go.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Final

from loadcell.clock import MonotonicClock
from loadcell.sim import exposition
from loadcell.sim.accesslog import Outcome
from loadcell.sim.faults import Fault
from loadcell.sim.generation import ENGINE_DIED, Generation
from loadcell.sim.logwriter import LogWriter
from loadcell.sim.memory import OOM_UNDER_LOAD
from loadcell.sim.timeline import DeviceMemoryError, Timeline
from loadcell.sim.timerfd import TimerFd

_now_ns: Final = MonotonicClock.now_ns


class Drive:
    """Owner of all generations. `stop` is called with an exit code when the engine dies."""

    def __init__(self, timelines: list[Timeline], log: LogWriter, loop: asyncio.AbstractEventLoop, stop: Callable[[int], None]) -> None:
        self._timelines = timelines
        self._log = log
        self._stop = stop
        self._counters = exposition.Counters()
        self._running: dict[int, Generation] = {}
        self._timer = TimerFd()
        self._armed_ns: int | None = None
        self.before_end: Callable[[], None] = lambda: None
        self.after_answer: Callable[[Generation], None] = lambda _: None
        loop.add_reader(self._timer.fd, self._wake)

    @property
    def running(self) -> int:
        return len(self._running)

    def least_loaded(self) -> int:
        """The data-parallel rank that the next request goes to."""
        loads = [timeline.running + timeline.waiting for timeline in self._timelines]
        return loads.index(min(loads))

    def submit(self, generation: Generation) -> None:
        """Begin an answer: its head goes out now, its tokens when the model has them."""
        self._running[generation.seq.seq_id] = generation
        generation.connection.on_gone = lambda: self._gone(generation)
        generation.begin()
        self._timelines[generation.rank].add(generation.seq, generation.seq.arrival_ns)
        self._arm()

    def _gone(self, generation: Generation) -> None:
        """The client left: as in vLLM, its request is aborted."""
        self.ended(generation, "aborted", "abort")
        self._arm()

    def ended(self, generation: Generation, outcome: Outcome, reason: str) -> None:
        """Strike an answer off the book, count it, and write its line."""
        if self._running.pop(generation.seq.seq_id, None) is None:
            return
        seq, counters = generation.seq, self._counters
        if not seq.finished:
            self._timelines[generation.rank].cancel(seq, _now_ns())
        counters.finished[reason] += 1
        if generation.chunk_ns:
            counters.prompt_tokens += seq.prompt_tokens
            counters.generation_tokens += generation.sent
        if outcome == "finished" and seq.scheduled_ns is not None:
            counters.observe_answer(
                arrival_ns=seq.arrival_ns,
                scheduled_ns=seq.scheduled_ns,
                token_ns=generation.chunk_ns,
                prompt_tokens=seq.prompt_tokens,
                tokens=generation.sent,
            )
        if self._log.wanted:
            self._log.write(generation.line(outcome, reason))
        if outcome == "finished":
            self.after_answer(generation)

    def strike(self, fault: Fault) -> None:
        """A fault ends the process. Only out of memory is said to the clients first: a crash has no last words."""
        if fault.kind == "oom_load":
            self._die_of_memory()
        else:
            self.shut("error", "error")
            self._stop(fault.exit_code)

    def shut(self, outcome: Outcome, reason: str) -> None:
        """Write down everything unfinished and flush the log; nothing more is sent."""
        for generation in list(self._running.values()):
            self.ended(generation, outcome, reason)
        self.before_end()
        self._log.flush()

    def forget_prefixes(self) -> None:
        for timeline in self._timelines:
            timeline.kv.forget()

    def metrics(self, model: str, held: int = 0) -> bytes:
        """The page of /metrics. `held`: requests that hang; they run, as a real engine's do, and make no token."""
        engines = [
            exposition.EngineGauges(
                running=timeline.running + (held if at == 0 else 0),
                waiting=timeline.waiting,
                kv_usage=timeline.kv.usage(),
                queries=timeline.kv.queries,
                hits=timeline.kv.hits,
                preemptions=timeline.preemptions,
            )
            for at, timeline in enumerate(self._timelines)
        ]
        answering = [generation for generation in self._running.values() if generation.sent]
        return exposition.render(
            self._counters,
            engines,
            model,
            prompt_tokens=sum(generation.seq.prompt_tokens for generation in answering),
            generation_tokens=sum(generation.sent for generation in answering),
        )

    def _die_of_memory(self) -> None:
        print(OOM_UNDER_LOAD, file=sys.stderr, flush=True)
        for generation in list(self._running.values()):
            generation.fail(ENGINE_DIED)
        self.shut("error", "error")
        self._stop(1)

    def _wake(self) -> None:
        self._timer.clear()
        self._armed_ns = None
        running = self._running
        try:
            for timeline in self._timelines:
                for seq, count in timeline.advance(_now_ns()):
                    generation = running.get(seq.seq_id)
                    if generation is not None:
                        generation.deliver(count)
        except DeviceMemoryError:
            self._die_of_memory()
            return
        self._arm()

    def _arm(self) -> None:
        dues = [at_ns for timeline in self._timelines if (at_ns := timeline.due_ns) is not None]
        if dues and (due_ns := min(dues)) != self._armed_ns:
            self._armed_ns = due_ns
            self._timer.arm(due_ns)
