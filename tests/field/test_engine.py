"""Faults of a simulated engine under a whole load, against what its own access log says it did."""

from pathlib import Path
from typing import Any

import pytest

import loadcell
from loadcell.api import BenchResult
from loadcell.records import RequestRecord
from loadcell.sim.inprocess import RunningEngine, running_engine

FAST: dict[str, Any] = {"ttft_ms": 10.0, "itl_ms": 3.0}


def loaded(folder: Path, *engines: RunningEngine, **flags: Any) -> BenchResult:
    asked: dict[str, Any] = {
        "base_url": [engine.base_url for engine in engines],
        "num_prompts": 60,
        "concurrency": 8,
        "input_len": 20,
        "output_len": 12,
        "tokenizer": "words",
        "health_check_interval": 0.2,
        "output_dir": str(folder / "run"),
    }
    return loadcell.bench(**asked | flags)


def retried(records: list[RequestRecord]) -> list[RequestRecord]:
    return [record for record in records if len(record.attempts) > 1]


@pytest.mark.parametrize(
    ("fault", "outcome", "flags"),
    [
        ("reject,every=4", "http_5xx", {}),
        ("stream_error,tokens=3,every=4", "stream_error", {}),
        ("truncate,tokens=3,how=clean,every=4", "truncated", {}),
        ("truncate,how=clean,every=4", "empty_output", {}),
        ("reset,tokens=3,every=4", "connection_reset", {}),
        ("hang,every=4", "first_byte_timeout", {"first_byte_timeout": 0.4}),
        ("stall,tokens=3,every=4", "idle_timeout", {"idle_timeout": 0.4}),
    ],
)
def test_every_fourth_fails_in_its_own_way(tmp_path: Path, fault: str, outcome: str, flags: dict[str, Any]) -> None:
    with running_engine(**FAST, fault=(fault,)) as engine:
        result = loaded(tmp_path, engine, **flags)
        lines = engine.generations(60)
    counts = result.summary.whole.counts
    assert counts.by_outcome == {"ok": 45, outcome: 15}
    assert sum(line.fault is not None for line in lines) == 15
    assert result.summary.whole.latency.ttft.n == 45
    assert result.summary.whole.rates.output_tokens_in_window == 45 * 12
    assert "failures" in {reason.rule for reason in result.summary.reasons}
    assert "45 ok, 15 failed (25.0 %)" in result.report.read_text()


def test_a_reset_before_any_byte_is_replayed_on_kept_connections_and_every_one_is_counted(tmp_path: Path) -> None:
    with running_engine(**FAST, fault=("reset,every=4",)) as engine:
        result = loaded(tmp_path, engine)
        struck = sum(line.fault is not None for line in engine.generations(60))
    counts = result.summary.whole.counts
    assert set(counts.by_outcome) <= {"ok", "connection_reset"}
    assert counts.failed + counts.stale_replays == struck
    assert "sent again on a fresh connection" in result.report.read_text()


@pytest.mark.parametrize("workers", [1, 2])
def test_faults_of_one_engine_are_made_good_by_the_other(tmp_path: Path, workers: int) -> None:
    with running_engine(**FAST, fault=("stream_error,tokens=3,every=3",)) as ill, running_engine(**FAST) as well:
        result = loaded(tmp_path, ill, well, workers=workers, health_max_failures=1000)
        asked = len(ill.generations(1)) + len(well.generations(1))
    records = list(result.records)
    counts = result.summary.whole.counts
    assert counts.by_outcome == {"ok": 60}
    assert counts.attempts == asked == sum(len(record.attempts) for record in records)
    assert counts.retried == len(retried(records)) > 0
    assert {record.attempts[0].outcome for record in retried(records)} == {"stream_error"}
    assert counts.first_try_ok == 60 - counts.retried
    assert result.summary.whole.rates.wasted_output_tokens > 0


def test_an_engine_that_closes_idle_connections_fails_nobody(tmp_path: Path) -> None:
    with running_engine(**FAST, fault=("close",)) as engine:
        result = loaded(tmp_path, engine, num_prompts=200, concurrency=4)
        lines = engine.generations(200)
    assert result.summary.whole.counts.by_outcome == {"ok": 200}
    assert result.summary.whole.counts.retried == 0
    assert len(lines) == 200


def test_an_engine_that_dies_leaves_the_run_to_the_other(tmp_path: Path) -> None:
    with running_engine(**FAST, fault=("crash,after_requests=12,tokens=4",)) as dies, running_engine(**FAST) as lives:
        result = loaded(tmp_path, dies, lives, num_prompts=80)
    counts = result.summary.whole.counts
    assert counts.by_outcome == {"ok": 80}
    assert counts.retried > 0
    assert result.summary.healthy_at_end == [lives.base_url.split("//")[1].removesuffix("/v1")]
    assert {"endpoint_lost"} <= {reason.rule for reason in result.summary.reasons}
    assert "endpoint_unhealthy" in (result.folder / "events.jsonl").read_text()


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_sound_engine_has_its_tokens_counted_by_both_sides(tmp_path: Path, api: str) -> None:
    with running_engine(**FAST) as engine:
        result = loaded(tmp_path, engine, endpoint_type=api, tokenizer="auto")
        lines = engine.generations(60)
    tokens = result.summary.whole.tokens
    assert result.summary.whole.counts.by_outcome == {"ok": 60}
    assert tokens.output_delivered.total == sum(line.output_tokens or 0 for line in lines) == 60 * 12
    assert tokens.input_delivered.total == sum(line.prompt_tokens or 0 for line in lines)
    assert (tokens.input_sources, tokens.output_sources) == ({"usage": 60}, {"usage": 60})
    assert result.summary.whole.latency.icl.n == 60 * 11
