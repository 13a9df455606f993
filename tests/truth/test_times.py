"""Each time that the client reports against the moment at which the engine sent: medians are tight, tails generous to a busy machine."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from loadcell.api import BenchResult
from loadcell.client.stamps import kernel_stamps_work
from loadcell.clock import realtime_offset_ns
from loadcell.sim.inprocess import RunningEngine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(90),
    pytest.mark.skipif(not kernel_stamps_work(), reason="this kernel does not stamp what it receives"),
]

US, MS = 1_000, 1_000_000


@pytest.mark.parametrize(
    ("workers", "streams", "itl_ms", "tokens", "prompts"), [(1, 64, 20.0, 60, 192), (1, 512, 50.0, 30, 1024), (2, 512, 50.0, 30, 1024)]
)
def test_ttft_and_gaps_agree_with_what_the_engine_sent(
    engines: Callable[..., RunningEngine],
    load: Callable[..., BenchResult],
    pairs: Callable,
    streams: int,
    itl_ms: float,
    tokens: int,
    prompts: int,
    workers: int,
) -> None:
    offset_ns = realtime_offset_ns()
    engine = engines(ttft_ms=150.0, itl_ms=itl_ms)
    result = load(engine, prompts=prompts, tokens=tokens, concurrency=streams, workers=workers)
    joined = pairs(result, engine)
    assert {pair.attempt.outcome for pair in joined} == {"ok"}
    assert {pair.attempt.output_tokens for pair in joined} == {tokens}
    late = np.array([pair.origin_ns + pair.attempt.first_token_ns - pair.line.first_token_ns for pair in joined])
    assert late.min() > -100 * US  # nothing is seen before it was sent, but for the two clocks' offset
    assert np.median(late) < 0.3 * MS
    assert np.percentile(late, 99) < 20 * MS
    asked = np.array([pair.line.arrival_ns - pair.origin_ns - pair.attempt.sent_ns for pair in joined])
    assert asked.min() > 0
    # The client's TTFT is the engine's and the way there, which the engine's own queue for its processor is part of.
    ttft = np.array([pair.attempt.first_token_ns - pair.attempt.sent_ns for pair in joined])
    truth = np.array([pair.line.first_token_ns - pair.line.arrival_ns for pair in joined])
    assert abs(np.median(ttft - truth - asked)) < 0.3 * MS
    assert result.summary.whole.latency.ttft.percentiles_ms["p50"] == pytest.approx(float(np.median(ttft)) / MS, abs=0.001)

    error: list[int] = []
    for pair in joined:
        seen, sent = pair.client_ns(), pair.line.chunk_ns
        assert len(seen) == len(sent) == tokens
        error += [(b - a) - (d - c) for (a, b), (c, d) in zip(pairwise(seen), pairwise(sent), strict=True)]
    errors = np.abs(np.array(error))
    assert np.median(errors) < 60 * US
    assert np.percentile(errors, 99) < 5 * MS
    assert abs(np.mean(error)) < 50 * US  # a bias would move every TPOT
    icl = result.summary.whole.latency.icl
    truth_p50 = float(np.median([b - a for pair in joined for a, b in pairwise(pair.line.chunk_ns)])) / MS
    assert icl.percentiles_ms["p50"] == pytest.approx(truth_p50, rel=0.02)
    # A host that steps the wall clock meanwhile takes the kernel's stamps away, not the truth of the figures above.
    stepped = abs(realtime_offset_ns() - offset_ns) > 100_000
    assert result.summary.whole.stamps.clock_share < 0.05 or stepped


@pytest.mark.parametrize("stream", [True, False])
def test_the_ends_agree_whether_streamed_or_not(
    engines: Callable[..., RunningEngine], load: Callable[..., BenchResult], pairs: Callable, stream: bool
) -> None:
    engine = engines(ttft_ms=30.0, itl_ms=5.0)
    result = load(engine, prompts=40, tokens=10, concurrency=8, stream=stream)
    joined = pairs(result, engine)
    late = np.array([pair.origin_ns + pair.attempt.last_token_ns - pair.line.last_token_ns for pair in joined])
    assert late.min() > -100 * US
    assert np.median(late) < 0.3 * MS
    truth = float(np.median([pair.line.last_token_ns - pair.line.arrival_ns for pair in joined])) / MS
    assert result.summary.whole.latency.e2e.percentiles_ms["p50"] == pytest.approx(truth, abs=3)
    assert result.summary.whole.latency.ttft.n == (40 if stream else 0)
