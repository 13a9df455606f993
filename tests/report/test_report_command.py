"""`loadcell report`: a whole run, a run without its facts, and a run that was killed."""

import json
from pathlib import Path

import msgspec
import pytest

from loadcell.cli.report import report
from loadcell.clock import Anchor
from loadcell.errors import UserError
from loadcell.metrics.facts import RunFacts
from loadcell.recordlog import LogHeader, encode_events, encode_header, encode_record
from loadcell.records import Event, RequestRecord
from loadcell.scenario import Scenario, TargetSpec


@pytest.fixture
def header(facts: RunFacts) -> LogHeader:
    spec = msgspec.to_builtins(Scenario(target=TargetSpec(base_urls=("http://127.0.0.1:30005/v1",), model="m"), devices=4))
    return LogHeader(
        run_id="r1",
        name="bench",
        created="2026-07-10T08:45:00Z",
        origin=Anchor(monotonic_ns=1, wall_ns=2),
        spec=spec,
        endpoints=list(facts.endpoints),
    )


def test_a_whole_run(
    tmp_path: Path, header: LogHeader, facts: RunFacts, records: list[RequestRecord], capsys: pytest.CaptureFixture[str]
) -> None:
    log = encode_header(header) + b"".join(map(encode_record, records))
    (tmp_path / "records.jsonl").write_bytes(log)
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(facts))
    report(tmp_path)
    printed = capsys.readouterr()
    assert printed.out.startswith("SUSPECT · 2 ok, 2 failed (50.0 %)")
    assert printed.out.rstrip().endswith("report.md")
    assert printed.err == ""
    assert json.loads((tmp_path / "summary.json").read_text())["partial"] is False
    assert (tmp_path / "records.jsonl").read_bytes() == log


def test_a_killed_run_is_reported_from_its_parts(
    tmp_path: Path, header: LogHeader, records: list[RequestRecord], capsys: pytest.CaptureFixture[str]
) -> None:
    cut = encode_record(records[2]).replace(b"refused", "refusé".encode())[:-3]
    (tmp_path / "records.part-0.jsonl").write_bytes(encode_header(header) + encode_record(records[0]) + cut)
    (tmp_path / "records.part-1.jsonl").write_bytes(encode_header(header) + encode_record(records[1]))
    (tmp_path / "records.part-2.jsonl").write_bytes(encode_header(header)[:20])
    down = Event(at_ns=1, kind="endpoint_unhealthy", endpoint="127.0.0.1:30006", cause="2 probes in a row")
    (tmp_path / "events.jsonl").write_bytes(encode_events([down]))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    report(tmp_path)
    said = capsys.readouterr().err
    assert "records.part-0.jsonl: its half-written last line was dropped" in said
    assert "records.part-2.jsonl was left out" in said
    assert "run.json is missing" in said
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["whole"]["counts"]["ok"], summary["partial"]) == (2, True)
    assert (summary["per_device"]["devices"], summary["healthy_at_end"]) == (4, ["127.0.0.1:30005"])
    assert "half-written last line" in (tmp_path / "report.md").read_text()
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_facts_that_cannot_be_read_are_said_and_done_without(
    tmp_path: Path, header: LogHeader, records: list[RequestRecord], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "records.jsonl").write_bytes(encode_header(header) + encode_record(records[0]))
    (tmp_path / "run.json").write_bytes(b'{"window_start_ns": ')
    report(tmp_path / "records.jsonl")
    assert "run.json cannot be read" in capsys.readouterr().err


def test_a_folder_with_nothing_in_it_is_refused(tmp_path: Path, header: LogHeader) -> None:
    with pytest.raises(UserError, match=r"records\.jsonl"):
        report(tmp_path)
    with pytest.raises(UserError, match="no such run folder"):
        report(tmp_path / "absent")
    (tmp_path / "records.part-0.jsonl").write_bytes(encode_header(header)[:20])
    with pytest.raises(UserError, match="nothing was recorded"):
        report(tmp_path)


def test_a_folder_of_raw_outputs_is_held_against_the_limits_that_are_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / "raw_outputs"
    raw.mkdir()
    request = {
        "request_id": 0,
        "success": True,
        "first_token_time_ms": 50.0,
        "e2e_latency_ms": 90.0,
        "output_tokens": 3,
        "target_port": 30005,
    }
    lines = [request, {"completed": 1, "failed": 0, "duration": 1.0}]
    (raw / "vllm_c1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report(tmp_path, ["ttft p95 <= 40ms"])
    printed = capsys.readouterr()
    assert printed.out.startswith("VALID · 1 of 1 measured to their end · limits: 0 met, 1 missed")
    assert json.loads((tmp_path / "results.json").read_text())["scenarios"][0]["name"] == "c1"
    assert "| c1 | ttft p95 &lt;= 40ms | 50.00 ms † | MISSED | 1 |" in (tmp_path / "report.md").read_text()


def test_limits_for_a_run_that_has_its_own_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a run is held against its own limits"):
        report(tmp_path, ["ttft p95 <= 40ms"])
