"""Both servers under load at once: what the product says against what vLLM says of itself."""

import json
import time
from pathlib import Path

import jsonschema
import pytest

from .engine import Engine
from .product import Bench, Run, bench

pytestmark = [pytest.mark.real, pytest.mark.timeout(300, func_only=True)]

REQUESTS, INPUT, OUTPUT = 24, 96, 32
LOAD = ("--num-prompts", str(REQUESTS), "--concurrency", "6", "--input-len", str(INPUT), "--output-len", str(OUTPUT))
SCHEMA = Path(__file__).parents[2] / "docs" / "summary.schema.json"


class Measured:
    """A run, and by how much each server's own counters grew over it."""

    def __init__(self, run: Run, grown: list[dict[str, float]]) -> None:
        self.run, self.grown = run, grown

    def total(self, counter: str) -> float:
        return sum(one[counter] for one in self.grown)


def measure(engines: list[Engine], place: Path, *words: str, tries: int = 3) -> Measured:
    """A run that only the rest of this machine disturbed is made again, with other prompts."""
    for number in range(tries):
        before = [engine.counters() for engine in engines]
        (place / str(number)).mkdir()
        run = bench(engines, place / str(number), "--repeat", str(number), *words)
        after = [engine.counters() for engine in engines]
        if not run.late or run.faults:
            break
    return Measured(run, [{name: now[name] - then.get(name, 0.0) for name in now} for then, now in zip(before, after, strict=True)])


@pytest.fixture(scope="module", params=["completions", "chat"])
def streamed(request: pytest.FixtureRequest, engines: list[Engine], tmp_path_factory: pytest.TempPathFactory) -> Measured:
    place = tmp_path_factory.mktemp(f"streamed-{request.param}")
    exports = ("--output-file", "seed.jsonl", "--save-result", "--result-filename", "vllm.json", "--save-detailed")
    return measure(engines, place, "--endpoint-type", request.param, *LOAD, *exports)


