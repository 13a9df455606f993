"""Key + index -> random bytes: what each prompt draws, without a generator that has a state.

A prompt depends on its index alone, so that any process can make any prompt, and one worker the same as sixty-four. SHAKE-128 is
a random stream that may be entered anywhere; starting it costs about 1 µs, where seeding a Mersenne Twister costs 8.
"""

import hashlib
import math
from typing import Final

from loadcell.seeds import derive
from loadcell.workload.spec import Purpose, WorkloadSpec

_TWO_52: Final = float(1 << 52)


class Draws:
    """Uniform numbers of one prompt, in order. `count` of them are made at once."""

    __slots__ = ("_bytes", "_next")

    def __init__(self, key: bytes, index: int, count: int) -> None:
        self._bytes = hashlib.shake_128(key + b"n" + index.to_bytes(8, "little")).digest(8 * count)
        self._next = 0

    def uniform(self) -> float:
        """The next number, in (0, 1) and never at its ends: 52 bits and a half are exact in a float."""
        at = self._next
        self._next = at + 8
        return ((int.from_bytes(self._bytes[at : at + 8], "little") >> 12) + 0.5) / _TWO_52

    def normal(self) -> float:
        """A standard normal number (Box and Muller 1958), from the next two."""
        radius = math.sqrt(-2.0 * math.log(self.uniform()))
        return radius * math.cos(2.0 * math.pi * self.uniform())


def text_bytes(key: bytes, index: int, size: int) -> bytes:
    """`size` random bytes for the words of prompt `index`; independent of its `Draws`."""
    return hashlib.shake_128(key + b"t" + index.to_bytes(8, "little")).digest(size)


def prompt_key(spec: WorkloadSpec, purpose: Purpose) -> bytes:
    """What the prompts of one purpose in one cell and repeat derive from. Warm-up prompts never equal measured ones."""
    return _key(spec, purpose)


def prefix_key(spec: WorkloadSpec) -> bytes:
    """What shared prefixes derive from: the same in warm-up and measurement (that is what sharing means), another in each cell."""
    return _key(spec, "prefix")


def _key(spec: WorkloadSpec, purpose: str) -> bytes:
    cell = () if spec.same_prompts else ("cell", spec.cell, spec.repeat)
    return derive(spec.seed, "prompt", purpose, *cell).to_bytes(8, "little")
