"""KV-cache blocks: allocation, sharing of equal prefixes, and eviction of the least recently used, as vLLM's block pool does it.

A block is free, or held by one or more sequences. A freed block keeps its hash and can be found again until it is handed out anew;
blocks of one sequence are freed tail first, so that its prefix lives longest.
"""

from collections import OrderedDict

from loadcell.sim.sequence import Sequence


class KvCache:
    """`total` blocks of `block_size` tokens. Counts `queries` and `hits` in tokens, once per request."""

    def __init__(self, total: int, block_size: int, *, prefix_caching: bool) -> None:
        self.total = total
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.queries = 0
        self.hits = 0
        self._untouched = 0  # blocks from here up were never used: they need no bookkeeping yet
        self._free: OrderedDict[int, None] = OrderedDict()
        self._references: dict[int, int] = {}
        self._block_of: dict[int, int] = {}
        self._hash_of: dict[int, int] = {}

    @property
    def free(self) -> int:
        return self.total - self._untouched + len(self._free)

    @property
    def used(self) -> int:
        return self.total - self.free

    def usage(self) -> float:
        """Fraction of blocks that sequences hold."""
        return self.used / self.total if self.total else 0.0

    def admit(self, seq: Sequence) -> int:
        """Give `seq`, which holds no block, the cached blocks of its prefix; returns the tokens found.

        At least one token is left to compute, since only computing yields the next one.
        """
        if not self.prefix_caching:
            return 0
        found: list[int] = []
        usable = (seq.tokens - 1) // self.block_size
        for block_hash in seq.hash_up_to(seq.tokens, self.block_size)[:usable]:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            found.append(block)
        for block in found:
            self._hold(block)
        seq.blocks = found
        tokens = len(found) * self.block_size
        if not seq.preemptions:
            self.queries += seq.tokens
            self.hits += tokens
        return tokens

    def retract(self, seq: Sequence, tokens: int) -> None:
        """Undo `admit`, for a sequence that did not fit after all."""
        if self.prefix_caching and not seq.preemptions:
            self.queries -= seq.tokens
            self.hits -= tokens
        self.release(seq)

    def grow(self, seq: Sequence, tokens: int) -> bool:
        """Hold blocks for `tokens` tokens of `seq` in all; False, and nothing changed, when there are too few."""
        missing = -(-tokens // self.block_size) - len(seq.blocks)
        if missing <= 0:
            return True
        if missing > self.free:
            return False
        for _ in range(missing):
            seq.blocks.append(self._take())
        return True

    def publish(self, seq: Sequence, tokens: int) -> None:
        """Make the full blocks among the first `tokens` (computed) tokens findable."""
        if not self.prefix_caching:
            return
        full = tokens // self.block_size
        hashes = seq.hash_up_to(tokens, self.block_size)
        for index in range(full - 1, -1, -1):
            block = seq.blocks[index]
            if block in self._hash_of:
                break  # it and all before it were published
            if hashes[index] not in self._block_of:
                self._block_of[hashes[index]] = block
                self._hash_of[block] = hashes[index]

    def release(self, seq: Sequence) -> None:
        """Give back everything that `seq` holds."""
        for block in reversed(seq.blocks):
            left = self._references[block] - 1
            if left:
                self._references[block] = left
            else:
                del self._references[block]
                self._free[block] = None
        seq.blocks = []

    def forget(self) -> None:
        """Drop all that was published (vLLM's /reset_prefix_cache)."""
        self._block_of.clear()
        self._hash_of.clear()

    def _hold(self, block: int) -> None:
        references = self._references.get(block, 0)
        if not references:
            del self._free[block]
        self._references[block] = references + 1

    def _take(self) -> int:
        if self._untouched < self.total:
            block = self._untouched
            self._untouched += 1
        else:
            block, _ = self._free.popitem(last=False)
            block_hash = self._hash_of.pop(block, None)
            if block_hash is not None:
                del self._block_of[block_hash]
        self._references[block] = 1
        return block
