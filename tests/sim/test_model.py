"""Continuous batching as tables and properties; time is the model's own."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadcell.sim.kvcache import KvCache
from loadcell.sim.model import BatchingModel, Limits, Step
from loadcell.sim.profile import StepCost, find_profile
from loadcell.sim.sequence import Sequence
from loadcell.sim.spec import SimSpec
from loadcell.sim.timeline import BatchedTimeline
from loadcell.sim.virtual import play

COST = StepCost(*find_profile("h100:llama-3.1-8b"), SimSpec())


def model(blocks: int = 1000, block_size: int = 4, caching: bool = False, **limits: object) -> BatchingModel:
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 32, **limits}
    return BatchingModel(Limits(**settings), KvCache(blocks, block_size, prefix_caching=caching), COST)  # type: ignore[arg-type]


def prompt(number: int, tokens: int, target: int = 4, at_ns: int = 0) -> Sequence:
    rng = Random(number)
    return Sequence(number, [rng.randrange(50_000) for _ in range(tokens)], target, at_ns, number * 100)


def run(engine: BatchingModel, limit: int = 100_000) -> list[tuple[Step, list[tuple[Sequence, int]]]]:
    """Every step until there is nothing left."""
    steps, now = [], 0
    while (step := engine.step(now)) is not None:
        steps.append((step, engine.complete(step)))
        now = step.end_ns
        assert len(steps) < limit
    return steps


def batches(engine: BatchingModel) -> list[list[tuple[int, int]]]:
    return [[(seq.seq_id, new) for seq, new in step.work] for step, _ in run(engine)]


def test_one_request_is_a_prefill_and_a_decode_per_further_token() -> None:
    engine = model()
    engine.add(prompt(1, 10, target=3))
    assert batches(engine) == [[(1, 10)], [(1, 1)], [(1, 1)]]


def test_long_prefill_is_chunked_beside_decodes() -> None:
    engine = model()
    engine.add(prompt(1, 8, target=5))
    engine.add(prompt(2, 60, target=2))
    assert batches(engine) == [[(1, 8), (2, 24)], [(1, 1), (2, 31)], [(1, 1), (2, 5)], [(1, 1), (2, 1)], [(1, 1)]]


def test_without_chunking_a_prefill_waits_until_it_fits_whole() -> None:
    engine = model(chunked_prefill=False)
    engine.add(prompt(1, 8, target=3))
    engine.add(prompt(2, 30, target=1))
    assert batches(engine) == [[(1, 8)], [(1, 1), (2, 30)], [(1, 1)]]


def test_max_num_seqs_makes_the_next_one_wait_for_a_slot() -> None:
    engine = model(max_num_seqs=1)
    for number in (1, 2):
        engine.add(prompt(number, 4, target=2))
    assert batches(engine) == [[(1, 4)], [(1, 1)], [(2, 4)], [(2, 1)]]


def test_what_arrives_during_a_step_joins_the_next_one() -> None:
    engine = model()
    engine.add(prompt(1, 4, target=2))
    step = engine.step(0)
    assert step is not None
    engine.add(prompt(2, 4, target=1, at_ns=step.end_ns - 1))
    engine.add(prompt(3, 4, target=1, at_ns=step.end_ns + 1))
    engine.complete(step)
    second = engine.step(step.end_ns)
    assert second is not None
    assert [seq.seq_id for seq, _ in second.work] == [1, 2]


def test_the_newest_is_preempted_and_computed_again() -> None:
    engine = model(blocks=4)
    old, new = prompt(1, 7, target=6), prompt(2, 7, target=6)
    engine.add(old)
    engine.add(new)
    steps = run(engine)
    assert (old.preemptions, new.preemptions, engine.preemptions) == (0, 1, 1)
    assert old.generated == new.generated == 6
    again = [count for step, _ in steps for seq, count in step.work if seq is new and count > 1]
    assert again[0] == 7
    assert again[1] == 7 + 2  # its prompt, and what it had generated


def test_prefix_cache_saves_the_prefill_of_what_is_known() -> None:
    engine = model(caching=True, block_size=4)
    first = prompt(1, 20, target=2)
    engine.add(first)
    run(engine)
    second = Sequence(2, [*first.prompt_ids[:16], 1, 2, 3], 2, 0)
    engine.add(second)
    assert batches(engine)[0] == [(2, 3)]
    assert (second.cached, engine.kv.hits, engine.kv.queries) == (16, 16, 39)


def test_a_dialogue_finds_its_own_answer_in_the_cache() -> None:
    engine = model(caching=True, block_size=4)
    first = prompt(1, 8, target=9)
    engine.add(first)
    run(engine)
    from loadcell.sim.answers import ring_ids

    follow_up = Sequence(2, first.prompt_ids + ring_ids(first.answer_start, 8) + [5, 6, 7], 1, 0)
    engine.add(follow_up)
    run(engine)
    assert follow_up.cached == 16


def test_a_cancelled_sequence_gets_nothing_more_and_frees_its_blocks() -> None:
    engine = model()
    gone, stays = prompt(1, 8), prompt(2, 8)
    engine.add(gone)
    engine.add(stays)
    step = engine.step(0)
    assert step is not None
    engine.cancel(gone)
    assert [seq.seq_id for seq, _ in engine.complete(step)] == [2]
    run(engine)
    assert engine.kv.used == 0
    assert gone.generated == 0


def test_speculation_gives_several_tokens_a_step_and_never_too_many() -> None:
    engine = model(num_speculative_tokens=3, acceptance=1.0)
    engine.add(prompt(1, 4, target=10))
    assert [count for _, outputs in run(engine) for _, count in outputs] == [1, 4, 4, 1]
    unlucky = model(num_speculative_tokens=3, acceptance=0.0)
    unlucky.add(prompt(1, 4, target=10))
    assert [count for _, outputs in run(unlucky) for _, count in outputs] == [1] * 10


def test_acceptance_gives_the_expected_mean() -> None:
    engine = model(num_speculative_tokens=2, acceptance=0.6, blocks=100_000)
    engine.add(prompt(1, 4, target=20_000))
    counts = [count for _, outputs in run(engine) for _, count in outputs]
    assert sum(counts) / len(counts) == pytest.approx(1 + 0.6 + 0.36, rel=0.03)


requests = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20), st.integers(0, 200)), min_size=1, max_size=25)


@settings(deadline=None, max_examples=150)
@given(requests, st.integers(22, 60), st.integers(1, 6), st.sampled_from([8, 32, 64]), st.booleans(), st.integers(0, 3))
def test_limits_hold_and_everybody_is_served(
    asked: list[tuple[int, int, int]], blocks: int, seqs: int, budget: int, caching: bool, drafts: int
) -> None:
    """Whatever arrives: no step exceeds its limits, blocks never run over, every sequence gets exactly its tokens, all is freed."""
    engine = model(
        blocks=blocks, caching=caching, max_num_seqs=seqs, max_num_batched_tokens=budget, num_speculative_tokens=drafts, acceptance=0.5
    )
    sequences = [prompt(i % 5, tokens, target, ms * 1_000_000) for i, (tokens, target, ms) in enumerate(asked)]
    for number, seq in enumerate(sequences):
        seq.seq_id = number
    ahead = sorted(sequences, key=lambda seq: seq.arrival_ns)
    now, got = 0, dict.fromkeys(range(len(sequences)), 0)
    while ahead or engine.running or engine.waiting:
        while ahead and ahead[0].arrival_ns <= now:
            engine.add(ahead.pop(0))
        step = engine.step(now)
        if step is None:  # work conservation: it idles only when nobody is there
            assert not engine.running
            assert not engine.waiting
            now = ahead[0].arrival_ns
            continue
        assert 0 < step.tokens == sum(new for _, new in step.work) <= budget
        assert len({seq.seq_id for seq, _ in step.work}) == len(step.work) <= seqs
        assert engine.kv.used <= blocks
        assert step.end_ns > step.start_ns
        for seq, count in engine.complete(step):
            got[seq.seq_id] += count
        now = step.end_ns
    assert got == {seq.seq_id: seq.target for seq in sequences}
    assert engine.kv.used == 0


def test_the_same_seed_gives_the_same_times_and_noise_has_its_spread() -> None:
    def moments(seed: int, noise: float) -> list[int]:
        engine = model(noise=noise, seed=seed, blocks=10_000)
        return [ns for ns, _ in play(BatchedTimeline(engine), [prompt(1, 4, target=2000)])[1]]

    assert moments(1, 0.1) == moments(1, 0.1) != moments(2, 0.1)
    gaps = [b - a for a, b in pairwise(moments(1, 0.1))]
    mean = sum(gaps) / len(gaps)
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean == pytest.approx(0.1, rel=0.1)
