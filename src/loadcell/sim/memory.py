"""Device memory: what is left for the KV cache, and where the engine dies instead, in vLLM's own words. Pure.

As in vLLM, `gpu_memory_utilization` bounds weights, peak activations (profiled at `max_num_batched_tokens` and `max_num_seqs`),
the runtime and the KV cache. CUDA graphs and fragmentation come out of the rest: a utilization near 1 fails while graphs are
captured or the sampler is warmed up, or, worse, under load.
"""

from typing import Final

from msgspec import Struct

from loadcell.sim.profile import GIB, LARGEST_CUDA_GRAPH, Accelerator, Model, kv_bytes_per_token, weight_bytes
from loadcell.sim.spec import SimSpec

_DRIVER_SHARE: Final = 0.005  # never free, whatever runs
_RUNTIME_SHARE: Final = 0.008  # context, libraries' workspaces
_COMMUNICATION_SHARE: Final = 0.005  # buffers, with more than one device
_FRAGMENTATION: Final = 0.3  # of activations and logits at full load, beyond what profiling saw
_GRAPH_BYTES: Final = 100  # per layer, captured size, and unit of hidden
_INITIALIZATION_FAILED: Final = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
OOM_UNDER_LOAD: Final = (
    "(EngineCore_DP0) ERROR [core.py] EngineCore encountered a fatal error.\n"
    "(EngineCore_DP0) ERROR [core.py] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. "
    "GPU 0 has less memory free.\n"
    "(APIServer) ERROR [async_llm.py] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
    "See stack trace (above) for the root cause."
)


class StartError(Exception):
    """The engine cannot start; the text is what it prints before it exits with 1."""


class MemoryPlan(Struct, frozen=True):
    """Per device. `blocks` of KV cache; `slack` bytes that load may still take; `activation_token`/`logits_sequence` bytes it takes."""

    blocks: int
    slack: float
    activation_token: float
    logits_sequence: float

    def fits(self, tokens: int, sequences: int) -> bool:
        """Does a step of this size find its memory?"""
        return _FRAGMENTATION * (tokens * self.activation_token + sequences * self.logits_sequence) <= self.slack


def failed(root_cause: str) -> StartError:
    """The lines of a failed start: the engine core's last one and the API server's."""
    return StartError(
        f"(EngineCore_DP0) ERROR [core.py] EngineCore failed to start.\n(EngineCore_DP0) {root_cause}\n{_INITIALIZATION_FAILED}"
    )


def out_of_memory(device: Accelerator, asked: float, free: float, doing: str = "") -> StartError:
    total = device.memory / GIB
    return failed(
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked / GIB:.2f} GiB. GPU 0 has a total capacity of {total:.2f} GiB "
        f"of which {max(0.0, free) / GIB:.2f} GiB is free.{doing}"
    )


def plan_memory(device: Accelerator, model: Model, spec: SimSpec, *, max_model_len: int, max_num_batched_tokens: int) -> MemoryPlan:
    """Lay out one device's memory; raises StartError where a real engine does not start."""
    total = device.memory
    usable = total * (1 - _DRIVER_SHARE)
    budget = total * spec.gpu_memory_utilization
    if budget > usable:
        raise failed(
            f"ValueError: Free memory on device ({usable / GIB:.2f}/{total / GIB:.2f} GiB) on startup is less than desired GPU memory "
            f"utilization ({spec.gpu_memory_utilization}, {budget / GIB:.2f} GiB). Decrease GPU memory utilization or reduce GPU memory used "
            "by other processes."
        )
    weights = weight_bytes(model, spec)
    runtime = total * (_RUNTIME_SHARE + (_COMMUNICATION_SHARE if spec.tensor_parallel_size > 1 else 0.0))
    if weights + runtime > usable:
        raise out_of_memory(device, weights / model.layers, usable - runtime - weights)
    activation_token = 2 * model.hidden * (10 + 8 / spec.tensor_parallel_size)
    logits_sequence = 3 * 4 * model.vocabulary / spec.tensor_parallel_size * (1 + spec.num_speculative_tokens)
    logits = spec.max_num_seqs * logits_sequence
    activations = max_num_batched_tokens * activation_token
    if weights + runtime + activations + logits > usable:
        raise out_of_memory(device, max(activations, logits), usable - weights - runtime)
    draft = 0.06 * weights if spec.num_speculative_tokens else 0.0
    available = budget - weights - draft - runtime - activations - logits
    blocks = _blocks(model, spec, available, max_model_len)
    graphs = _graph_bytes(model, spec)
    left = usable - budget - graphs
    if left < 0:
        raise out_of_memory(device, graphs, usable - budget, " (while capturing CUDA graphs)")
    if left < 0.25 * logits:
        raise failed(
            f"RuntimeError: CUDA out of memory occurred when warming up sampler with {spec.max_num_seqs} dummy requests. Please try lowering "
            "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
        )
    return MemoryPlan(blocks, left - 0.25 * logits, activation_token, logits_sequence)


def _blocks(model: Model, spec: SimSpec, available: float, max_model_len: int) -> int:
    token = kv_bytes_per_token(model, spec)
    blocks = int(available // (token * spec.block_size))
    if spec.num_gpu_blocks_override is not None:
        blocks = spec.num_gpu_blocks_override
        available = blocks * token * spec.block_size
    if blocks <= 0:
        raise failed(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."
        )
    if blocks * spec.block_size < max_model_len:
        raise failed(
            f"ValueError: To serve at least one request with the models's max seq len ({max_model_len}), "
            f"({max_model_len * token / GIB:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({available / GIB:.2f} GiB). Based on the available memory, the estimated maximum model length is {blocks * spec.block_size}. "
            "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
        )
    return blocks


def _graph_bytes(model: Model, spec: SimSpec) -> float:
    if spec.enforce_eager:
        return 0.0
    captured = 3 + min(spec.max_num_seqs, LARGEST_CUDA_GRAPH) // 8
    return _GRAPH_BYTES * model.layers * captured * model.hidden
