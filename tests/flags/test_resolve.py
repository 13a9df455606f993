"""Flags -> scenario, as a table: what each says, what they say together, and what they must not say together."""

import json
import math
from typing import Any

import pytest

from loadcell.errors import UserError
from loadcell.flags.refused import REFUSED, REFUSED_DATASETS
from loadcell.flags.resolve import scenario_from_flags, with_api_key
from loadcell.flags.table import ALIASES, FLAGS
from loadcell.scenario import Scenario

CUSTOM = {"dataset_name": "custom", "dataset_path": "rows.jsonl"}
SHAREGPT = {"dataset_name": "sharegpt", "dataset_path": "chats.json"}


def scenario(**given: Any) -> Scenario:
    return scenario_from_flags(given)[0]


def at(thing: Any, path: str) -> Any:
    for name in path.split("."):
        thing = getattr(thing, name)
    return thing


def refusal(**given: Any) -> str:
    with pytest.raises(UserError) as caught:
        scenario_from_flags(given)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_nothing_said_gives_the_documented_defaults() -> None:
    made, output = scenario_from_flags({})
    assert made.target.base_urls == ("http://127.0.0.1:8000",)
    assert made.target.api == "chat"
    assert made.schedule.num_prompts == 1000
    assert made.schedule.concurrency is None
    assert made.schedule.request_rate is None
    assert (made.workload.dataset, made.workload.input_len, made.workload.output_len) == ("random", 1024, 128)
    assert made.sampling.temperature == 0.0
    assert made.sampling.ignore_eos is None
    assert made.endpoint.max_retries is None
    assert output.progress
    assert not output.save_result


def test_the_specs_defaults_and_the_flags_defaults_agree() -> None:
    made = scenario()
    assert made == Scenario(target=made.target)


