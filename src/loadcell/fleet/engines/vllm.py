"""vLLM: `vllm serve MODEL ...`, one server per replica, or one over several hosts.

The words of its log are those of vLLM 0.6 to 0.32, and of vllm-ascend. Tried with the CPU build of 0.32: replicas, one killed and started
again, starts that fail, and by hand one service of two data-parallel ranks on two hosts (each a network namespace of one machine, over ssh).
On accelerators, with tensor or pipeline parallel, and over Ray: untried.

What it was seen to do: while it loads it obeys no SIGTERM (its parent goes on, and may wait without end for a child that obeyed). The head of
a data-parallel service starts one API server per rank unless `api-server-count` says otherwise. The engine of a `--headless` rank whose parent
is killed lives on and goes on serving.
"""

from typing import Final, Literal

from loadcell.errors import UserError
from loadcell.fleet.command_line import Args, fill_args, number, option, without, words
from loadcell.fleet.engines.words import ARGPARSE, DRIVER, MODEL_HUB, PORT_TAKEN, PYDANTIC, TORCH_OUT_OF_MEMORY, patterns
from loadcell.fleet.multihost import data_parallel_words, ray_words
from loadcell.fleet.naming import local_path, placeholders, program
from loadcell.fleet.spec import FleetSpec, Launch, LogPattern, Replica, Tunable

TENSOR: Final = ("tensor-parallel-size", "-tp")
PIPELINE: Final = ("pipeline-parallel-size", "-pp")
DATA: Final = ("data-parallel-size", "-dp")
_OURS: Final = {
    "model": "fleet.model",
    "model-tag": "fleet.model",
    "port": "fleet.port",
    "headless": "fleet.multi_host",
    "data-parallel-address": "fleet.multi_host",
    "data-parallel-rpc-port": "fleet.multi_host.data_parallel_rpc_port",
    "data-parallel-start-rank": "fleet.multi_host",
    "data-parallel-size-local": "fleet.multi_host",
}
NEGATABLE: Final = frozenset(
    {
        "--enable-prefix-caching",
        "--enable-chunked-prefill",
        "--async-scheduling",
        "--enforce-eager",
        "--enable-expert-parallel",
        "--enable-sleep-mode",
        "--enable-log-requests",
        "--trust-remote-code",
        "--disable-log-stats",
        "--disable-custom-all-reduce",
        "--disable-cascade-attn",
        "--enable-eplb",
        "--skip-tokenizer-init",
        "--calculate-kv-scales",
    }
)
"""Flags whose false is a word of its own: left out, vLLM's default would hold, and that is often true."""

_OUT_OF_MEMORY: Final = (
    *patterns(
        "out_of_memory",
        (
            r"No available memory for the cache blocks",
            r"is larger than the available KV cache memory",
            r"is larger than the maximum number of tokens that can be stored in KV cache",
            r"\bon startup is less than desired .*(utilization|space|memory)",
            r"on kv cache allocation is less than requested memory for kv",
            r"out of memory occurred when warming up sampler",
        ),
    ),
    *TORCH_OUT_OF_MEMORY,
)
_BAD_ARGUMENTS: Final = (
    *ARGPARSE,
    *patterns(
        "bad_arguments",
        (
            r"ValueError: User-specified max_model_len",
            r"must be divisible by (the )?tensor parallel size",
            r"ValueError: max_num_batched_tokens \(",
            r"ValueError: max_num_seqs ",
            r"ValueError: World size \(",
            r"ValueError: (Unknown|Invalid|Unsupported|Unrecognized) ",
            r"(ValueError|NotImplementedError|KeyError|AssertionError): .*--[a-z][a-z-]+",
            r"ValueError: .*(is not supported|not supported (by|for|with|in)|must be (greater|less|at least|one of|in \[))",
            r"ValueError: The (head size|block size)",
            r"KeyError: 'invalid (tool call parser|reasoning parser)",
        ),
    ),
)
_FATAL: Final = patterns(
    "fatal",
    (
        r"\bEngineCore failed to start\b",
        r"Engine core initialization failed",
        r"\bEngineCore encountered a fatal error\b",
        r"\bEngineDeadError\b",
        r"\bEngine process failed to start\b",
        r"Engine core proc \S+ died unexpectedly",
        r"Worker proc \S+ died unexpectedly",
    ),
)
PATTERNS: Final = (*_OUT_OF_MEMORY, *PORT_TAKEN, *MODEL_HUB, *_BAD_ARGUMENTS, *PYDANTIC, *DRIVER, *_FATAL)

