"""Arrivals: statistics tested as statistics, bounds and shapes as tables."""

import math
import random
import sys
from array import array
from itertools import chain, pairwise

import pytest

from loadcell.schedule import ScheduleSpec, arrivals, offered_rate, ramp_end_ns, shard

NS = 1_000_000_000


def rated(rate: float | None = 100.0, **fields) -> ScheduleSpec:
    return ScheduleSpec(**{"request_rate": rate, "num_prompts": 20_000, **fields})


def gaps_of(offsets) -> list[float]:
    return [(b - a) / NS for a, b in pairwise(offsets)]


def variation(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / len(values)) / mean


def counts_in(offsets, window_s: float) -> list[int]:
    counts = [0] * int(offsets[-1] / NS / window_s)
    for offset in offsets:
        slot = int(offset / NS / window_s)
        if slot < len(counts):
            counts[slot] += 1
    return counts


def dispersion(counts: list[int]) -> float:
    mean = sum(counts) / len(counts)
    return sum((c - mean) ** 2 for c in counts) / (len(counts) - 1) / mean


def autocorrelation(values: list[float], lag: int) -> float:
    mean = sum(values) / len(values)
    around = [v - mean for v in values]
    return sum(a * b for a, b in zip(around, around[lag:], strict=False)) / sum(a * a for a in around)


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_poisson_has_the_dispersion_and_autocorrelation_of_a_poisson_process(seed):
    offsets = arrivals(rated(), seed)
    counts = counts_in(offsets, 0.5)
    # The index of dispersion of n windows has a standard deviation of √(2/n); of lags, 1/√n.
    assert abs(dispersion(counts) - 1) < 4 * math.sqrt(2 / len(counts))
    for lag in range(1, 6):
        assert abs(autocorrelation(gaps_of(offsets), lag)) < 4 / math.sqrt(len(offsets))
    assert abs(variation(gaps_of(offsets)) - 1) < 0.03


def test_a_poisson_count_varies_from_seed_to_seed_as_it_should():
    """A total rescaled to n / rate would have no variance here."""
    counts = [len(arrivals(rated(num_prompts=None, duration_s=10.0), seed)) for seed in range(200)]
    assert abs(sum(counts) / len(counts) - 1000) < 4 * math.sqrt(1000 / len(counts))
    assert 0.7 < dispersion(counts) < 1.35


@pytest.mark.parametrize("shape", [0.25, 0.5, 2.0, 16.0])
def test_gamma_gaps_have_mean_1_over_rate_and_variation_1_over_root_burstiness(shape):
    gaps = gaps_of(arrivals(rated(arrival="gamma", burstiness=shape), 3))
    assert sum(gaps) / len(gaps) == pytest.approx(0.01, rel=4 / math.sqrt(shape * len(gaps)))
    assert variation(gaps) == pytest.approx(1 / math.sqrt(shape), rel=0.05)


def test_burstiness_makes_a_gamma_process_of_a_poisson_one_as_in_vllm():
    assert arrivals(rated(burstiness=4.0), 0) == arrivals(rated(arrival="gamma", burstiness=4.0), 0)
    assert arrivals(rated(burstiness=math.inf), 0) == arrivals(rated(arrival="constant"), 0)
    assert arrivals(rated(arrival="gamma"), 0) == arrivals(rated(), 0)


def test_constant_arrivals_never_drift():
    offsets = arrivals(rated(3.0, arrival="constant", num_prompts=300_001), 0)
    assert offsets[0] == 0
    assert offsets[300_000] == 100_000 * NS
    assert all(abs(offset - i * NS / 3) <= 0.5 for i, offset in enumerate(offsets))


@pytest.mark.parametrize("workers", [1, 4, 10, 64])
def test_one_shard_is_the_union_of_many(workers):
    offsets = arrivals(rated(num_prompts=1003), 5)
    shards = [shard(offsets, worker, workers) for worker in range(workers)]
    assert sorted(chain.from_iterable(shards)) == list(offsets)
    assert all(s[k] == offsets[worker + k * workers] for worker, s in enumerate(shards) for k in range(len(s)))


def test_seeds_differ_zero_is_one_and_equal_seeds_repeat():
    assert arrivals(rated(), 0) == arrivals(rated(), 0)
    assert arrivals(rated(), 0) != arrivals(rated(), 1)


def test_a_longer_schedule_begins_with_the_shorter_one():
    assert arrivals(rated(num_prompts=5000), 0)[:100] == arrivals(rated(num_prompts=100), 0)
    limited = arrivals(rated(duration_s=1.0), 0)
    assert limited == arrivals(rated(), 0)[: len(limited)]


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"num_prompts": 7, "duration_s": None}, 7),
        ({"num_prompts": None, "duration_s": 2.0}, 200),
        ({"num_prompts": 30, "duration_s": 2.0}, 30),
        ({"num_prompts": 900, "duration_s": 2.0}, 200),
    ],
)
def test_num_prompts_and_duration_bound_it_whichever_is_first(fields, count):
    assert len(arrivals(rated(arrival="constant", **fields), 0)) == count


def test_everything_at_once_is_due_at_zero():
    assert arrivals(ScheduleSpec(num_prompts=4), 0) == array("q", [0, 0, 0, 0])
    assert arrivals(ScheduleSpec(request_rate=math.inf, num_prompts=2), 0) == array("q", [0, 0])


