"""loadcell's own simulated engine, `python -m loadcell simulate`: a fleet on a machine without accelerators.

Its options have vLLM's names; the model is only a name. Over several hosts as data-parallel ranks it is started as vLLM is: the head waits for
headless workers, which compute nothing, but are there to be watched, and can die. Over Ray the head is an engine by itself.
"""

import sys
from typing import Final, Literal

from loadcell.errors import UserError
from loadcell.fleet.command_line import fill_args, number, without, words
from loadcell.fleet.engines.vllm import DATA, PATTERNS, PIPELINE, TENSOR, refuse_ours, refuse_two_names
from loadcell.fleet.engines.words import patterns
from loadcell.fleet.multihost import data_parallel_words, shape
from loadcell.fleet.naming import placeholders, program
from loadcell.fleet.spec import FleetSpec, Launch, LogPattern, MultiHostSpec, Replica, Tunable

_OURS: Final = {"model": "fleet.model", "port": "fleet.port", "exit-on-stdin-eof": "nothing: the services' input is always empty"}
_NEGATABLE: Final = frozenset({"--enable-prefix-caching", "--enable-chunked-prefill", "--enforce-eager", "--enable-prompt-tokens-details"})
_TEMPLATED: Final = "fleet.args"
_OWN_WORDS: Final = (
    *patterns("port_taken", (r"cannot listen there",)),
    *patterns("bad_arguments", (r"^loadcell: error: ",)),
)

TUNABLES: Final = (
    Tunable("max_num_seqs", "--max-num-seqs", "int", 8, 1024, log=True, default=256),
    Tunable("max_num_batched_tokens", "--max-num-batched-tokens", "int", 512, 32768, log=True, default=8192),
    Tunable("gpu_memory_utilization", "--gpu-memory-utilization", "float", 0.7, 0.99, default=0.9),
    Tunable("block_size", "--block-size", "categorical", choices=(8, 16, 32, 64, 128), default=16),
    Tunable("enable_prefix_caching", "--enable-prefix-caching", "bool", default=True),
    Tunable("enable_chunked_prefill", "--enable-chunked-prefill", "bool", default=True),
    Tunable("kv_cache_dtype", "--kv-cache-dtype", "categorical", choices=("auto", "fp8"), default="auto"),
    Tunable("enforce_eager", "--enforce-eager", "bool", default=False),
    Tunable("num_speculative_tokens", "--num-speculative-tokens", "int", 0, 5, default=0),
)


class Simulated:
    name = "simulated"
    health_path = "/health"
    patterns: tuple[LogPattern, ...] = (*PATTERNS, *_OWN_WORDS)
    devices_by: Literal["variable", "config", "none"] = "none"
    reads: tuple[str, ...] = ()

    def model_path(self, spec: FleetSpec) -> str | None:  # noqa: ARG002 - the model is a name
        return None

    def check(self, spec: FleetSpec) -> None:
        refuse_ours(spec.args, _OURS)
        refuse_two_names(spec)
        if spec.config or spec.config_file:
            raise UserError('fleet.config and config_file are for engine "mindie": options of the simulated engine go into [fleet.args]')

    def devices_needed(self, spec: FleetSpec) -> int | None:
        given = [number(spec.args, *names) for names in (TENSOR[:1], DATA[:1])]
        return (given[0] or 1) * (given[1] or 1) if any(given) else None

    def launch(self, spec: FleetSpec, replica: Replica) -> Launch:
        args = fill_args(without(spec.args, "host"), placeholders(spec, replica), _TEMPLATED)
        named: tuple[str, ...] = ("--host", replica.bind, "--port", str(replica.port)) if replica.rank == 0 else ()
        named += ("--model", spec.model) if spec.model else ()
        named += ("--served-model-name", spec.served_model_name) if spec.served_model_name else ()
        if spec.multi_host is not None:
            args = without(args, *TENSOR, *PIPELINE, *DATA)
            named += _distributed(spec, spec.multi_host, replica)
        own = program(spec, (sys.executable, "-m", "loadcell", "simulate"))
        return Launch((*own, *named, *words(args, negatable=_NEGATABLE)))

    def tunables(self) -> tuple[Tunable, ...]:
        return TUNABLES


def _distributed(spec: FleetSpec, multi: MultiHostSpec, replica: Replica) -> tuple[str, ...]:
    if multi.kind == "data_parallel":
        own = data_parallel_words(spec, multi, replica)
        at = own.index("--pipeline-parallel-size") if "--pipeline-parallel-size" in own else len(own)
        return own[:at] + own[at + 2 :]  # its model knows no pipeline
    return "--tensor-parallel-size", str(shape(spec, multi).tensor_parallel_size)
