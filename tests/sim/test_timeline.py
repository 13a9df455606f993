from itertools import pairwise

from loadcell.sim.kvcache import KvCache
from loadcell.sim.sequence import Sequence
from loadcell.sim.spec import SimSpec
from loadcell.sim.startup import start_engine
from loadcell.sim.timeline import FixedTimeline
from loadcell.sim.virtual import play

MS = 1_000_000


def fixed(max_num_seqs: int = 100, blocks: int = 1000, noise: float = 0.0) -> FixedTimeline:
    kv = KvCache(blocks, 16, prefix_caching=True)
    return FixedTimeline(ttft_ns=50 * MS, itl_ns=20 * MS, max_num_seqs=max_num_seqs, kv=kv, noise=noise)


def sequence(number: int, at_ms: int, target: int = 3, tokens: int = 10) -> Sequence:
    return Sequence(number, [number] * tokens, target, at_ms * MS)


def moments(told: list[tuple[int, int]]) -> list[float]:
    return [ns / MS for ns, _ in told]


def test_fixed_timing_is_what_was_said_whatever_else_runs() -> None:
    told = play(fixed(), [sequence(i, at_ms=i * 7) for i in range(20)])
    assert {i: moments(one) for i, one in told.items()} == {i: [i * 7 + 50, i * 7 + 70, i * 7 + 90] for i in range(20)}


def test_fixed_timing_waits_for_a_slot() -> None:
    told = play(fixed(max_num_seqs=1), [sequence(1, 0), sequence(2, 10)])
    assert moments(told[2]) == [140, 160, 180]


def test_fixed_timing_waits_for_blocks() -> None:
    told = play(fixed(blocks=1), [sequence(1, 0), sequence(2, 10)])
    assert moments(told[2]) == [140, 160, 180]


def test_cancelling_makes_room_at_once() -> None:
    timeline = fixed(max_num_seqs=1)
    first, second, third = (sequence(i, 0) for i in range(3))
    for seq in (first, second, third):
        timeline.add(seq, 0)
    timeline.cancel(second, 5 * MS)
    timeline.cancel(first, 10 * MS)
    assert (timeline.running, timeline.waiting, timeline.due_ns) == (1, 0, 60 * MS)
    assert [(seq.seq_id, n) for seq, n in timeline.advance(60 * MS)] == [(2, 1)]


def test_noise_moves_tokens_but_not_their_order() -> None:
    told = moments(play(fixed(noise=0.3), [sequence(1, 0, target=200)])[1])
    assert told == sorted(told)
    assert len(set(told)) > 190


def timeline(**changes: object):  # type: ignore[no-untyped-def]
    spec = {"profile": "h100:llama-3.1-8b", "max_model_len": 4096, **changes}
    return start_engine(SimSpec(**spec)).timelines[0]  # type: ignore[arg-type]


def test_a_batched_engine_starts_at_once_and_then_has_no_gaps() -> None:
    engine = timeline()
    told = play(engine, [sequence(1, 100, target=4, tokens=500)])
    gaps = [b - a for a, b in pairwise(moments(told[1]))]
    assert 100 < moments(told[1])[0] < 130
    assert max(gaps) - min(gaps) < 0.1
    assert engine.due_ns is None


def test_a_late_caller_finds_the_engine_on_its_own_time() -> None:
    engine = timeline()
    seq = sequence(1, 0, target=50)
    engine.add(seq, 0)
    engine.advance(0)
    first = engine.due_ns
    assert first is not None
    engine.advance(first + 10 * MS)  # late: the step after it began on time all the same
    assert engine.due_ns is not None
    assert engine.due_ns < first + 17 * MS
    engine.advance(first + 500 * MS)  # very late: no flood
    assert seq.generated <= 4
    assert engine.due_ns > first + 500 * MS
