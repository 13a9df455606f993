"""What a workload gives: prompts, and the account of how they came out."""

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from loadcell.records import TokenSource


class Prompt(Struct, frozen=True, gc=False):
    """One prompt. Exactly one of `text` and `messages` is set; a chat body wraps a `text` in one user message.

    `input_tokens` counts what is asked: for completions with the special tokens that the server adds, for chat the content alone
    (template tokens come on top, and show in the server's usage). `output_len` null: the server decides.
    """

    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    input_tokens: int | None = None
    input_source: TokenSource | None = None
    output_len: int | None = None
    session: str | None = None
    timestamp_s: float | None = None


class LengthReport(Struct, frozen=True):
    """Achieved lengths in tokens of the measured prompts made so far. `off_target`: how many missed the length asked for; `least_miss`,
    `mean_miss` and `most_miss`: by how many tokens those did (signed: made − asked), null when none did.
    """

    n: int
    min: int | None
    mean: float | None
    max: int | None
    off_target: int
    least_miss: int | None = None
    mean_miss: float | None = None
    most_miss: int | None = None


class WorkloadReport(Struct, frozen=True):
    """`rows` null for synthetic prompts. `skipped` counts rows that were left out, by reason; `capped`, those whose output was cut
    to fit. `reused`: measured prompts that repeat an earlier one of this run (the server may have them cached). `unverified`: prompts
    whose length is what their words are known to cost, because the tokenizer was not to be asked any more.
    """

    dataset: str
    tokenizer: str
    exact: bool
    rows: int | None
    blank_lines: int
    skipped: dict[str, int]
    capped: int
    reused: int
    input: LengthReport
    output: LengthReport
    unverified: int = 0


class LengthTally:
    """Running minimum, mean and maximum; a million prompts cost no memory."""

    __slots__ = ("_least_miss", "_max", "_min", "_misses", "_most_miss", "_n", "_off", "_sum")

    def __init__(self) -> None:
        self._n = self._sum = self._max = self._off = self._misses = 0
        self._min = self._least_miss = 1 << 62
        self._most_miss = -self._least_miss

    def add(self, length: int, target: int) -> None:
        self._n += 1
        self._sum += length
        if length < self._min:
            self._min = length
        if length > self._max:
            self._max = length
        if length != target:
            miss = length - target
            self._off += 1
            self._misses += miss
            self._least_miss = min(self._least_miss, miss)
            self._most_miss = max(self._most_miss, miss)

    def report(self) -> LengthReport:
        if not self._n:
            return LengthReport(n=0, min=None, mean=None, max=None, off_target=0)
        made = LengthReport(n=self._n, min=self._min, mean=self._sum / self._n, max=self._max, off_target=self._off)
        if not self._off:
            return made
        return replace(made, least_miss=self._least_miss, mean_miss=self._misses / self._off, most_miss=self._most_miss)
