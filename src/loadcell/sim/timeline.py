"""When tokens appear: sequences in, (moment, sequence, tokens) out. Pure; the server feeds it the time and sleeps until `due_ns`.

`FixedTimeline` knows its truth beforehand: the first token `ttft_ns` after a sequence starts, each further one `itl_ns` later,
whatever else runs. Only a free slot (`max_num_seqs`) and KV blocks are waited for. `BatchedTimeline` runs the model of continuous batching.
"""

from collections import deque
from heapq import heappop, heappush
from random import Random
from typing import Final, Protocol

from loadcell.sim.kvcache import KvCache
from loadcell.sim.memory import MemoryPlan
from loadcell.sim.model import BatchingModel, Step
from loadcell.sim.sequence import Sequence

_MOST_LAG_NS: Final = 20_000_000
_MOST_AT_ONCE: Final = 4096  # then the caller looks at its sockets; what is left is still due


class DeviceMemoryError(Exception):
    """The device has no memory left for this step: the engine dies, as a real one does."""


class Timeline(Protocol):
    """What the server drives. `due_ns` is the next moment at which `advance` has something to give; None when idle."""

    @property
    def kv(self) -> KvCache: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def due_ns(self) -> int | None: ...
    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    def add(self, seq: Sequence, now_ns: int) -> None: ...
    def cancel(self, seq: Sequence, now_ns: int, /) -> None: ...
    def advance(self, now_ns: int) -> list[tuple[Sequence, int]]:
        """What is due by `now_ns`, in order: (sequence, new tokens). A finished sequence has left already.

        `due_ns` stays in the past when there was more than can be given at once.
        """
        ...


class FixedTimeline:
    """Each sequence on its own fixed schedule; see the module."""

    def __init__(self, *, ttft_ns: int, itl_ns: int, max_num_seqs: int, kv: KvCache, noise: float = 0.0, seed: int = 0) -> None:
        self.kv = kv
        self.preemptions = 0
        self._ttft_ns = ttft_ns
        self._itl_ns = itl_ns
        self._max_num_seqs = max_num_seqs
        self._noise = noise
        self._random = Random(seed)
        self._waiting: deque[Sequence] = deque()
        self._due: list[tuple[int, int, Sequence]] = []
        self._running = 0

    @property
    def due_ns(self) -> int | None:
        due = self._due
        while due and due[0][2].cancelled:
            heappop(due)
        return due[0][0] if due else None

    @property
    def running(self) -> int:
        return self._running

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, seq: Sequence, now_ns: int) -> None:
        self._waiting.append(seq)
        self._start_waiting(now_ns)

    def cancel(self, seq: Sequence, now_ns: int) -> None:
        seq.cancelled = True
        if seq.scheduled_ns is None:
            self._waiting.remove(seq)
        else:
            self._leave(seq)  # its entry is skipped when its time comes
        self._start_waiting(now_ns)

    def advance(self, now_ns: int) -> list[tuple[Sequence, int]]:
        due = self._due
        out: list[tuple[Sequence, int]] = []
        while due and due[0][0] <= now_ns and len(out) < _MOST_AT_ONCE:
            at_ns, seq_id, seq = heappop(due)
            if seq.cancelled:
                continue
            seq.generated += 1
            out.append((seq, 1))
            if seq.generated < seq.target:
                heappush(due, (at_ns + self._spread(self._itl_ns), seq_id, seq))
            else:
                self._leave(seq)
                if self._waiting:
                    self._start_waiting(at_ns)
        return out

    def _start_waiting(self, now_ns: int) -> None:
        """Blocks for the whole answer are taken at the start, so that nothing is ever preempted."""
        while self._waiting and self._running < self._max_num_seqs:
            seq = self._waiting[0]
            cached = self.kv.admit(seq)
            if not self.kv.grow(seq, min(seq.prompt_tokens + seq.target, self.kv.total * self.kv.block_size)):
                self.kv.retract(seq, cached)
                return
            self._waiting.popleft()
            seq.cached, seq.computed = cached, seq.prompt_tokens
            self.kv.publish(seq, seq.prompt_tokens)
            seq.scheduled_ns = start_ns = max(now_ns, seq.arrival_ns)
            self._running += 1
            heappush(self._due, (start_ns + self._spread(self._ttft_ns), seq.seq_id, seq))

    def _leave(self, seq: Sequence) -> None:
        self._running -= 1
        self.kv.release(seq)

    def _spread(self, duration_ns: int) -> int:
        if not self._noise:
            return duration_ns
        return max(0, round(duration_ns * (1 + self._random.gauss(0.0, self._noise))))


class BatchedTimeline:
    """Steps of a `BatchingModel`, one right after the other; a step starts as soon as there is work.

    Steps follow the model's own time, so a caller that is late by a millisecond does not slow the engine down; one that is late
    by more than 20 ms does, instead of being flooded.
    """

    def __init__(self, model: BatchingModel, plan: MemoryPlan | None = None) -> None:
        self.kv = model.kv
        self._model = model
        self._plan = plan
        self._step: Step | None = None
        self._start_ns: int | None = None

    @property
    def preemptions(self) -> int:
        return self._model.preemptions

    @property
    def due_ns(self) -> int | None:
        return self._step.end_ns if self._step is not None else self._start_ns

    @property
    def running(self) -> int:
        return len(self._model.running)

    @property
    def waiting(self) -> int:
        return len(self._model.waiting)

    def add(self, seq: Sequence, now_ns: int) -> None:
        self._model.add(seq)
        if self._step is None and self._start_ns is None:
            self._start_ns = now_ns

    def cancel(self, seq: Sequence, _now_ns: int) -> None:
        self._model.cancel(seq)

    def advance(self, now_ns: int) -> list[tuple[Sequence, int]]:
        """Raises DeviceMemoryError when a step does not fit the device."""
        outputs: list[tuple[Sequence, int]] = []
        step = self._step if self._start_ns is None else self._begin(now_ns)
        while step is not None and step.end_ns <= now_ns:
            outputs += self._model.complete(step)
            late_ns = now_ns - step.end_ns
            step = self._begin(step.end_ns if late_ns < _MOST_LAG_NS else now_ns)
            if step is None and self._model.waiting:
                step = self._begin(now_ns)  # what came after the step had ended
        return outputs

    def _begin(self, at_ns: int) -> Step | None:
        self._start_ns = None
        self._step = step = self._model.step(at_ns)
        if step is not None and self._plan is not None and not self._plan.fits(step.tokens, len(step.work)):
            raise DeviceMemoryError
        return step
