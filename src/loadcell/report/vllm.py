"""Records -> the result JSON of `vllm bench serve`, by that tool's keys, units and definitions.

Its `itl` pools the raw gaps between chunks, its `tpot` takes one token in the first chunk, its peak of tokens per second counts chunks,
and its statistics divide by n. Two things are ours: what was not measured is null (it prints 0), and a chunk without output is no token.
Source: vllm/benchmarks/serve.py, `calculate_metrics` and `main_async`.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from loadcell.errors import UserError
from loadcell.metrics.facts import RunFacts
from loadcell.metrics.slo import Slo
from loadcell.metrics.stats import GapPool
from loadcell.records import RequestRecord
from loadcell.report.pool import TimePool, gap_samples, statistics
from loadcell.report.sample import NS_PER_MS, NS_PER_S, Sample, Span, TokenTotals, per_second, sample

METRICS: Final = ("ttft", "tpot", "itl", "e2el")
_GOODPUT: Final = ("ttft", "tpot", "e2e")
US_PER_S: Final = 1_000_000


class VllmOptions(Struct, frozen=True):
    """What the format repeats of the command line. `date`: %Y%m%d-%H%M%S. `request_rate` inf: everything at once.

    `origin_monotonic_ns` turns stamps into the monotonic seconds that the tool writes as `start_times`.
    """

    date: str
    backend: str
    model_id: str
    label: str | None = None
    tokenizer_id: str | None = None
    num_prompts: int | None = None
    request_rate: float = float("inf")
    burstiness: float = 1.0
    max_concurrency: int | None = None
    ramp_up_strategy: str | None = None
    ramp_up_start_rps: float | None = None
    ramp_up_end_rps: float | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    percentile_metrics: tuple[str, ...] = ("ttft", "tpot", "itl")
    percentiles: tuple[float, ...] = (99.0,)
    detailed: bool = False
    origin_monotonic_ns: int = 0


def file_name(options: VllmOptions) -> str:
    """The tool's own default name. A path separator in a label or model never becomes a folder."""
    label = (options.label or options.backend).replace("/", "_")
    model = options.model_id.split("/")[-1]
    concurrency = "" if options.max_concurrency is None else f"-concurrency{options.max_concurrency}"
    rate = f"{options.request_rate}qps"
    if options.ramp_up_strategy is not None:
        rate = f"ramp-up-{options.ramp_up_strategy}-{_rps(options.ramp_up_start_rps)}qps-{_rps(options.ramp_up_end_rps)}qps"
    return f"{label}-{rate}{concurrency}-{model}-{options.date}.json"


def _rps(rate: float | None) -> str:
    return "None" if rate is None else f"{rate:g}"


class _Totals:
    """One pass over the records."""

    def __init__(self, facts: RunFacts) -> None:
        self.goodput = facts.goodput_slos
        self.span = Span(facts)
        self.completed = 0
        self.failed = 0
        self.good = 0
        self.tokens = TokenTotals()
        self.times = {name: TimePool() for name in METRICS if name != "itl"}
        self.gaps = GapPool()
        self.starts_ns = array("q")
        self.ends_ns = array("q")

    def add(self, record: RequestRecord, one: Sample) -> None:
        self.span.add(record, one)
        if not one.ok:
            self.failed += 1
            return
        self.completed += 1
        self.good += all(_meets(slo, one) for slo in self.goodput)
        self.tokens.add(one)
        self.times["ttft"].add(one.ttft_ms)
        self.times["tpot"].add(one.tpot_ms)
        self.times["e2el"].add(one.e2e_ms)
        self.gaps.add(one.gaps_us)
        if one.sent_ns is not None and one.e2e_ms is not None:
            self.starts_ns.append(one.sent_ns)
            self.ends_ns.append(one.sent_ns + round(one.e2e_ms * NS_PER_MS))


def _meets(slo: Slo, one: Sample) -> bool:
    """The tool's rule: a TPOT of one token counts as 0. What is unknown fails."""
    if slo.metric == "tpot" and one.output_tokens is not None and one.output_tokens < 2:
        return True
    value = {"ttft": one.ttft_ms, "tpot": one.tpot_ms, "e2e": one.e2e_ms}[slo.metric]
    return value is not None and value <= slo.limit


def encode(records: Iterable[RequestRecord], facts: RunFacts, options: VllmOptions) -> Iterator[bytes]:
    """The JSON object in pieces (no newline). `records` is iterated once per pass (a `Log`, a list): never all in memory.

    UserError when `--goodput` limits something that this format cannot express.
    """
    for slo in facts.goodput_slos:
        if slo.metric not in _GOODPUT:
            raise UserError(f"--save-result: its goodput knows ttft, tpot and e2el, not {slo.metric!r}; use --slo for {slo.text!r}")
    totals = _Totals(facts)
    for record in _measured(records):
        totals.add(record, sample(record))
    result = {**_settings(options), **_figures(records, totals, options)}
    columns = dict(_columns(records, totals, options)) if options.detailed else {}
    body = msgspec.json.encode({key: value for key, value in result.items() if key not in columns})
    yield body[:-1]
    for name, values in columns.items():
        yield b"," + msgspec.json.encode(name) + b":["
        for position, value in enumerate(values):
            yield (b"," if position else b"") + msgspec.json.encode(value)
        yield b"]"
    yield b"}"


