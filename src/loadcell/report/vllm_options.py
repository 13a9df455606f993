"""Scenario and output spec -> what vLLM's result JSON repeats of them."""

from datetime import UTC, datetime

from loadcell.clock import Anchor
from loadcell.output import OutputSpec
from loadcell.report.vllm import VllmOptions
from loadcell.scenario import Scenario

_BACKENDS = {"chat": "openai-chat", "completions": "openai"}


def options_of(scenario: Scenario, output: OutputSpec, model: str, origin: Anchor, ended_wall_ns: int) -> VllmOptions:
    """`model`: the one that was asked, as resolved. `ended_wall_ns`: the run's end, ns of the wall clock; its local time names the file."""
    schedule = scenario.schedule
    ended = datetime.fromtimestamp(ended_wall_ns / 1e9, UTC).astimezone()
    return VllmOptions(
        date=ended.strftime("%Y%m%d-%H%M%S"),
        backend=_BACKENDS[scenario.target.api],
        model_id=model,
        label=scenario.label,
        tokenizer_id=_tokenizer_id(scenario.workload.tokenizer, model),
        num_prompts=schedule.num_prompts,
        request_rate=float("inf") if schedule.request_rate is None else schedule.request_rate,
        burstiness=schedule.burstiness,
        max_concurrency=schedule.concurrency,
        ramp_up_strategy=schedule.ramp_up_strategy,
        ramp_up_start_rps=schedule.ramp_up_start_rps,
        ramp_up_end_rps=schedule.ramp_up_end_rps,
        metadata=tuple(scenario.metadata.items()),
        percentile_metrics=output.percentile_metrics,
        percentiles=output.metric_percentiles,
        detailed=output.save_detailed,
        origin_monotonic_ns=origin.monotonic_ns,
    )


def _tokenizer_id(kind: str, model: str) -> str | None:
    """The server's tokenizer is the model's; a word count is none; else it is a path."""
    return {"auto": model, "server": model, "words": None}.get(kind, kind)
