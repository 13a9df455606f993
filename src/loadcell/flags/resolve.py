"""Flags -> the scenario they ask for, and what is to be left behind. The one place that knows how flags depend on each other.

Pure, but for reading the file of arrival times that a flag names. The environment is never read.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from loadcell import schedule, workload
from loadcell.client.limits import Timeouts
from loadcell.endpoint.spec import EndpointSpec
from loadcell.errors import UserError
from loadcell.flags import pairs
from loadcell.flags.refused import REFUSED_DATASETS
from loadcell.flags.target import target_spec
from loadcell.flags.trace import mooncake_times, read_trace
from loadcell.flags.values import Values, read
from loadcell.metrics.slo import parse_goodput, parse_slo
from loadcell.output import OutputSpec
from loadcell.scenario import SamplingSpec, Scenario
from loadcell.schedule import ScheduleSpec
from loadcell.seeds import fresh
from loadcell.workload.spec import WorkloadSpec

DEFAULT_PROMPTS: Final = 1000
CUSTOM_OUTPUT_LEN: Final = 256  # vLLM's --custom-output-len, for rows that name none
_PACE: Final = ("request_rate", "ramp_up_strategy", "steps", "trace")
_EXTRA_SAMPLING: Final = ("top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
_BODY_OWNERS: Final = {
    "model": "--model",
    "messages": "--dataset-name custom",
    "prompt": "--dataset-name custom",
    "stream": "--stream or --no-stream",
    "n": "--num-prompts (one answer per request is measured)",
}
_EXPORTED: Final = ("ttft", "tpot", "itl", "e2el")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def scenario_from_flags(given: Mapping[str, Any]) -> tuple[Scenario, OutputSpec]:
    """Values by flag name (`num_prompts`; null = not given) -> what to run and what to leave behind.

    Values may be texts, as a command line has them, or Python values. UserError names the flag, the value and what to do.
    """
    instead = REFUSED_DATASETS.get(str(given.get("dataset_name")))
    if instead:
        raise UserError(f"--dataset-name {given['dataset_name']} is not read here: {instead}")
    values = read(given)
    output = _output(values)
    return _scenario(values, output.name), output


def with_fresh_seed(given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` with a new seed, so that a run repeats no prompts by accident. A run that names its seed, its cell or its repeat, or asks for the
    same prompts, is part of something that is to be reproduced: it keeps the fixed one.
    """
    fixed = any(given.get(name) for name in ("cell", "repeat", "same_prompts")) or given.get("seed") is not None
    return dict(given) if fixed else {**given, "seed": fresh()}


def with_api_key(scenario: Scenario, environment: Mapping[str, str]) -> Scenario:
    """Add `Authorization: Bearer …` from the variable that the scenario names.

    An unset or empty variable adds nothing; a header that the user gave stays.
    """
    target = scenario.target
    key = environment.get(target.api_key_env, "").strip()
    if not key or any(name.lower() == "authorization" for name, _ in target.headers):
        return scenario
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"--api-key-env {target.api_key_env}: the key holds characters that a header cannot carry")
    return replace(scenario, target=replace(target, headers=(*target.headers, ("Authorization", f"Bearer {key}"))))


def _scenario(values: Values, name: str) -> Scenario:
    slos = tuple(parse_slo(text) for text in values["slo"] or ())
    goodput = tuple(parse_goodput(values["goodput"])) if values["goodput"] else ()
    if values["gate"] and not slos:
        raise UserError("--gate needs --slo: there is no limit to hold the run against")
    return Scenario(
        target=target_spec(values),
        name=name,
        schedule=_schedule(values),
        workload=_workload(values),
        sampling=_sampling(values),
        endpoint=_endpoint(values),
        timeouts=_timeouts(values),
        warmup_requests=values["warmup_requests"],
        warmup_duration_s=values["warmup_duration"],
        workers=values["workers"],
        seed=values["seed"],
        max_failures=values["max_failures"],
        ready_check_timeout_s=values["ready_check_timeout_sec"],
        drain_s=values["drain_timeout"],
        save_text=values["save_text"],
        slos=slos,
        goodput=goodput,
        devices=values["devices"],
        label=values["label"],
        metadata=pairs.metadata(values["metadata"] or ()),
    )


def _schedule(values: Values) -> ScheduleSpec:
    paced = values.said("ramp_up_strategy", "steps") or (values.said("request_rate") and values["request_rate"] != float("inf"))
    for name in ("arrival", "burstiness", "burst_size"):
        if values.said(name) and not paced:
            raise UserError(
                f"{values.spelled(name)} {values[name]} needs a finite --request-rate, --steps or --ramp-up-strategy: without one there are no gaps"
            )
    if values.said("burstiness") and values.said("arrival") and values["arrival"] != "gamma" and values["burstiness"] != 1:
        raise UserError(f"--burstiness {values['burstiness']:g} with --arrival {values['arrival']}: burstiness shapes gamma; leave one out")
    spec = ScheduleSpec(
        concurrency=values["concurrency"],
        request_rate=values["request_rate"],
        arrival=values["arrival"] or ("poisson" if values["burstiness"] == 1 else "gamma"),
        burstiness=values["burstiness"],
        ramp_up_strategy=values["ramp_up_strategy"],
        ramp_up_start_rps=values["ramp_up_start_rps"],
        ramp_up_end_rps=values["ramp_up_end_rps"],
        ramp_concurrency_s=values["ramp_concurrency"],
        steps=pairs.steps(values["steps"]) if values.said("steps") else (),
        burst_size=values["burst_size"],
        trace_s=_trace(values),
        num_prompts=values["num_prompts"],
        duration_s=values["duration"],
    )
    # A count that nobody asked for must not end a load that ends by itself.
    if not values.said("num_prompts") and spec.duration_s is None and not spec.trace_s and not spec.steps:
        spec = replace(spec, num_prompts=DEFAULT_PROMPTS)
    schedule.validate(spec)
    if math.isinf(spec.burstiness):  # vLLM's way to ask for constant gaps; JSON, which a spec passes through, knows no infinity
        spec = replace(spec, arrival="constant", burstiness=1.0)
    return spec


