"""Accelerators, models, and the time of one step: (tokens, contexts) -> ns. Pure.

A roofline: a step reads the weights once and the KV cache of every sequence in it, and computes 2 FLOP per parameter and token plus
attention; the linear part takes about the longer of reading and computing (a 4-norm, since the two overlap imperfectly). Sizes are the
makers' data sheets and the models' published configurations; efficiencies are round figures of well-tuned engines, not measurements.
"""

import math
from typing import Final

from msgspec import Struct

from loadcell.errors import UserError
from loadcell.sim.spec import SimSpec

GIB: Final = 1 << 30
_COMPUTE_EFFICIENCY: Final = 0.55
_WEIGHT_READ_EFFICIENCY: Final = 0.80
_KV_READ_EFFICIENCY: Final = 0.70
_ALL_REDUCE_LATENCY_S: Final = 10e-6
_SEQUENCE_CPU_S: Final = 5e-6  # scheduling and sampling parameters of one sequence in one step
_OUTPUT_CPU_S: Final = 8e-6  # detokenizing and sending one chunk
# Weights in bytes per parameter, and the speed of computing with them, for each --quantization.
_BYTES_PER_PARAMETER: Final = {"none": 2.0, "fp8": 1.0, "awq": 0.6, "gptq": 0.6}
_DEQUANTIZED_SPEED: Final = {"none": 1.0, "awq": 0.75, "gptq": 0.72}
LARGEST_CUDA_GRAPH: Final = 512


class Accelerator(Struct, frozen=True):
    """One device. `flops` dense bf16; `fp8_speed` relative to it; `link` bytes/s between devices, one direction."""

    name: str
    flops: float
    fp8_speed: float
    bandwidth: float
    memory: int
    link: float


class Model(Struct, frozen=True):
    """A dense transformer with grouped-query attention."""

    name: str
    parameters: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    max_model_len: int


ACCELERATORS: Final = {
    device.name: device
    for device in (
        Accelerator("h100", 989e12, 1.7, 3.35e12, int(79.1 * GIB), 450e9),
        Accelerator("h200", 989e12, 1.7, 4.8e12, int(139.8 * GIB), 450e9),
        Accelerator("a100", 312e12, 1.0, 2.04e12, int(79.1 * GIB), 300e9),
        Accelerator("l40s", 362e12, 1.7, 0.864e12, int(44.4 * GIB), 32e9),
        Accelerator("l4", 121e12, 1.7, 0.30e12, int(22.0 * GIB), 32e9),
        Accelerator("910b", 313e12, 1.0, 1.6e12, int(60.9 * GIB), 196e9),
        Accelerator("test", 3e12, 1.7, 10e9, 2 * GIB, 10e9),
    )
}
MODELS: Final = {
    model.name: model
    for model in (
        Model("llama-3.1-8b", 8.03e9, 32, 4096, 32, 8, 128, 128_256, 131_072),
        Model("llama-3.3-70b", 70.6e9, 80, 8192, 64, 8, 128, 128_256, 131_072),
        Model("qwen2.5-7b", 7.62e9, 28, 3584, 28, 4, 128, 152_064, 32_768),
        Model("qwen2.5-32b", 32.8e9, 64, 5120, 40, 8, 128, 152_064, 32_768),
        Model("tiny", 15e6, 2, 256, 4, 4, 64, 32_000, 8_192),
    )
}


def find_profile(text: str) -> tuple[Accelerator, Model]:
    """`ACCELERATOR:MODEL` -> both; raises UserError with the choices."""
    device, _, model = text.partition(":")
    if device not in ACCELERATORS:
        raise UserError(f"--profile {text}: no accelerator {device!r}; choose from {', '.join(ACCELERATORS)}")
    if model not in MODELS:
        raise UserError(f"--profile {text}: no model {model!r}; choose from {', '.join(MODELS)}")
    return ACCELERATORS[device], MODELS[model]


def weight_bytes(model: Model, spec: SimSpec) -> float:
    """Weights on one device."""
    return model.parameters * _BYTES_PER_PARAMETER[spec.quantization] / spec.tensor_parallel_size


def kv_bytes_per_token(model: Model, spec: SimSpec) -> float:
    """KV cache of one token on one device: heads are split over devices until one is left for each, then repeated."""
    heads = max(1.0, model.kv_heads / spec.tensor_parallel_size)
    return 2 * model.layers * heads * model.head_size * (1 if spec.kv_cache_dtype == "fp8" else 2)


class StepShape(Struct, frozen=True):
    """What one step computes. `attended`: sum over sequences of new tokens × context; `context`: sum of contexts read."""

    tokens: int
    sequences: int
    outputs: int
    attended: int
    context: int
    decode_only: bool


class StepCost:
    """Seconds of a step for one spec; all that does not depend on the step is worked out once."""

    def __init__(self, device: Accelerator, model: Model, spec: SimSpec) -> None:
        parallel = spec.tensor_parallel_size
        speed = device.fp8_speed if spec.quantization == "fp8" else _DEQUANTIZED_SPEED[spec.quantization]
        flops = device.flops * parallel * _COMPUTE_EFFICIENCY
        self._read_weights_s = weight_bytes(model, spec) / (device.bandwidth * _WEIGHT_READ_EFFICIENCY)
        self._compute_token_s = 2 * model.parameters / (flops * speed)
        self._attend_s = 4 * model.layers * model.heads * model.head_size / flops
        paging = 1 + 2 / spec.block_size  # small blocks mean short reads
        dequantizing = 1.05 if spec.kv_cache_dtype == "fp8" else 1.0
        kv_read = device.bandwidth * _KV_READ_EFFICIENCY
        self._read_kv_s = kv_bytes_per_token(model, spec) * paging * dequantizing / kv_read
        self._draft_s = spec.num_speculative_tokens * (0.06 * self._read_weights_s + 150e-6)
        self._reduce_token_s = 0.0
        self._reduce_s = 0.0
        if parallel > 1:
            reductions = 2 * model.layers
            self._reduce_s = reductions * _ALL_REDUCE_LATENCY_S
            self._reduce_token_s = reductions * 2 * (parallel - 1) / parallel * model.hidden * 2 / device.link
        if spec.enforce_eager:
            self._launch_graph_s = self._launch_s = 0.8e-3 + 45e-6 * model.layers
        else:
            self._launch_graph_s, self._launch_s = 0.35e-3, 0.6e-3 + 12e-6 * model.layers
        self._output_s = _OUTPUT_CPU_S / spec.stream_interval

    def seconds(self, shape: StepShape) -> float:
        """Time of one step, without noise."""
        compute_s = shape.tokens * self._compute_token_s
        linear_s = math.sqrt(math.hypot(compute_s**2, self._read_weights_s**2))
        attention_s = max(shape.attended * self._attend_s, shape.context * self._read_kv_s)
        reduce_s = self._reduce_s + shape.tokens * self._reduce_token_s
        graphed = shape.decode_only and shape.tokens <= LARGEST_CUDA_GRAPH
        launch_s = self._launch_graph_s if graphed else self._launch_s
        cpu_s = shape.sequences * _SEQUENCE_CPU_S + shape.outputs * self._output_s
        return linear_s + attention_s + reduce_s + launch_s + cpu_s + self._draft_s
