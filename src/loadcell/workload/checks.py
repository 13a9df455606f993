"""Refuses a workload that cannot be made, before any file is read."""

import math
from collections.abc import Iterator

from msgspec import DecodeError
from msgspec.json import decode

from loadcell.errors import UserError
from loadcell.workload.spec import WorkloadSpec
from loadcell.workload.synthetic import check_room

_READS_A_FILE = ("sharegpt", "custom", "mooncake")


def validate(spec: WorkloadSpec) -> None:
    """UserError for the first thing wrong; the text names the flag, its value, and what to do."""
    for text in _complaints(spec):
        raise UserError(text)
    if spec.dataset == "random":
        check_room(spec)


def parse_range_ratio(text: str) -> tuple[float, float | None]:
    """VLLM's `--range-ratio`: one number for both, or JSON with `input` and `output`. Gives (input, output or null for the same)."""
    advice = 'must be a number in [0, 1), or {"input": 0.1, "output": 0.3}'
    try:
        value = decode(text)
    except (DecodeError, RecursionError) as error:
        raise UserError(f"--range-ratio {text}: {advice}") from error
    if isinstance(value, dict) and value.keys() == {"input", "output"}:
        return _ratio(value["input"], text, advice), _ratio(value["output"], text, advice)
    return _ratio(value, text, advice), None


def _ratio(value: object, text: str, advice: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise UserError(f"--range-ratio {text}: {advice}")
    return float(value)


def _complaints(spec: WorkloadSpec) -> Iterator[str]:
    yield from _file_complaints(spec)
    yield from _length_complaints(spec)
    yield from _distribution_complaints(spec)


def _file_complaints(spec: WorkloadSpec) -> Iterator[str]:
    if spec.dataset in _READS_A_FILE and not spec.dataset_path:
        yield f"--dataset-name {spec.dataset}: needs --dataset-path"
    if spec.dataset not in _READS_A_FILE and spec.dataset_path:
        yield f"--dataset-path {spec.dataset_path}: {spec.dataset} prompts read no file; say --dataset-name {', '.join(_READS_A_FILE)}"
    if spec.dataset == "mooncake" and spec.shuffle:
        yield "--shuffle: a mooncake trace has its own order; leave it out"
    if spec.dataset != "random" and spec.prefix_len:
        yield f"--prefix-len {spec.prefix_len}: only random prompts take a prefix"


def _length_complaints(spec: WorkloadSpec) -> Iterator[str]:
    if spec.input_len < (0 if spec.prefix_len else 1):
        yield f"--input-len {spec.input_len}: must be at least 1 (0 with --prefix-len)"
    if spec.output_len is not None and spec.output_len < 1:
        yield f"--output-len {spec.output_len}: must be at least 1"
    if spec.prefix_len < 0:
        yield f"--prefix-len {spec.prefix_len}: must be at least 0"
    if spec.prefix_groups < 1:
        yield f"--prefix-groups {spec.prefix_groups}: must be at least 1"
    if spec.prefix_groups > 1 and not spec.prefix_len:
        yield f"--prefix-groups {spec.prefix_groups}: needs --prefix-len"
    if spec.max_model_len is not None and spec.max_model_len < 2:
        yield f"--max-model-len {spec.max_model_len}: must be at least 2"


def _distribution_complaints(spec: WorkloadSpec) -> Iterator[str]:
    if not 0 <= spec.range_ratio < 1:
        yield f"--range-ratio {spec.range_ratio:g}: must be in [0, 1)"
    if spec.output_range_ratio is not None and not 0 <= spec.output_range_ratio < 1:
        yield f"--range-ratio (output) {spec.output_range_ratio:g}: must be in [0, 1)"
    if not 0 < spec.dist_spread < math.inf:
        yield f"--dist-spread {spec.dist_spread:g}: must be above 0 (standard deviation over mean)"
    output_ratio = spec.range_ratio if spec.output_range_ratio is None else spec.output_range_ratio
    for flag, distribution, ratio in (
        ("--input-dist", spec.input_dist, spec.range_ratio),
        ("--output-dist", spec.output_dist, output_ratio),
    ):
        if distribution == "uniform" and not ratio:
            yield f"{flag} uniform: needs --range-ratio above 0"
        if distribution not in ("fixed", "uniform") and ratio:
            yield f"{flag} {distribution}: has --dist-spread instead of --range-ratio {ratio:g}; give one of them"
