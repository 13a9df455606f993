"""Records -> the JSONL of the multi-service bench client: one line per request, a summary as the last line.

Records stream through; only one number per request and metric is kept. TTFT, E2E and the port are the final attempt's.
`failed` and `success: false` are every outcome but `ok`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from loadcell.metrics.facts import RunFacts
from loadcell.metrics.stats import GapPool
from loadcell.records import Endpoint, RequestRecord
from loadcell.report.pool import TimePool, gap_samples, statistics
from loadcell.report.sample import Sample, Span, TokenTotals, per_second, sample

PERCENTILES = (50, 90, 95, 99)


class _Port:
    def __init__(self) -> None:
        self.count = 0
        self.failed = 0
        self.ttft = TimePool()
        self.tpot = TimePool()
        self.e2e = TimePool()

    def add(self, one: Sample) -> None:
        if not one.ok:
            self.failed += 1
            return
        self.count += 1
        self.ttft.add(one.ttft_ms)
        self.tpot.add(one.tpot_ms)
        self.e2e.add(one.e2e_ms)

    def figures(self) -> dict[str, Any]:
        ttft, tpot, e2e = self.ttft.samples(), self.tpot.samples(), self.e2e.samples()
        return {
            "count": self.count,
            "failed": self.failed,
            "mean_ttft_ms": ttft.mean(),
            "p95_ttft_ms": ttft.percentile(95),
            "mean_tpot_ms": tpot.mean(),
            "mean_e2e_ms": e2e.mean(),
            "p95_e2e_ms": e2e.percentile(95),
        }


class _Totals:
    """Everything the summary line says, grown record by record."""

    def __init__(self, facts: RunFacts, labels: list[int | str]) -> None:
        self.facts = facts
        self.labels = labels
        self.ports = [_Port() for _ in facts.endpoints]
        self.completed = 0
        self.failed = 0
        self.retried = 0
        self.tokens = TokenTotals()
        self.span = Span(facts)
        self.times = {"ttft": TimePool(), "tpot": TimePool(), "e2e": TimePool()}
        self.gaps = GapPool()

    def add(self, record: RequestRecord, one: Sample) -> None:
        self.retried += len(record.attempts) > 1
        self.span.add(record, one)
        if one.endpoint is not None:
            self.ports[one.endpoint].add(one)
        if not one.ok:
            self.failed += 1
            return
        self.completed += 1
        self.tokens.add(one)
        self.times["ttft"].add(one.ttft_ms)
        self.times["tpot"].add(one.tpot_ms)
        self.times["e2e"].add(one.e2e_ms)
        self.gaps.add(one.gaps_us)

    def figures(self) -> dict[str, Any]:
        seconds = self.span.seconds()
        tokens = self.tokens
        named = list(zip(self.labels, self.facts.endpoints, strict=True))
        healthy = self.facts.healthy_at_end
        return {
            "completed": self.completed,
            "failed": self.failed,
            "retried": self.retried,
            "duration": seconds,
            "request_throughput": per_second(self.completed, seconds),
            "input_throughput": per_second(tokens.input, seconds),
            "output_throughput": per_second(tokens.output, seconds),
            "total_throughput": per_second(tokens.both(), seconds),
            "total_input_tokens": tokens.input,
            "total_output_tokens": tokens.output,
            "total_tokens": tokens.both(),
            **statistics("ttft", self.times["ttft"].samples(), PERCENTILES),
            **statistics("tpot", self.times["tpot"].samples(), PERCENTILES),
            **statistics("itl", gap_samples(self.gaps), PERCENTILES),
            **statistics("e2e", self.times["e2e"].samples(), PERCENTILES),
            "healthy_ports_at_end": None if healthy is None else [label for label, endpoint in named if endpoint.name in healthy],
            "per_port_stats": {str(label): port.figures() for label, port in zip(self.labels, self.ports, strict=True)},
            "lb_strategy": self.facts.strategy,
            "num_services": len(self.facts.endpoints),
        }


def encode(records: Iterable[RequestRecord], facts: RunFacts) -> Iterator[bytes]:
    """The file's lines, each with its newline: requests of the measured phase as they come, then the summary."""
    labels = port_labels(facts.endpoints)
    totals = _Totals(facts, labels)
    for record in records:
        if record.phase != "measure":
            continue
        one = sample(record)
        totals.add(record, one)
        yield msgspec.json.encode(_line(record, one, labels)) + b"\n"
    yield msgspec.json.encode(totals.figures()) + b"\n"


def port_labels(endpoints: tuple[Endpoint, ...]) -> list[int | str]:
    """How the format names each endpoint: its port where all share a host, else host:port; its URL where even that is not unique."""
    ports = [endpoint.port for endpoint in endpoints]
    if len({endpoint.host for endpoint in endpoints}) <= 1 and len(set(ports)) == len(ports):
        return list(ports)
    names = [endpoint.name for endpoint in endpoints]
    return list(names) if len(set(names)) == len(names) else [endpoint.base_url for endpoint in endpoints]


def _line(record: RequestRecord, one: Sample, labels: list[int | str]) -> dict[str, Any]:
    gaps_ms = [gap / 1000 for gap in one.gaps_us]
    return {
        "request_id": record.index,
        "input_tokens": one.input_tokens,
        "output_tokens": one.output_tokens,
        "first_token_time_ms": one.ttft_ms,
        "e2e_latency_ms": one.e2e_ms,
        "inter_token_latencies": gaps_ms,
        "tpot_ms": one.tpot_ms,
        "mean_itl_ms": sum(one.gaps_us) / len(one.gaps_us) / 1000 if one.gaps_us else None,
        "success": one.ok,
        "error": one.error,
        "target_port": None if one.endpoint is None else labels[one.endpoint],
    }
