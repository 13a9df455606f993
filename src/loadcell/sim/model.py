"""Continuous batching as vLLM's V1 scheduler does it: sequences in, steps out. Pure; the caller owns the time.

Each step first serves the running sequences (a decode, or the next chunk of a prefill), then admits waiting ones in order of arrival,
within `max_num_batched_tokens`, `max_num_seqs` and the KV blocks. When a running sequence finds no block, the newest one is
preempted: it loses its blocks and waits, first in line, to be computed again.
"""

from collections import deque
from random import Random

from msgspec import Struct

from loadcell.sim.kvcache import KvCache
from loadcell.sim.profile import StepCost, StepShape
from loadcell.sim.sequence import Sequence


class Limits(Struct, frozen=True):
    """The scheduler's settings. `acceptance`: chance of a draft token, given that those before it were accepted."""

    max_num_seqs: int
    max_num_batched_tokens: int
    chunked_prefill: bool = True
    num_speculative_tokens: int = 0
    acceptance: float = 0.7
    noise: float = 0.0
    seed: int = 0


class Step(Struct, frozen=True):
    """One forward pass. `work`: (sequence, tokens computed for it) in batch order; `tokens` is their sum."""

    start_ns: int
    end_ns: int
    work: list[tuple[Sequence, int]]
    tokens: int
    preempted: int


class BatchingModel:
    """`step` starts a step, `complete` ends it; one at a time. All waiting and running sequences are here."""

    def __init__(self, limits: Limits, kv: KvCache, cost: StepCost) -> None:
        self.kv = kv
        self.preemptions = 0
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._limits = limits
        self._cost = cost
        self._random = Random(limits.seed)

    def add(self, seq: Sequence) -> None:
        self.waiting.append(seq)

    def cancel(self, seq: Sequence) -> None:
        """Take a sequence out at once, whatever step it is in."""
        seq.cancelled = True
        if seq in self.running:
            self.running.remove(seq)
        elif seq in self.waiting:
            self.waiting.remove(seq)
        self.kv.release(seq)

    def step(self, now_ns: int) -> Step | None:
        """Start the next step at `now_ns` with what has arrived by then; None when there is nothing to compute."""
        work: list[tuple[Sequence, int]] = []
        preempted, budget = self._schedule_running(work)
        if not preempted:
            budget = self._admit(work, budget, now_ns)
        if not work:
            return None
        tokens = self._limits.max_num_batched_tokens - budget
        seconds = self._cost.seconds(_shape(work, tokens)) * self._noise_factor()
        return Step(now_ns, now_ns + max(1, round(seconds * 1e9)), work, tokens, preempted)

    def complete(self, step: Step) -> list[tuple[Sequence, int]]:
        """End a step: (sequence, new tokens) of those that got some; finished sequences leave and free their blocks."""
        outputs: list[tuple[Sequence, int]] = []
        block_size, caching, speculating = self.kv.block_size, self.kv.prefix_caching, self._limits.num_speculative_tokens > 0
        finished = False
        for seq, new in step.work:
            if seq.cancelled:
                continue
            total = seq.prompt_tokens + seq.generated
            computed = seq.computed + new
            if computed < total:  # a prefill's chunk, not its last
                seq.computed = computed
                self.kv.publish(seq, computed)
                continue
            got = 1 + self._accepted(computed - total) if speculating and computed > total else 1
            seq.generated += got
            seq.computed = total + got - 1
            if caching and (new > 1 or seq.computed % block_size == 0):
                self.kv.publish(seq, seq.computed)
            outputs.append((seq, got))
            if seq.generated >= seq.target:
                self.kv.release(seq)
                finished = True
        if finished:
            self.running = [seq for seq in self.running if seq.generated < seq.target]
        return outputs

    def _schedule_running(self, work: list[tuple[Sequence, int]]) -> tuple[int, int]:
        """Give the running sequences their tokens; returns (preempted, budget left)."""
        budget, index, preempted = self._limits.max_num_batched_tokens, 0, 0
        drafts, running, kv = self._limits.num_speculative_tokens, self.running, self.kv
        block_size = kv.block_size
        while index < len(running) and budget > 0:
            seq = running[index]
            new = seq.prompt_tokens + seq.generated - seq.computed
            if drafts and new == 1 and seq.generated:
                new += min(drafts, seq.target - seq.generated - 1)
            if new > budget:
                new = budget
            needed = seq.computed + new
            if needed > len(seq.blocks) * block_size and not kv.grow(seq, needed):
                self._preempt(running.pop())
                preempted += 1
                continue
            work.append((seq, new))
            budget -= new
            index += 1
        return preempted, budget

    def _admit(self, work: list[tuple[Sequence, int]], budget: int, now_ns: int) -> int:
        """Start waiting sequences while there is room; returns the budget left."""
        while self.waiting and budget > 0 and len(self.running) < self._limits.max_num_seqs:
            seq = self.waiting[0]
            if seq.arrival_ns > now_ns:
                break
            cached = self.kv.admit(seq)
            new = seq.prompt_tokens + seq.generated - cached
            if new > budget and not self._limits.chunked_prefill:
                self.kv.retract(seq, cached)
                break
            new = min(new, budget)
            if not self.kv.grow(seq, cached + new):
                self.kv.retract(seq, cached)
                break
            self.waiting.popleft()
            self.running.append(seq)
            seq.computed = cached
            if seq.scheduled_ns is None:
                seq.scheduled_ns, seq.cached = now_ns, cached
            work.append((seq, new))
            budget -= new
        return budget

    def _preempt(self, seq: Sequence) -> None:
        self.kv.release(seq)
        seq.computed = 0
        seq.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(seq)

    def _accepted(self, drafts: int) -> int:
        """How many drafts hold: they are checked in order, the first miss ends it."""
        accepted = 0
        while accepted < drafts and self._random.random() < self._limits.acceptance:
            accepted += 1
        return accepted

    def _noise_factor(self) -> float:
        return max(0.2, self._random.gauss(1.0, self._limits.noise)) if self._limits.noise else 1.0


def _shape(work: list[tuple[Sequence, int]], tokens: int) -> StepShape:
    attended = context = outputs = prefills = 0
    for seq, new in work:
        computed = seq.computed + new
        context += computed
        attended += new * (2 * computed - new) // 2  # each new token attends to those before it
        if computed >= seq.prompt_tokens + seq.generated:
            outputs += 1
        if not seq.generated or computed < seq.prompt_tokens + seq.generated:
            prefills += 1
    return StepShape(tokens, len(work), outputs, attended, context, prefills == 0)
