"""Seed + purpose -> an independent stream of random numbers.

Streams derive from what they are for, never from a worker's number, so that 1 and 64 workers draw the same load.
Seed 0 is as good as any other; a run without a seed does not exist.
"""

import hashlib
import random


def derive(seed: int, *purpose: str | int) -> int:
    """A 64-bit seed for `purpose`. Stable over Python versions and processes (SHA-256, not `hash`)."""
    text = "\x1f".join((str(seed), *(f"{type(part).__name__}:{part}" for part in purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def fresh() -> int:
    """A seed that no run has had, for one that asks for none: repeated prompts would measure the server's prefix cache."""
    return random.SystemRandom().getrandbits(31)


def stream(seed: int, *purpose: str | int) -> random.Random:
    """A generator of its own for `purpose`."""
    return random.Random(derive(seed, *purpose))
