"""One request as the scheduler sees it: counts, blocks, and the ids that its blocks are hashed from."""

from loadcell.sim.answers import ring_ids


class Sequence:
    """Mutable: the scheduler's own notebook. Tokens are counts; `computed` are those whose KV is in the cache.

    `target` tokens will be generated, known from the start because the answers are made up.
    `cached` prompt tokens were found in the prefix cache at the first scheduling.
    """

    __slots__ = (
        "answer_start",
        "arrival_ns",
        "blocks",
        "cached",
        "cancelled",
        "computed",
        "generated",
        "hashes",
        "preemptions",
        "prompt_ids",
        "prompt_tokens",
        "scheduled_ns",
        "seq_id",
        "target",
    )

    def __init__(self, seq_id: int, prompt_ids: list[int], target: int, arrival_ns: int, answer_start: int = 0) -> None:
        self.seq_id = seq_id
        self.prompt_ids = prompt_ids
        self.prompt_tokens = len(prompt_ids)
        self.target = target
        self.arrival_ns = arrival_ns
        self.answer_start = answer_start
        self.generated = 0
        self.computed = 0
        self.cached = 0
        self.preemptions = 0
        self.scheduled_ns: int | None = None
        self.cancelled = False
        self.blocks: list[int] = []
        self.hashes: list[int] = []

    @property
    def tokens(self) -> int:
        """Tokens that exist: prompt and generated."""
        return self.prompt_tokens + self.generated

    @property
    def finished(self) -> bool:
        return self.generated >= self.target

    def hash_up_to(self, tokens: int, block_size: int) -> list[int]:
        """Extend and return the hashes of full blocks among the first `tokens` tokens; each covers all tokens before it."""
        hashes = self.hashes
        full = tokens // block_size
        previous = hashes[-1] if hashes else 0
        for index in range(len(hashes), full):
            previous = hash((previous, tuple(self._ids(index * block_size, (index + 1) * block_size))))
            hashes.append(previous)
        return hashes

    def _ids(self, start: int, end: int) -> list[int]:
        prompt = self.prompt_tokens
        if end <= prompt:
            return self.prompt_ids[start:end]
        from_answer = max(start - prompt, 0)
        return self.prompt_ids[start:] + ring_ids(self.answer_start + from_answer, end - prompt - from_answer)
