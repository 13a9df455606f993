"""SGLang: `python3 -m sglang.launch_server --model-path ...`. Written from its sources; not tried on the real thing here."""

from typing import Final, Literal

from loadcell.errors import UserError
from loadcell.fleet.command_line import fill_args, number, without, words
from loadcell.fleet.engines.vllm import refuse_ours, refuse_two_names
from loadcell.fleet.engines.words import ARGPARSE, DRIVER, MODEL_HUB, PORT_TAKEN, PYDANTIC, TORCH_OUT_OF_MEMORY, patterns
from loadcell.fleet.naming import local_path, placeholders, program
from loadcell.fleet.spec import FleetSpec, Launch, LogPattern, Replica, Tunable

_OURS: Final = {"model-path": "fleet.model", "model": "fleet.model", "port": "fleet.port"}
_TENSOR: Final = ("tp-size", "tp", "tensor-parallel-size")
_DATA: Final = ("dp-size", "dp", "data-parallel-size")
_PIPELINE: Final = ("pp-size", "pp", "pipeline-parallel-size")

PATTERNS: Final = (
    *patterns(
        "out_of_memory",
        (
            r"Not enough memory\. Please try to increase --mem-fraction-static",
            r"Capture (cuda|npu) graph failed: .*out of memory",
            r"Loading (the )?model failed.*out of memory|max_total_num_tokens=0\b",
        ),
    ),
    *TORCH_OUT_OF_MEMORY,
    *PORT_TAKEN,
    *patterns("port_taken", (r"at \d+ is not available in \d+ seconds",)),
    *MODEL_HUB,
    *ARGPARSE,
    *PYDANTIC,
    *patterns(
        "bad_arguments",
        (
            r"(AssertionError|ValueError): .*--?[a-z]+[-_][a-z_-]+",
            r"(AssertionError|ValueError): .*(tp_size|dp_size|chunked_prefill_size|mem_fraction_static|page_size)",
            r"ValueError: (Unknown|Invalid|Unsupported) ",
            r"ValueError: .*must be divisible by",
        ),
    ),
    *DRIVER,
    *patterns(
        "fatal",
        (
            r"Scheduler hit an exception: Traceback",
            r"Initialization failed\. Please see the error messages above",
            r"Rank \d+ scheduler is dead",
            r"DetokenizerManager hit an exception",
            r"TokenizerManager hit an exception",
            r"Received sigquit from a child process",
        ),
    ),
)

TUNABLES: Final = (
    Tunable("max_running_requests", "--max-running-requests", "int", 16, 2048, log=True, default=None),
    Tunable("chunked_prefill_size", "--chunked-prefill-size", "int", 1024, 32768, log=True, default=8192),
    Tunable("max_prefill_tokens", "--max-prefill-tokens", "int", 4096, 65536, log=True, default=16384),
    Tunable("mem_fraction_static", "--mem-fraction-static", "float", 0.6, 0.95, default=None),
    Tunable("schedule_policy", "--schedule-policy", "categorical", choices=("fcfs", "lpm"), default="fcfs"),
    Tunable("schedule_conservativeness", "--schedule-conservativeness", "float", 0.3, 1.5, default=1.0),
    Tunable("page_size", "--page-size", "categorical", choices=(1, 16, 32, 64, 128), default=1),
    Tunable("stream_interval", "--stream-interval", "categorical", choices=(1, 2, 4, 8), default=1),
    Tunable("disable_radix_cache", "--disable-radix-cache", "bool", default=False),
    Tunable("enable_mixed_chunk", "--enable-mixed-chunk", "bool", default=False),
    Tunable("kv_cache_dtype", "--kv-cache-dtype", "categorical", choices=("auto", "fp8_e5m2", "fp8_e4m3"), default="auto"),
    Tunable("tp_size", "--tp-size", "categorical", choices=(1, 2, 4, 8), default=1),
)


class Sglang:
    name = "sglang"
    health_path = "/health"
    """Not `/health_generate`: that one generates a token."""
    patterns: tuple[LogPattern, ...] = PATTERNS
    devices_by: Literal["variable", "config", "none"] = "variable"
    reads: tuple[str, ...] = ("SGLANG_", "SGL_", "NCCL_", "HCCL_", "PYTORCH_CUDA_ALLOC_CONF", "HF_", "TRANSFORMERS_")

    def model_path(self, spec: FleetSpec) -> str | None:
        return local_path(spec.model)

    def check(self, spec: FleetSpec) -> None:
        if not spec.model:
            raise UserError('fleet.model is missing: the folder of the model, or its name on the hub, as in model = "/data/models/…"')
        refuse_ours(spec.args, _OURS)
        refuse_two_names(spec)
        if spec.config or spec.config_file:
            raise UserError('fleet.config and config_file are for engine "mindie": options of SGLang go into [fleet.args]')

    def devices_needed(self, spec: FleetSpec) -> int | None:
        """With `--enable-dp-attention` the data-parallel ranks share the tensor-parallel devices."""
        tensor, pipeline, data = (number(spec.args, *names) or 1 for names in (_TENSOR, _PIPELINE, _DATA))
        shared = bool(without(spec.args, "enable-dp-attention") != spec.args) and not _off(spec)
        return tensor * pipeline * (1 if shared else data)

    def launch(self, spec: FleetSpec, replica: Replica) -> Launch:
        args = fill_args(without(spec.args, "host"), placeholders(spec, replica))
        named = ("--served-model-name", spec.served_model_name) if spec.served_model_name else ()
        own = program(spec, ("python3", "-m", "sglang.launch_server"))
        front = ("--model-path", str(spec.model), "--host", replica.bind, "--port", str(replica.port), *named)
        return Launch((*own, *front, *words(args)))

    def tunables(self) -> tuple[Tunable, ...]:
        return TUNABLES


def _off(spec: FleetSpec) -> bool:
    return isinstance(spec.args, dict) and any(spec.args.get(name) is False for name in ("enable-dp-attention", "enable_dp_attention"))
