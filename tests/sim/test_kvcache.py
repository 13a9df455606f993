from hypothesis import given
from hypothesis import strategies as st

from loadcell.sim.kvcache import KvCache
from loadcell.sim.sequence import Sequence


def sequence(number: int, ids: list[int]) -> Sequence:
    return Sequence(number, ids, 10, 0)


def computed(kv: KvCache, seq: Sequence) -> int:
    """Admit and compute a whole prompt; returns the tokens found in the cache."""
    found = kv.admit(seq)
    assert kv.grow(seq, seq.prompt_tokens)
    kv.publish(seq, seq.prompt_tokens)
    return found


def test_equal_prefixes_are_shared_in_whole_blocks() -> None:
    kv = KvCache(100, 4, prefix_caching=True)
    first, second = sequence(1, list(range(11))), sequence(2, [*range(9), 77, 78])
    assert computed(kv, first) == 0
    assert computed(kv, second) == 8
    assert kv.used == 3 + 1
    assert first.blocks[:2] == second.blocks[:2]
    assert (kv.queries, kv.hits) == (22, 8)


def test_the_last_token_is_always_computed() -> None:
    kv = KvCache(100, 4, prefix_caching=True)
    assert [computed(kv, sequence(i, list(range(8)))) for i in range(2)] == [0, 4]


def test_a_block_depends_on_all_before_it() -> None:
    kv = KvCache(100, 4, prefix_caching=True)
    computed(kv, sequence(1, [1, 2, 3, 4, 5, 6, 7, 8, 9]))
    assert computed(kv, sequence(2, [0, 2, 3, 4, 5, 6, 7, 8, 9])) == 0


def test_freed_blocks_are_found_until_they_are_handed_out_anew() -> None:
    kv = KvCache(4, 4, prefix_caching=True)
    old = sequence(1, list(range(9)))
    computed(kv, old)
    kv.release(old)
    assert kv.used == 0
    again = sequence(2, list(range(9)))
    assert computed(kv, again) == 8
    kv.release(again)
    large = sequence(3, list(range(100, 116)))
    computed(kv, large)
    kv.release(large)
    assert computed(kv, sequence(4, list(range(9)))) == 0


def test_the_prefix_outlives_the_tail() -> None:
    kv = KvCache(4, 4, prefix_caching=True)
    old = sequence(1, list(range(16)))
    computed(kv, old)
    kv.release(old)
    computed(kv, sequence(2, list(range(100, 108))))
    assert kv.admit(sequence(3, list(range(16)))) == 8


def test_without_prefix_caching_nothing_is_looked_up() -> None:
    kv = KvCache(100, 4, prefix_caching=False)
    assert [computed(kv, sequence(i, list(range(8)))) for i in range(2)] == [0, 0]
    assert (kv.queries, kv.hits) == (0, 0)


def test_growing_beyond_the_pool_changes_nothing() -> None:
    kv = KvCache(4, 4, prefix_caching=True)
    seq = sequence(1, list(range(20)))
    assert not kv.grow(seq, 17)
    assert (kv.used, seq.blocks) == (0, [])
    assert kv.grow(seq, 16)
    assert kv.usage() == 1.0


def test_forgetting_drops_what_was_published() -> None:
    kv = KvCache(100, 4, prefix_caching=True)
    computed(kv, sequence(1, list(range(9))))
    kv.forget()
    assert computed(kv, sequence(2, list(range(9)))) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.booleans()), max_size=60), st.booleans())
def test_blocks_are_never_lost_nor_held_twice(moves: list[tuple[int, int, bool]], caching: bool) -> None:
    kv = KvCache(24, 4, prefix_caching=caching)
    held: dict[int, Sequence] = {}
    for number, (kind, length, drop) in enumerate(moves):
        if drop and held:
            kv.release(held.pop(next(iter(held))))
        seq = sequence(number, [kind] * length)
        found = kv.admit(seq)
        if kv.grow(seq, length):
            kv.publish(seq, length)
            held[number] = seq
        else:
            kv.retract(seq, found)
        distinct = {block for one in held.values() for block in one.blocks}
        assert kv.used == len(distinct) <= kv.total
        assert all(len(one.blocks) == -(-one.prompt_tokens // 4) for one in held.values())
    for seq in held.values():
        kv.release(seq)
    assert kv.used == 0
