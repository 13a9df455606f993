"""Whatever goes wrong at the engines, the figures keep their order, and both sides count the same."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import loadcell
from loadcell.api import BenchResult
from loadcell.metrics.summary import Figures, Stats
from loadcell.sim.inprocess import running_engine

FAULTS = (
    "reject,status=503,every=5",
    "reject,status=429,every=7,retry_after=0",
    "reject,status=400,every=11",
    "stream_error,tokens=2,every=6",
    "truncate,tokens=3,every=8",
    "reset,tokens=1,every=9",
    "hang,every=13",
    "stall,tokens=2,every=17",
)

loads = st.one_of(
    st.builds(lambda n: {"concurrency": n}, st.integers(1, 24)),
    st.builds(
        lambda rate, arrival: {"request_rate": rate, "arrival": arrival},
        st.sampled_from([60, 200]),
        st.sampled_from(["poisson", "constant"]),
    ),
    st.builds(lambda rate, n: {"request_rate": rate, "concurrency": n}, st.just(200), st.integers(1, 6)),
)
runs = st.fixed_dictionaries(
    {
        "faults": st.lists(st.sampled_from(FAULTS), max_size=3, unique=True).map(tuple),
        "engines": st.integers(1, 2),
        "load": loads,
        "prompts": st.integers(20, 60),
        "flags": st.fixed_dictionaries(
            {
                "workers": st.integers(1, 2),
                "request_max_retries": st.integers(0, 3),
                "stream": st.sampled_from([True, True, True, False]),
                "num_warmups": st.sampled_from([0, 0, 5]),
                "lb_strategy": st.sampled_from(["round_robin", "least_conn", "random", "power_of_two"]),
                "seed": st.integers(0, 1000),
            }
        ),
    }
)
USUAL = {
    "tokenizer": "words",
    "ignore_eos": True,
    "dataset_name": "custom",
    "goodput": "ttft:15 e2el:60",
    "first_byte_timeout": 0.5,
    "idle_timeout": 0.5,
    "total_timeout": 1.5,
    "health_check_interval": 0,
    "health_max_failures": 1000,
}


def check_order(stats: Stats) -> None:
    values = [value for value in stats.percentiles_ms.values() if value is not None]
    assert values == sorted(values)
    if values:
        assert stats.min_ms <= values[0]
        assert values[-1] <= stats.max_ms
        assert stats.min_ms <= stats.mean_ms <= stats.max_ms


def check_figures(figures: Figures, cap: int | None) -> None:
    counts, rates = figures.counts, figures.rates
    assert counts.offered == counts.ok + counts.failed + counts.cancelled
    assert sum(counts.by_outcome.values()) == counts.offered
    assert counts.sent <= counts.offered
    assert counts.first_try_ok <= counts.ok
    assert counts.attempts == counts.ok + counts.failed_attempts
    assert rates.goodput_per_s <= rates.requests_per_s * (1 + 1e-9)
    assert rates.requests_per_s <= rates.offered_per_s * (1 + 1e-9)
    assert rates.goodput_requests <= counts.ok
    for name in figures.latency.__struct_fields__:
        check_order(getattr(figures.latency, name))
    latency = figures.latency
    assert latency.ttft.n <= counts.ok
    assert latency.e2e.n <= counts.ok
    if cap is not None:
        assert figures.concurrency.max <= cap


def measured(run: dict[str, Any]) -> tuple[BenchResult, int]:
    """The run, and how many generation requests the engines have written down."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data.jsonl")
        data.write_text("".join(json.dumps({"prompt": f"{n:06d} tell me", "output_len": 6}) + "\n" for n in range(run["prompts"])))
        spec = {"ttft_ms": 10.0, "itl_ms": 3.0, "max_num_seqs": 4096, "fault": run["faults"]}
        with running_engine(**spec) as one, running_engine(**spec) as other:
            engines = [one, other][: run["engines"]]
            flags = {"base_url": [engine.base_url for engine in engines], "dataset_path": str(data), "output_dir": str(Path(folder, "run"))}
            result = loadcell.bench(**USUAL, **flags, num_prompts=run["prompts"], **run["load"], **run["flags"])
            records = list(result.records)
            attempts = sum(len(record.attempts) for record in records)
            lines = [line for engine in engines for line in engine.access_log(at_least=attempts) if line.is_generation]
            check_records(records, run["prompts"])
            return result, len(lines) - attempts


def check_records(records: list[Any], prompts: int) -> None:
    mine = [record for record in records if record.phase == "measure"]
    assert sorted(record.index for record in mine) == list(range(prompts))
    for record in records:
        for attempt in record.attempts:
            stamps = [attempt.dispatched_ns, attempt.sent_ns, attempt.headers_ns, attempt.first_event_ns, attempt.first_token_ns]
            seen = [stamp for stamp in [*stamps, attempt.last_token_ns, attempt.done_ns] if stamp is not None]
            assert seen == sorted(seen)
        assert [attempt.outcome for attempt in record.attempts[:-1]].count("ok") == 0
        assert not record.attempts or record.attempts[-1].outcome == record.outcome


@pytest.mark.slow
@pytest.mark.timeout(120)
@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(runs)
def test_a_run_with_any_faults_keeps_every_invariant(run: dict[str, Any]) -> None:
    result, unmatched = measured(run)
    summary, cap = result.summary, run["load"].get("concurrency")
    check_figures(summary.whole, cap)
    for endpoint in summary.endpoints:
        check_figures(endpoint.figures, cap)
    assert summary.whole.counts.offered == run["prompts"]
    assert sum(endpoint.figures.counts.ok for endpoint in summary.endpoints) == summary.whole.counts.ok
    assert unmatched == 0
    for purity in summary.purity:
        assert purity.foreign is None or purity.foreign <= 0, purity
    assert result.exit_code in (0, 1)
