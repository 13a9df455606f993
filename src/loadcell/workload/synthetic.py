"""Prompts of drawn lengths made of real words, with shared prefixes where asked for.

Every prompt follows from (seed, cell, repeat, purpose, index) alone. It begins with its own words, unless it belongs to a prefix
group: then only the group's prefix is shared.
"""

from typing import Final

from loadcell.errors import UserError
from loadcell.workload.compose import BYTES_PER_WORD, Composer
from loadcell.workload.draws import Draws, prefix_key, prompt_key, text_bytes
from loadcell.workload.lengths import NUMBERS_PER_LENGTH, length_draw
from loadcell.workload.prompt import LengthTally, Prompt
from loadcell.workload.spec import Purpose, WorkloadSpec
from loadcell.workload.tokenizer import Tokenizer

_REDRAWS: Final = 16
_PREFIXES_KEPT: Final = 256


class SyntheticPrompts:
    """The `random` data set: endless."""

    size: int | None = None
    blank_lines = 0
    reused = 0

    def __init__(self, spec: WorkloadSpec, tokenizer: Tokenizer, composer: Composer, *, chat: bool) -> None:
        self._spec = spec
        self._composer = composer
        self._source: Final = "tokenizer" if tokenizer.exact else "estimated"
        # A completions server adds its special tokens to what is sent: the text is shorter by them, as in vLLM's client.
        self._specials = 0 if chat else tokenizer.specials
        output_ratio = spec.range_ratio if spec.output_range_ratio is None else spec.output_range_ratio
        body = max(0, spec.input_len - self._specials)
        self._draw_input = length_draw(spec.input_dist, body, spec.range_ratio, spec.dist_spread, 0 if spec.prefix_len else 1)
        self._draw_output = length_draw(spec.output_dist, spec.output_len or 0, output_ratio, spec.dist_spread, 1)
        self._keys: dict[Purpose, bytes] = {"measure": prompt_key(spec, "measure"), "warmup": prompt_key(spec, "warmup")}
        self._prefix_key = prefix_key(spec)
        self._prefixes: dict[int, tuple[str, int]] = {}
        self._numbers = 1 + 2 * NUMBERS_PER_LENGTH * (1 if spec.max_model_len is None else _REDRAWS)
        self.skipped: dict[str, int] = {}
        self.capped = 0
        self.input_lengths = LengthTally()
        self.output_lengths = LengthTally()

    def prompt(self, index: int, purpose: Purpose) -> Prompt:
        spec = self._spec
        key = self._keys[purpose]
        draws = Draws(key, index, self._numbers)
        group = int(draws.uniform() * spec.prefix_groups) if spec.prefix_len else None
        body, output = self._lengths(draws)
        before, before_tokens = ("", 0) if group is None else self._prefix(group)
        noise = text_bytes(key, index, BYTES_PER_WORD * body)
        text, tokens = self._composer.compose(body, noise, before, before_tokens)
        if purpose == "measure":
            self.input_lengths.add(tokens + self._specials, spec.prefix_len + body + self._specials)
            if output is not None:
                self.output_lengths.add(output, output)
        return Prompt(
            text=text,
            input_tokens=tokens + self._specials,
            input_source=self._source,
            output_len=output,
            session=None if group is None else f"group-{group}",
        )

    def _lengths(self, draws: Draws) -> tuple[int, int | None]:
        """Input and output length of one prompt; drawn again, or cut, where they exceed the model's context."""
        spec = self._spec
        for _ in range(_REDRAWS):
            body = self._draw_input(draws)
            output = None if spec.output_len is None else self._draw_output(draws)
            if spec.max_model_len is None or spec.oversize == "keep":
                return body, output
            room = spec.max_model_len - spec.prefix_len - self._specials
            if body + (output or 1) <= room:
                return body, output
            if spec.oversize == "cap":
                break
            self.skipped["longer than the model's context"] = self.skipped.get("longer than the model's context", 0) + 1
        self.capped += 1
        body = min(body, room - 1)
        return body, None if output is None else min(output, room - body)

    def _prefix(self, group: int) -> tuple[str, int]:
        known = self._prefixes.get(group)
        if known is None:
            noise = text_bytes(self._prefix_key, group, BYTES_PER_WORD * self._spec.prefix_len)
            known = self._composer.compose(self._spec.prefix_len, noise)
            if len(self._prefixes) >= _PREFIXES_KEPT:
                self._prefixes.pop(next(iter(self._prefixes)))
            self._prefixes[group] = known
        return known


def check_room(spec: WorkloadSpec) -> None:
    """UserError when fixed lengths can never fit the model's context."""
    if spec.max_model_len is None or spec.oversize == "keep":
        return
    least = spec.prefix_len + (0 if spec.prefix_len else 1) + 1
    if spec.oversize == "skip" and spec.input_dist == spec.output_dist == "fixed" and not spec.range_ratio and not spec.output_range_ratio:
        least = spec.prefix_len + spec.input_len + (spec.output_len or 1)
    if least > spec.max_model_len:
        raise UserError(
            f"--max-model-len {spec.max_model_len}: prompts of {spec.prefix_len + spec.input_len} tokens"
            f" and {spec.output_len or 1} of output never fit; shorten --input-len or --output-len"
        )
