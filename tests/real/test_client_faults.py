"""What the user asks wrongly: a real server's refusals are told, counted, and never held against its health."""

import json
import time
from pathlib import Path

import pytest

from .engine import MAX_MODEL_LEN, Engine
from .product import bench

pytestmark = [pytest.mark.real, pytest.mark.timeout(300, func_only=True)]


def test_a_model_that_is_not_served_stops_the_run_at_once(engines: list[Engine], tmp_path: Path) -> None:
    began = time.monotonic()
    run = bench(engines, tmp_path, "--served-model-name", "nonesuch", "--num-prompts", "200", "--concurrency", "4", "--tokenizer", "words")
    assert time.monotonic() - began < 30
    assert run.exit_code == 1
    line = next(line for line in run.err.splitlines() if "nonesuch" in line)
    assert "does not serve this model" in line
    assert "--model" in line
    assert run.summary["stop_reason"] == "fatal"
    assert run.summary["whole"]["counts"]["ok"] == 0
    assert run.summary["whole"]["counts"]["sent"] <= 8
    assert set(run.summary["whole"]["counts"]["by_outcome"]) <= {"http_4xx", "cancelled"}


def test_prompts_too_long_for_the_model_fail_and_leave_the_servers_healthy(engines: list[Engine], tmp_path: Path) -> None:
    rows = [{"prompt": "some words to begin with", "output_len": 4}] * 12 + [{"prompt": "word " * MAX_MODEL_LEN, "output_len": 4}] * 8
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ("--dataset-name", "custom", "--dataset-path", "rows.jsonl", "--shuffle", "--num-prompts", "20", "--concurrency", "4")
    run = bench(engines, tmp_path, "--endpoint-type", "completions", *data)
    assert run.summary["whole"]["counts"]["by_outcome"] == {"ok": 12, "http_4xx": 8}, run
    refused = [record for record in run.records if record.outcome == "http_4xx"]
    assert all(len(record.attempts) == 1 and record.attempts[0].status == 400 for record in refused)
    assert all("maximum" in (record.error or "") for record in refused), refused[0].error
    assert run.summary["healthy_at_end"] == [engine.name for engine in engines]
    assert [endpoint["ejections"] for endpoint in run.summary["endpoints"]] == [0, 0]
    assert not any(event.kind.startswith("endpoint_") for event in run.events)
    assert [one["foreign"] for one in run.summary["purity"]] == [0, 0]
    assert run.faults == ["failures"]
    assert run.late or run.judged == ("suspect", 0)


def test_a_field_with_a_bad_value_is_no_refused_field(engines: list[Engine], tmp_path: Path) -> None:
    """The message names min_tokens and max_tokens, and wants other values, not their absence or another name."""
    run = bench(
        engines, tmp_path, "--num-prompts", "4", "--concurrency", "2", "--input-len", "64", "--output-len", "4", "--min-tokens", "8"
    )
    assert run.summary["whole"]["counts"]["by_outcome"] == {"http_4xx": 4}, run
    assert all("min_tokens" in (record.error or "") for record in run.records), run.records[0].error
    assert run.summary["stop_reason"] == "count"
    assert all(endpoint["dropped_fields"] == [] for endpoint in run.summary["endpoints"])
    assert run.judged == ("invalid", 1)
