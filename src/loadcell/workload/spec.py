"""What is asked: the spec of a workload. Frozen; `scenario` composes it."""

from typing import Literal

from msgspec import Struct

DatasetName = Literal["random", "sharegpt", "custom", "mooncake"]
Distribution = Literal["fixed", "uniform", "normal", "lognormal", "exponential", "zipf"]
Purpose = Literal["measure", "warmup"]


class WorkloadSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Lengths are tokens. `range_ratio` r in vLLM's meaning: lengths uniform in [len·(1−r), len·(1+r)], for input and output;
    `output_range_ratio` sets another one for the output.

    `dist_spread`: coefficient of variation (standard deviation / mean) of normal, lognormal and zipf lengths; their mean is the length.
    `prefix_len` tokens are shared by all prompts of a prefix group, before the input length; `prefix_groups` groups, drawn uniformly.
    `tokenizer`: "auto" (server if it answers, else words), "server", "words", or a path to tokenizer.json (or its folder).
    `cell` and `repeat` name this cell of an experiment: cells draw different prompts from one seed unless `same_prompts`.
    `reuse`: a data set smaller than the run is read again from its start (said in the report) instead of refused.
    `max_model_len`: rows whose prompt + output exceed it are handled by `oversize`.
    """

    dataset: DatasetName = "random"
    dataset_path: str | None = None
    input_len: int = 1024
    output_len: int | None = 128
    range_ratio: float = 0.0
    output_range_ratio: float | None = None
    input_dist: Distribution = "fixed"
    output_dist: Distribution = "fixed"
    dist_spread: float = 0.3
    prefix_len: int = 0
    prefix_groups: int = 1
    tokenizer: str = "auto"
    seed: int = 0
    cell: str = ""
    repeat: int = 0
    same_prompts: bool = False
    reuse: bool = True
    shuffle: bool = False
    max_model_len: int | None = None
    oversize: Literal["skip", "cap", "keep"] = "skip"
