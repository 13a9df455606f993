"""Benchmarks of others, each run as it is, in its own environment: what loads the service in place of ours. Their words and files are adapters' business;
a missing figure or another exit code than 0 is a failed trial, never 0 and never success.
"""

from collections.abc import Container, Sequence
from typing import Final

from loadcell.metrics.slo import Slo, percentile_of
from loadcell.tune.external import ais_bench, evalscopeperf, vllm_benchmark
from loadcell.tune.external.told import Adapter, Given
from loadcell.tune.spec import BenchmarkTable

ADAPTERS: Final[dict[str, Adapter]] = {
    "vllm_benchmark": vllm_benchmark.ADAPTER,
    "evalscopeperf": evalscopeperf.ADAPTER,
    "ais_bench": ais_bench.ADAPTER,
}


def offered(table: BenchmarkTable, slos: Sequence[Slo]) -> Container[str]:
    """Figures that it will tell: those of its arguments, and percentiles that it can be asked for."""
    told = ADAPTERS[table.kind].offered(Given(table.args))
    named = {f"{slo.metric}_{slo.statistic}" for slo in slos if percentile_of(slo.statistic) is not None and f"{slo.metric}_p*" in told}
    return told | named
