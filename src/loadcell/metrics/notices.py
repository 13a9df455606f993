"""What a reader should know before the figures: one line each. None of it changes the verdict."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from loadcell.metrics.facts import RunFacts
from loadcell.metrics.figures import column
from loadcell.metrics.summary import Figures, FirstWave
from loadcell.metrics.tally import Tally

FIRST_WAVE: Final = 10
FIRST_WAVE_RATIO: Final = 3.0
SINGLE_EVENT_SHARE: Final = 0.9
COALESCED_SHARE: Final = 0.1
CLOCK_SHARE: Final = 0.01
_NS_PER_MS: Final = 1_000_000


def first_wave(tallies: Sequence[Tally], cap: int | None) -> FirstWave | None:
    """The first ten ok requests (fewer under a smaller cap) against the later ones; null when there are not ten later ones to compare with."""
    if not tallies:
        return None
    sent = np.concatenate([np.frombuffer(tally.sent, dtype=np.int64) for tally in tallies])
    for name in ("ttft", "e2e"):
        values = column(tallies, name)
        values = values[np.argsort(sent, kind="stable")]
        values = values[~np.isnan(values)]
        size = min(FIRST_WAVE, cap or FIRST_WAVE)
        if len(values) < size + FIRST_WAVE:
            continue
        first, later = float(np.median(values[:size])), float(np.median(values[size:]))
        if later <= 0:
            return None
        ratio = first / later
        return FirstWave(
            requests=size,
            median_ms=round(first / _NS_PER_MS, 6),
            later_median_ms=round(later / _NS_PER_MS, 6),
            ratio=ratio,
            outlier=ratio >= FIRST_WAVE_RATIO,
        )
    return None


def notices(facts: RunFacts, whole: Figures, by_endpoint: Mapping[str, Sequence[Tally]], wave: FirstWave | None) -> list[str]:
    """The runner's own notices, then ours."""
    found = list(facts.notices)
    if facts.partial:
        lost = f": worker {', '.join(map(str, facts.lost_workers))} died" if facts.lost_workers else ""
        found.append(f"the run is partial{lost}")
    if wave is not None and wave.outlier:
        found.append(
            f"the first {wave.requests} requests took {wave.median_ms:.4g} ms in the median, later ones {wave.later_median_ms:.4g} ms: "
            "warm up with --warmup-requests, or let a closed loop grow with --ramp-concurrency"
        )
    for name, tallies in by_endpoint.items():
        found.extend(_of_endpoint(name, tallies, facts.dropped_fields.get(name, [])))
    found.extend(_of_counts(facts, whole))
    return found


def _of_endpoint(name: str, tallies: Sequence[Tally], dropped_fields: Sequence[str]) -> Iterator[str]:
    long_answers = sum(tally.long_answers for tally in tallies)
    single = sum(tally.single_event_answers for tally in tallies)
    if long_answers and single >= SINGLE_EVENT_SHARE * long_answers:
        yield f"{name} does not stream token by token: {single} of {long_answers} answers came in a single event or a single read; TPOT, ICL and ITL are null there"
    hidden = sum(tally.hidden_reasoning for tally in tallies)
    if hidden:
        yield f"{name} hides its reasoning: {hidden} answers had tokens before the first visible event; no decode speed is claimed for them"
    if dropped_fields:
        yield f"{name} refused {', '.join(dropped_fields)}: sent without"


def _of_counts(facts: RunFacts, whole: Figures) -> Iterator[str]:
    tokens, stamps, counts = whole.tokens, whole.stamps, whole.counts
    estimated = sum(count for source, count in tokens.output_sources.items() if source in ("chunks", "estimated"))
    if estimated:
        yield f"output tokens of {estimated} of {counts.ok} ok requests are counted as chunks: the server sent no usage"
    if tokens.input_sources.get("estimated"):
        yield f"input tokens of {tokens.input_sources['estimated']} of {counts.ok} ok requests are estimated from words"
    if tokens.first_chunk_estimated:
        yield f"TPOT of {tokens.first_chunk_estimated} requests rests on an estimate of the tokens in the first chunk"
    if facts.tokenizer.off_target is not None:
        off = facts.tokenizer.off_target
        mean = "" if off.mean is None else f" (mean {off.mean:+.1f})"
        yield f"{off.n} prompts missed their token length by {off.min:+d} to {off.max:+d} tokens{mean}"
    if stamps.coalesced_share is not None and stamps.coalesced_share > COALESCED_SHARE:
        yield f"{stamps.coalesced_share:.0%} of the output events shared a read with a later one: their gaps are upper bounds"
    if stamps.clock_share and stamps.clock_share > CLOCK_SHARE and stamps.kind == "kernel":
        yield f"{stamps.clock} of {stamps.events} output events were stamped by the client's clock, not by the kernel"
    if counts.stale_replays:
        yield f"{counts.stale_replays} requests were sent again on a fresh connection: the server had closed a kept one"
    if counts.malformed_events:
        yield f"{counts.malformed_events} malformed events were skipped"
    if facts.reused_prompts:
        yield (
            f"{facts.reused_prompts} prompts were sent more than once: the data set is smaller than the run, "
            "and a server's prefix cache may have answered them"
        )
    if facts.skipped_rows:
        why = ", ".join(f"{count} {reason}" for reason, count in facts.skipped_why.items())
        yield f"{facts.skipped_rows} rows of the data set were skipped" + (f" ({why})" if why else "")
    if facts.capped_rows:
        yield f"the outputs of {facts.capped_rows} rows of the data set were shortened to fit the context (--oversize cap)"
    if facts.blank_lines:
        yield f"{facts.blank_lines} blank lines of the data set were skipped"
    peak = whole.concurrency.max
    if facts.concurrency_cap is not None and peak is not None and peak > facts.concurrency_cap:
        yield f"{peak} requests were in flight under a cap of {facts.concurrency_cap}: please report this as a fault of loadcell"