def _trace(values: Values) -> tuple[float, ...]:
    own_times = values["dataset_name"] == "mooncake"
    if values.said("trace"):
        if own_times:
            raise UserError(f"--trace {values['trace']} with --dataset-name mooncake: the data set has its own times; leave --trace out")
        return read_trace(values["trace"])
    if own_times and values.said("dataset_path") and not values.said("concurrency", *_PACE):
        return mooncake_times(values["dataset_path"])
    return ()


def _output_len(values: Values) -> int | None:
    by_dataset = {"random": WorkloadSpec().output_len, "custom": CUSTOM_OUTPUT_LEN}
    length: int | None = values["output_len"]
    return length if values.said("output_len") else by_dataset.get(values["dataset_name"])


def _workload(values: Values) -> WorkloadSpec:
    range_ratio, output_range_ratio = workload.parse_range_ratio(values["range_ratio"])
    spec = WorkloadSpec(
        dataset=values["dataset_name"],
        dataset_path=values["dataset_path"],
        input_len=values["input_len"],
        output_len=_output_len(values),
        range_ratio=range_ratio,
        output_range_ratio=output_range_ratio,
        input_dist=values["input_dist"],
        output_dist=values["output_dist"],
        dist_spread=values["dist_spread"],
        prefix_len=values["prefix_len"],
        prefix_groups=values["prefix_groups"],
        tokenizer=values["tokenizer"],
        seed=values["seed"],
        cell=values["cell"] or "",
        repeat=values["repeat"],
        same_prompts=values["same_prompts"],
        reuse=values["reuse"],
        shuffle=values["shuffle"],
        max_model_len=values["max_model_len"],
        oversize=values["oversize"],
    )
    workload.validate(spec)
    return spec


def _sampling(values: Values) -> SamplingSpec:
    body = values["extra_body"] or {}
    for key in body:
        if key in _BODY_OWNERS:
            raise UserError(f"--extra-body with the key {key!r}: use {_BODY_OWNERS[key]}")
        if values.said(key):
            raise UserError(f"--extra-body with the key {key!r} and {values.spelled(key)}: give one of them")
    _check_stream_options(body, stream=values["stream"])
    extra = {name: values[name] for name in _EXTRA_SAMPLING if values.said(name)}
    return SamplingSpec(
        stream=values["stream"],
        temperature=values["temperature"],
        top_p=values["top_p"],
        ignore_eos=values["ignore_eos"],
        min_tokens=values["min_tokens"],
        max_tokens_field=values["max_tokens_field"],
        extra_body={**extra, **body},
    )


def _check_stream_options(body: Mapping[str, Any], *, stream: bool) -> None:
    """Further ones may be asked for, such as `continuous_usage_stats`; usage itself always is."""
    if "stream_options" not in body:
        return
    options = body["stream_options"]
    if not isinstance(options, dict):
        raise UserError("--extra-body with the key 'stream_options': its value is no JSON object")
    if not stream:
        raise UserError("--extra-body with the key 'stream_options' and --no-stream: servers refuse them in answers that are not streamed")
    if not options.get("include_usage", True):
        raise UserError("--extra-body with include_usage false: usage is always asked for, leave it out")


def _endpoint(values: Values) -> EndpointSpec:
    path = values["health_path"]
    if not path.startswith("/") or any(c.isspace() for c in path):
        raise UserError(f"--health-path {path}: give a path that begins with /")
    return EndpointSpec(
        strategy=values["lb_strategy"],
        health_path=path,
        health_check_interval_s=values["health_check_interval"],
        health_timeout_s=values["health_timeout"],
        health_max_failures=values["health_max_failures"],
        health_recovery_interval_s=values["health_recovery_interval"],
        max_retries=values["request_max_retries"],
        patience_s=values["patience"],
    )


def _timeouts(values: Values) -> Timeouts:
    return Timeouts(
        connect_s=values["connect_timeout"],
        first_output_s=values["first_byte_timeout"],
        idle_s=values["idle_timeout"],
        total_s=values["total_timeout"],
    )


def _output(values: Values) -> OutputSpec:
    for name in ("save_detailed", "result_dir", "result_filename", "percentile_metrics", "metric_percentiles"):
        if values[name] is not False:
            values.require(name, "save_result", "append_result", why="it shapes that file")
    values.require("overwrite", "output_file")
    name = values["name"]
    if not _FILE_NAME.fullmatch(name):
        raise UserError(f"--name {name}: it names a folder; use letters, digits, . _ and -, at most 100")
    metrics = tuple(metric.strip() for metric in values["percentile_metrics"].split(","))
    for metric in metrics:
        if metric not in _EXPORTED:
            raise UserError(f"--percentile-metrics {metric}: choose from {', '.join(_EXPORTED)}; every other figure stands in summary.json")
    return OutputSpec(
        output_dir=values["output_dir"],
        name=name,
        output_file=values["output_file"],
        overwrite=values["overwrite"],
        save_result=values["save_result"] or values["append_result"],
        save_detailed=values["save_detailed"],
        append_result=values["append_result"],
        result_dir=values["result_dir"],
        result_filename=values["result_filename"],
        percentile_metrics=metrics,
        metric_percentiles=pairs.percentiles(values["metric_percentiles"]),
        strict=values["strict"],
        gate=values["gate"],
        progress=values["progress"] and not values["quiet"],
        quiet=values["quiet"],
    )
