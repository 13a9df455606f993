"""What a run leaves behind, and what it answers: the spec. Knows no scenario; the runner and the reports read it."""

from typing import Literal

from msgspec import Struct

ExportMetric = Literal["ttft", "tpot", "itl", "e2el"]


class OutputSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """`output_dir` null: `runs/<time>-<name>`. Records are never overwritten; `overwrite` is about `output_file` alone.

    `output_file`: the per-request JSONL of the multi-service bench client. `save_result`, `save_detailed`, `append_result`,
    `result_dir`, `result_filename`, `percentile_metrics` and `metric_percentiles` shape the JSON of `vllm bench serve`.
    `strict`: a SUSPECT run exits with 1 as an INVALID one does. `gate`: a missed SLO exits with 3.
    `progress`: show the run while it goes on. `quiet`: neither progress nor the table at the end.
    """

    output_dir: str | None = None
    name: str = "bench"
    output_file: str | None = None
    overwrite: bool = False
    save_result: bool = False
    save_detailed: bool = False
    append_result: bool = False
    result_dir: str | None = None
    result_filename: str | None = None
    percentile_metrics: tuple[ExportMetric, ...] = ("ttft", "tpot", "itl")
    metric_percentiles: tuple[float, ...] = (99.0,)
    strict: bool = False
    gate: bool = False
    progress: bool = True
    quiet: bool = False
