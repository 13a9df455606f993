"""Is an endpoint fit to be asked? A table of states, and what probes and traffic mean to it. Pure: nanoseconds come in as numbers.

Three rules behind the table. Probes and traffic are counted apart, and either may eject. An endpoint that streams tokens is alive whatever
its probe says. An endpoint that traffic ejected is not put back by a probe: a server whose engine hangs goes on answering probes, so a
probe only opens the way for one trial request, whose success closes the matter (the half-open state of a circuit breaker, Nygard 2007).
"""

import math
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from loadcell.endpoint.spec import EndpointSpec
from loadcell.records import Outcome

State = Literal["healthy", "unhealthy", "trial"]
HealthEvent = Literal["probe_ok", "probe_failed", "traffic_ok", "traffic_failed", "tokens_flowing", "recovery_due"]

NS_PER_S: Final = 1_000_000_000

# Where each event leads once it has earned it (`_earned`): failures in a row often enough, evidence of the right kind.
TABLE: Final[Mapping[tuple[State, HealthEvent], State]] = {
    ("healthy", "probe_ok"): "healthy",
    ("healthy", "probe_failed"): "unhealthy",
    ("healthy", "traffic_ok"): "healthy",
    ("healthy", "traffic_failed"): "unhealthy",
    ("healthy", "tokens_flowing"): "healthy",
    ("unhealthy", "probe_ok"): "unhealthy",  # a straggler: only what is sent in a trial decides
    ("unhealthy", "probe_failed"): "unhealthy",
    ("unhealthy", "traffic_ok"): "healthy",
    ("unhealthy", "traffic_failed"): "unhealthy",
    ("unhealthy", "tokens_flowing"): "healthy",
    ("unhealthy", "recovery_due"): "trial",
    ("trial", "probe_ok"): "healthy",
    ("trial", "probe_failed"): "unhealthy",
    ("trial", "traffic_ok"): "healthy",
    ("trial", "traffic_failed"): "unhealthy",
    ("trial", "tokens_flowing"): "healthy",
}


class IllegalMoveError(Exception):
    """An event that cannot happen in this state: a fault of the caller, not of the endpoint."""


class Health(Struct, frozen=True):
    """One endpoint's health. Failures are counted in a row. `since_ns`: when the present state began.

    `ejected_by` is null until the first ejection. `trial_by`: what a trial waits for, null in the other states.
    """

    state: State = "healthy"
    since_ns: int = 0
    probe_failures: int = 0
    traffic_failures: int = 0
    ejected_by: Literal["probes", "traffic"] | None = None
    trial_by: Literal["probe", "request"] | None = None


class Transition(Struct, frozen=True):
    """A change of what the endpoint admits. From trial to trial: its probe passed, and now one request decides."""

    at_ns: int
    before: State
    after: State
    event: HealthEvent
    cause: str


def step(
    health: Health, event: HealthEvent, now_ns: int, spec: EndpointSpec, cause: str, *, probing: bool = True
) -> tuple[Health, Transition | None]:
    """Health after `event`, and the transition if it made one. `probing`: whether this endpoint can be probed at all.

    Raises IllegalMoveError for an event that the state does not know.
    """
    target = TABLE.get((health.state, event))
    if target is None:
        raise IllegalMoveError(f"{event} cannot happen to an endpoint that is {health.state}")
    counted = _count(health, event)
    if not _earned(counted, event, spec):
        if counted.trial_by == "probe" and event in ("probe_ok", "tokens_flowing"):
            return replace(counted, trial_by="request"), Transition(now_ns, "trial", "trial", event, cause)
        return counted, None
    if target == health.state:
        return counted, None
    return _enter(counted, target, event, now_ns, probing), Transition(now_ns, health.state, target, event, cause)


def _count(health: Health, event: HealthEvent) -> Health:
    if event == "probe_failed":
        return replace(health, probe_failures=health.probe_failures + 1)
    if event == "traffic_failed":
        return replace(health, traffic_failures=health.traffic_failures + 1)
    if event == "traffic_ok":
        return replace(health, traffic_failures=0)
    return replace(health, probe_failures=0) if event in ("probe_ok", "tokens_flowing") else health


def _earned(health: Health, event: HealthEvent, spec: EndpointSpec) -> bool:
    """Whether the event (already counted) moves the endpoint to the table's target."""
    enough = max(1, spec.health_max_failures)
    if health.state == "healthy":
        return {"probe_failed": health.probe_failures, "traffic_failed": health.traffic_failures}.get(event, enough) >= enough
    if health.ejected_by == "traffic":
        # Neither a probe nor the tokens of older requests show that it takes new ones; only a request sent in the trial does.
        return event not in ("probe_ok", "tokens_flowing") and (health.state, event) != ("unhealthy", "traffic_ok")
    return True


