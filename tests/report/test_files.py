"""Files: derived ones are made again, the user's are never overwritten, records are never touched."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.metrics.facts import RunFacts
from loadcell.metrics.summarize import summarize
from loadcell.metrics.summary import summary_schema
from loadcell.records import RequestRecord
from loadcell.report.existing import refuse_existing
from loadcell.report.files import vllm_path, write_derived, write_seed, write_vllm
from loadcell.report.vllm import VllmOptions

OPTIONS = VllmOptions(date="20260710-084500", backend="openai-chat", model_id="m")
PUBLISHED = Path(__file__).parents[2] / "docs" / "summary.schema.json"


def strict(text: str) -> Any:
    def refuse(word: str) -> float:
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def test_the_published_schema_is_current() -> None:
    assert json.loads(PUBLISHED.read_text(encoding="utf-8")) == summary_schema(), "run `python docs/make_schema.py`"


@pytest.mark.parametrize("which", [slice(None), slice(2, None), slice(0, 0)])
def test_summary_json_is_strict_and_keeps_its_schema(tmp_path: Path, records: list[RequestRecord], facts: RunFacts, which: slice) -> None:
    path, _ = write_derived(tmp_path, summarize(facts, records[which]))
    jsonschema.Draft202012Validator(json.loads(PUBLISHED.read_text(encoding="utf-8"))).validate(strict(path.read_text(encoding="utf-8")))


def test_units_agree_across_the_formats(tmp_path: Path, records: list[RequestRecord], facts: RunFacts) -> None:
    summary_path, report_path = write_derived(tmp_path, summarize(facts, records[1:2]))
    write_seed(tmp_path / "s.jsonl", records[1:2], facts)
    write_vllm(tmp_path / "v.json", records[1:2], facts, VllmOptions("d", "b", "m", percentile_metrics=("ttft", "e2el"), detailed=True))
    whole = strict(summary_path.read_text(encoding="utf-8"))["whole"]
    line, last = map(strict, (tmp_path / "s.jsonl").read_text(encoding="utf-8").splitlines())
    vllm = strict((tmp_path / "v.json").read_text(encoding="utf-8"))
    assert {
        whole["latency"]["e2e"]["mean_ms"],
        line["e2e_latency_ms"],
        last["mean_e2e_ms"],
        vllm["mean_e2el_ms"],
        vllm["latencies"][0] * 1000,
    } == {1500.0}
    assert {
        whole["latency"]["ttft"]["percentiles_ms"]["p50"],
        line["first_token_time_ms"],
        last["median_ttft_ms"],
        vllm["median_ttft_ms"],
    } == {200.0}
    assert "| E2E | 1500 ms |" in report_path.read_text(encoding="utf-8")


def test_derived_files_are_made_again_and_nothing_else_is_touched(tmp_path: Path, records: list[RequestRecord], facts: RunFacts) -> None:
    (tmp_path / "records.jsonl").write_bytes(b"kept")
    first = [path.read_bytes() for path in write_derived(tmp_path, summarize(facts, records))]
    again = [path.read_bytes() for path in write_derived(tmp_path, summarize(facts, records))]
    assert first == again
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records.jsonl", "report.md", "summary.json"]
    assert (tmp_path / "records.jsonl").read_bytes() == b"kept"


def test_an_output_file_is_refused_unless_overwrite(tmp_path: Path, records: list[RequestRecord], facts: RunFacts) -> None:
    path = tmp_path / "deep" / "out.jsonl"
    write_seed(path, records, facts)
    before = path.read_bytes()
    with pytest.raises(UserError, match="--overwrite"):
        write_seed(path, records[:1], facts)
    assert path.read_bytes() == before
    write_seed(path, records[:1], facts, overwrite=True)
    assert len(path.read_bytes().splitlines()) == 2


def test_a_result_is_never_overwritten_but_can_be_appended_to(tmp_path: Path, records: list[RequestRecord], facts: RunFacts) -> None:
    path = tmp_path / "out.json"
    write_vllm(path, records, facts, OPTIONS)
    with pytest.raises(UserError, match="--result-filename"):
        write_vllm(path, records, facts, OPTIONS)
    write_vllm(path, records, facts, OPTIONS, append=True)
    text = path.read_text(encoding="utf-8")
    assert [strict(line)["completed"] for line in text.split("\n")] == [2, 2]


def test_a_failure_in_the_middle_leaves_no_file_and_an_appended_one_as_it_was(
    tmp_path: Path, records: list[RequestRecord], facts: RunFacts
) -> None:
    def broken() -> Iterator[RequestRecord]:
        yield records[0]
        raise UserError("records.jsonl:3 cannot be read")

    with pytest.raises(UserError, match=":3"):
        write_seed(tmp_path / "out.jsonl", broken(), facts)
    with pytest.raises(UserError, match=":3"):
        write_seed(tmp_path / "out.jsonl", broken(), facts, overwrite=True)
    assert list(tmp_path.iterdir()) == []
    write_vllm(tmp_path / "v.json", records, facts, OPTIONS)
    before = (tmp_path / "v.json").read_bytes()
    with pytest.raises(UserError, match=":3"):
        write_vllm(tmp_path / "v.json", broken(), facts, OPTIONS, append=True)
    assert (tmp_path / "v.json").read_bytes() == before


def test_refusing_before_the_run_starts(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    with pytest.raises(UserError, match=r"--output-file .*there"):
        refuse_existing(tmp_path / "there", "--output-file", "add --overwrite")
    for fine in (tmp_path / "new", "-", os.devnull):
        refuse_existing(fine, "--output-file", "add --overwrite")


def test_a_dash_is_standard_output(records: list[RequestRecord], facts: RunFacts, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write_seed("-", records, facts)
    assert len(capfdbinary.readouterr().out.splitlines()) == 5


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, records: list[RequestRecord], facts: RunFacts) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFailure, match="file/out"):
        write_seed(tmp_path / "file" / "out.jsonl", records, facts)


def test_vllms_result_goes_where_the_tool_would_put_it() -> None:
    assert vllm_path(OPTIONS, None, None) == Path("openai-chat-infqps-m-20260710-084500.json")
    assert vllm_path(OPTIONS, "d", "f.json") == Path("d/f.json")
