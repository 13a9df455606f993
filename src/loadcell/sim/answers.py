"""What the engine says and for how long: functions of the seed and the prompt, so that equal requests get equal answers.

The text is words of the tokenizer's word range: encoding it gives exactly the tokens that were generated.
"""

import hashlib
import math
from array import array
from collections.abc import Sequence
from random import Random
from typing import Final

from loadcell.sim import tokens
from loadcell.sim.spec import SimSpec

RING: Final = 8192  # a prime would do as well; a power of two lets the server mask instead of divide
_rng = Random(20230612)
RING_IDS: Final[list[int]] = [tokens.FIRST_WORD + _rng.randrange(tokens.WORDS) for _ in range(RING)]
RING_TEXT: Final[list[bytes]] = [tokens.token_bytes(i) for i in RING_IDS]  # four bytes each: a space and three letters


def prompt_key(seed: int, prompt_ids: Sequence[int], salt: int | None) -> int:
    """62 bits that depend on the engine's seed, the prompt and the request's own seed alone."""
    digest = hashlib.blake2b(array("I", prompt_ids).tobytes(), digest_size=8, key=f"{seed}:{salt}".encode())
    return int.from_bytes(digest.digest(), "big") >> 2


def ring_ids(start: int, count: int) -> list[int]:
    """`count` generated token ids from place `start` of the ring."""
    start %= RING
    if start + count <= RING:
        return RING_IDS[start : start + count]
    return [RING_IDS[(start + i) % RING] for i in range(count)]


def natural_length(spec: SimSpec, key: int) -> int:
    """Tokens, the end token included, after which an answer ends by itself: lognormal with the given mean, at least 1."""
    if spec.output_spread <= 0:
        return max(1, round(spec.mean_output_tokens))
    mu = math.log(spec.mean_output_tokens) - spec.output_spread**2 / 2
    return max(1, round(Random(key).lognormvariate(mu, spec.output_spread)))


def planned_answer(spec: SimSpec, key: int, *, max_tokens: int, min_tokens: int, ignore_eos: bool) -> tuple[int, str]:
    """Tokens that the request will generate, and its finish_reason ("stop" has the end token as its last one)."""
    if ignore_eos:
        return max_tokens, "length"
    natural = max(natural_length(spec, key), min_tokens + 1, 2)
    return (max_tokens, "length") if natural > max_tokens else (natural, "stop")