SAID: list[tuple[dict[str, Any], str, Any]] = [
    # the seed client's flags
    ({"host": "10.0.0.1", "port": "30005"}, "target.base_urls", ("http://10.0.0.1:30005",)),
    ({"ports": "30005,30006"}, "target.base_urls", ("http://127.0.0.1:30005", "http://127.0.0.1:30006")),
    ({"model": "m"}, "target.model", "m"),
    ({"concurrency": "32"}, "schedule.concurrency", 32),
    ({"input_len": "512"}, "workload.input_len", 512),
    ({"output_len": "256"}, "workload.output_len", 256),
    ({"num_prompts": "640"}, "schedule.num_prompts", 640),
    ({"lb_strategy": "least_conn"}, "endpoint.strategy", "least_conn"),
    ({"health_check_interval": "3"}, "endpoint.health_check_interval_s", 3.0),
    ({"health_check_interval": 0}, "endpoint.health_check_interval_s", 0.0),
    ({"health_max_failures": "1"}, "endpoint.health_max_failures", 1),
    ({"health_recovery_interval": "5"}, "endpoint.health_recovery_interval_s", 5.0),
    ({"request_max_retries": "3"}, "endpoint.max_retries", 3),
    ({"request_max_retries": 0}, "endpoint.max_retries", 0),
    # where
    ({"host": "::1", "port": 8}, "target.base_urls", ("http://[::1]:8",)),
    ({"host": "[::1]", "port": 8}, "target.base_urls", ("http://[::1]:8",)),
    ({"host": "::", "port": 8}, "target.base_urls", ("http://[::1]:8",)),
    ({"host": "0.0.0.0", "port": 8}, "target.base_urls", ("http://127.0.0.1:8",)),
    ({"base_url": ["http://a/v1", "https://[::1]:9/gw/v2/"]}, "target.base_urls", ("http://a/v1", "https://[::1]:9/gw/v2/")),
    ({"base_url": "http://a"}, "target.base_urls", ("http://a",)),
    ({"backend": "openai-chat"}, "target.api", "chat"),
    ({"backend": "vllm"}, "target.api", "completions"),
    ({"backend": "openai"}, "target.api", "completions"),
    ({"endpoint_type": "completions"}, "target.api", "completions"),
    ({"endpoint": "/v1/completions"}, "target.api", "completions"),
    ({"endpoint": "/v1/chat/completions"}, "target.api", "chat"),
    ({"endpoint": "/v1/chat/completions"}, "target.endpoint_path", "/v1/chat/completions"),
    ({"endpoint": "/generate", "backend": "vllm"}, "target.api", "completions"),
    ({"header": ["X-A=1=2", "X-B: c=d", "X-C="]}, "target.headers", (("X-A", "1=2"), ("X-B", "c=d"), ("X-C", ""))),
    ({"header": {"X-A": "1"}}, "target.headers", (("X-A", "1"),)),
    ({"insecure": True}, "target.insecure", True),
    ({"proxy": "http://proxy:3128"}, "target.proxy", "http://proxy:3128"),
    ({"ready_check_timeout_sec": "60"}, "ready_check_timeout_s", 60.0),
    # when
    ({"max_concurrency": "8"}, "schedule.concurrency", 8),
    ({"concurrency": 8, "max_concurrency": "8"}, "schedule.concurrency", 8),
    ({"concurrency": "unlimited"}, "schedule.concurrency", None),
    ({"request_rate": "inf"}, "schedule.request_rate", float("inf")),
    ({"request_rate": "2.5"}, "schedule.arrival", "poisson"),
    ({"request_rate": "2.5", "burstiness": "0.5"}, "schedule.arrival", "gamma"),
    ({"request_rate": "2.5", "arrival": "constant"}, "schedule.arrival", "constant"),
    ({"duration": "30", "concurrency": 4}, "schedule.num_prompts", None),
    ({"duration": "30", "concurrency": 4, "num_prompts": "20"}, "schedule.num_prompts", 20),
    ({"duration": "30", "concurrency": 4}, "schedule.duration_s", 30.0),
    ({"steps": "2:30,4:10"}, "schedule.steps", ((2.0, 30.0), (4.0, 10.0))),
    ({"steps": "2:30,4:10"}, "schedule.num_prompts", None),
    ({"concurrency": 8, "ramp_concurrency": "10"}, "schedule.ramp_concurrency_s", 10.0),
    ({"ramp_up_strategy": "linear", "ramp_up_start_rps": "1", "ramp_up_end_rps": "9"}, "schedule.ramp_up_end_rps", 9.0),
    ({"request_rate": 8, "burst_size": 4}, "schedule.burst_size", 4),
    ({"num_warmups": "3"}, "warmup_requests", 3),
    ({"warmup_duration": "2"}, "warmup_duration_s", 2.0),
    ({"seed": 0}, "seed", 0),
    ({"seed": "7"}, "workload.seed", 7),
    # what
    ({"random_input_len": "9", "random_output_len": "4", "random_prefix_len": "5"}, "workload.prefix_len", 5),
    ({"random_range_ratio": "0.5"}, "workload.range_ratio", 0.5),
    ({"range_ratio": 0.5}, "workload.range_ratio", 0.5),
    ({"random_range_ratio": '{"input": 0.1, "output": 0.5}'}, "workload.output_range_ratio", 0.5),
    (SHAREGPT, "workload.output_len", None),
    (SHAREGPT | {"sharegpt_output_len": "64"}, "workload.output_len", 64),
    (SHAREGPT | {"output_len": "64"}, "workload.output_len", 64),
    (CUSTOM | {"custom_output_len": "-1"}, "workload.output_len", None),
    (CUSTOM, "workload.output_len", 256),
    (CUSTOM | {"reuse": False}, "workload.reuse", False),
    ({"cell": "c8"}, "workload.cell", "c8"),
    # how
    ({"temperature": "0.7"}, "sampling.temperature", 0.7),
    ({"temperature": "server"}, "sampling.temperature", None),
    ({"top_p": "0.9"}, "sampling.top_p", 0.9),
    ({"ignore_eos": False}, "sampling.ignore_eos", False),
    ({"top_k": "20", "extra_body": '{"a": [1]}'}, "sampling.extra_body", {"top_k": 20, "a": [1]}),
    ({"extra_body": {"a": 1}}, "sampling.extra_body", {"a": 1}),
    (
        {"extra_body": {"stream_options": {"continuous_usage_stats": True}}},
        "sampling.extra_body",
        {"stream_options": {"continuous_usage_stats": True}},
    ),
    ({"stream": False}, "sampling.stream", False),
    # for how long
    ({"first_byte_timeout": "20"}, "timeouts.first_output_s", 20.0),
    ({"drain_timeout": "0"}, "drain_s", 0.0),
    ({"patience": "5"}, "endpoint.patience_s", 5.0),
    # with what in mind
    ({"devices": "8"}, "devices", 8),
    ({"metadata": ["tp=2", "note=a=b"]}, "metadata", {"tp": "2", "note": "a=b"}),
    ({"label": "x"}, "label", "x"),
    ({"name": "run-1"}, "name", "run-1"),
    # flags of vllm bench serve that ask for what holds anyway
    ({"trust_remote_code": True, "skip_chat_template": True}, "workload.tokenizer", "auto"),
]


