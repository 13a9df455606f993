"""RequestRecord -> Sample: one request as the other tools' formats see it (its final attempt, one token in the first chunk).

docs/metrics.md lists how these definitions differ from ours; the renderers of seed.py and vllm.py share them.
"""

from msgspec import Struct

from loadcell.metrics.facts import RunFacts
from loadcell.records import Attempt, RequestRecord

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


class Sample(Struct, frozen=True, gc=False):
    """Times in ms, of the final attempt; null where the attempt did not get that far. `gaps_us`: µs between output events.

    `tpot_ms` = (last token − first token) / (output tokens − 1): null below two tokens or when their number is unknown.
    """

    ok: bool
    error: str
    endpoint: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    sent_ns: int | None = None
    end_ns: int | None = None
    ttft_ms: float | None = None
    e2e_ms: float | None = None
    tpot_ms: float | None = None
    gaps_us: list[int] = []


class Span:
    """The time that the other tools divide by: from the first arrival to the end of the last request.

    The whole run, the drain included, because their counts include what ended there.
    """

    def __init__(self, facts: RunFacts) -> None:
        self._given_start_ns = facts.window_start_ns
        self._end_ns = facts.window_end_ns
        self._first_ns: int | None = None

    def add(self, record: RequestRecord, one: Sample) -> None:
        self._first_ns = record.scheduled_ns if self._first_ns is None else min(self._first_ns, record.scheduled_ns)
        if one.end_ns is not None:
            self._end_ns = one.end_ns if self._end_ns is None else max(self._end_ns, one.end_ns)

    @property
    def start_ns(self) -> int | None:
        return self._first_ns if self._given_start_ns is None else self._given_start_ns

    def seconds(self) -> float | None:
        start_ns = self.start_ns
        return None if start_ns is None or self._end_ns is None else (self._end_ns - start_ns) / NS_PER_S


class TokenTotals:
    """Tokens of the requests that succeeded. One request of unknown length makes the total unknown, not smaller."""

    def __init__(self) -> None:
        self.input: int | None = 0
        self.output: int | None = 0

    def add(self, one: Sample) -> None:
        self.input = None if self.input is None or one.input_tokens is None else self.input + one.input_tokens
        self.output = None if self.output is None or one.output_tokens is None else self.output + one.output_tokens

    def both(self) -> int | None:
        return None if self.input is None or self.output is None else self.input + self.output


def per_second(amount: int | None, seconds: float | None) -> float | None:
    return None if amount is None or seconds is None or seconds <= 0 else amount / seconds


def sample(record: RequestRecord) -> Sample:
    """The request as its final attempt left it. Without an attempt only the error and the length asked are known."""
    if not record.attempts:
        return Sample(ok=False, input_tokens=record.input_asked, error=_error(record, None))
    last = record.attempts[-1]
    return Sample(
        ok=record.outcome == "ok",
        endpoint=last.endpoint,
        input_tokens=record.input_asked if last.input_tokens is None else last.input_tokens,
        output_tokens=last.output_tokens,
        sent_ns=last.sent_ns,
        end_ns=last.last_token_ns if last.done_ns is None else last.done_ns,
        ttft_ms=_span_ms(last.sent_ns, last.first_token_ns),
        e2e_ms=_span_ms(last.sent_ns, last.last_token_ns),
        tpot_ms=_tpot_ms(last),
        gaps_us=last.chunk_us[1:],
        error=_error(record, last),
    )


def _span_ms(start_ns: int | None, end_ns: int | None) -> float | None:
    return None if start_ns is None or end_ns is None else (end_ns - start_ns) / NS_PER_MS


def _tpot_ms(attempt: Attempt) -> float | None:
    decode_ms = _span_ms(attempt.first_token_ns, attempt.last_token_ns)
    if decode_ms is None or attempt.output_tokens is None or attempt.output_tokens < 2:
        return None
    return decode_ms / (attempt.output_tokens - 1)


def _error(record: RequestRecord, last: Attempt | None) -> str:
    """Empty for a success; else the outcome, and what was said."""
    if record.outcome == "ok":
        return ""
    said = (last.error if last is not None else None) or record.error
    return f"{record.outcome}: {said}" if said else record.outcome