@pytest.fixture(scope="module")
def completions(engines: list[Engine], tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """A run of its own: its prompts must not be those that another one left in the prefix cache."""
    return measure(engines, tmp_path_factory.mktemp("completions"), "--endpoint-type", "completions", "--seed", "7", *LOAD)


def test_the_run_is_sound(streamed: Measured) -> None:
    run = streamed.run
    assert run.judged == ("valid", 0), run
    assert [record.outcome for record in run.records] == ["ok"] * REQUESTS
    assert run.summary["whole"]["counts"]["attempts"] == REQUESTS
    assert run.summary["whole"]["counts"]["malformed_events"] == 0
    assert run.summary["stop_reason"] == "count"
    assert run.summary["endpoints"][0]["dropped_fields"] == []


def test_tokens_are_the_servers_own_and_as_many_as_it_counted(streamed: Measured) -> None:
    finals = streamed.run.finals
    assert {(one.output_source, one.input_source) for one in finals} == {("usage", "usage")}
    assert sum(one.output_tokens or 0 for one in finals) == streamed.total("vllm:generation_tokens_total")
    assert sum(one.input_tokens or 0 for one in finals) == streamed.total("vllm:prompt_tokens_total")


def test_ignore_eos_gives_the_length_that_was_asked_for(streamed: Measured) -> None:
    assert {one.output_tokens for one in streamed.run.finals} == {OUTPUT}
    assert {one.finish_reason for one in streamed.run.finals} == {"length"}
    assert streamed.run.summary["whole"]["tokens"]["delivered_share"] == 1.0


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_character_in_several_tokens_is_no_fault(api: str, engines: list[Engine], tmp_path: Path) -> None:
    """Random weights, sampled, write half characters: tokens without text, so that answers have fewer chunks than tokens."""
    measured = measure(engines, tmp_path, "--endpoint-type", api, "--temperature", "1", *LOAD)
    run = measured.run
    assert [(one.outcome, one.output_tokens) for one in run.finals] == [("ok", OUTPUT)] * REQUESTS
    assert sum(one.output_tokens or 0 for one in run.finals) == measured.total("vllm:generation_tokens_total")
    assert min(len(one.chunk_us) for one in run.finals) < OUTPUT
    assert run.summary["whole"]["counts"]["malformed_events"] == 0


def test_the_prompts_of_completions_have_exactly_the_length_that_was_asked_for(completions: Measured) -> None:
    run = completions.run
    assert run.summary["prompts"] == run.summary["prompts"] | {"tokenizer": "server", "exact": True, "off_target": None}
    assert {one.input_tokens for one in run.finals} == {INPUT}


def test_the_template_of_a_chat_adds_to_its_prompts(engines: list[Engine], tmp_path: Path) -> None:
    run = bench(engines, tmp_path, "--seed", "8", *LOAD)
    assert run.faults == [], run
    assert {record.input_asked for record in run.records} == {INPUT}
    assert min(one.input_tokens or 0 for one in run.finals) > INPUT


def test_nobody_else_asked_by_the_servers_own_counters(streamed: Measured) -> None:
    purity = streamed.run.summary["purity"]
    assert [(one["state"], one["foreign"], one["counted"]) for one in purity] == [("pure", 0, REQUESTS // 2)] * 2
    assert streamed.total("vllm:request_success_total") == REQUESTS


def test_round_robin_shares_equally(streamed: Measured, engines: list[Engine]) -> None:
    for engine, grown in zip(engines, streamed.grown, strict=True):
        seen = streamed.run.endpoint(engine)
        assert (seen["share"], seen["attempts"], seen["ejections"], seen["healthy_at_end"]) == (0.5, REQUESTS // 2, 0, True)
        assert grown["vllm:request_success_total"] == REQUESTS // 2


def test_new_prompts_miss_the_prefix_cache_and_the_report_shows_it(streamed: Measured, engines: list[Engine]) -> None:
    rates = [streamed.run.endpoint(engine)["prefix_cache_hit_rate"] for engine in engines]
    queries = [grown["vllm:prefix_cache_queries_total"] for grown in streamed.grown]
    assert min(queries) > 0
    assert rates == [grown["vllm:prefix_cache_hits_total"] / asked for grown, asked in zip(streamed.grown, queries, strict=True)]
    assert max(rates) <= 0.05


def test_the_latencies_lie_just_outside_those_that_the_server_saw(streamed: Measured) -> None:
    """vLLM's clock starts when it has read the request and stops before it has written the answer: ours has to run longer, a little."""
    whole = streamed.run.summary["whole"]["latency"]
    for ours, theirs in (("ttft", "vllm:time_to_first_token_seconds"), ("e2e", "vllm:e2e_request_latency_seconds")):
        count = streamed.total(f"{theirs}_count")
        mean_ms = 1000 * streamed.total(f"{theirs}_sum") / count
        assert whole[ours]["n"] == count == REQUESTS
        assert mean_ms - 2 <= whole[ours]["mean_ms"] <= mean_ms * 1.25 + 100, (ours, mean_ms, whole[ours]["mean_ms"])


def test_summary_and_report_are_whole(streamed: Measured) -> None:
    run = streamed.run
    jsonschema.validate(run.summary, json.loads(SCHEMA.read_text()))
    report = (run.folder / "report.md").read_text()
    assert "VALID" in report
    assert str(run.folder / "report.md") in run.out
    assert {endpoint.name for endpoint in run.header.endpoints} <= {word.strip("|` ") for word in report.split()}
    kinds = [event.kind for event in run.events]
    assert "measure_started" in kinds
    assert kinds[-1] == "measure_ended"


def test_the_multi_service_format_is_written(streamed: Measured, engines: list[Engine]) -> None:
    lines = [json.loads(line) for line in (streamed.run.folder.parent / "seed.jsonl").read_text().splitlines()]
    requests, last = lines[:-1], lines[-1]
    ports = [engine.port for engine in engines]
    assert len(requests) == REQUESTS
    assert {one["target_port"] for one in requests} == set(ports)
    assert all(one["success"] and one["output_tokens"] == OUTPUT and one["first_token_time_ms"] > 0 for one in requests)
    assert (last["completed"], last["failed"], last["retried"], last["num_services"]) == (REQUESTS, 0, 0, 2)
    assert (last["total_output_tokens"], last["lb_strategy"], last["healthy_ports_at_end"]) == (REQUESTS * OUTPUT, "round_robin", ports)
    assert {port: one["count"] for port, one in last["per_port_stats"].items()} == dict.fromkeys(map(str, ports), REQUESTS // 2)


def test_the_format_of_vllm_bench_serve_is_written(streamed: Measured) -> None:
    result = json.loads((streamed.run.folder.parent / "vllm.json").read_text())
    whole = streamed.run.summary["whole"]
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (REQUESTS, 0, REQUESTS * OUTPUT)
    assert result["mean_ttft_ms"] == pytest.approx(whole["latency"]["ttft"]["mean_ms"], rel=1e-3)
    assert result["request_throughput"] == pytest.approx(whole["rates"]["requests_per_s"], rel=0.05)
    assert result["output_lens"] == [OUTPUT] * REQUESTS


def test_cumulative_usage_tells_the_tokens_of_each_chunk(engines: list[Engine], tmp_path: Path) -> None:
    asked = {"stream_options": {"continuous_usage_stats": True}}
    run = bench(engines, tmp_path, "--extra-body", json.dumps(asked), "--seed", "3", "--temperature", "1", *LOAD)
    assert run.faults == [], run
    for one in run.finals:
        assert one.chunk_tokens is not None
        assert len(one.chunk_tokens) == len(one.chunk_us)
        assert (one.output_tokens, one.output_source) == (OUTPUT, "usage")
        # What comes after the last text has no chunk: half a character at the end.
        assert OUTPUT - 4 <= sum(one.chunk_tokens) <= OUTPUT
    assert any(max(one.chunk_tokens or [0]) > 1 for one in run.finals)
    assert run.summary["whole"]["tokens"]["first_chunk_estimated"] == 0
    assert run.summary["whole"]["latency"]["itl"]["n"] > run.summary["whole"]["latency"]["icl"]["n"]


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_whole_answers(api: str, engines: list[Engine], tmp_path: Path) -> None:
    measured = measure(engines, tmp_path, "--no-stream", "--endpoint-type", api, "--seed", "5", *LOAD)
    run = measured.run
    assert run.judged == ("valid", 0), run
    assert {(one.outcome, one.output_tokens, one.output_source, one.streamed) for one in run.finals} == {("ok", OUTPUT, "usage", False)}
    assert all(one.first_token_ns is None and one.last_token_ns == one.done_ns for one in run.finals)
    assert run.summary["whole"]["latency"]["ttft"]["n"] == 0
    assert run.summary["whole"]["latency"]["e2e"]["n"] == REQUESTS
    assert sum(one.input_tokens or 0 for one in run.finals) == measured.total("vllm:prompt_tokens_total")


def test_shared_prefixes_hit_the_cache(engines: list[Engine], tmp_path: Path) -> None:
    """Blocks of vLLM's CPU cache hold 128 tokens; each server meets the prefix once before it has it."""
    shared = ("--prefix-len", "512", "--prefix-groups", "1", "--input-len", "32", "--output-len", "8")
    measured = measure(engines, tmp_path, "--num-prompts", "12", "--concurrency", "2", "--endpoint-type", "completions", *shared)
    run = measured.run
    assert run.judged == ("valid", 0), run
    assert {one.input_tokens for one in run.finals} == {544}
    assert all(run.endpoint(engine)["prefix_cache_hit_rate"] > 0.5 for engine in engines)


def test_a_request_of_somebody_else_is_found(engines: list[Engine], tmp_path: Path) -> None:
    words = ("--endpoint-type", "completions", "--seed", "9", *LOAD)
    with Bench(engines, tmp_path, words) as running:
        while not running.records_so_far():
            assert not running.ended
            time.sleep(0.02)
        engines[1].ask("POST", "/v1/completions", {"model": "tiny", "prompt": "who else", "max_tokens": 2})
        run = running.finish()
    assert [(one["state"], one["foreign"]) for one in run.summary["purity"]] == [("pure", 0), ("foreign", 1)]
    assert run.faults == ["foreign_requests"]
    assert run.late or run.judged == ("suspect", 0)