def test_a_closed_loop_has_no_arrivals():
    with pytest.raises(ValueError, match="closed loop"):
        arrivals(ScheduleSpec(concurrency=4), 0)


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
def test_a_ramp_over_requests_has_the_rate_of_each_request(strategy):
    spec = ScheduleSpec(arrival="constant", num_prompts=101, ramp_up_strategy=strategy, ramp_up_start_rps=2.0, ramp_up_end_rps=32.0)
    rates = [1 / gap for gap in gaps_of(arrivals(spec, 0))]
    middle = 17.0 if strategy == "linear" else 8.0
    assert rates[49] == pytest.approx(middle, rel=1e-6)
    assert rates[-1] == pytest.approx(32.0, rel=1e-6)
    assert rates == sorted(rates)
    assert ramp_end_ns(spec, arrivals(spec, 0)) == arrivals(spec, 0)[-1]


@pytest.mark.parametrize(("strategy", "expected"), [("linear", 550.0), ("exponential", (100 - 10) * 10 / math.log(10))])
def test_a_ramp_over_the_duration_has_the_integral_of_its_rate(strategy, expected):
    spec = ScheduleSpec(
        num_prompts=None, duration_s=10.0, arrival="constant", ramp_up_strategy=strategy, ramp_up_start_rps=10.0, ramp_up_end_rps=100.0
    )
    offsets = arrivals(spec, 0)
    assert abs(len(offsets) - expected) <= 1
    assert offered_rate(spec) == pytest.approx(expected / 10)
    near_end = [offset for offset in offsets if offset >= 9.9 * NS]
    assert len(near_end) == pytest.approx(10, abs=1)
    assert ramp_end_ns(spec, offsets) == 10 * NS


def test_a_level_ramp_is_a_constant_rate():
    for strategy in ("linear", "exponential"):
        spec = ScheduleSpec(
            num_prompts=None, duration_s=5.0, arrival="constant", ramp_up_strategy=strategy, ramp_up_start_rps=8.0, ramp_up_end_rps=8.0
        )
        assert arrivals(spec, 0) == arrivals(ScheduleSpec(request_rate=8.0, arrival="constant", num_prompts=40), 0)


def test_a_poisson_ramp_stays_poisson_within_small_windows():
    spec = ScheduleSpec(num_prompts=None, duration_s=100.0, ramp_up_strategy="linear", ramp_up_start_rps=50.0, ramp_up_end_rps=150.0)
    counts = [[0] * 100 for _ in range(40)]
    for seed in range(40):
        for offset in arrivals(spec, seed):
            counts[seed][offset // NS] += 1
    chi = sum((c - (50.5 + s)) ** 2 / (50.5 + s) for row in counts for s, c in enumerate(row)) / 4000
    assert abs(chi - 1) < 4 * math.sqrt(2 / 4000)


def test_steps_follow_one_another_and_rest_at_rate_zero():
    spec = ScheduleSpec(arrival="constant", num_prompts=None, steps=((10.0, 2.0), (0.0, 3.0), (100.0, 1.0)))
    offsets = arrivals(spec, 0)
    seconds = [offset // NS for offset in offsets]
    assert [seconds.count(s) for s in range(6)] == [10, 10, 0, 0, 0, 100]
    assert offered_rate(spec) == pytest.approx(120 / 6)
    assert len(arrivals(ScheduleSpec(arrival="constant", num_prompts=None, duration_s=1.0, steps=spec.steps), 0)) == 10


def test_bursts_arrive_together_at_the_same_mean_rate():
    offsets = arrivals(rated(burst_size=8, num_prompts=20_004), 0)
    assert len(offsets) == 20_004
    assert all(len(set(offsets[i : i + 8])) == 1 for i in range(0, 20_000, 8))
    assert offsets[8] > offsets[7]
    assert len(offsets) * NS / offsets[-1] == pytest.approx(100.0, rel=4 / math.sqrt(2500))


def test_a_trace_is_replayed_as_it_stands():
    spec = ScheduleSpec(trace_s=(0.0, 0.5, 0.5, 2.25, 9.0), duration_s=3.0)
    assert list(arrivals(spec, 0)) == [0, NS // 2, NS // 2, 2_250_000_000]
    assert offered_rate(spec) == pytest.approx(4 / 2.25)
    assert len(arrivals(ScheduleSpec(trace_s=(0.0, 1.0, 2.0), num_prompts=2), 0)) == 2


def test_offsets_ascend_whatever_the_process():
    rng = random.Random(0)
    for _ in range(50):
        spec = rated(rng.uniform(0.1, 1e5), burstiness=rng.choice([0.05, 0.5, 1.0, 3.0]), burst_size=rng.randint(1, 5), num_prompts=300)
        offsets = arrivals(spec, rng.randint(0, 99))
        assert list(offsets) == sorted(offsets)
        assert offsets[0] >= 0


def test_a_million_arrivals_take_eight_megabytes():
    offsets = arrivals(rated(1e4, num_prompts=1_000_000), 0)
    assert sys.getsizeof(offsets) < 9_500_000


@pytest.mark.parametrize(
    ("spec", "rate"),
    [
        (rated(), 100.0),
        (ScheduleSpec(concurrency=4), None),
        (ScheduleSpec(), None),
        (ScheduleSpec(concurrency=4, request_rate=math.inf), None),
        (ScheduleSpec(trace_s=(0.0,)), None),
    ],
)
def test_offered_rate_is_null_where_nothing_is_paced(spec, rate):
    assert offered_rate(spec) == rate