TUNABLES: Final = (
    Tunable("max_num_seqs", "--max-num-seqs", "int", 16, 2048, log=True, default=256),
    Tunable("max_num_batched_tokens", "--max-num-batched-tokens", "int", 1024, 65536, log=True, default=8192),
    Tunable("gpu_memory_utilization", "--gpu-memory-utilization", "float", 0.7, 0.97, default=0.9),
    Tunable("enable_chunked_prefill", "--enable-chunked-prefill", "bool", default=True),
    Tunable("enable_prefix_caching", "--enable-prefix-caching", "bool", default=True),
    Tunable("block_size", "--block-size", "categorical", choices=(16, 32, 64, 128), default=16),
    Tunable("async_scheduling", "--async-scheduling", "bool", default=True),
    Tunable("max_num_partial_prefills", "--max-num-partial-prefills", "categorical", choices=(1, 2, 4), default=1),
    Tunable("kv_cache_dtype", "--kv-cache-dtype", "categorical", choices=("auto", "fp8"), default="auto"),
    Tunable("scheduling_policy", "--scheduling-policy", "categorical", choices=("fcfs", "priority"), default="fcfs"),
    Tunable("stream_interval", "--stream-interval", "categorical", choices=(1, 2, 4, 8), default=1),
    Tunable("tensor_parallel_size", "--tensor-parallel-size", "categorical", choices=(1, 2, 4, 8), default=1),
)


class Vllm:
    name = "vllm"
    health_path = "/health"
    patterns: tuple[LogPattern, ...] = PATTERNS
    devices_by: Literal["variable", "config", "none"] = "variable"
    reads: tuple[str, ...] = (
        "VLLM_",
        "NCCL_",
        "HCCL_",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_NPU_ALLOC_CONF",
        "HF_",
        "TRANSFORMERS_",
        "RAY_",
    )

    def model_path(self, spec: FleetSpec) -> str | None:
        return local_path(spec.model)

    def check(self, spec: FleetSpec) -> None:
        if not spec.model:
            raise UserError('fleet.model is missing: the folder of the model, or its name on the hub, as in model = "/data/models/…"')
        refuse_ours(spec.args, _OURS)
        refuse_two_names(spec)
        if spec.config or spec.config_file:
            raise UserError('fleet.config and config_file are for engine "mindie": options of vLLM go into [fleet.args]')
        number(spec.args, *TENSOR), number(spec.args, *PIPELINE), number(spec.args, *DATA)

    def devices_needed(self, spec: FleetSpec) -> int | None:
        tensor, pipeline, data = (number(spec.args, *names) or 1 for names in (TENSOR, PIPELINE, DATA))
        return tensor * pipeline * data

    def launch(self, spec: FleetSpec, replica: Replica) -> Launch:
        args = fill_args(without(spec.args, "host"), placeholders(spec, replica))
        distributed: tuple[str, ...] = ()
        if spec.multi_host is not None:
            args = without(args, *TENSOR, *PIPELINE, *DATA)
            of_kind = data_parallel_words if spec.multi_host.kind == "data_parallel" else ray_words
            distributed = of_kind(spec, spec.multi_host, replica)
        if replica.rank > 0:
            args = without(args, "api-server-count", "-asc", "host")
            front: tuple[str, ...] = ()
        else:
            front = ("--host", replica.bind, "--port", str(replica.port))
            if spec.served_model_name:
                front += ("--served-model-name", spec.served_model_name)
        argv = (*program(spec, ("vllm",)), "serve", str(spec.model), *front, *distributed, *words(args, negatable=NEGATABLE))
        return Launch(argv)

    def tunables(self) -> tuple[Tunable, ...]:
        return TUNABLES


def refuse_two_names(spec: FleetSpec) -> None:
    if spec.served_model_name and option(spec.args, "served-model-name") is not None:
        raise UserError("fleet.served_model_name and fleet.args.served-model-name: give one of them")


def refuse_ours(args: Args, ours: dict[str, str]) -> None:
    """Options that the fleet gives itself: said twice, one of them would be ignored."""
    for name, key in ours.items():
        if option(args, name) is not None:
            raise UserError(f"fleet.args.{name}: the fleet gives this option itself: use {key}")
