"""Flags of `vllm bench serve` that have no meaning here, each with what to use instead. They are refused, never ignored."""

from typing import Final

REFUSED: Final[dict[str, str]] = {
    "config": "give the flags on the command line",
    "use_beam_search": "use --extra-body '{\"use_beam_search\": true}'",
    "logprobs": 'use --extra-body with the API\'s own field: {"logprobs": N} for completions, {"logprobs": true, "top_logprobs": N} for chat',
    "chat_template_kwargs": "use --extra-body '{\"chat_template_kwargs\": {...}}'",
    "enable_multimodal_chat": "put the messages into a JSON lines file and use --dataset-name custom",
    "tokenizer_mode": "use --tokenizer PATH of a tokenizer.json, or --tokenizer server",
    "skip_tokenizer_init": "use --tokenizer words",
    "lora_modules": "use --model NAME of one adapter, one run per adapter",
    "lora_assignment": "use --model NAME of one adapter, one run per adapter",
    "probe_request_rate": "run a second `loadcell bench` beside this one",
    "profile": "start and stop the server's profiler around the run",
    "request_id_prefix": "use --header X-Request-Id=... for an id of your own",
    "self_timed": "use --dataset-name mooncake or --trace FILE; --request-rate switches a data set's own times off",
    "no_self_timed": "use --request-rate or --concurrency, which switch a data set's own times off",
    "no_oversample": "use --no-reuse, which refuses a data set that is too small",
    "plot_timeline": "read records.jsonl of the run folder, which holds every stamp",
    "timeline_itl_thresholds": "read records.jsonl of the run folder, which holds every stamp",
    "plot_dataset_stats": "read the lengths in records.jsonl of the run folder",
    "random_batch_size": "embeddings are not measured here; use chat or completions",
    "no_reranker": "rerankers are not measured here; use chat or completions",
}

REFUSED_GROUPS: Final[dict[str, str]] = {
    "prefix_repetition_": "use --dataset-name random with --prefix-len, --prefix-groups, --input-len and --output-len",
    "sonnet_": "write the prompts to a JSON lines file and use --dataset-name custom, or random with --prefix-len",
    "random_mm_": "write the messages to a JSON lines file and use --dataset-name custom",
    "hf_": "write the rows to a JSON lines file and use --dataset-name custom",
    "spec_bench_": "write the rows to a JSON lines file and use --dataset-name custom",
    "speed_bench_": "write the rows to a JSON lines file and use --dataset-name custom",
    "blazedit_": "write the rows to a JSON lines file and use --dataset-name custom",
    "asr_": "audio is not measured here; use chat or completions",
    "txt_slices_": "write the rows to a JSON lines file and use --dataset-name custom",
}

REFUSED_DATASETS: Final[dict[str, str]] = {
    "burstgpt": "use mooncake for its lengths, --trace FILE for its times",
    "timed_trace": "use mooncake, or --trace FILE for the times",
    "prefix_repetition": REFUSED_GROUPS["prefix_repetition_"],
} | dict.fromkeys(
    ("sonnet", "hf", "random-mm", "custom_mm", "custom_image", "custom_audio", "spec_bench", "speed_bench", "txt-slices"),
    "write its rows to a JSON lines file and use --dataset-name custom",
)


def substitute_for(name: str) -> str | None:
    """What to use instead of vLLM's flag `name` (with underscores); null when it is no such flag."""
    if name in REFUSED:
        return REFUSED[name]
    return next((text for prefix, text in REFUSED_GROUPS.items() if name.startswith(prefix)), None)
