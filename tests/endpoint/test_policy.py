"""The health table, entry by entry, and what probes and traffic mean to it."""

from itertools import product
from typing import get_args

import pytest

from loadcell.endpoint.policy import (
    FAILURES,
    NS_PER_S,
    TABLE,
    Health,
    HealthEvent,
    IllegalMoveError,
    State,
    TrafficEffect,
    is_evidence,
    judge_failed_probe,
    probe_meaning,
    recovery_due,
    step,
    traffic_cause,
    traffic_effect,
    withholds,
)
from loadcell.endpoint.spec import EndpointSpec
from loadcell.records import Outcome

SPEC = EndpointSpec()
STATES: tuple[State, ...] = get_args(State)
EVENTS: tuple[HealthEvent, ...] = get_args(HealthEvent)

OK = Health()
ONE_PROBE = Health(probe_failures=1)
ONE_REQUEST = Health(traffic_failures=1)
OUT_PROBES = Health("unhealthy", 5, probe_failures=2, ejected_by="probes")
OUT_TRAFFIC = Health("unhealthy", 5, traffic_failures=2, ejected_by="traffic")
TRY_PROBES = Health("trial", 5, probe_failures=2, ejected_by="probes", trial_by="probe")
TRY_TRAFFIC = Health("trial", 5, traffic_failures=2, ejected_by="traffic", trial_by="probe")
TRY_REQUEST = Health("trial", 5, traffic_failures=2, ejected_by="traffic", trial_by="request")

# (health, event, state after, whether a transition is told)
MOVES: list[tuple[Health, HealthEvent, State, bool]] = [
    (OK, "probe_ok", "healthy", False),
    (OK, "probe_failed", "healthy", False),
    (ONE_PROBE, "probe_failed", "unhealthy", True),
    (ONE_REQUEST, "probe_failed", "healthy", False),  # counted apart
    (OK, "traffic_ok", "healthy", False),
    (OK, "traffic_failed", "healthy", False),
    (ONE_REQUEST, "traffic_failed", "unhealthy", True),
    (ONE_PROBE, "traffic_failed", "healthy", False),
    (ONE_PROBE, "tokens_flowing", "healthy", False),
    (OUT_PROBES, "probe_ok", "unhealthy", False),
    (OUT_PROBES, "probe_failed", "unhealthy", False),
    (OUT_PROBES, "traffic_ok", "healthy", True),
    (OUT_PROBES, "traffic_failed", "unhealthy", False),
    (OUT_PROBES, "tokens_flowing", "healthy", True),
    (OUT_PROBES, "recovery_due", "trial", True),
    (OUT_TRAFFIC, "probe_ok", "unhealthy", False),
    (OUT_TRAFFIC, "probe_failed", "unhealthy", False),
    (OUT_TRAFFIC, "traffic_ok", "unhealthy", False),  # older requests that end well
    (OUT_TRAFFIC, "traffic_failed", "unhealthy", False),
    (OUT_TRAFFIC, "tokens_flowing", "unhealthy", False),
    (OUT_TRAFFIC, "recovery_due", "trial", True),
    (TRY_PROBES, "probe_ok", "healthy", True),
    (TRY_PROBES, "probe_failed", "unhealthy", True),
    (TRY_PROBES, "traffic_ok", "healthy", True),
    (TRY_PROBES, "traffic_failed", "unhealthy", True),
    (TRY_PROBES, "tokens_flowing", "healthy", True),
    (TRY_TRAFFIC, "probe_ok", "trial", True),  # now one request decides
    (TRY_TRAFFIC, "tokens_flowing", "trial", True),
    (TRY_TRAFFIC, "probe_failed", "unhealthy", True),
    (TRY_TRAFFIC, "traffic_ok", "healthy", True),
    (TRY_TRAFFIC, "traffic_failed", "unhealthy", True),
    (TRY_REQUEST, "probe_ok", "trial", False),
    (TRY_REQUEST, "tokens_flowing", "trial", False),
    (TRY_REQUEST, "probe_failed", "unhealthy", True),
    (TRY_REQUEST, "traffic_ok", "healthy", True),
    (TRY_REQUEST, "traffic_failed", "unhealthy", True),
]


@pytest.mark.parametrize(("health", "event", "after", "told"), MOVES)
def test_moves(health: Health, event: HealthEvent, after: State, told: bool) -> None:
    moved, transition = step(health, event, 100, SPEC, "why")
    assert moved.state == after
    assert (transition is not None) == told
    if transition is not None:
        assert (transition.at_ns, transition.before, transition.after, transition.cause) == (100, health.state, after, "why")
    if after != health.state:
        assert moved.since_ns == 100
    assert (moved.trial_by is not None) == (after == "trial")


def test_every_state_and_event_is_a_move_or_illegal() -> None:
    assert {(health.state, event) for health, event, _, _ in MOVES} == set(TABLE)
    for state, event in set(product(STATES, EVENTS)) - set(TABLE):
        assert event == "recovery_due"
        with pytest.raises(IllegalMoveError, match=f"{event}.*{state}"):
            step(Health(state), event, 100, SPEC, "")


def test_failures_are_counted_in_a_row() -> None:
    spec = EndpointSpec(health_max_failures=3)
    health = OK
    for event in ("traffic_failed", "traffic_failed", "traffic_ok", "traffic_failed", "probe_failed", "traffic_failed"):
        health, transition = step(health, event, 1, spec, "")
        assert transition is None
    assert (health.probe_failures, health.traffic_failures) == (1, 2)
    health, transition = step(health, "traffic_failed", 1, spec, "")
    assert transition is not None
    assert health.ejected_by == "traffic"


