"""Which endpoint gets the next request: (strategy, arrival, who is available, how loaded) -> index. Pure, and cheap: it runs per request.

Every choice is a function of the arrival's global index and of what is seen of the endpoints, never of a worker's own count, so that
one worker and eight spread the same arrivals in the same way.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from struct import unpack
from typing import Final

from loadcell.endpoint.spec import Strategy

PENALTY_HALF_LIFE_NS: Final = 2_000_000_000
PENALTY_FLOOR: Final = 0.05  # below this a penalty is forgotten, so that idle endpoints are equals again

_MASK: Final = (1 << 64) - 1


def choose(
    strategy: Strategy,
    arrival_index: int,
    available: Sequence[int],
    in_flight: Sequence[int],
    penalty: Sequence[float],
    *,
    n_total: int,
    seed: int = 0,
    key: str | None = None,
    tried: Sequence[int] = (),
) -> int | None:
    """The endpoint's index, or None when none is available.

    `available`: indices in ascending order; `in_flight` and `penalty` (see `penalty_after`) are indexed by endpoint and hold `n_total`
    values. `tried` endpoints of the same request are left out where another one is available. `key`: the session, for `session` alone.
    """
    if tried:
        available = [index for index in available if index not in tried] or available
    count = len(available)
    if count < 2:
        return available[0] if count else None
    if strategy == "round_robin" or (strategy == "session" and key is None):
        return _round_robin(arrival_index, available, n_total)
    if strategy == "least_conn":
        return _least_loaded(arrival_index, available, in_flight, penalty)
    if strategy == "session":
        return next(index for index in ranking(key or "", n_total) if index in available)
    drawn = _mix(seed, arrival_index)
    first = drawn % count
    if strategy == "random":
        return available[first]
    # Power of two choices (Mitzenmacher 2001): two different ones at random, the less loaded of them.
    one, other = available[first], available[(first + 1 + (drawn >> 32) % (count - 1)) % count]
    return other if in_flight[other] + penalty[other] < in_flight[one] + penalty[one] else one


def _round_robin(arrival_index: int, available: Sequence[int], n_total: int) -> int:
    """Arrival i belongs to endpoint i mod n. The share of one that is away is dealt out by the round's number, so that it falls evenly
    on all the others and not on its neighbour.
    """
    turn, own = divmod(arrival_index, n_total)
    if len(available) == n_total or own in available:
        return own
    return available[(turn + own) % len(available)]


def _least_loaded(arrival_index: int, available: Sequence[int], in_flight: Sequence[int], penalty: Sequence[float]) -> int:
    """Least in flight plus penalty; of equals, the first one from a start that rotates with the arrival."""
    start = arrival_index % len(available)
    best = available[start]
    least = in_flight[best] + penalty[best]
    for index in (*available[start + 1 :], *available[:start]):
        load = in_flight[index] + penalty[index]
        if load < least:
            best, least = index, load
    return best


@lru_cache(maxsize=16384)
def ranking(key: str, n_total: int) -> tuple[int, ...]:
    """All endpoints in this key's order of preference: rendezvous hashing (Thaler and Ravishankar 1998).

    An endpoint's score depends on the key and on its own index alone, so when one leaves only its own keys move.
    One digest gives the scores of eight endpoints.
    """
    scores: list[int] = []
    for block in range((n_total + 7) // 8):
        scores += unpack("<8Q", blake2b(key.encode("utf-8", "surrogatepass"), digest_size=64, salt=block.to_bytes(8, "little")).digest())
    return tuple(sorted(range(n_total), key=lambda index: scores[index], reverse=True))


def _mix(seed: int, index: int) -> int:
    """64 random bits of (seed, index): the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    bits = (seed * 0xD1342543DE82EF95 + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


def penalty_after(penalty: float, elapsed_ns: int, failures: int = 0, busiest: int = 0) -> float:
    """The penalty of an endpoint `elapsed_ns` after it stood at `penalty`, `failures` having come since. Unit: requests in flight.

    An endpoint that fails at once never has anything in flight, and least-in-flight alone would send it everything. So each failure
    counts as many requests in flight as the `busiest` endpoint holds, and one more: after one failure it is nobody's first choice, after
    two it stands behind a doubled load. It halves every two seconds.
    """
    left = penalty * 0.5 ** (elapsed_ns / PENALTY_HALF_LIFE_NS) if penalty else 0.0
    left += failures * (busiest + 1.0)
    return left if left >= PENALTY_FLOOR else 0.0
