"""A spec -> an engine that can run, or the words with which a real one fails to start. Pure."""

from typing import Final

from msgspec import Struct

from loadcell.errors import UserError
from loadcell.seeds import derive
from loadcell.sim.asks import model_names
from loadcell.sim.kvcache import KvCache
from loadcell.sim.memory import MemoryPlan, failed, plan_memory
from loadcell.sim.model import BatchingModel, Limits
from loadcell.sim.profile import Model, StepCost, find_profile
from loadcell.sim.spec import SimSpec
from loadcell.sim.timeline import BatchedTimeline, FixedTimeline, Timeline

_DEFAULT_BATCHED_TOKENS: Final = 8192
_ENDLESS_BLOCKS: Final = 1 << 24
_BLOCK_SIZES: Final = (1, 8, 16, 32, 64, 128, 256)


class Engine(Struct, frozen=True):
    """What the server runs: one timeline per data-parallel rank."""

    timelines: list[Timeline]
    names: tuple[str, ...]
    max_model_len: int


def start_engine(spec: SimSpec) -> Engine:
    """Raises UserError for a setting that makes no sense, StartError where vLLM's own start fails."""
    _check(spec)
    device, model = find_profile(spec.profile)
    max_model_len = spec.max_model_len or model.max_model_len
    batched = spec.max_num_batched_tokens
    if batched is None:
        batched = max(_DEFAULT_BATCHED_TOKENS, spec.max_num_seqs, 0 if spec.enable_chunked_prefill else max_model_len)
    _check_as_vllm(spec, model, max_model_len, batched)
    names, ranks = model_names(spec, model.name), range(spec.data_parallel_size)
    timelines: list[Timeline]
    if spec.ttft_ms is not None and spec.itl_ms is not None:
        timelines = [_fixed(spec, spec.ttft_ms, spec.itl_ms, rank) for rank in ranks]
    else:
        plan = plan_memory(device, model, spec, max_model_len=max_model_len, max_num_batched_tokens=batched)
        cost = StepCost(device, model, spec)
        timelines = [_batched(spec, plan, cost, batched, rank) for rank in ranks]
    return Engine(timelines, names, max_model_len)


def _fixed(spec: SimSpec, ttft_ms: float, itl_ms: float, rank: int) -> Timeline:
    """Fixed timing knows no device: its memory has no end unless `num_gpu_blocks_override` sets one."""
    return FixedTimeline(
        ttft_ns=round(ttft_ms * 1e6),
        itl_ns=round(itl_ms * 1e6),
        max_num_seqs=spec.max_num_seqs,
        kv=KvCache(spec.num_gpu_blocks_override or _ENDLESS_BLOCKS, spec.block_size, prefix_caching=spec.enable_prefix_caching),
        noise=spec.noise,
        seed=derive(spec.seed, "rank", rank),
    )


def _batched(spec: SimSpec, plan: MemoryPlan, cost: StepCost, batched: int, rank: int) -> Timeline:
    limits = Limits(
        max_num_seqs=spec.max_num_seqs,
        max_num_batched_tokens=batched,
        chunked_prefill=spec.enable_chunked_prefill,
        num_speculative_tokens=spec.num_speculative_tokens,
        acceptance=spec.speculative_acceptance,
        noise=spec.noise,
        seed=derive(spec.seed, "rank", rank),
    )
    kv = KvCache(plan.blocks, spec.block_size, prefix_caching=spec.enable_prefix_caching)
    return BatchedTimeline(BatchingModel(limits, kv, cost), plan)


def _check(spec: SimSpec) -> None:
    if (spec.ttft_ms is None) != (spec.itl_ms is None):
        raise UserError("--ttft-ms and --itl-ms go together: give both for fixed timing, or neither")
    for name in ("ttft_ms", "itl_ms", "noise", "output_spread", "reasoning_tokens", "num_speculative_tokens"):
        value = getattr(spec, name)
        if value is not None and value < 0:
            raise UserError(f"--{name.replace('_', '-')} {value}: must not be negative")
    for name in (
        "max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_gpu_blocks_override", "tensor_parallel_size",
        "data_parallel_size", "stream_interval", "mean_output_tokens",
    ):  # fmt: skip
        value = getattr(spec, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} {value}: must be at least 1")
    if not 0 < spec.gpu_memory_utilization <= 1:
        raise UserError(f"--gpu-memory-utilization {spec.gpu_memory_utilization}: must be above 0 and at most 1")
    if not 0 <= spec.speculative_acceptance <= 1:
        raise UserError(f"--speculative-acceptance {spec.speculative_acceptance}: must be between 0 and 1")
    _check_ranks(spec)
    if spec.block_size not in _BLOCK_SIZES:
        raise UserError(f"--block-size {spec.block_size}: choose from {', '.join(map(str, _BLOCK_SIZES))}")


def _check_ranks(spec: SimSpec) -> None:
    size, local, start = spec.data_parallel_size, spec.data_parallel_size_local, spec.data_parallel_start_rank
    if local is not None and not 1 <= local <= size:
        raise UserError(f"--data-parallel-size-local {local}: must be from 1 to --data-parallel-size ({size})")
    if not spec.headless:
        if start is not None:
            raise UserError(f"--data-parallel-start-rank {start}: the head has rank 0; the flag goes with --headless")
        return
    if local is None or start is None:
        raise UserError("--headless: say which ranks it has by --data-parallel-start-rank and --data-parallel-size-local")
    if not 1 <= start <= size - local:
        raise UserError(f"--data-parallel-start-rank {start}: with {local} ranks here, from 1 to {size - local} is possible")


def _check_as_vllm(spec: SimSpec, model: Model, max_model_len: int, batched: int) -> None:
    """Combinations that vLLM refuses before it loads anything."""
    if max_model_len > model.max_model_len:
        raise failed(
            f"ValueError: User-specified max_model_len ({max_model_len}) is greater than the derived max_model_len "
            f"(max_position_embeddings={model.max_model_len} or model_max_length=None in model's config.json)."
        )
    if model.heads % spec.tensor_parallel_size:
        raise failed(
            f"ValueError: Total number of attention heads ({model.heads}) must be divisible by tensor parallel size "
            f"({spec.tensor_parallel_size})."
        )
    if batched < max_model_len and not spec.enable_chunked_prefill:
        raise failed(
            f"ValueError: max_num_batched_tokens ({batched}) is smaller than max_model_len ({max_model_len}). This effectively limits the "
            "maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. Please increase "
            "max_num_batched_tokens or decrease max_model_len."
        )
    if batched < spec.max_num_seqs:
        raise failed(f"ValueError: max_num_batched_tokens ({batched}) must be greater than or equal to max_num_seqs ({spec.max_num_seqs}).")
