"""Service level objectives: text -> frozen limits. `ttft p95 <= 200ms`, and vLLM's `ttft:200`."""

from typing import Literal

from msgspec import Struct

SloMetric = Literal["ttft", "ttfa", "tpot", "itl", "icl", "e2e", "max_stall", "scheduled_ttft", "scheduled_e2e", "queue_delay", "success_rate"]


class Slo(Struct, frozen=True, forbid_unknown_fields=True):
    """`limit` in ms for times and as a fraction for rates. `statistic`: mean, min, max, p50, p99.9, … or "each" (goodput only)."""

    metric: SloMetric
    statistic: str
    limit: float
    text: str