@pytest.mark.parametrize(("given", "path", "value"), SAID, ids=lambda one: None if isinstance(one, str) else str(one)[:60])
def test_what_a_flag_says(given: dict[str, Any], path: str, value: Any) -> None:
    assert at(scenario(**given), path) == value


OUTPUT: list[tuple[dict[str, Any], str, Any]] = [
    ({"output_file": "f.jsonl", "overwrite": True}, "overwrite", True),
    ({"save_result": True, "metric_percentiles": "50,99.9"}, "metric_percentiles", (50.0, 99.9)),
    ({"save_result": True, "percentile_metrics": "ttft,e2el"}, "percentile_metrics", ("ttft", "e2el")),
    ({"append_result": True, "result_filename": "r.json"}, "save_result", True),
    ({"progress": False}, "progress", False),
    ({"quiet": True}, "progress", False),
    ({"output_dir": "runs/a b"}, "output_dir", "runs/a b"),
    ({"strict": True}, "strict", True),
]


@pytest.mark.parametrize(("given", "name", "value"), OUTPUT)
def test_what_is_left_behind(given: dict[str, Any], name: str, value: Any) -> None:
    assert getattr(scenario_from_flags(given)[1], name) == value


def test_limits_are_read() -> None:
    made, output = scenario_from_flags(
        {"slo": ["ttft p95 <= 200ms", "tpot p50 <= 40ms"], "goodput": ["ttft:200", "e2el:9000"], "gate": True}
    )
    assert [slo.metric for slo in made.slos] == ["ttft", "tpot"]
    assert [slo.metric for slo in made.goodput] == ["ttft", "e2e"]
    assert output.gate


