"""Tokens cost no memory: ten times as many of them need no more."""

import tracemalloc
from collections.abc import Iterator

from loadcell.metrics.facts import RunFacts
from loadcell.metrics.summarize import summarize
from loadcell.records import Attempt, RequestRecord

from .build import endpoint

REQUESTS = 200


class Streams:
    """Records made as they are read, like those of a log."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def __iter__(self) -> Iterator[RequestRecord]:
        for index in range(REQUESTS):
            sent_us = index * 1000
            gaps = [20_000 + (index * 7919 + k * 104_729) % 1000 for k in range(self.tokens - 1)]
            first, last = sent_us + 50_000, sent_us + 50_000 + sum(gaps)
            one = Attempt(
                endpoint=0,
                outcome="ok",
                sent_ns=sent_us * 1000,
                first_token_ns=first * 1000,
                last_token_ns=last * 1000,
                done_ns=last * 1000,
                chunk_us=[first, *gaps],
                output_tokens=self.tokens,
            )
            yield RequestRecord(index=index, scheduled_ns=sent_us * 1000, outcome="ok", attempts=[one])


def peak_bytes(tokens: int) -> int:
    tracemalloc.start()
    try:
        summary = summarize(RunFacts(endpoints=(endpoint(0),)), Streams(tokens))
        assert summary.whole.latency.itl.n == REQUESTS * (tokens - 1)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_ten_times_the_tokens_need_no_more_memory() -> None:
    few, many = peak_bytes(100), peak_bytes(1000)
    assert many <= few + 8_000_000
    assert many <= 20_000_000
