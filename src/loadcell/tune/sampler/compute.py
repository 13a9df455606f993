"""What a configuration asks of a device -> columns of the models: the bits of a weight, what it is computed in, the tokens of a step. Pure.

A category's choices are all equally far apart for a model that knows only their names. What the names mean is in the engines' manuals: `awq` stores
4 bits of each weight and multiplies in 16, `fp8` stores and multiplies in 8; a step with k draft tokens looks at k + 1. No effect is assumed of any
of them, only that configurations alike in these are alike.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from loadcell.tune.parameters import Value
from loadcell.tune.sampler.kernel import Floats
from loadcell.tune.sampler.names import named, number, varies
from loadcell.tune.space import Space

_QUANTIZATION: Final = frozenset({"quantization", "quantize", "quant"})
_DRAFTS: Final = frozenset({"numspeculativetokens", "speculativenumsteps"})
_REACH: Final = 2.0  # of a logarithm: half a byte to two, or one token to seven, is about one unit of a column
_WHOLE: Final = (16, 16)

Bits = tuple[int, int]
"""Of a stored weight, and of what it is multiplied with."""

_FORMATS: Final[dict[str, Bits]] = {
    **dict.fromkeys(("", "none", "null", "false", "auto", "bf16", "bfloat16", "fp16", "float16", "half"), _WHOLE),
    **dict.fromkeys(("fp8", "fbgemm_fp8", "ptpc_fp8", "modelopt", "modelopt_fp8", "tpu_int8"), (8, 8)),
    **dict.fromkeys(("awq", "awq_marlin", "gptq", "gptq_marlin", "marlin", "bitsandbytes", "moe_wna16", "auto-round", "hqq"), (4, 16)),
    **dict.fromkeys(("nvfp4", "modelopt_fp4"), (4, 4)),
    **dict.fromkeys(("mxfp4", "petit_nvfp4"), (4, 16)),
    **dict.fromkeys(("qqq", "w4afp8"), (4, 8)),
    "experts_int8": (8, 16),
}
_SPELT: Final = re.compile(r"w([1-9]\d*)a([1-9]\d*)")  # w8a8, w8a8_int8, w4a16


def bits_of(quantization: Value) -> Bits | None:
    """What vLLM, SGLang and MindIE mean by a method's name; null: it is not known, or depends on the checkpoint."""
    text = str(quantization).strip().lower()
    if text in _FORMATS:
        return _FORMATS[text]
    spelt = _SPELT.match(text)
    return (int(spelt[1]), int(spelt[2])) if spelt else None


class Compute:
    """`columns`: names of what `of` gives. A column that no searched parameter would move is left out, as are the bits where one choice is not known."""

    def __init__(self, space: Space) -> None:
        self._space = space
        drafts, quantization = named(space, _DRAFTS), named(space, _QUANTIZATION)
        self._drafts = drafts if varies(space, drafts) else None
        understood = quantization in space.searched and all(bits_of(choice) for choice in space.domains[quantization].values)
        self._quantization = quantization if understood else None
        self.columns: tuple[str, ...] = (
            *(("weight_bits*", "compute_bits*") if self._quantization is not None else ()),
            *(("step_tokens*",) if self._drafts is not None else ()),
        )

    def of(self, configurations: Sequence[Mapping[str, Value]]) -> Floats:
        """(n, columns), logarithms over about 1: of a weight's bits and those it is computed in, of a step's tokens."""
        rows = [self._row(one) for one in configurations] if self.columns else []
        return np.array(rows).reshape(len(configurations), len(self.columns))

    def _row(self, one: Mapping[str, Value]) -> list[float]:
        row: list[float] = []
        if self._quantization is not None:
            weight, computed = bits_of(one.get(self._quantization, "")) or _WHOLE
            row += [math.log(weight / 16) / _REACH, math.log2(16 / computed)]
        if self._drafts is not None:
            row.append(math.log1p(max(0.0, number(self._space, one, self._drafts, 0.0))) / _REACH)
        return row