REFUSALS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    # names
    ({"concurency": 3}, ("--concurency", "did you mean --concurrency")),
    ({"hf_split": "x"}, ("--hf-split", "--dataset-name custom")),
    # values
    ({"concurrency": "0"}, ("--concurrency 0",)),
    ({"concurrency": "-1"}, ("--concurrency -1",)),
    ({"concurrency": "inf"}, ("--concurrency inf", "unlimited")),
    ({"max_concurrency": "0"}, ("--max-concurrency 0",)),
    ({"request_rate": "0"}, ("--request-rate 0",)),
    ({"request_rate": "-1"}, ("--request-rate -1",)),
    ({"request_rate": "nan"}, ("--request-rate nan",)),
    ({"num_prompts": "0"}, ("--num-prompts 0",)),
    ({"num_prompts": "1.5"}, ("--num-prompts 1.5", "whole number")),
    ({"num_prompts": True}, ("--num-prompts True",)),
    ({"port": "70000"}, ("--port 70000",)),
    ({"port": "http"}, ("--port http", "whole number")),
    ({"ports": "1,x"}, ("--ports 1,x",)),
    ({"ports": "1,1"}, ("--ports", "twice")),
    ({"ports": "1,70000"}, ("70000",)),
    ({"host": "http://a"}, ("--host",)),
    ({"host": "a:80"}, ("--host",)),
    ({"base_url": [""]}, ("--base-url", "http://")),
    ({"base_url": ["ftp://a"]}, ("--base-url", "ftp")),
    ({"base_url": ["http://a?x=1"]}, ("--base-url", "query")),
    ({"base_url": ["http://a:99999"]}, ("--base-url", "99999")),
    ({"base_url": ["http://a", "http://a"]}, ("--base-url", "twice")),
    ({"endpoint": "v1/a b"}, ("--endpoint", "/v1/chat/completions")),
    ({"health_path": "health"}, ("--health-path health",)),
    ({"lb_strategy": "best"}, ("--lb-strategy best", "round_robin")),
    ({"backend": "tgi"}, ("--backend tgi", "openai-chat")),
    ({"dataset_name": "sonnet"}, ("--dataset-name sonnet", "custom")),
    ({"dataset_name": "randm"}, ("--dataset-name randm", "random")),
    ({"header": ["novalue"]}, ("--header", "KEY=VALUE")),
    ({"header": ["A B=c"]}, ("--header",)),
    ({"header": ["A=b\r\nX: y"]}, ("--header A",)),
    ({"header": ["Host=x"]}, ("--header Host",)),
    ({"metadata": ["tp"]}, ("--metadata tp", "KEY=VALUE")),
    ({"metadata": ["a=1", "a=2"]}, ("--metadata a=2", "twice")),
    ({"extra_body": "{"}, ("--extra-body {", "JSON")),
    ({"extra_body": "[1]"}, ("--extra-body [1]", "object")),
    ({"extra_body": '{"a": NaN}'}, ("--extra-body", "NaN")),
    ({"extra_body": {"a": [{"b": math.inf}]}}, ("--extra-body", "Infinity")),
    ({"frequency_penalty": "inf"}, ("--frequency-penalty inf", "finite")),
    ({"range_ratio": "1"}, ("--range-ratio 1", "[0, 1)")),
    ({"temperature": "hot"}, ("--temperature hot", "'server'")),
    ({"connect_timeout": 0}, ("--connect-timeout 0",)),
    ({"name": "../x"}, ("--name ../x",)),
    ({"metric_percentiles": "101", "save_result": True}, ("--metric-percentiles 101",)),
    ({"percentile_metrics": "client_queue_time", "save_result": True}, ("--percentile-metrics client_queue_time", "summary.json")),
    ({"steps": "2"}, ("--steps 2", "RATE:SECONDS")),
    ({"proxy": "socks5://a:1"}, ("--proxy socks5://a:1",)),
    ({"slo": ["ttft fast"]}, ("--slo",)),
    ({"goodput": ["speed:3"]}, ("--goodput",)),
    # together
    ({"base_url": ["http://a"], "host": "b"}, ("--base-url with --host",)),
    ({"base_url": ["http://a"], "ports": "1,2"}, ("--base-url with --ports",)),
    ({"port": 1, "ports": "1,2"}, ("--port with --ports",)),
    ({"concurrency": 8, "max_concurrency": 16}, ("--concurrency 8", "--max-concurrency 16")),
    ({"input_len": 8, "random_input_len": 16}, ("--input-len 8", "--random-input-len 16")),
    ({"backend": "vllm", "endpoint": "/v1/chat/completions"}, ("--backend vllm", "--endpoint /v1/chat/completions")),
    ({"backend": "vllm", "endpoint_type": "chat"}, ("--backend vllm", "--endpoint-type chat")),
    ({"insecure": True, "ca_file": "x.pem"}, ("--insecure with --ca-file",)),
    ({"arrival": "constant"}, ("--arrival constant", "--request-rate")),
    ({"arrival": "constant", "request_rate": "inf"}, ("--arrival constant", "--request-rate")),
    ({"burstiness": 0.5}, ("--burstiness 0.5", "--request-rate")),
    ({"burst_size": 4, "concurrency": 8}, ("--burst-size 4", "--request-rate")),
    ({"burstiness": 0.5, "arrival": "poisson", "request_rate": 1}, ("--burstiness 0.5", "--arrival poisson")),
    ({"ramp_up_strategy": "linear"}, ("--ramp-up-strategy", "--ramp-up-start-rps")),
    ({"ramp_up_start_rps": 1}, ("--ramp-up-start-rps", "--ramp-up-strategy")),
    ({"ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 2, "request_rate": 3}, ("--request-rate 3", "ramp")),
    ({"steps": "2:3", "request_rate": 3}, ("--steps", "--request-rate")),
    ({"ramp_concurrency": 3}, ("--ramp-concurrency 3", "--concurrency")),
    ({"duration": 3}, ("--duration", "--concurrency")),
    ({"dataset_path": "x.json"}, ("--dataset-path x.json", "--dataset-name sharegpt, custom")),
    ({"dataset_name": "custom"}, ("--dataset-name custom", "--dataset-path")),
    (SHAREGPT | {"input_len": 8}, ("--input-len", "sharegpt")),
    (SHAREGPT | {"random_input_len": 8}, ("--random-input-len", "sharegpt")),
    ({"sharegpt_output_len": 8}, ("--sharegpt-output-len", "random")),
    ({"range_ratio": 0.5, "input_dist": "normal"}, ("--range-ratio", "--input-dist normal")),
    ({"input_dist": "uniform"}, ("--input-dist uniform", "--range-ratio")),
    ({"extra_body": {"stream": False}}, ("--extra-body", "'stream'", "--no-stream")),
    ({"extra_body": {"top_p": 0.1}, "top_p": 0.2}, ("--extra-body", "--top-p")),
    ({"extra_body": {"stream_options": {"include_usage": False}}}, ("--extra-body", "include_usage", "always")),
    ({"extra_body": {"stream_options": {}}, "stream": False}, ("--extra-body", "'stream_options'", "--no-stream")),
    ({"extra_body": {"stream_options": True}}, ("--extra-body", "'stream_options'", "object")),
    ({"gate": True}, ("--gate", "--slo")),
    ({"overwrite": True}, ("--overwrite", "--output-file")),
    ({"result_dir": "x"}, ("--result-dir", "--save-result")),
    ({"save_detailed": True}, ("--save-detailed", "--save-result")),
]


@pytest.mark.parametrize(("given", "words"), REFUSALS, ids=lambda one: str(one)[:70])
def test_what_is_refused_names_the_flag_and_the_way_out(given: dict[str, Any], words: tuple[str, ...]) -> None:
    text = refusal(**given)
    for word in words:
        assert word in text


@pytest.mark.parametrize("name", [*REFUSED, "sonnet_input_len", "prefix_repetition_prefix_len", "random_mm_bucket_config"])
def test_a_flag_of_vllm_without_meaning_here_is_refused_with_a_substitute(name: str) -> None:
    assert name not in FLAGS
    assert name not in ALIASES
    assert "has no meaning here: " in refusal(**{name: "x"})


@pytest.mark.parametrize("name", REFUSED_DATASETS)
def test_a_data_set_of_vllm_that_is_not_read_here_is_refused_with_a_substitute(name: str) -> None:
    assert "is not read here: " in refusal(dataset_name=name, dataset_path="x")


def test_secrets_in_a_url_are_not_repeated() -> None:
    assert "hunter2" not in refusal(base_url=["http://user:hunter2@a/v1"])


def test_secrets_in_a_header_are_not_repeated() -> None:
    assert "hunter2" not in refusal(header=["Bearer hunter2"])
    assert "hunter2" not in refusal(header=["Authorization=hunter2\nX: y"])


class TestTrace:
    def test_a_file_of_seconds(self, tmp_path: Any) -> None:
        path = tmp_path / "t.txt"
        path.write_text("# a comment\n10\n\n10.5\n12\n")
        made = scenario(trace=str(path))
        assert made.schedule.trace_s == (0.0, 0.5, 2.0)
        assert made.schedule.num_prompts is None

    def test_a_count_cuts_it(self, tmp_path: Any) -> None:
        path = tmp_path / "t.txt"
        path.write_text("0\n1\n2\n")
        assert scenario(trace=str(path), num_prompts=2).schedule.num_prompts == 2

    def test_a_data_set_with_times_is_its_own_schedule(self, tmp_path: Any) -> None:
        path = tmp_path / "m.jsonl"
        path.write_text(
            "\ufeff"
            + "\r\n".join(json.dumps({"timestamp": ms, "input_length": 5, "output_length": 2, "hash_ids": [1]}) for ms in (500, 750))
        )
        given = {"dataset_name": "mooncake", "dataset_path": str(path)}
        assert scenario(**given).schedule.trace_s == (0.0, 0.25)
        assert scenario(**given, concurrency=4).schedule.trace_s == ()
        assert "--trace" in refusal(**given, trace=str(path))
        assert scenario(**given, request_rate=4).schedule.trace_s == ()

    @pytest.mark.parametrize(
        ("text", "words"), [("1\nx\n", ":2:"), ("2\n1\n", ":2: earlier"), ("", "no times"), ('{"timestamp": "a"}', ":1:"), ("nan", ":1:")]
    )
    def test_what_is_no_trace_is_refused_by_line(self, tmp_path: Any, text: str, words: str) -> None:
        path = tmp_path / "t.txt"
        path.write_text(text)
        assert words in refusal(trace=str(path))

    def test_a_missing_file(self, tmp_path: Any) -> None:
        assert "No such file" in refusal(trace=str(tmp_path / "none"))

    def test_a_rate_beside_a_trace(self, tmp_path: Any) -> None:
        path = tmp_path / "t.txt"
        path.write_text("0\n1\n")
        assert "--request-rate" in refusal(trace=str(path), request_rate=3)


class TestKey:
    def headers(self, environment: dict[str, str], **given: Any) -> tuple[tuple[str, str], ...]:
        return with_api_key(scenario(**given), environment).target.headers

    @pytest.mark.parametrize("environment", [{}, {"OPENAI_API_KEY": ""}, {"OPENAI_API_KEY": " \n"}, {"OTHER": "k"}])
    def test_no_key_no_header(self, environment: dict[str, str]) -> None:
        assert self.headers(environment) == ()

    def test_a_key(self) -> None:
        assert self.headers({"OPENAI_API_KEY": "k1\n"}) == (("Authorization", "Bearer k1"),)
        assert self.headers({"MINE": "k2", "OPENAI_API_KEY": "k1"}, api_key_env="MINE") == (("Authorization", "Bearer k2"),)

    def test_a_header_of_the_users_stays(self) -> None:
        assert self.headers({"OPENAI_API_KEY": "k1"}, header=["authorization: Basic x"]) == (("authorization", "Basic x"),)

    def test_a_key_that_no_header_can_carry(self) -> None:
        with pytest.raises(UserError, match="--api-key-env OPENAI_API_KEY") as caught:
            self.headers({"OPENAI_API_KEY": "hunter2\r\nX: y"})
        assert "hunter2" not in str(caught.value)


def test_every_alias_names_a_flag() -> None:
    assert all(alias.alias_of in FLAGS for alias in ALIASES.values())


def test_every_flag_changes_something_or_is_checked_elsewhere() -> None:
    """A flag that is read nowhere would be shown as active and ignored."""
    from pathlib import Path

    import loadcell.flags.resolve as resolve
    import loadcell.flags.target as target

    source = "".join(Path(str(module.__file__)).read_text() for module in (resolve, target))
    assert [name for name in FLAGS if f'"{name}"' not in source] == []


@pytest.mark.parametrize("name", [name for name, flag in FLAGS.items() if flag.kind == "int" or flag.metavar == "SECONDS"])
def test_no_number_is_so_large_that_a_counter_or_a_clock_breaks(name: str) -> None:
    assert refusal(**{name: str(10**23)}).startswith(f"{FLAGS[name].spelling} 1")


def test_workers_are_no_fork_bomb() -> None:
    assert refusal(workers="1000000") == "--workers 1000000: must lie in 1..1024"


@pytest.mark.parametrize(
    "given",
    [{"model": "m\udcff"}, {"cell": "\ud800"}, {"metadata": ["k=\udcff"]}, {"metadata": {"k": "\udcff"}}, {"extra_body": '{"\\ud800": 1}'}],
)
def test_what_no_file_can_hold_is_refused_in_a_line_that_can_be_printed(given: dict[str, Any]) -> None:
    assert "no UTF-8" in refusal(**given).encode().decode()


def test_a_header_is_not_repeated_when_it_is_refused() -> None:
    assert "sesame" not in refusal(header=["K=sesame\udcff"])