def test_who_ejected_is_kept_through_trials_and_forgotten_by_success() -> None:
    trial, _ = step(OUT_TRAFFIC, "recovery_due", 10, SPEC, "")
    assert trial.trial_by == "probe"
    out, _ = step(trial, "probe_failed", 11, SPEC, "")
    assert (out.ejected_by, out.since_ns) == ("traffic", 11)
    assert step(OUT_PROBES, "recovery_due", 10, SPEC, "", probing=False)[0].trial_by == "request"
    back, _ = step(TRY_REQUEST, "traffic_ok", 12, SPEC, "")
    assert (back.probe_failures, back.traffic_failures) == (0, 0)
    once, _ = step(back, "probe_failed", 13, SPEC, "")
    twice, _ = step(once, "probe_failed", 14, SPEC, "")
    assert (once.state, twice.state, twice.ejected_by) == ("healthy", "unhealthy", "probes")
    assert step(TRY_PROBES, "traffic_failed", 15, SPEC, "")[0].ejected_by == "traffic"


def test_recovery_is_due_after_the_interval_and_only_once() -> None:
    due_ns = 5 + 10 * NS_PER_S
    assert [recovery_due(OUT_PROBES, now_ns, SPEC) for now_ns in (due_ns - 1, due_ns)] == [False, True]
    assert not recovery_due(OK, due_ns, SPEC)
    assert not recovery_due(TRY_PROBES, due_ns, SPEC)


def test_traffic_from_before_the_present_state_is_no_evidence() -> None:
    back = Health(since_ns=50, ejected_by="traffic")
    assert [is_evidence(back, dispatched_ns) for dispatched_ns in (49, 50, None)] == [False, True, True]
    assert not is_evidence(TRY_REQUEST, 4)
    assert is_evidence(OUT_PROBES, 4)


def test_one_endpoint_is_never_withheld() -> None:
    assert [withholds(health, 2) for health in (OK, OUT_PROBES, TRY_REQUEST)] == [False, True, True]
    assert not any(withholds(health, 1) for health in (OK, OUT_PROBES, TRY_REQUEST))


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_which_outcomes_count_against_the_endpoint(outcome: Outcome) -> None:
    blameless = {"http_4xx", "http_429", "total_timeout", "no_endpoint", "no_local_port", "cancelled"}
    expected = "traffic_ok" if outcome == "ok" else None if outcome in blameless else "traffic_failed"
    assert traffic_effect(outcome).event == expected
    assert traffic_effect(outcome).rest_s == 0
    assert (outcome in FAILURES) == (expected == "traffic_failed")


def test_retry_after_rests_and_is_not_ill_health() -> None:
    assert traffic_effect("http_429", 429, 3.0) == TrafficEffect(rest_s=3.0)
    assert traffic_effect("http_5xx", 503, 2.5) == TrafficEffect(rest_s=2.5)
    assert traffic_effect("http_5xx", 503, 0.0) == TrafficEffect()
    assert traffic_effect("http_5xx", 503, float("inf")) == TrafficEffect()
    assert traffic_effect("http_5xx", 500, 3.0) == TrafficEffect("traffic_failed")
    assert traffic_effect("http_5xx", 503) == TrafficEffect("traffic_failed")


def test_an_error_object_of_the_clients_making_does_not_count() -> None:
    assert traffic_effect("stream_error", 200, error_code="400") == TrafficEffect()
    for code in ("500", "4000", "context_length", None):
        assert traffic_effect("stream_error", 200, error_code=code) == TrafficEffect("traffic_failed")


def test_a_silent_endpoint_with_passing_probes_is_named() -> None:
    assert (
        traffic_cause("first_byte_timeout", 2, True) == "2 requests in a row failed, the last with first_byte_timeout (probe ok, no tokens)"
    )
    assert traffic_cause("connect_error", 1, True) == "a request failed, the last with connect_error"
    assert "probe ok" not in traffic_cause("first_byte_timeout", 2, False)


@pytest.mark.parametrize(
    ("status", "first", "later"),
    [
        (None, "failed", "failed"),
        (200, "ok", "ok"),
        (204, "ok", "ok"),
        (302, "ok", "ok"),
        (401, "ok", "ok"),
        (429, "ok", "ok"),
        (404, "off", "ok"),
        (405, "off", "ok"),
        (501, "off", "failed"),
        (500, "failed", "failed"),
        (503, "failed", "failed"),
    ],
)
def test_what_a_probes_answer_means(status: int | None, first: str, later: str) -> None:
    assert probe_meaning(status, first_answer=True) == first
    assert probe_meaning(status, first_answer=False) == later


@pytest.mark.parametrize(
    ("last_token_ns", "in_flight", "waited_s", "verdict"),
    [
        (100, 1, 0, "tokens_flowing"),
        (101, 0, 9, "tokens_flowing"),
        (99, 1, 0.5, None),  # a token may still come
        (99, 1, 1, "probe_failed"),
        (99, 0, 0.5, None),  # between two answers
        (99, 0, 1, "probe_failed"),
        (0, 0, 0, "probe_failed"),
    ],
)
def test_a_failed_probe_is_a_warning_while_tokens_flow(last_token_ns: int, in_flight: int, waited_s: float, verdict: str | None) -> None:
    assert judge_failed_probe(100, last_token_ns, in_flight, 100 + round(waited_s * NS_PER_S)) == verdict
