"""A folder that holds nothing but the multi-service client's files, as that client, other versions of it and a crash leave them."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadcell.errors import UserError
from loadcell.metrics.facts import RunFacts
from loadcell.metrics.slo import parse_slo
from loadcell.records import RequestRecord
from loadcell.report.experiment import ExperimentResults
from loadcell.report.experiment_markdown import render
from loadcell.report.files import write_results
from loadcell.report.raw_outputs import is_raw_outputs, natural, open_raw_outputs
from loadcell.report.seed import encode


def line(index: int, ttft: float | None = 50.0, e2e: float | None = 250.0, port: Any = 30005, **changes: Any) -> dict[str, Any]:
    """As the client's documentation shows it."""
    return {
        "request_id": index,
        "input_tokens": 512,
        "output_tokens": 5,
        "first_token_time_ms": ttft,
        "e2e_latency_ms": e2e,
        "inter_token_latencies": [50.0] * 4,
        "tpot_ms": 50.0,
        "mean_itl_ms": 50.0,
        "success": True,
        "error": "",
        "target_port": port,
    } | changes


SUMMARY = {"completed": 2, "failed": 0, "retried": 1, "duration": 2.0, "healthy_ports_at_end": [30005], "lb_strategy": "round_robin"}


def write(folder: Path, name: str, *lines: Any, tail: bytes = b"") -> None:
    raw = folder / "raw_outputs"
    raw.mkdir(exist_ok=True)
    (raw / name).write_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in lines) + tail)


def test_figures_are_made_from_the_requests_and_what_only_the_summary_tells(tmp_path: Path) -> None:
    write(tmp_path, "vllm_c32_i512_o256.jsonl", line(0), line(1, 150.0, 350.0, 30006), SUMMARY)
    results = open_raw_outputs(tmp_path)
    (cell,) = results.cells
    assert (results.fleet.engine, cell.name, cell.state, cell.verdict) == ("vllm", "c32_i512_o256", "done", "suspect")
    assert cell.figures is not None
    whole = cell.figures.all
    assert (whole.ok, whole.failed, whole.retried, whole.duration_s) == (2, 0, 1, 2.0)
    assert (whole.requests_per_s, whole.output_tokens_per_s, whole.total_tokens_per_s) == (1.0, 5.0, 517.0)
    assert (whole.ttft.n, whole.ttft.mean_ms, whole.ttft.percentiles_ms["p50"]) == (2, 100.0, 100.0)
    assert (whole.tpot.mean_ms, whole.e2e.mean_ms, whole.icl.n) == (50.0, 300.0, 8)
    assert [(one.name, one.share, one.figures.ok, one.healthy_at_end) for one in cell.endpoints] == [
        ("30005", 0.5, 1, True),
        ("30006", 0.5, 1, False),
    ]
    assert "30006 down at the end" in render(results)


def test_what_we_write_in_that_format_is_read_back_the_same(tmp_path: Path, records: list[RequestRecord], facts: RunFacts) -> None:
    write(tmp_path, "vllm_a.jsonl", tail=b"".join(encode(records, facts)))
    (cell,) = open_raw_outputs(tmp_path).cells
    assert cell.figures is not None
    whole = cell.figures.all
    assert (whole.ok, whole.failed, whole.retried, whole.duration_s) == (2, 2, 1, 2.0)
    assert (whole.ttft.mean_ms, whole.e2e.mean_ms, whole.tpot.mean_ms) == (150.0, 815.0, (15.0 + 650.0) / 2)
    assert "1 failed: connect_error: connection refused" in cell.notices


def test_a_file_without_its_summary_was_cut_off_and_has_no_rates(tmp_path: Path) -> None:
    torn = json.dumps(line(2, error="é"), ensure_ascii=False).encode().split("é".encode())[0] + "é".encode()[:1]
    write(tmp_path, "vllm_a.jsonl", line(0), line(1), tail=torn)
    (cell,) = open_raw_outputs(tmp_path).cells
    assert cell.figures is not None
    assert (cell.state, cell.partial, cell.figures.all.ok, cell.figures.all.requests_per_s) == ("cut_off", True, 2, None)
    assert cell.notices == ["its half-written last line was dropped"]
    assert "CUT OFF: the file has no summary" in render(open_raw_outputs(tmp_path))


