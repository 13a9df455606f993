"""The result JSON of `vllm bench serve`: its keys, its definitions, its file names."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from loadcell.clock import Anchor
from loadcell.errors import UserError
from loadcell.metrics.facts import RunFacts
from loadcell.metrics.slo import Slo
from loadcell.output import OutputSpec
from loadcell.records import RequestRecord
from loadcell.report.vllm import VllmOptions, encode, file_name
from loadcell.report.vllm_options import options_of
from loadcell.scenario import Scenario, TargetSpec
from loadcell.schedule.spec import ScheduleSpec

OPTIONS = VllmOptions(date="20260710-084500", backend="openai-chat", model_id="org/model", tokenizer_id="org/model", num_prompts=4)
PLAIN_KEYS = [
    *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate", "burstiness"),
    *("max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput"),
    *("request_goodput", "output_throughput", "total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests", "rtfx"),
    *(f"{stat}_{name}_ms" for name in ("ttft", "tpot", "itl") for stat in ("mean", "median", "std", "p99")),
]


def written(records: Iterable[RequestRecord], facts: RunFacts, options: VllmOptions = OPTIONS) -> dict[str, Any]:
    def strict(word: str) -> float:
        raise AssertionError(word)

    result = json.loads(b"".join(encode(records, facts, options)), parse_constant=strict)
    assert isinstance(result, dict)
    return result


def with_(**changes: Any) -> VllmOptions:
    return msgspec.structs.replace(OPTIONS, **changes)


def test_the_keys_are_the_tools_own(records: list[RequestRecord], facts: RunFacts) -> None:
    assert list(written(records, facts)) == PLAIN_KEYS


def test_the_figures_follow_the_tools_definitions(records: list[RequestRecord], facts: RunFacts) -> None:
    result = written(records, facts)
    assert (result["completed"], result["failed"], result["duration"], result["request_throughput"]) == (2, 2, 2.0, 1.0)
    assert (result["total_input_tokens"], result["total_output_tokens"], result["total_token_throughput"]) == (1024, 6, 515.0)
    assert (result["mean_ttft_ms"], result["median_ttft_ms"], result["std_ttft_ms"]) == (150.0, 150.0, pytest.approx(50.0))
    assert result["mean_tpot_ms"] == (15.0 + 650.0) / 2
    assert result["mean_itl_ms"] == pytest.approx(332.5)
    assert result["max_concurrent_requests"] == 2
    # Chunks at 0.10 0.11 0.13 0.22 s, then 1.49 1.52 s.
    assert result["max_output_tokens_per_s"] == 4.0
    assert result["request_rate"] == "inf"


def test_metrics_and_percentiles_are_those_asked_for(records: list[RequestRecord], facts: RunFacts) -> None:
    result = written(records, facts, with_(percentile_metrics=("e2el",), percentiles=(50.0, 99.9)))
    assert [key for key in result if key.endswith("_ms")] == [
        "mean_e2el_ms",
        "median_e2el_ms",
        "std_e2el_ms",
        "p50_e2el_ms",
        "p99.9_e2el_ms",
    ]
    assert (result["mean_e2el_ms"], result["p50_e2el_ms"]) == (815.0, 815.0)


def test_goodput_counts_the_requests_within_every_limit(records: list[RequestRecord], facts: RunFacts) -> None:
    limits = tuple(Slo(metric=name, statistic="each", limit=limit, text=f"{name}:{limit}") for name, limit in (("ttft", 250), ("tpot", 50)))  # type: ignore[arg-type]
    assert written(records, facts)["request_goodput"] is None
    assert written(records, msgspec.structs.replace(facts, goodput_slos=limits))["request_goodput"] == 0.5


def test_a_goodput_limit_that_the_format_cannot_express_is_refused(records: list[RequestRecord], facts: RunFacts) -> None:
    stall = Slo(metric="max_stall", statistic="each", limit=1, text="max_stall <= 1ms")
    with pytest.raises(UserError, match="max_stall"):
        written(records, msgspec.structs.replace(facts, goodput_slos=(stall,)))


def test_detailed_adds_one_value_per_request_in_seconds(records: list[RequestRecord], facts: RunFacts) -> None:
    result = written(records, facts, with_(detailed=True, origin_monotonic_ns=5_000_000_000))
    assert list(result)[len(PLAIN_KEYS) :] == [
        *("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "generated_texts", "errors")
    ]
    assert result["input_lens"] == [512, 512, 512, 512]
    assert result["output_lens"] == [3, 3, 0, 0]
    assert result["ttfts"] == [0.1, 0.2, None, None]
    assert result["itls"] == [[0.01, 0.02], [1.27, 0.03], [], []]
    assert result["latencies"] == [0.13, 1.5, None, None]
    assert result["start_times"] == [5.0, 5.02, None, None]
    assert result["errors"][:2] == ["", ""]
    assert result["errors"][2] == "connect_error: connection refused"


def test_metadata_is_merged(records: list[RequestRecord], facts: RunFacts) -> None:
    result = written(records, facts, with_(metadata=(("tp", "2"), ("ttfts", "mine")), detailed=True))
    assert result["tp"] == "2"
    assert len(result["ttfts"]) == 4


def test_a_failed_run_has_null_where_nothing_was_measured(records: list[RequestRecord], facts: RunFacts) -> None:
    result = written(records[2:], facts)
    assert (result["completed"], result["request_throughput"], result["total_output_tokens"]) == (0, 0.0, 0)
    assert {result[key] for key in result if key.endswith("_ms")} == {None}
    assert (result["max_output_tokens_per_s"], result["max_concurrent_requests"]) == (None, None)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "openai-chat-infqps-model-20260710-084500.json"),
        ({"request_rate": 10.0, "max_concurrency": 8, "label": "mine"}, "mine-10.0qps-concurrency8-model-20260710-084500.json"),
        (
            {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 9.0},
            "openai-chat-ramp-up-linear-1qps-9qps-model-20260710-084500.json",
        ),
        ({"label": "a/b", "model_id": "m"}, "a_b-infqps-m-20260710-084500.json"),
    ],
)
def test_the_default_file_name_is_the_tools_own(changes: dict[str, Any], name: str) -> None:
    assert file_name(with_(**changes)) == name


def test_options_repeat_the_scenario() -> None:
    scenario = Scenario(
        target=TargetSpec(base_urls=("http://a:1",), api="completions"),
        schedule=ScheduleSpec(request_rate=10.0, concurrency=8, num_prompts=50),
        label="mine",
        metadata={"tp": "2"},
    )
    output = OutputSpec(percentile_metrics=("ttft",), metric_percentiles=(50.0, 90.0), save_detailed=True)
    options = options_of(scenario, output, "org/model", Anchor(monotonic_ns=7, wall_ns=0), 1_783_673_100_000_000_000)
    assert len(options.date) == len("20260710-084500")
    assert file_name(options) == f"mine-10.0qps-concurrency8-model-{options.date}.json"
    assert (options.backend, options.tokenizer_id, options.num_prompts, options.metadata) == ("openai", "org/model", 50, (("tp", "2"),))
    assert (options.percentile_metrics, options.percentiles, options.detailed, options.origin_monotonic_ns) == (
        ("ttft",),
        (50.0, 90.0),
        True,
        7,
    )
    assert options_of(Scenario(target=scenario.target), output, "m", Anchor(0, 0), 0).request_rate == float("inf")
