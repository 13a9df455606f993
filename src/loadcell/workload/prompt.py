"""What a workload gives: prompts, and the account of how they came out."""

from typing import Any

from msgspec import Struct

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
    """Achieved lengths in tokens of the measured prompts made so far. `off_target`: how many missed the length asked for; `worst_miss`
    by how many tokens at most.
    """

    n: int
    min: int | None
    mean: float | None
    max: int | None
    off_target: int
    worst_miss: int


class WorkloadReport(Struct, frozen=True):
    """`rows` null for synthetic prompts. `skipped` counts rows that were left out, by reason; `capped`, those whose output was cut
    to fit. `reused`: measured prompts that repeat an earlier one of this run (the server may have them cached).
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


class LengthTally:
    """Running minimum, mean and maximum; a million prompts cost no memory."""

    __slots__ = ("_max", "_min", "_n", "_off", "_sum", "_worst")

    def __init__(self) -> None:
        self._n = self._sum = self._max = self._off = self._worst = 0
        self._min = 1 << 62

    def add(self, length: int, target: int) -> None:
        self._n += 1
        self._sum += length
        if length < self._min:
            self._min = length
        if length > self._max:
            self._max = length
        if length != target:
            self._off += 1
            self._worst = max(self._worst, abs(length - target))

    def report(self) -> LengthReport:
        if not self._n:
            return LengthReport(n=0, min=None, mean=None, max=None, off_target=0, worst_miss=0)
        return LengthReport(n=self._n, min=self._min, mean=self._sum / self._n, max=self._max, off_target=self._off, worst_miss=self._worst)