def test_what_does_not_exist_is_null_not_zero(tmp_path: Path) -> None:
    """Python's json writes NaN; a failed request reached nothing; an old client names no port; one token has no TPOT."""
    bad = line(1, None, None, None, success=False, error="ReadTimeout", output_tokens=0, tpot_ms=float("nan"), inter_token_latencies=[])
    single = line(0, output_tokens=1, tpot_ms=0.0, inter_token_latencies=[float("nan")])
    del single["target_port"]
    write(tmp_path, "a.jsonl", bad, single, {"completed": 1, "duration": float("nan")}, "noise", 7)
    results = open_raw_outputs(tmp_path)
    (cell,) = results.cells
    assert cell.figures is not None
    assert (cell.figures.all.ttft.n, cell.figures.all.tpot.n, cell.figures.all.icl.n) == (1, 0, 0)
    assert cell.figures.all.tpot.mean_ms is None
    assert (cell.figures.all.requests_per_s, cell.figures.success_rate, cell.endpoints) == (None, 0.5, [])
    assert "2 line(s) that are no request and no summary were left out" in cell.notices


def test_two_runs_in_one_file_are_pooled_and_said(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", line(0), SUMMARY, line(0), line(1), SUMMARY)
    (cell,) = open_raw_outputs(tmp_path).cells
    assert cell.figures is not None
    assert (cell.figures.all.ok, cell.figures.all.duration_s) == (3, 4.0)
    assert any("2 runs were written into this file" in notice for notice in cell.notices)


def test_all_failed_is_invalid(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", line(0, None, None, success=False, error="refused"), {"completed": 0, "failed": 1, "duration": 1.0})
    assert open_raw_outputs(tmp_path).verdict == "invalid"


def test_limits_are_judged_from_the_pooled_requests(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", line(0), line(1, 300.0), SUMMARY)
    slos = [parse_slo(text) for text in ("ttft p50 <= 200ms", "ttft max <= 200ms", "success_rate >= 99%", "queue_delay p99 <= 1ms")]
    (cell,) = open_raw_outputs(tmp_path, slos).cells
    assert [slo.met for slo in cell.slos] == [True, False, True, None]
    assert cell.slos_met is False


def test_scenarios_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("vllm_c16.jsonl", "vllm_c4.jsonl", "vllm_c128.jsonl"):
        write(tmp_path, name, line(0), SUMMARY)
    (tmp_path / "raw_outputs" / "vllm_empty.jsonl").write_bytes(b"\n")
    results = open_raw_outputs(tmp_path)
    assert [scenario.name for scenario in results.scenarios] == ["c4", "c16", "c128"]
    assert any("vllm_empty.jsonl holds no request" in notice for notice in results.notices)
    assert natural("c4") < natural("c16")


def test_the_folder_itself_may_be_given_and_an_empty_one_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", line(0), SUMMARY)
    assert is_raw_outputs(tmp_path)
    assert is_raw_outputs(tmp_path / "raw_outputs")
    assert [cell.name for cell in open_raw_outputs(tmp_path / "raw_outputs").cells] == ["a"]
    with pytest.raises(UserError, match="nothing to report on"):
        open_raw_outputs(tmp_path / "nowhere")


def test_reports_that_another_tool_left_there_are_kept(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", line(0), SUMMARY)
    (tmp_path / "results.json").write_text('{"mine": 1}')
    paths = write_results(tmp_path, open_raw_outputs(tmp_path))
    assert [path.name for path in paths] == ["loadcell-results.json", "loadcell-report.md"]
    assert (tmp_path / "results.json").read_text() == '{"mine": 1}'
    assert not (tmp_path / "report.md").exists()


def test_our_own_reports_are_made_again(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", line(0), SUMMARY)
    for _ in range(2):
        paths = write_results(tmp_path, open_raw_outputs(tmp_path))
        assert [path.name for path in paths] == ["results.json", "report.md"]
    assert msgspec.json.decode(paths[0].read_bytes(), type=ExperimentResults).name == tmp_path.name