def _measured(records: Iterable[RequestRecord]) -> Iterator[RequestRecord]:
    return (record for record in records if record.phase == "measure")


def _settings(options: VllmOptions) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "date": options.date,
        "endpoint_type": options.backend,
        "backend": options.backend,
        "label": options.label,
        "model_id": options.model_id,
        "tokenizer_id": options.tokenizer_id,
        "num_prompts": options.num_prompts,
        **dict(options.metadata),
        "request_rate": "inf" if options.request_rate == float("inf") else options.request_rate,
        "burstiness": options.burstiness,
        "max_concurrency": options.max_concurrency,
    }
    if options.ramp_up_strategy is not None:
        settings["ramp_up_strategy"] = options.ramp_up_strategy
        settings["ramp_up_start_rps"] = options.ramp_up_start_rps
        settings["ramp_up_end_rps"] = options.ramp_up_end_rps
    return settings


def _figures(records: Iterable[RequestRecord], totals: _Totals, options: VllmOptions) -> dict[str, Any]:
    seconds = totals.span.seconds()
    tokens = totals.tokens
    figures: dict[str, Any] = {
        "duration": seconds,
        "completed": totals.completed,
        "failed": totals.failed,
        "total_input_tokens": tokens.input,
        "total_output_tokens": tokens.output,
        "request_throughput": per_second(totals.completed, seconds),
        "request_goodput": per_second(totals.good, seconds) if totals.goodput else None,
        "output_throughput": per_second(tokens.output, seconds),
        "total_token_throughput": per_second(tokens.both(), seconds),
        "max_output_tokens_per_s": _peak_chunks(records, totals),
        "max_concurrent_requests": _peak_in_flight(totals),
        "rtfx": None,  # a factor of audio
    }
    for name in METRICS:
        if name in options.percentile_metrics:
            samples = gap_samples(totals.gaps) if name == "itl" else totals.times[name].samples()
            figures.update(statistics(name, samples, options.percentiles))
    return figures


def _peak_chunks(records: Iterable[RequestRecord], totals: _Totals) -> float | None:
    """Most chunks in one second, seconds counted from the first send of a request that succeeded."""
    if not totals.starts_ns:
        return None
    start_us = min(totals.starts_ns) / 1000
    seconds = np.zeros(int(max(totals.ends_ns) / 1000 - start_us) // US_PER_S + 2, dtype=np.int64)
    for record in _measured(records):
        if record.outcome == "ok" and record.attempts[-1].chunk_us:
            at = (np.cumsum(record.attempts[-1].chunk_us) - start_us) // US_PER_S
            np.add.at(seconds, np.clip(at.astype(np.int64), 0, len(seconds) - 1), 1)
    return float(seconds.max()) if seconds.any() else None


def _peak_in_flight(totals: _Totals) -> int | None:
    """Most requests that succeeded in flight at once; a departure precedes an arrival of the same moment."""
    if not totals.starts_ns:
        return None
    at = np.concatenate([np.array(totals.ends_ns), np.array(totals.starts_ns)])
    step = np.concatenate([np.full(len(totals.ends_ns), -1), np.ones(len(totals.starts_ns), dtype=np.int64)])
    return int(np.cumsum(step[np.lexsort((step, at))]).max())


def _columns(records: Iterable[RequestRecord], totals: _Totals, options: VllmOptions) -> Iterator[tuple[str, Iterator[Any]]]:
    """What --save-detailed adds: one value per request, failed ones included, in seconds."""

    def column(value: Callable[[RequestRecord, Sample], Any]) -> Iterator[Any]:
        return (value(record, sample(record)) for record in _measured(records))

    yield "input_lens", column(lambda _, one: one.input_tokens)
    yield "output_lens", column(lambda _, one: one.output_tokens if one.ok else 0)
    yield "ttfts", column(lambda _, one: _seconds(one.ttft_ms))
    yield "itls", column(lambda _, one: [gap / US_PER_S for gap in one.gaps_us])
    yield "latencies", column(lambda _, one: _seconds(one.e2e_ms))
    yield "start_times", column(lambda _, one: None if one.sent_ns is None else (options.origin_monotonic_ns + one.sent_ns) / NS_PER_S)
    yield "queue_times", column(lambda record, one: _queued_s(record, one, totals.span, options))
    yield "generated_texts", column(lambda record, _: record.attempts[-1].text if record.attempts else None)
    yield "errors", column(lambda _, one: one.error)


def _queued_s(record: RequestRecord, one: Sample, span: Span, options: VllmOptions) -> float | None:
    """The tool's client queue: from a paced arrival to the send; unpaced, every request arrives at the start."""
    paced = options.request_rate != float("inf") or options.ramp_up_strategy is not None
    arrived_ns = record.scheduled_ns if paced else span.start_ns
    return None if one.sent_ns is None or arrived_ns is None else (one.sent_ns - arrived_ns) / NS_PER_S


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else value_ms / 1000
