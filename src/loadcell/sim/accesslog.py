"""The engine's own truth: one JSON line per HTTP request, and the reader of it.

Times are ns of CLOCK_MONOTONIC, comparable with any process of the same machine. A chunk's time is read right before the send that
carries it. Chunk times are stored as µs gaps: `first_token_ns`, then the growth of the whole µs since it, so errors never add up.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from loadcell.errors import UserError

Outcome = Literal["finished", "aborted", "error"]


class AccessLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. `status` is null when no answer was begun; `aborted`: the client left, or the engine was stopped.

    Generations have `model` and what follows. `first_token_ns`/`last_token_ns`: sends of the first and last chunk with output; of a
    non-streamed answer only the last, the body's. `output_tokens` counts as usage does: an answer that ended by itself (`stop`) has
    one token, the end token, that no chunk carries. `gaps_us` has one entry less than there were chunks; `chunk_tokens` is left out where
    each carried one. `engine_cached_tokens` were found in the prefix cache.
    """

    method: str
    path: str
    client: str
    arrival_ns: int
    end_ns: int
    status: int | None = None
    outcome: Outcome = "finished"
    request_id: str | None = None
    response_id: str | None = None
    model: str | None = None
    stream: bool = False
    prompt_head: str | None = None
    prompt_tokens: int | None = None
    engine_cached_tokens: int = 0
    output_tokens: int | None = None
    finish_reason: str | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    gaps_us: tuple[int, ...] = ()
    chunk_tokens: tuple[int, ...] = ()
    fault: str | None = None

    @property
    def is_generation(self) -> bool:
        """Did it ask for tokens (whatever became of it)?"""
        return self.method == "POST" and self.path.endswith("/completions")

    @property
    def chunk_ns(self) -> list[int]:
        """Send time of each chunk with output, true to 1 µs; empty where nothing was streamed."""
        if self.first_token_ns is None:
            return []
        return [self.first_token_ns + us * 1000 for us in accumulate(self.gaps_us, initial=0)]

    @property
    def token_ns(self) -> list[int]:
        """Send time of each token that a chunk carried: a chunk of three counts three times."""
        chunks = self.chunk_ns
        if not self.chunk_tokens:
            return chunks
        return [at for at, n in zip(chunks, self.chunk_tokens, strict=True) for _ in range(n)]


def gaps_us(chunk_ns: Sequence[int]) -> tuple[int, ...]:
    """Gaps in µs such that their running sum is the floor of each chunk's distance to the first."""
    if len(chunk_ns) < 2:
        return ()
    first = chunk_ns[0]
    whole = [(at - first) // 1000 for at in chunk_ns]
    return tuple(b - a for a, b in pairwise(whole))


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AccessLine)


def encode_line(line: AccessLine) -> bytes:
    return _encoder.encode(line) + b"\n"


def decode_lines(lines: Iterable[bytes], source: str) -> Iterator[AccessLine]:
    """Each complete line; one without a newline at the end is still being written and is left out."""
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            return
        try:
            yield _decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise UserError(f"{source}:{number}: not a line of an access log: {error}") from error


def read_access_log(path: str | Path) -> list[AccessLine]:
    """All lines, in the order in which requests ended. Raises UserError for a line that is none, FileNotFoundError."""
    with Path(path).open("rb") as file:
        return list(decode_lines(file, str(path)))
