"""Counters of the engine -> the text that vLLM's /metrics gives. Pure: counts in, bytes out."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

_TTFT_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_S: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST_S: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_TOKENS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0, 100000.0)
FINISH_REASONS: Final = ("stop", "length", "abort", "error")


class Histogram:
    """Counts by upper bound, as Prometheus has them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def lines(self, name: str, labels: str) -> list[str]:
        out, below = [f"# TYPE {name} histogram"], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            below += count
            out.append(f'{name}_bucket{{{labels},le="{bound}"}} {float(below)}')
        return [*out, f"{name}_count{{{labels}}} {float(below)}", f"{name}_sum{{{labels}}} {self.total!r}"]


class Counters:
    """All that the engine counts itself; the gauges are handed over at each scrape."""

    def __init__(self) -> None:
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.histograms = {
            "vllm:time_to_first_token_seconds": Histogram(_TTFT_S),
            "vllm:inter_token_latency_seconds": Histogram(_TOKEN_S),
            "vllm:request_time_per_output_token_seconds": Histogram(_TOKEN_S),
            "vllm:e2e_request_latency_seconds": Histogram(_REQUEST_S),
            "vllm:request_queue_time_seconds": Histogram(_REQUEST_S),
            "vllm:request_inference_time_seconds": Histogram(_REQUEST_S),
            "vllm:request_prompt_tokens": Histogram(_TOKENS),
            "vllm:request_generation_tokens": Histogram(_TOKENS),
        }

    def observe_answer(self, *, arrival_ns: int, scheduled_ns: int, token_ns: Sequence[int], prompt_tokens: int, tokens: int) -> None:
        """Enter a finished answer; `token_ns` are the moments at which the engine had each chunk of tokens."""
        seconds = self.histograms
        first, last = token_ns[0], token_ns[-1]
        seconds["vllm:time_to_first_token_seconds"].observe((first - arrival_ns) / 1e9)
        between = seconds["vllm:inter_token_latency_seconds"]
        previous = first
        for at in token_ns[1:]:
            between.observe((at - previous) / 1e9)
            previous = at
        if tokens > 1:
            seconds["vllm:request_time_per_output_token_seconds"].observe((last - first) / 1e9 / (tokens - 1))
        seconds["vllm:e2e_request_latency_seconds"].observe((last - arrival_ns) / 1e9)
        seconds["vllm:request_queue_time_seconds"].observe(max(0, scheduled_ns - arrival_ns) / 1e9)
        seconds["vllm:request_inference_time_seconds"].observe((last - scheduled_ns) / 1e9)
        seconds["vllm:request_prompt_tokens"].observe(prompt_tokens)
        seconds["vllm:request_generation_tokens"].observe(tokens)


class EngineGauges:
    """State of one engine (data-parallel rank) at a scrape."""

    __slots__ = ("hits", "kv_usage", "preemptions", "queries", "running", "waiting")

    def __init__(self, *, running: int, waiting: int, kv_usage: float, queries: int, hits: int, preemptions: int) -> None:
        self.running = running
        self.waiting = waiting
        self.kv_usage = kv_usage
        self.queries = queries
        self.hits = hits
        self.preemptions = preemptions


def render(counters: Counters, engines: Sequence[EngineGauges], model: str, *, prompt_tokens: int = 0, generation_tokens: int = 0) -> bytes:
    """The page. Gauges and cache counters per engine; request counters stand under engine 0.

    `prompt_tokens` and `generation_tokens` are those of answers still on their way.
    """
    name = model.replace("\\", "\\\\").replace('"', '\\"')
    lines: list[str] = []

    def per_engine(metric: str, kind: str, values: Sequence[float]) -> None:
        lines.append(f"# TYPE {metric} {kind}")
        lines.extend(f'{metric}{{engine="{i}",model_name="{name}"}} {float(value)!r}' for i, value in enumerate(values))

    per_engine("vllm:num_requests_running", "gauge", [e.running for e in engines])
    per_engine("vllm:num_requests_waiting", "gauge", [e.waiting for e in engines])
    per_engine("vllm:kv_cache_usage_perc", "gauge", [e.kv_usage for e in engines])
    per_engine("vllm:prefix_cache_queries_total", "counter", [e.queries for e in engines])
    per_engine("vllm:prefix_cache_hits_total", "counter", [e.hits for e in engines])
    per_engine("vllm:num_preemptions_total", "counter", [e.preemptions for e in engines])
    per_engine("vllm:prompt_tokens_total", "counter", [counters.prompt_tokens + prompt_tokens])
    per_engine("vllm:generation_tokens_total", "counter", [counters.generation_tokens + generation_tokens])
    lines.append("# TYPE vllm:request_success_total counter")
    for reason, count in counters.finished.items():
        lines.append(f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="{name}"}} {float(count)!r}')
    labels = f'engine="0",model_name="{name}"'
    for metric, histogram in counters.histograms.items():
        lines.extend(histogram.lines(metric, labels))
    return ("\n".join(lines) + "\n").encode()
