"""Rows of a data set -> prompts by index, and what was left out on the way.

Rows are read and checked as a whole before anything is sent. The k-th measured prompt is row k modulo the number of rows. A warm-up
prompt is a row behind a mark of its own, so that warming up never puts a measured prompt into the server's prefix cache.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from loadcell.errors import UserError
from loadcell.records import TokenSource
from loadcell.seeds import derive, stream
from loadcell.workload.prompt import LengthTally, Prompt
from loadcell.workload.spec import Purpose, WorkloadSpec
from loadcell.workload.tokenizer import Tokenizer

_BATCH: Final = 256
TOO_LONG: Final = "longer than the model's context"


class Row(Struct, frozen=True, gc=False):
    """One row as read. Exactly one of `text` and `messages` is set. `answer`: the reply in the data set, whose length is the output's.

    `output_len` null: that of the answer, else of the spec.
    """

    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    answer: str | None = None
    output_len: int | None = None
    session: str | None = None


class Bounds(Struct, frozen=True):
    """What a row may measure in tokens; null = no bound. `least_output` holds for lengths that come from an answer."""

    least_input: int = 0
    least_output: int = 0
    most_input: int | None = None
    most_total: int | None = None


class RowPrompts:
    """Prompts of a data set that was read."""

    def __init__(self, spec: WorkloadSpec, prompts: Sequence[Prompt], blank_lines: int, skipped: dict[str, int], capped: int) -> None:
        self._spec = spec
        self._prompts = prompts
        self._mark = derive(spec.seed, "warm-up", spec.cell, spec.repeat) & 0xFFFFFFFF
        self.size: int | None = len(prompts)
        self.blank_lines = blank_lines
        self.skipped = skipped
        self.capped = capped
        self.reused = 0
        self.input_lengths = LengthTally()
        self.output_lengths = LengthTally()

    def prompt(self, index: int, purpose: Purpose) -> Prompt:
        size = len(self._prompts)
        made = self._prompts[index % size]
        if purpose == "warmup":
            return _marked(made, f"(warm-up {self._mark:08x}-{index}) ")
        if index >= size:
            check_enough(self._spec, size, index + 1)
            self.reused += 1
        if made.input_tokens is not None:
            self.input_lengths.add(made.input_tokens, made.input_tokens)
        if made.output_len is not None:
            self.output_lengths.add(made.output_len, made.output_len)
        return made


def check_enough(spec: WorkloadSpec, size: int, needed: int) -> None:
    """UserError when more prompts are asked for than there are and none may be sent twice."""
    if needed > size and not spec.reuse:
        raise UserError(
            f"--dataset-path {spec.dataset_path}: {size} usable rows for {needed} requests and no reuse;"
            f" lower --num-prompts to {size}, or allow rows to be sent again"
        )


def in_order(rows: list[Row], spec: WorkloadSpec) -> list[Row]:
    """Rows in the order they are sent. Each cell and repeat begins elsewhere, or shuffles otherwise, unless prompts are to be the same."""
    cell = () if spec.same_prompts else (spec.cell, spec.repeat)
    if spec.shuffle:
        shuffled = list(rows)
        stream(spec.seed, "shuffle", *cell).shuffle(shuffled)
        return shuffled
    if not rows or cell in ((), ("", 0)):
        return rows
    start = derive(spec.seed, "first row", *cell) % len(rows)
    return rows[start:] + rows[:start]


class Fitted(Struct, frozen=True):
    """Rows that are sent, as prompts, and the account of the others."""

    prompts: list[Prompt]
    skipped: dict[str, int]
    capped: int


def fit(rows: list[Row], spec: WorkloadSpec, tokenizer: Tokenizer, bounds: Bounds, chat: bool, needed: int | None) -> Fitted:
    """Counts rows and leaves out what does not fit, until `needed` are found (null: all)."""
    source: TokenSource = "tokenizer" if tokenizer.exact else "estimated"
    specials = 0 if chat else tokenizer.specials
    prompts: list[Prompt] = []
    skipped: dict[str, int] = {}
    capped = 0
    for row, tokens, answer_tokens in _counted(rows, tokenizer):
        if needed is not None and len(prompts) >= needed:
            break
        output = row.output_len if row.output_len is not None else answer_tokens if answer_tokens is not None else spec.output_len
        made = Prompt(
            text=row.text,
            messages=row.messages,
            input_tokens=tokens + specials,
            input_source=source,
            output_len=output,
            session=row.session,
        )
        reason = _unfit(made, bounds, from_answer=row.output_len is None and answer_tokens is not None)
        if reason is None and spec.max_model_len is not None:
            held = hold_in_context(made, spec)
            if held is None:
                reason = TOO_LONG
            else:
                capped += held is not made
                made = held
        if reason is None:
            prompts.append(made)
        else:
            skipped[reason] = skipped.get(reason, 0) + 1
    return Fitted(prompts=prompts, skipped=skipped, capped=capped)


def hold_in_context(made: Prompt, spec: WorkloadSpec) -> Prompt | None:
    """The prompt as the policy for oversized rows has it: itself, with a shorter output, or null (left out)."""
    if spec.max_model_len is None or spec.oversize == "keep":
        return made
    room = spec.max_model_len - (made.input_tokens or 0)
    if (made.output_len or 1) <= room:
        return made
    return replace(made, output_len=room) if spec.oversize == "cap" and room >= 1 else None


def content_text(row: Row) -> str:
    """What of a row is counted: its text, or the text of all its messages."""
    if row.messages is None:
        return row.text or ""
    return "\n".join(part for message in row.messages for part in _texts(message.get("content")))


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    if isinstance(content, list):
        return [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return []


def _counted(rows: list[Row], tokenizer: Tokenizer) -> Iterator[tuple[Row, int, int | None]]:
    """Rows with the tokens of prompt and answer, counted in batches."""
    left = iter(rows)
    while batch := list(islice(left, _BATCH)):
        inputs = tokenizer.counts([content_text(row) for row in batch])
        answers = iter(tokenizer.counts([row.answer for row in batch if row.answer is not None]))
        for row, tokens in zip(batch, inputs, strict=True):
            yield row, tokens, None if row.answer is None else next(answers)


def _unfit(made: Prompt, bounds: Bounds, *, from_answer: bool) -> str | None:
    tokens, output = made.input_tokens or 0, made.output_len
    if tokens < bounds.least_input:
        return f"prompt under {bounds.least_input} tokens"
    if from_answer and output is not None and output < bounds.least_output:
        return f"answer under {bounds.least_output} tokens"
    if bounds.most_input is not None and tokens > bounds.most_input:
        return f"prompt over {bounds.most_input} tokens"
    if bounds.most_total is not None and tokens + (output or 0) > bounds.most_total:
        return f"prompt and output over {bounds.most_total} tokens"
    return None


def _marked(made: Prompt, mark: str) -> Prompt:
    """The prompt behind a mark; its length is no longer known."""
    if made.messages is None:
        return replace(made, text=mark + (made.text or ""), input_tokens=None, input_source=None)
    first, *rest = made.messages
    content = first.get("content")
    marked = [{"type": "text", "text": mark}, *content] if isinstance(content, list) else mark + (content or "")
    return replace(made, messages=[{**first, "content": marked}, *rest], input_tokens=None, input_source=None)