def _enter(health: Health, state: State, event: HealthEvent, now_ns: int, probing: bool) -> Health:
    if state == "healthy":
        return Health(since_ns=now_ns, ejected_by=health.ejected_by)
    if state == "trial":
        return replace(health, state="trial", since_ns=now_ns, trial_by="probe" if probing else "request")
    by_traffic = event == "traffic_failed" or (health.state == "trial" and health.ejected_by == "traffic")
    return replace(health, state="unhealthy", since_ns=now_ns, ejected_by="traffic" if by_traffic else "probes", trial_by=None)


def recovery_due(health: Health, now_ns: int, spec: EndpointSpec) -> bool:
    """Whether an ejected endpoint is to be tried again now."""
    return health.state == "unhealthy" and now_ns >= health.since_ns + round(spec.health_recovery_interval_s * NS_PER_S)


def is_evidence(health: Health, dispatched_ns: int | None) -> bool:
    """Whether a request's end tells of the present state. One dispatched before it began does not (in flight when the endpoint was ejected,
    failing long after it came back); an unhealthy endpoint has no other traffic, and the table knows what to make of it.
    """
    return health.state == "unhealthy" or dispatched_ns is None or dispatched_ns >= health.since_ns


def withholds(health: Health, n_endpoints: int) -> bool:
    """Whether ordinary requests stay away. Where there is only one endpoint they never do: what it does is what is measured."""
    return n_endpoints > 1 and health.state != "healthy"


class TrafficEffect(Struct, frozen=True):
    """What the end of a request means to its endpoint: an event or nothing, and for how long it asked to be left alone."""

    event: Literal["traffic_ok", "traffic_failed"] | None = None
    rest_s: float = 0.0


# `total_timeout` is not among them: first-byte and idle timeouts catch an endpoint that says nothing, so this one was still talking.
# `http_4xx`, `http_429`, `no_local_port`, `no_endpoint` and `cancelled` are of the client's making, or no fault at all.
FAILURES: Final[frozenset[Outcome]] = frozenset(
    {
        "connect_error",
        "connection_reset",
        "dns_error",
        "tls_error",
        "first_byte_timeout",
        "idle_timeout",
        "http_5xx",
        "stream_error",
        "truncated",
        "empty_output",
        "invalid_response",
    }
)
_SILENT: Final[frozenset[Outcome]] = frozenset({"first_byte_timeout", "idle_timeout", "empty_output"})


def traffic_effect(
    outcome: Outcome, status: int | None = None, retry_after_s: float | None = None, error_code: str | None = None
) -> TrafficEffect:
    """`error_code`: the code of an error object in the stream; one of 400 to 499 is the client's making there too."""
    if outcome == "ok":
        return TrafficEffect("traffic_ok")
    if status in (429, 503) and retry_after_s is not None:  # busy, and it says so: that is not ill health
        return TrafficEffect(rest_s=retry_after_s if math.isfinite(retry_after_s) and retry_after_s > 0 else 0.0)
    if outcome not in FAILURES or (outcome == "stream_error" and _is_4xx(error_code)):
        return TrafficEffect()
    return TrafficEffect("traffic_failed")


def _is_4xx(code: str | None) -> bool:
    return code is not None and len(code) == 3 and code.isdecimal() and code[0] == "4"


def traffic_cause(outcome: Outcome, failures: int, probe_passes: bool) -> str:
    """The cause of an ejection by traffic. An endpoint whose probe passes while it brings nothing is named as such."""
    row = f"{failures} requests in a row" if failures > 1 else "a request"
    return f"{row} failed, the last with {outcome}" + (" (probe ok, no tokens)" if probe_passes and outcome in _SILENT else "")


ProbeMeaning = Literal["ok", "failed", "off"]


def probe_meaning(status: int | None, *, first_answer: bool) -> ProbeMeaning:
    """What a probe's answer (null: none in time) says. A server that has no such path says so at its first answer: no probes then."""
    if status is None:
        return "failed"
    if first_answer and status in (404, 405, 501):
        return "off"
    return "failed" if status >= 500 else "ok"


_GRACE_NS: Final = 1_000_000_000


def judge_failed_probe(
    started_ns: int, last_token_ns: int, in_flight: int, now_ns: int
) -> Literal["probe_failed", "tokens_flowing"] | None:
    """What a failed probe counts for. Null: not yet known.

    Output seen after the probe started makes the failure a warning. A refused probe fails within a millisecond, before the next token can
    have come, so where requests are in flight, or tokens came just before, the next ones are waited for, one second from the probe's start.
    """
    if last_token_ns >= started_ns:
        return "tokens_flowing"
    awaited = in_flight > 0 or (last_token_ns > 0 and last_token_ns >= started_ns - _GRACE_NS)
    return None if awaited and now_ns < started_ns + _GRACE_NS else "probe_failed"
