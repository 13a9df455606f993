"""Mooncake's traces -> prompts that share blocks as the real ones did, and the times they came.

A trace (JSONL: `timestamp` in ms, `input_length`, `output_length`, `hash_ids`) holds no text. Each hash id stands for a block of 512
tokens (Qin et al. 2024, "Mooncake: a KVCache-centric disaggregated architecture for LLM serving"); equal ids get equal text here, so
that a prefix cache finds what it found there.
"""

from typing import Any, Final

from msgspec import Struct

from loadcell.errors import UserError
from loadcell.records import TokenSource
from loadcell.workload.compose import ANCHOR, BYTES_PER_WORD, Composer
from loadcell.workload.draws import prompt_key, text_bytes
from loadcell.workload.lines import JsonLines, tokens
from loadcell.workload.prompt import LengthTally, Prompt
from loadcell.workload.rows import TOO_LONG, check_enough, hold_in_context
from loadcell.workload.spec import Purpose, WorkloadSpec
from loadcell.workload.tokenizer import Tokenizer

BLOCK: Final = 512
_BLOCKS_KEPT: Final = 2048
_LARGEST_ID: Final = (1 << 63) - 1


class Arrived(Struct, frozen=True, gc=False):
    """One line of the trace. Times in seconds since its first line, lengths in tokens."""

    timestamp_s: float
    input_len: int
    output_len: int
    blocks: tuple[int, ...]


class MooncakePrompts:
    """Prompts of a trace, made when they are asked for."""

    def __init__(self, spec: WorkloadSpec, tokenizer: Tokenizer, composer: Composer, *, chat: bool) -> None:
        assert spec.dataset_path is not None
        lines = JsonLines(spec.dataset_path)
        self._spec = spec
        self._composer = composer
        self._source: TokenSource = "tokenizer" if tokenizer.exact else "estimated"
        self._specials = 0 if chat else tokenizer.specials
        self.skipped: dict[str, int] = {}
        self.capped = 0
        self._rows = self._fit(read_trace(lines, spec.dataset_path))
        self.size: int | None = len(self._rows)
        self.blank_lines = lines.blanks
        self._keys: dict[Purpose, bytes] = {"measure": prompt_key(spec, "measure"), "warmup": prompt_key(spec, "warmup")}
        self._blocks: dict[tuple[Purpose, int], str] = {}
        self.reused = 0
        self.input_lengths = LengthTally()
        self.output_lengths = LengthTally()

    @property
    def trace_s(self) -> tuple[float, ...]:
        """When each row came, in seconds since the trace began."""
        return tuple(row.timestamp_s for row in self._rows)

    def prompt(self, index: int, purpose: Purpose) -> Prompt:
        row = self._rows[index % len(self._rows)]
        text, tokens = self._text(row, index, purpose)
        if purpose == "measure":
            if index >= len(self._rows):
                check_enough(self._spec, len(self._rows), index + 1)
                self.reused += 1
            self.input_lengths.add(tokens + self._specials, row.input_len)
            self.output_lengths.add(row.output_len, row.output_len)
        return Prompt(
            text=text,
            input_tokens=tokens + self._specials,
            input_source=self._source,
            output_len=row.output_len,
            timestamp_s=row.timestamp_s,
        )

    def _text(self, row: Arrived, index: int, purpose: Purpose) -> tuple[str, int]:
        """ANCHOR, the row's blocks, and what is left of its length.

        The anchor shifts all blocks of all prompts alike, so that a block is the same text, and the same tokens, wherever it stands.
        """
        wanted = max(1, row.input_len - self._specials)
        lead = self._composer.anchor_cost
        whole = max(0, wanted - lead) // BLOCK
        before = " ".join((ANCHOR, *(self._block(purpose, block) for block in row.blocks[:whole])))
        known = min(whole, len(row.blocks))
        key = self._keys[purpose]
        left = wanted - lead - known * BLOCK
        if left < 1:
            return before, lead + known * BLOCK
        noise = text_bytes(key + b"block", row.blocks[known], BYTES_PER_WORD * BLOCK) if known < len(row.blocks) else b""
        noise += text_bytes(key, index, BYTES_PER_WORD * max(0, left - len(noise) // BYTES_PER_WORD))
        return self._composer.compose(left, noise, before, lead + known * BLOCK)

    def _block(self, purpose: Purpose, block: int) -> str:
        """The text of one block, without the space before it."""
        text = self._blocks.get((purpose, block))
        if text is None:
            noise = text_bytes(self._keys[purpose] + b"block", block, BYTES_PER_WORD * BLOCK)
            text = self._composer.compose(BLOCK, noise, ANCHOR, self._composer.anchor_cost)[0].removeprefix(ANCHOR + " ")
            if len(self._blocks) >= _BLOCKS_KEPT:
                self._blocks.pop(next(iter(self._blocks)))
            self._blocks[purpose, block] = text
        return text

    def _fit(self, rows: list[Arrived]) -> list[Arrived]:
        kept = []
        for row in rows:
            held = hold_in_context(Prompt(input_tokens=row.input_len, output_len=row.output_len), self._spec)
            if held is None:
                self.skipped[TOO_LONG] = self.skipped.get(TOO_LONG, 0) + 1
            elif held.output_len != row.output_len:
                self.capped += 1
                kept.append(Arrived(row.timestamp_s, row.input_len, held.output_len or 1, row.blocks))
            else:
                kept.append(row)
        if not kept:
            raise UserError(f"--max-model-len {self._spec.max_model_len}: no row of {self._spec.dataset_path} fits")
        return kept


def read_trace(lines: JsonLines, path: str) -> list[Arrived]:
    """The whole trace. UserError `path:line: what` for the first line that is not of the form, or earlier than the one before it."""
    rows: list[Arrived] = []
    first_ms = before_ms = 0.0
    for number, value in lines:
        place = lines.place(number)
        now_ms = _time_ms(place, value)
        if not rows:
            first_ms = before_ms = now_ms
        if now_ms < before_ms:
            raise UserError(f"{place}: 'timestamp' {now_ms:g} comes before {before_ms:g}; sort the trace by time")
        before_ms = now_ms
        length = tokens(place, "input_length", value.get("input_length"))
        output_len = tokens(place, "output_length", value.get("output_length"))
        rows.append(Arrived((now_ms - first_ms) / 1000, length, output_len, _blocks(place, value, length)))
    if not rows:
        raise UserError(f"--dataset-path {path}: holds no rows; give one JSON object a line")
    return rows


def _time_ms(place: str, value: dict[str, Any]) -> float:
    time_ms = value.get("timestamp")
    if isinstance(time_ms, bool) or not isinstance(time_ms, int | float) or not time_ms >= 0:
        raise UserError(f"{place}: 'timestamp' is {time_ms!r}: must be a number of milliseconds from 0")
    return float(time_ms)


def _blocks(place: str, value: dict[str, Any], input_len: int) -> tuple[int, ...]:
    ids = value.get("hash_ids", [])
    if not isinstance(ids, list) or not all(type(block) is int and 0 <= block <= _LARGEST_ID for block in ids):
        raise UserError(f"{place}: 'hash_ids' must be a list of whole numbers from 0")
    if len(ids) > -(-input_len // BLOCK):
        raise UserError(f"{place}: {len(ids)} hash ids for {input_len} tokens; each stands for a block of {BLOCK} tokens")
    return tuple(ids)
