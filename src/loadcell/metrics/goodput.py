"""One `ok` request against the limits: did it meet every one, as its user saw it?

A figure that is undefined for the request (TPOT of one token) meets its limit; one that is unknown fails it. Times run from the first attempt's
`sent` (open loop: from the schedule), so that a retry's lost time counts.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

from loadcell.metrics.latency import RequestLatency, gaps_us, token_gaps, tokens_after_first_chunk, user_start_ns
from loadcell.metrics.slo import Slo
from loadcell.records import Attempt, RequestRecord

NS_PER_MS: Final = 1_000_000
US_PER_MS: Final = 1_000
UNDEFINED: Final = -math.inf
"""Below every limit."""


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / NS_PER_MS


def _from_start(record: RequestRecord, stamp_ns: int | None, open_loop: bool) -> float | None:
    start_ns = user_start_ns(record, open_loop)
    return None if start_ns is None or stamp_ns is None else (stamp_ns - start_ns) / NS_PER_MS


def _tpot_ms(attempt: Attempt, latency: RequestLatency) -> float | None:
    return UNDEFINED if tokens_after_first_chunk(attempt)[0] == 0 else _ms(latency.tpot)


def _icl_ms(attempt: Attempt) -> float | None:
    gaps = gaps_us(attempt)
    return sum(gaps) / len(gaps) / US_PER_MS if gaps else _undefined_if_streamed(attempt)


def _itl_ms(attempt: Attempt) -> float | None:
    if not gaps_us(attempt):
        return _undefined_if_streamed(attempt)
    pairs = token_gaps(attempt)
    if pairs is None:
        return None
    gaps, tokens = pairs
    return sum(gaps) / sum(tokens) / US_PER_MS if tokens else UNDEFINED


def _undefined_if_streamed(attempt: Attempt) -> float | None:
    """One chunk has no gap; an answer without chunks has gaps that nobody saw."""
    return UNDEFINED if attempt.chunk_us else None


_Figure = Callable[[RequestRecord, Attempt, RequestLatency, bool], float | None]

FIGURES: Final[dict[str, _Figure]] = {
    "ttft": lambda record, attempt, _latency, open_loop: _from_start(record, attempt.first_token_ns, open_loop),
    "ttfa": lambda record, attempt, _latency, open_loop: _from_start(record, attempt.first_answer_ns, open_loop),
    "e2e": lambda record, attempt, _latency, open_loop: _from_start(record, attempt.last_token_ns, open_loop),
    "tpot": lambda _record, attempt, latency, _open_loop: _tpot_ms(attempt, latency),
    "itl": lambda _record, attempt, _latency, _open_loop: _itl_ms(attempt),
    "icl": lambda _record, attempt, _latency, _open_loop: _icl_ms(attempt),
    "max_stall": lambda _record, attempt, latency, _open_loop: (
        _ms(latency.max_stall) if latency.max_stall is not None else _undefined_if_streamed(attempt)
    ),
    "scheduled_ttft": lambda _record, _attempt, latency, _open_loop: _ms(latency.scheduled_ttft),
    "scheduled_e2e": lambda _record, _attempt, latency, _open_loop: _ms(latency.scheduled_e2e),
    "queue_delay": lambda _record, _attempt, latency, _open_loop: _ms(latency.queue_delay),
}


def per_request_limits(slos: Sequence[Slo]) -> list[Slo]:
    """The limits that one request can meet or miss: all but success rates."""
    return [slo for slo in slos if slo.metric in FIGURES]


def meets(record: RequestRecord, attempt: Attempt, latency: RequestLatency, limits: Sequence[Slo], open_loop: bool) -> bool:
    """Whether an `ok` request meets every limit (the limits' statistics set aside). Pooled metrics enter as the request's own mean."""
    for slo in limits:
        value = FIGURES[slo.metric](record, attempt, latency, open_loop)
        if value is None or value > slo.limit:
            return False
    return True
