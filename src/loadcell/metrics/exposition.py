"""The text of a server's `/metrics` -> the few counters and gauges that purity and the prefix-cache check need.

Names differ by engine and version: each tuple below lists them, the newest first. What a server does not show is null.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from loadcell.metrics.facts import PrefixCacheFacts, PurityFacts

GENERATION: Final = ("vllm:request_success_total", "sglang:num_requests_total", "request_success_total")
"""Generation requests that ended, over all labels (vLLM and MindIE count every finish reason)."""
GENERATED: Final = ("vllm:generation_tokens_total", "sglang:generation_tokens_total", "generation_tokens_total")
"""Output tokens, counted as they are made."""
RUNNING: Final = ("vllm:num_requests_running", "sglang:num_running_reqs", "num_requests_running")
WAITING: Final = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "num_requests_waiting")
PREFIX_CACHE: Final = (
    ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    ("vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total"),
    ("sglang:cached_tokens_total", "sglang:prompt_tokens_total"),
)
"""(hits, queries), both in tokens."""
STARTED: Final = "process_start_time_seconds"
_START_TOLERANCE_S: Final = 1.0


class Scrape(Struct, frozen=True):
    """One reading. `started_s`: when the process, or its counter, began (seconds of the server's own wall clock). `engine`: by its metrics' prefix."""

    engine: str | None = None
    counter: str | None = None
    generation_requests: float | None = None
    running: float | None = None
    waiting: float | None = None
    prefix_hits: float | None = None
    prefix_queries: float | None = None
    started_s: float | None = None
    generated: float | None = None

    @property
    def quiet(self) -> bool | None:
        """Nothing runs and nothing waits; null when the server does not say."""
        if self.running is None or self.waiting is None:
            return None
        return self.running == 0 and self.waiting == 0


def parse_metrics(text: str) -> Scrape:
    """Read Prometheus text. What cannot be read as such is a server that shows nothing: every field null."""
    # The parser's package opens HTTP servers on import and takes 0.2 s: only a scrape needs it.
    from prometheus_client.parser import text_string_to_metric_families

    sums: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            if family.type == "counter" and not family.samples:
                sums.setdefault(f"{family.name}_total", 0.0)  # a labelled counter that has not counted yet
            for sample in family.samples:
                if math.isfinite(sample.value):
                    joined = max if sample.name.endswith(("_created", STARTED)) else _add
                    sums[sample.name] = joined(sums[sample.name], sample.value) if sample.name in sums else sample.value
    except ValueError:
        return Scrape()
    counter = next((name for name in GENERATION if name in sums), None)
    hits, queries = next((pair for pair in PREFIX_CACHE if pair[1] in sums), (None, None))
    return Scrape(
        engine=_engine(sums),
        counter=counter,
        generation_requests=sums.get(counter) if counter else None,
        running=_first(sums, RUNNING),
        generated=_first(sums, GENERATED),
        waiting=_first(sums, WAITING),
        prefix_hits=sums.get(hits, 0.0) if hits else None,
        prefix_queries=sums.get(queries) if queries else None,
        started_s=sums.get(STARTED, sums.get(counter.removesuffix("_total") + "_created") if counter else None),
    )


def purity_facts(before: Scrape | None, after: Scrape | None, settled: bool) -> PurityFacts:
    """Two quiet scrapes -> what purity needs. `settled`: the later one was quiet and its counters stood still."""
    if before is None or after is None:
        return PurityFacts(counter=(after or before or Scrape()).counter)
    first = before.generation_requests
    if first is None and before.engine is not None and before.engine == after.engine:
        first = 0.0  # the engine was up and had not counted a request yet
    return PurityFacts(
        before=first, after=after.generation_requests, counter=after.counter or before.counter, settled=settled, reset=_reset(before, after)
    )


def prefix_cache_facts(before: Scrape | None, after: Scrape | None) -> PrefixCacheFacts | None:
    """Growth of the prefix-cache counters; null without them or after a reset."""
    if before is None or after is None or after.prefix_hits is None or after.prefix_queries is None or _reset(before, after):
        return None
    hits, queries = after.prefix_hits - (before.prefix_hits or 0.0), after.prefix_queries - (before.prefix_queries or 0.0)
    return PrefixCacheFacts(hits=hits, queries=queries) if hits >= 0 and queries >= 0 else None


def _reset(before: Scrape, after: Scrape) -> bool:
    """The server's counters began anew between the two."""
    if before.started_s is not None and after.started_s is not None and abs(after.started_s - before.started_s) > _START_TOLERANCE_S:
        return True
    first, second = before.generation_requests, after.generation_requests
    return first is not None and second is not None and second < first


def _add(one: float, other: float) -> float:
    return one + other


def _first(sums: Mapping[str, float], names: Iterable[str]) -> float | None:
    return next((sums[name] for name in names if name in sums), None)


def _engine(names: Iterable[str]) -> str | None:
    return next((name.partition(":")[0] for name in names if name.startswith(("vllm:", "sglang:"))), None)
