"""When tokens appear: sequences in, (moment, sequence, tokens) out. Pure; the server feeds it the time and sleeps until `due_ns`.

`FixedTimeline` knows its truth beforehand: the first token `ttft_ns` after a sequence starts, each further one `itl_ns` later,
whatever else runs. Only a free slot (`max_num_seqs`) and KV blocks are waited for.
"""

from collections import deque
from heapq import heapify, heappop, heappush
from random import Random
from typing import Protocol

from loadcell.sim.kvcache import KvCache
from loadcell.sim.sequence import Sequence


class DeviceMemoryError(Exception):
    """The device has no memory left for this step: the engine dies, as a real one does."""


class Timeline(Protocol):
    """What the server drives. `due_ns` is the next moment at which `advance` has something to give; None when idle."""

    kv: KvCache
    preemptions: int

    @property
    def due_ns(self) -> int | None: ...
    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    def add(self, seq: Sequence, now_ns: int) -> None: ...
    def cancel(self, seq: Sequence, now_ns: int) -> None: ...
    def advance(self, now_ns: int) -> list[tuple[Sequence, int]]:
        """Everything that is due by `now_ns`, in order: (sequence, new tokens). A finished sequence has left already."""
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
        return self._due[0][0] if self._due else None

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
            self._due = [entry for entry in self._due if entry[2] is not seq]
            heapify(self._due)
            self._leave(seq)
        self._start_waiting(now_ns)

    def advance(self, now_ns: int) -> list[tuple[Sequence, int]]:
        due, out = self._due, []
        while due and due[0][0] <= now_ns:
            at_ns, seq_id, seq = heappop(due)
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
