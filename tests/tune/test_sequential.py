"""When a trial may end early: how often wrongly, and how soon rightly."""

import numpy as np
import pytest

from loadcell.metrics.slo import parse_slo
from loadcell.tune.sequential import Second, Sequential, Stop, allowed, overdue_at_least, scaled

P95 = parse_slo("ttft p95 <= 200ms")


def played(share: float, seed: int, seconds: int = 60, per_second: int = 20, correlated: float = 0.0, slo=P95) -> tuple[Stop | None, int]:
    """Requests of which a share misses the limit, the same luck within a second (beta-binomial) and from one to the next."""
    rng, test, drift = np.random.default_rng(seed), Sequential((slo,), "throughput"), 0.0
    for at in range(seconds):
        drift = 0.7 * drift + correlated * rng.standard_normal()
        p = float(np.clip(rng.beta(share * 20, (1 - share) * 20) * np.exp(drift - correlated**2), 0, 1))
        stop = test.add(Second({slo.text: (per_second, float(rng.binomial(per_second, p)))}))
        if stop is not None:
            return stop, at + 1
    return None, seconds


@pytest.mark.parametrize("correlated", [0.0, 0.3])
def test_a_limit_that_holds_is_hardly_ever_taken_for_missed(correlated):
    wrong = sum(played(0.04, seed, correlated=correlated)[0] is not None for seed in range(300))
    assert wrong <= 6


def test_a_limit_that_is_missed_by_far_is_seen_in_seconds():
    ends = [played(0.6, seed) for seed in range(100)]
    assert all(stop is not None and stop.kind == "slo" for stop, _ in ends)
    assert np.median([at for _, at in ends]) <= 7
    stop = ends[0][0]
    assert stop is not None
    assert "ttft p95 <= 200ms is missed" in stop.text


def test_a_limit_that_is_missed_clearly_is_seen_within_the_minute():
    assert sum(played(0.2, seed)[0] is not None for seed in range(100)) >= 95


def test_requests_still_waiting_past_the_limit_are_violations_once():
    test = Sequential((P95,), "throughput")
    for overdue in (10, 20, 30, 40, 50, 60):
        stop = test.add(Second({}, {P95.text: overdue}))
    assert stop is not None
    assert "100% of 60 requests" in stop.text
    again = Sequential((P95,), "throughput")
    again.add(Second({}, {P95.text: 10}))
    again.add(Second({P95.text: (10, 10.0)}, {P95.text: 0}))
    assert (again._bets[P95.text].requests, again._bets[P95.text].total) == (10, 10)


@pytest.mark.parametrize(("in_flight", "lately", "least"), [(100, 30, 70), (30, 100, 0), (0, 0, 0)])
def test_all_but_those_sent_lately_are_older(in_flight, lately, least):
    assert overdue_at_least(in_flight, lately) == least


@pytest.mark.parametrize(
    ("text", "null"),
    [("ttft p95 <= 1s", 0.05), ("e2e p50 <= 1s", 0.5), ("e2e mean <= 1s", 1 / 3), ("e2e max <= 1s", 0.0), ("itl p95 <= 1s", None), ("success_rate >= 99%", 0.01)],
)  # fmt: skip
def test_what_a_limit_allows(text, null):
    assert allowed(parse_slo(text)) == (None if null is None else pytest.approx(null))


def test_a_mean_is_judged_by_its_values():
    slo = parse_slo("ttft mean <= 100ms")
    assert [scaled(slo, value) for value in (50, 100, 600)] == pytest.approx([1 / 6, 1 / 3, 1.0])
    for value, expected in ((90, False), (150, True)):
        test, rng, stopped = Sequential((slo,), "throughput"), np.random.default_rng(0), False
        for _ in range(60):
            values = rng.exponential(value, 20)
            stopped = stopped or test.add(Second({slo.text: (20, sum(scaled(slo, one) for one in values))})) is not None
        assert stopped is expected


def test_one_request_beyond_a_maximum_is_enough():
    slo = parse_slo("e2e max <= 1s")
    test = Sequential((slo,), "throughput")
    assert test.add(Second({slo.text: (10, 0.0)})) is None
    assert test.add(Second({slo.text: (10, 1.0)})) is not None


def test_a_growing_backlog_ends_an_open_loop_only_once_it_waits_past_the_limit():
    def run(open_loop: bool, limit: str) -> Stop | None:
        test, rng, backlog = Sequential((parse_slo(limit),), "throughput", open_loop=open_loop), np.random.default_rng(1), 0
        for _ in range(30):
            sent, done = int(rng.poisson(30)), int(rng.poisson(20))
            backlog += sent - done
            stop = test.add(Second(sent=sent, done=max(0, done), in_flight=backlog, waiting=backlog))
            if stop is not None:
                return stop
        return None

    found = run(True, "ttft p95 <= 1s")
    assert found is not None
    assert found.kind == "backlog"
    assert run(False, "ttft p95 <= 1s") is None
    assert run(True, "ttft p95 <= 60s") is None


def test_a_steady_queue_is_no_growth():
    for seed in range(50):
        test, rng = Sequential((P95,), "throughput", open_loop=True), np.random.default_rng(seed)
        backlog = 40
        for _ in range(60):
            sent, done = int(rng.poisson(20)), int(rng.poisson(20))
            backlog = max(0, backlog + sent - done)
            assert test.add(Second(sent=sent, done=done, in_flight=backlog, waiting=backlog)) is None


@pytest.mark.parametrize(("incumbent", "stops"), [(None, False), (100.0, False), (140.0, False), (250.0, True)])
def test_only_what_is_clearly_out_of_reach_is_dominated(incumbent, stops):
    stopped = 0
    for seed in range(30):
        test, rng = Sequential((), "throughput", incumbent=incumbent), np.random.default_rng(seed)
        stopped += any(test.add(Second(objective=float(rng.normal(105, 20)))) is not None for _ in range(30))
    assert (stopped == 30) if stops else (stopped <= 1)
