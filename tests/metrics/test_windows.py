"""Spans and the true number in flight."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadcell.metrics.facts import RunFacts
from loadcell.metrics.windows import InFlight, Scan, Span, offered_and_achieved, steady_state, whole_run
from loadcell.records import RequestRecord

from .build import MS, S, attempt, failed, record


def stream(index: int, sent_ms: float, end_ms: float, due_ms: float | None = None) -> RequestRecord:
    return record(index, [attempt(sent_ms, [(sent_ms + end_ms) / 2, end_ms])], due_ms)


def flight(*spans: tuple[int, int]) -> InFlight:
    return InFlight(np.array([start for start, _end in spans], np.int64), np.array([end for _start, end in spans], np.int64))


def span(start: int, end: int) -> Span:
    return Span(start, end, "test")


def test_a_slot_that_is_freed_and_taken_at_one_moment_holds_one_request() -> None:
    found = flight((0, 10), (10, 20), (20, 30))
    assert found.peak(span(0, 30)) == 1
    assert found.mean(span(0, 30)) == 1.0


def test_peak_and_mean_inside_a_span() -> None:
    found = flight((0, 100), (10, 20), (15, 30), (90, 200))
    assert found.peak(span(0, 200)) == 3
    assert found.peak(span(40, 80)) == 1
    assert found.mean(span(0, 200)) == pytest.approx((100 + 10 + 15 + 110) / 200)
    assert found.mean(span(40, 80)) == 1.0
    assert (found.first_reached_ns(3), found.first_reached_ns(4)) == (15, None)


def test_nothing_in_flight() -> None:
    assert (flight().peak(span(0, 1)), flight().mean(span(0, 1))) == (None, None)
    assert flight((0, 1)).mean(span(5, 5)) is None


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=30))
def test_in_flight_is_what_counting_by_hand_gives(spans: list[tuple[int, int]]) -> None:
    found = flight(*((start, start + length) for start, length in spans))
    moments = [moment + 0.5 for moment in range(75)]
    by_hand = [sum(start <= moment < start + length for start, length in spans) for moment in moments]
    assert found.mean(span(0, 75)) == pytest.approx(sum(by_hand) / 75)
    peak = found.peak(span(0, 75))
    assert peak is not None
    assert max(by_hand) <= peak <= len(spans)


def test_attempts_of_one_request_are_in_flight_one_after_the_other() -> None:
    scan = Scan([record(0, [failed(0, 100, "http_5xx"), attempt(300, [350, 400])])])
    assert scan.in_flight().mean(span(0, 400 * MS)) == pytest.approx(0.5)
    assert scan.in_flight(endpoint=1).peak(span(0, S)) is None


def test_warm_up_is_in_no_window() -> None:
    scan = Scan([record(0, [attempt(0, [50, 900])], phase="warmup"), stream(1, 1000, 1500)])
    whole = whole_run(RunFacts(), scan)
    assert whole is not None
    assert (whole.start_ns, whole.end_ns) == (1000 * MS, 1500 * MS)


def test_the_whole_run_ends_with_the_duration_or_with_the_last_request() -> None:
    scan = Scan([stream(0, 0, 1500)])
    by_count = whole_run(RunFacts(), scan)
    by_time = whole_run(RunFacts(window_start_ns=0, window_end_ns=1000 * MS, duration_s=1.0, stop_reason="duration"), scan)
    assert by_count is not None
    assert by_time is not None
    assert (by_count.end_ns, by_time.end_ns) == (1500 * MS, 1000 * MS)
    assert "duration" in by_time.rule
    assert whole_run(RunFacts(), Scan([])) is None


def closed_loop(cap: int, rounds: int, service_ms: float) -> list[RequestRecord]:
    pairs = itertools.product(range(rounds), range(cap))
    return [stream(r * cap + k, r * service_ms + k, (r + 1) * service_ms + k - 0.01) for r, k in pairs]


def test_the_steady_state_of_a_closed_loop() -> None:
    """Four slots, filled a millisecond apart; the last dispatch is the fourth slot's ninth."""
    scan = Scan(closed_loop(4, 10, 1000))
    steady = steady_state(RunFacts(concurrency_cap=4), scan, scan.in_flight())
    assert isinstance(steady, Span)
    assert (steady.start_ns, steady.end_ns) == (3 * MS, 9003 * MS)


def test_the_steady_state_of_an_open_loop_starts_at_the_ramps_end() -> None:
    scan = Scan([stream(k, k * 100, k * 100 + 50) for k in range(100)])
    steady = steady_state(RunFacts(offered_rate=10, ramp_end_ns=3 * S), scan, scan.in_flight())
    assert isinstance(steady, Span)
    assert (steady.start_ns, steady.end_ns) == (3 * S, 9900 * MS)


@pytest.mark.parametrize(
    ("records", "facts", "why"),
    [
        ([], RunFacts(concurrency_cap=1), "nothing was sent"),
        (closed_loop(4, 10, 1000), RunFacts(), "neither a rate nor a concurrency cap"),
        (closed_loop(4, 10, 1000), RunFacts(concurrency_cap=5), "the cap of 5 was never reached"),
        (closed_loop(4, 10, 500), RunFacts(concurrency_cap=4), "shorter than 5 s"),
        (closed_loop(2, 10, 1000), RunFacts(concurrency_cap=2), "fewer than 30 requests"),
    ],
)
def test_why_there_is_no_steady_state(records: list[RequestRecord], facts: RunFacts, why: str) -> None:
    scan = Scan(records)
    found = steady_state(facts, scan, scan.in_flight())
    assert isinstance(found, str)
    assert found.startswith(why)


def test_a_rate_kept_up_with() -> None:
    found = offered_and_achieved(Scan([stream(k, k * 10 + 0.2, k * 10 + 5, due_ms=k * 10) for k in range(100)]))
    assert found is not None
    assert found.ratio == pytest.approx(1.0, abs=0.01)


def test_a_client_that_falls_behind() -> None:
    """Due every 10 ms, taken up every 20 ms."""
    found = offered_and_achieved(Scan([stream(k, k * 20, k * 20 + 5, due_ms=k * 10) for k in range(100)]))
    assert found is not None
    assert found.ratio == pytest.approx(0.5, abs=0.01)


def test_arrivals_that_were_dropped_lower_the_rate() -> None:
    sent = [stream(k, k * 10, k * 10 + 5) for k in range(100)]
    dropped = [record(100 + k, [], due_ms=k * 10) for k in range(25)]
    found = offered_and_achieved(Scan([*sent, *dropped]))
    assert found is not None
    assert found.ratio == pytest.approx(0.8, abs=0.01)


def test_arrivals_without_an_endpoint_are_not_the_clients_doing() -> None:
    sent = [stream(k, k * 10, k * 10 + 5) for k in range(100)]
    refused = [record(100 + k, [], due_ms=k * 10, outcome="no_endpoint") for k in range(50)]
    found = offered_and_achieved(Scan([*sent, *refused]))
    assert found is not None
    assert found.ratio == pytest.approx(1.0)


def test_a_burst_has_no_rate() -> None:
    assert offered_and_achieved(Scan([stream(k, k * 0.05, 100, due_ms=0) for k in range(50)])) is None
