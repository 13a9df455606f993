"""The endpoints as the control process sees them: probes go out, probes and traffic come in, standings go onto the board.

`tick` is called every few tens of milliseconds and never waits: a probe runs in a thread of its own, at most one per endpoint, and its
result is taken when it is there. What a result means is decided in `policy`; this file only carries it out. Times are CLOCK_MONOTONIC ns,
those of the events ns since the run's origin.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from loadcell.clock import NS_PER_S, Clock
from loadcell.endpoint.board import Board, PerEndpoint, Standing
from loadcell.endpoint.policy import (
    Health,
    HealthEvent,
    State,
    Transition,
    is_evidence,
    judge_failed_probe,
    probe_meaning,
    recovery_due,
    step,
    traffic_cause,
    traffic_effect,
    withholds,
)
from loadcell.endpoint.retry import when_none_available
from loadcell.endpoint.spec import EndpointSpec
from loadcell.probe import ProbeResult
from loadcell.records import Endpoint, Event, Outcome

Probe = Callable[[Endpoint], ProbeResult]
StartThread = Callable[[Callable[[], None], str], None]

_TRIAL_LEASE_NS: Final = NS_PER_S  # how long one worker may take up an offered trial before another one is asked
_LEASE_MARGIN_NS: Final = 50_000_000  # a worker that took it up in the last moment has said so by then
_STANDINGS: Final[Mapping[State, Standing]] = {
    "healthy": Standing.HEALTHY,
    "unhealthy": Standing.UNHEALTHY,
    "trial": Standing.TRIAL,
}


class ProbeCount(Struct, frozen=True):
    """Light GETs sent to one endpoint, and how many of them failed (those that flowing tokens outweighed included)."""

    sent: int
    failed: int


class _FailedProbe(Struct, frozen=True):
    """A failed probe that is not judged yet: the tokens of requests in flight may still speak for the endpoint."""

    started_ns: int
    cause: str


class _Watched(Struct):
    """What the pool keeps of one endpoint. `offer_until_ns`: end of the lease of an open trial offer, null when none is out."""

    endpoint: Endpoint
    probing: bool
    next_probe_ns: int
    health: Health = Health()
    rest_until_ns: int = 0
    probe_runs: bool = False
    answered: bool = False
    passes: bool = False
    unjudged: _FailedProbe | None = None
    sent: int = 0
    failed: int = 0
    offer_until_ns: int | None = None
    offered_to: int = 0
    successes_seen: int = 0


def daemon_thread(work: Callable[[], None], name: str) -> None:
    """A thread that never keeps the process from leaving."""
    threading.Thread(target=work, name=name, daemon=True).start()


class Pool:
    """Owns the health of all endpoints of one run. Not thread-safe: the control loop alone calls it."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        spec: EndpointSpec,
        board: Board,
        clock: Clock,
        probe: Probe,
        on_event: Callable[[Event], None],
        *,
        origin_ns: int = 0,
        start_thread: StartThread = daemon_thread,
    ) -> None:
        self._spec = spec
        self._board = board
        self._probe = probe
        self._on_event = on_event
        self._origin_ns = origin_ns
        self._start_thread = start_thread
        self._interval_ns = round(spec.health_check_interval_s * NS_PER_S)
        self._results: SimpleQueue[tuple[int, int, ProbeResult]] = SimpleQueue()
        self._lost_workers: set[int] = set()
        self._none_since_ns: int | None = None
        now_ns = clock.now_ns()
        self._watched = [_Watched(endpoint, probing=self._interval_ns > 0, next_probe_ns=now_ns) for endpoint in endpoints]

    def tick(self, now_ns: int) -> None:
        """Take in what has come, decide what time decides, start what is due."""
        self._collect(now_ns)
        for watched in self._watched:
            self._judge(watched, now_ns)
            self._recover(watched, now_ns)
            self._start_probe(watched, now_ns)
            self._offer_trial(watched, now_ns)
        self._note_availability(now_ns)

    def on_traffic(
        self,
        endpoint: int,
        outcome: Outcome,
        status: int | None,
        retry_after_s: float | None,
        at_ns: int,
        *,
        dispatched_ns: int | None = None,
        error_code: str | None = None,
    ) -> None:
        """An attempt has ended at `at_ns`, so a worker reports. `dispatched_ns` tells old traffic from new; give it whenever it is known.

        Successes at a healthy endpoint need no report: the board counts them, which is enough to end a row of failures.
        """
        watched = self._watched[endpoint]
        effect = traffic_effect(outcome, status, retry_after_s, error_code)
        if effect.rest_s > 0:
            self._rest(watched, effect.rest_s, at_ns, f"{outcome}, status {status}, Retry-After {effect.rest_s:g} s")
        if not is_evidence(watched.health, dispatched_ns):
            return
        if effect.event == "traffic_failed":
            self._end_row_of_failures(watched)
        health = watched.health
        if (
            effect.event == "traffic_ok"
            and health.state == "unhealthy"
            and len(self._watched) == 1
            and (dispatched_ns or 0) >= health.since_ns
        ):
            # A single endpoint goes on being asked: a request that it served since is the trial.
            self._apply(watched, "recovery_due", at_ns, "requests still go there: it is the only one")
        if effect.event is not None:
            cause = (
                traffic_cause(outcome, watched.health.traffic_failures + 1, watched.passes) if outcome != "ok" else "a request succeeded"
            )
            self._apply(watched, effect.event, at_ns, cause)
        elif watched.health.trial_by == "request":
            watched.offer_until_ns = None  # the trial request proved nothing (4xx, cancelled, asked to wait): offer it anew

    def worker_lost(self, worker: int) -> None:
        """A worker is dead: nothing is in flight there, and what it was to try is offered to another one."""
        self._lost_workers.add(worker)
        self._board.workers[worker].clear_presence()
        for watched in self._watched:
            if watched.offered_to == worker:
                watched.offer_until_ns = None

    def states(self) -> list[State]:
        return [watched.health.state for watched in self._watched]

    def healthy_names(self) -> list[str]:
        return [watched.endpoint.name for watched in self._watched if watched.health.state == "healthy"]

    def probe_counts(self) -> dict[str, ProbeCount]:
        return {watched.endpoint.name: ProbeCount(watched.sent, watched.failed) for watched in self._watched}

    def verdict_without_endpoint(self, now_ns: int, *, open_loop: bool) -> Literal["wait", "no_endpoint", "end"] | None:
        """What becomes of arrivals while no endpoint is available (`retry.when_none_available`); null while one is."""
        if self._none_since_ns is None:
            return None
        resting = any(not withholds(watched.health, len(self._watched)) for watched in self._watched)
        return when_none_available(self._none_since_ns, now_ns, self._spec, open_loop=open_loop, resting=resting)

    def _collect(self, now_ns: int) -> None:
        while True:
            try:
                index, started_ns, result = self._results.get_nowait()
            except Empty:
                return
            watched = self._watched[index]
            watched.probe_runs = False
            meaning = probe_meaning(result.status, first_answer=not watched.answered)
            watched.answered = watched.answered or result.status is not None
            watched.passes = meaning == "ok"
            if meaning == "off":
                self._turn_probing_off(watched, result, now_ns)
                continue
            if meaning == "failed":
                watched.failed += 1
            if started_ns < watched.health.since_ns:  # sent before the present state began: it tells of another one
                continue
            if meaning == "failed":
                watched.unjudged = _FailedProbe(started_ns, result.error or f"status {result.status}")
            else:
                self._apply(watched, "probe_ok", now_ns, f"probe ok, status {result.status}")

    def _judge(self, watched: _Watched, now_ns: int) -> None:
        index = watched.endpoint.index
        last_token_ns = self._board.last_token_ns(index)
        health = watched.health
        if health.ejected_by == "probes" and health.state != "healthy" and last_token_ns > health.since_ns:
            self._apply(watched, "tokens_flowing", now_ns, "tokens are flowing")
        failed = watched.unjudged
        if failed is None:
            return
        in_flight = sum(block.get_at(PerEndpoint.IN_FLIGHT, index) for block in self._board.workers)
        event = judge_failed_probe(failed.started_ns, last_token_ns, in_flight, now_ns)
        if event is None:
            return
        watched.unjudged = None
        if event == "tokens_flowing":
            self._emit(now_ns, "probe_warning", watched, f"probe failed ({failed.cause}) while tokens are flowing")
            self._apply(watched, event, now_ns, "tokens are flowing")
            return
        failures = watched.health.probe_failures + 1
        row = f"{failures} probes in a row" if failures > 1 else "a probe"
        self._apply(watched, event, now_ns, f"{row} failed, the last with: {failed.cause}")

    def _recover(self, watched: _Watched, now_ns: int) -> None:
        if recovery_due(watched.health, now_ns, self._spec):
            self._apply(watched, "recovery_due", now_ns, f"{self._spec.health_recovery_interval_s:g} s have passed")

    def _start_probe(self, watched: _Watched, now_ns: int) -> None:
        health = watched.health
        in_time = health.state == "healthy" and now_ns >= watched.next_probe_ns
        if not watched.probing or watched.probe_runs or watched.unjudged or not (in_time or health.trial_by == "probe"):
            return
        late = max(0, now_ns - watched.next_probe_ns)
        watched.next_probe_ns += (late // self._interval_ns + 1) * self._interval_ns if in_time else 0
        watched.probe_runs = True
        watched.sent += 1
        endpoint = watched.endpoint

        def work() -> None:
            self._results.put((endpoint.index, now_ns, self._probe(endpoint)))

        self._start_thread(work, f"probe {endpoint.name}")

    def _offer_trial(self, watched: _Watched, now_ns: int) -> None:
        """Hand the one trial request to one worker after another until one takes it up."""
        health, index = watched.health, watched.endpoint.index
        if health.trial_by != "request" or now_ns < watched.rest_until_ns or not withholds(health, len(self._watched)):
            return
        lease_ns = watched.offer_until_ns
        if lease_ns is not None and (now_ns < lease_ns + _LEASE_MARGIN_NS or self._board.trial_taken(index)):
            return
        alive = [worker for worker in range(self._board.n_workers) if worker not in self._lost_workers]
        if not alive:
            return
        watched.offered_to = next((worker for worker in alive if worker > watched.offered_to), alive[0])
        watched.offer_until_ns = now_ns + _TRIAL_LEASE_NS
        self._board.offer_trial(index, watched.offered_to, watched.offer_until_ns)

    def _turn_probing_off(self, watched: _Watched, result: ProbeResult, now_ns: int) -> None:
        watched.probing = False
        path = watched.endpoint.root + self._spec.health_path
        self._emit(now_ns, "probing_off", watched, f"GET {path} answered {result.status}: no health probes for this endpoint")
        if watched.health.trial_by == "probe":
            self._apply(watched, "probe_ok", now_ns, f"probe answered {result.status}")

    def _rest(self, watched: _Watched, rest_s: float, at_ns: int, cause: str) -> None:
        until_ns = at_ns + round(rest_s * NS_PER_S)
        if until_ns <= watched.rest_until_ns:
            return
        if at_ns >= watched.rest_until_ns:  # told once per rest, however many requests come back with it
            self._emit(at_ns, "endpoint_resting", watched, cause, rest_s=rest_s)
        watched.rest_until_ns = until_ns
        self._publish(watched)

    def _end_row_of_failures(self, watched: _Watched) -> None:
        """Failures with a success between them are not in a row."""
        successes = sum(block.get_at(PerEndpoint.SUCCESSES, watched.endpoint.index) for block in self._board.workers)
        if successes > watched.successes_seen:
            watched.successes_seen = successes
            watched.health = replace(watched.health, traffic_failures=0)

    def _apply(self, watched: _Watched, event: HealthEvent, now_ns: int, cause: str) -> None:
        watched.health, transition = step(watched.health, event, now_ns, self._spec, cause, probing=watched.probing)
        if transition is None:
            return
        watched.offer_until_ns = None
        watched.unjudged = None
        if transition.after == "healthy":
            watched.next_probe_ns = now_ns + self._interval_ns
        self._publish(watched)
        detail = {"trial_by": watched.health.trial_by} if watched.health.trial_by else {}
        self._emit(now_ns, _kind(transition), watched, cause, **detail)

    def _publish(self, watched: _Watched) -> None:
        self._board.set_endpoint(watched.endpoint.index, _STANDINGS[watched.health.state], watched.rest_until_ns)

    def _note_availability(self, now_ns: int) -> None:
        """Keep the moment since when nobody can be asked."""
        n = len(self._watched)
        free = any(not withholds(watched.health, n) and now_ns >= watched.rest_until_ns for watched in self._watched)
        if free and self._none_since_ns is not None:
            self._none_since_ns = None
            self._emit(now_ns, "endpoints_available", None, "an endpoint takes requests again")
        elif not free and self._none_since_ns is None:
            self._none_since_ns = now_ns
            self._emit(now_ns, "no_endpoint_available", None, f"every endpoint is ejected or resting; patience {self._spec.patience_s:g} s")

    def _emit(self, at_ns: int, kind: str, watched: _Watched | None, cause: str, **detail: str | float) -> None:
        name = None if watched is None else watched.endpoint.name
        self._on_event(Event(at_ns=at_ns - self._origin_ns, kind=kind, endpoint=name, cause=cause, detail={**detail}))


def _kind(transition: Transition) -> str:
    kinds: dict[State, str] = {"healthy": "endpoint_recovered", "unhealthy": "endpoint_unhealthy", "trial": "endpoint_trial"}
    return kinds[transition.after]
