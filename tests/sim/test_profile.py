"""The cost of a step and the plan of memory: the trade-offs that a tuner has to find, as tables."""

import pytest

from loadcell.errors import UserError
from loadcell.sim.memory import StartError, plan_memory
from loadcell.sim.profile import GIB, StepCost, StepShape, find_profile, kv_bytes_per_token
from loadcell.sim.spec import SimSpec
from loadcell.sim.startup import start_engine

PROFILE = "h100:llama-3.1-8b"


def decode(sequences: int, context: int = 1000) -> StepShape:
    return StepShape(sequences, sequences, sequences, sequences * context, sequences * context, True)


def prefill(tokens: int) -> StepShape:
    return StepShape(tokens, 1, 1, tokens * tokens // 2, tokens, False)


def ms(shape: StepShape, **changes: object) -> float:
    return StepCost(*find_profile(PROFILE), SimSpec(**changes)).seconds(shape) * 1000  # type: ignore[arg-type]


def test_magnitudes_are_those_of_a_real_card() -> None:
    assert 6 < ms(decode(1)) < 9
    assert 20 < ms(prefill(1000)) < 45
    assert 20 < ms(decode(256)) < 45
    assert kv_bytes_per_token(find_profile(PROFILE)[1], SimSpec()) == 131_072


@pytest.mark.parametrize(
    ("shape", "better", "worse"),
    [
        (decode(1), {"tensor_parallel_size": 2}, {}),
        (decode(1), {"quantization": "awq"}, {"quantization": "fp8"}),
        (decode(1), {"quantization": "fp8"}, {}),
        (prefill(4096), {"quantization": "fp8"}, {}),
        (prefill(4096), {}, {"quantization": "awq"}),
        (decode(1), {}, {"enforce_eager": True}),
        (decode(256, 4000), {"kv_cache_dtype": "fp8"}, {}),
        (decode(256, 4000), {"block_size": 64}, {"block_size": 8}),
        (decode(256), {"stream_interval": 10}, {}),
        (decode(1), {}, {"num_speculative_tokens": 3}),
    ],
)
def test_each_setting_pays_where_it_should(shape: StepShape, better: dict[str, object], worse: dict[str, object]) -> None:
    assert ms(shape, **better) < ms(shape, **worse)


def test_a_bigger_batch_costs_more_time_and_less_per_sequence() -> None:
    times = [ms(decode(n)) for n in (1, 8, 64, 256)]
    assert times == sorted(times)
    assert [t / n for t, n in zip(times, (1, 8, 64, 256), strict=True)] == sorted(
        (t / n for t, n in zip(times, (1, 8, 64, 256), strict=True)), reverse=True
    )


def test_two_cards_are_less_than_twice_as_fast() -> None:
    assert 0.5 < ms(decode(1), tensor_parallel_size=2) / ms(decode(1)) < 0.9


def start(profile: str = PROFILE, **changes: object) -> object:
    spec = {"profile": profile, "max_model_len": 8192, **changes}
    return start_engine(SimSpec(**spec))  # type: ignore[arg-type]


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"gpu_memory_utilization": 0.999}, "on startup is less than desired GPU memory utilization"),
    ({"gpu_memory_utilization": 0.15, "max_model_len": 2048}, "No available memory for the cache blocks"),
    ({"gpu_memory_utilization": 0.22}, "the estimated maximum model length is"),
    ({"gpu_memory_utilization": 0.99}, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
    ({"gpu_memory_utilization": 0.99, "max_num_seqs": 4096, "enforce_eager": True}, "when warming up sampler with 4096 dummy requests"),
    ({"profile": "h100:llama-3.3-70b"}, "torch.OutOfMemoryError"),
    ({"max_model_len": 200_000}, "is greater than the derived max_model_len"),
    ({"tensor_parallel_size": 3}, "must be divisible by tensor parallel size (3)"),
    ({"max_num_batched_tokens": 4096, "enable_chunked_prefill": False}, "is smaller than max_model_len (8192)"),
    ({"max_num_batched_tokens": 128}, "must be greater than or equal to max_num_seqs (256)"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_what_a_real_engine_refuses_is_refused_in_its_words(changes: dict[str, object], words: str) -> None:
    with pytest.raises(StartError) as refused:
        start(**changes)
    assert words in str(refused.value)
    assert "Engine core initialization failed" in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"ttft_ms": 5.0}, "--itl-ms"),
        ({"block_size": 12}, "--block-size 12"),
        ({"gpu_memory_utilization": 1.5}, "--gpu-memory-utilization 1.5"),
        ({"max_num_seqs": 0}, "--max-num-seqs 0"),
        ({"noise": -0.1}, "--noise -0.1"),
        ({"profile": "h1000:tiny"}, "h100"),
        ({"profile": "h100:big"}, "tiny"),
    ],
)
def test_settings_without_sense_are_named(changes: dict[str, object], named: str) -> None:
    with pytest.raises(UserError, match=named):
        start(**changes)


def blocks(**changes: object) -> int:
    spec = SimSpec(**changes)  # type: ignore[arg-type]
    return plan_memory(*find_profile(PROFILE), spec, max_model_len=8192, max_num_batched_tokens=spec.max_num_batched_tokens or 8192).blocks


@pytest.mark.parametrize(
    ("more", "fewer"),
    [
        ({"gpu_memory_utilization": 0.95}, {}),
        ({"quantization": "fp8"}, {}),
        ({"kv_cache_dtype": "fp8"}, {}),
        ({"tensor_parallel_size": 2}, {}),
        ({}, {"max_num_seqs": 1024}),
        ({}, {"max_num_batched_tokens": 32768}),
        ({}, {"num_speculative_tokens": 3}),
    ],
)
def test_what_memory_buys(more: dict[str, object], fewer: dict[str, object]) -> None:
    assert blocks(**more) > blocks(**fewer)


def test_a_plan_with_slack_fits_every_step_and_one_without_dies_under_load_only() -> None:
    device, model = find_profile(PROFILE)

    def fits(utilization: float, tokens: int, sequences: int) -> bool:
        spec = SimSpec(gpu_memory_utilization=utilization, max_num_batched_tokens=16384)
        return plan_memory(device, model, spec, max_model_len=8192, max_num_batched_tokens=16384).fits(tokens, sequences)

    assert fits(0.9, 16384, 256)
    assert fits(0.98, 256, 32)
    assert not fits(0.98, 16384, 256)


def test_the_cache_holds_what_the_card_has_room_for() -> None:
    gib = blocks() * 16 * 131_072 / GIB
    assert 50 < gib < 56  # 71.2 GiB less 15 of weights and about 2.5 of activations, logits and runtime
