"""A spec -> an engine that can run, or the words with which a real one fails to start. Pure."""

from msgspec import Struct

from loadcell.sim.asks import model_names
from loadcell.sim.kvcache import KvCache
from loadcell.sim.spec import SimSpec
from loadcell.sim.timeline import FixedTimeline, Timeline


class StartError(Exception):
    """The engine cannot start; the text is what it prints before it exits with 1."""


class Engine(Struct, frozen=True):
    """What the server runs: one timeline per data-parallel rank."""

    timelines: list[Timeline]
    names: tuple[str, ...]
    max_model_len: int


def start_engine(spec: SimSpec) -> Engine:
    timelines: list[Timeline] = [
        FixedTimeline(
            ttft_ns=round((spec.ttft_ms or 0) * 1e6),
            itl_ns=round((spec.itl_ms or 0) * 1e6),
            max_num_seqs=spec.max_num_seqs,
            kv=KvCache(spec.num_gpu_blocks_override or 100_000, spec.block_size, prefix_caching=spec.enable_prefix_caching),
            noise=spec.noise,
            seed=spec.seed,
        )
        for _ in range(spec.data_parallel_size)
    ]
    return Engine(timelines, model_names(spec, "tiny"), spec.max_model_len or 8192)
