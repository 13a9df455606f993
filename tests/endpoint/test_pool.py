"""The pool on a fake clock with fake probes: what is sent, what is told, and what stands on the board."""

from collections.abc import Callable, Iterator

import pytest

from loadcell.clock import NS_PER_S
from loadcell.endpoint.board import Board, OfEndpoint, PerEndpoint, Standing
from loadcell.endpoint.picker import Picker
from loadcell.endpoint.policy import State
from loadcell.endpoint.pool import Pool, ProbeCount
from loadcell.endpoint.spec import EndpointSpec
from loadcell.probe import ProbeResult
from loadcell.records import Endpoint, Event
from loadcell.testing.fake_clock import FakeClock

ORIGIN_NS = 1_000 * NS_PER_S
SLOW = "slow"  # a probe that has not come back yet


class Rig:
    """A pool of `n` endpoints whose probes answer what `answers` says: a status, None for no connection, or SLOW."""

    def __init__(self, n: int = 2, workers: int = 1, spec: EndpointSpec | None = None) -> None:
        self.clock = FakeClock(ORIGIN_NS)
        self.board = Board.create(n, workers)
        self.answers: dict[int, int | str | None] = dict.fromkeys(range(n), 200)
        self.sent: list[tuple[int, float]] = []
        self.events: list[Event] = []
        self.pending: list[Callable[[], None]] = []
        self.endpoints = [
            Endpoint(i, f"h:{i}", f"http://h:{i}/v1", "http", "h", i, "/v1/chat/completions", "/v1/models", "") for i in range(n)
        ]
        self.pool = Pool(
            self.endpoints,
            spec or EndpointSpec(),
            self.board,
            self.clock,
            self.probe,
            self.events.append,
            origin_ns=ORIGIN_NS,
            start_thread=self.start,
        )

    def start(self, work: Callable[[], None], name: str) -> None:
        index = int(name.rpartition(":")[2])
        self.sent.append((index, self.seconds()))
        if self.answers[index] == SLOW:
            self.pending.append(work)
        else:
            work()

    def probe(self, endpoint: Endpoint) -> ProbeResult:
        status = self.answers[endpoint.index]
        assert not isinstance(status, str)
        return ProbeResult(status, b"", 0.0, None if status else "connection refused", self.clock.now_ns())

    def seconds(self) -> float:
        return (self.clock.now_ns() - ORIGIN_NS) / NS_PER_S

    def run(self, seconds: float, tick_s: float = 0.05) -> None:
        """Tick now, and then on for `seconds`."""
        for _ in range(round(seconds / tick_s)):
            self.pool.tick(self.clock.now_ns())
            self.clock.advance(tick_s)
        self.pool.tick(self.clock.now_ns())

    def ends(self, endpoint: int, outcome: str, status: int | None = None, retry_after_s: float | None = None, age_s: float = 0.0) -> None:
        now_ns = self.clock.now_ns()
        dispatched_ns = now_ns - round(age_s * NS_PER_S)
        self.pool.on_traffic(endpoint, outcome, status, retry_after_s, now_ns, dispatched_ns=dispatched_ns)  # type: ignore[arg-type]

    def token(self, endpoint: int) -> None:
        self.board.workers[0].put_at(PerEndpoint.LAST_TOKEN_NS, endpoint, self.clock.now_ns())

    def kinds(self, endpoint: int | None = 0) -> list[str]:
        return [event.kind for event in self.events if event.endpoint == (None if endpoint is None else f"h:{endpoint}")]

    def states(self) -> list[State]:
        return self.pool.states()


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.board.close()


def test_probes_go_out_at_once_and_then_every_interval(rig: Rig) -> None:
    rig.run(11)
    assert rig.sent == [(0, 0.0), (1, 0.0), (0, 5.0), (1, 5.0), (0, 10.0), (1, 10.0)]
    assert rig.pool.probe_counts() == {"h:0": ProbeCount(3, 0), "h:1": ProbeCount(3, 0)}
    assert rig.events == []
    assert rig.pool.healthy_names() == ["h:0", "h:1"]


def test_a_slow_probe_is_alone_and_missed_turns_are_not_made_up(rig: Rig) -> None:
    rig.answers[0] = SLOW
    rig.run(12)
    assert [at for index, at in rig.sent if index == 0] == [0.0]
    rig.answers[0] = 200
    rig.pending.pop()()
    rig.run(4)
    assert [at for index, at in rig.sent if index == 0] == [0.0, 12.0, 15.0]


def test_two_failures_eject_ten_seconds_later_a_probe_puts_back(rig: Rig) -> None:
    rig.run(1)
    rig.answers[0] = None
    rig.run(10)  # probes at 5 and 10
    assert rig.states() == ["unhealthy", "healthy"]
    assert (rig.board.standing(0), rig.board.standing(1)) == (Standing.UNHEALTHY, Standing.HEALTHY)
    assert rig.pool.healthy_names() == ["h:1"]
    told = rig.events[-1]
    assert (told.kind, told.endpoint, told.cause) == (
        "endpoint_unhealthy",
        "h:0",
        "2 probes in a row failed, the last with: connection refused",
    )
    assert 10.0 <= told.at_ns / NS_PER_S <= 10.2
    rig.answers[0] = 200
    rig.run(10)
    assert rig.kinds() == ["endpoint_unhealthy", "endpoint_trial", "endpoint_recovered"]
    assert [at for index, at in rig.sent if index == 0][3] == pytest.approx(20.0, abs=0.2)  # none in between
    assert rig.board.standing(0) == Standing.HEALTHY
    assert rig.pool.probe_counts()["h:0"] == ProbeCount(4, 2)


def test_a_failed_trial_waits_again(rig: Rig) -> None:
    rig.answers[0] = 503
    rig.run(5.1)
    assert rig.states()[0] == "unhealthy"
    rig.run(21)
    assert rig.kinds() == ["endpoint_unhealthy", "endpoint_trial", "endpoint_unhealthy", "endpoint_trial", "endpoint_unhealthy"]
    assert len([1 for index, _ in rig.sent if index == 0]) == 4


def test_flowing_tokens_turn_a_failed_probe_into_a_warning(rig: Rig) -> None:
    rig.answers[0] = None
    rig.board.workers[0].add_at(PerEndpoint.IN_FLIGHT, 0)
    for _ in range(198):
        rig.run(0.1)
        rig.token(0)
    assert rig.states()[0] == "healthy"
    assert set(rig.kinds()) == {"probe_warning"}
    assert len(rig.events) == len([1 for index, _ in rig.sent if index == 0]) == 4
    assert rig.pool.probe_counts()["h:0"].failed == 4


def test_in_flight_without_tokens_is_waited_for_a_second_only(rig: Rig) -> None:
    rig.board.workers[0].add_at(PerEndpoint.IN_FLIGHT, 0)
    rig.answers[0] = None
    rig.run(5.9)
    assert rig.states()[0] == "healthy"
    rig.run(0.2)
    assert rig.states()[0] == "unhealthy"


def test_tokens_after_an_ejection_by_probes_put_back(rig: Rig) -> None:
    rig.answers[0] = None
    rig.run(6)
    assert rig.states()[0] == "unhealthy"
    rig.token(0)
    rig.run(0.1)
    assert rig.kinds() == ["endpoint_unhealthy", "endpoint_recovered"]


def test_traffic_ejects_although_probes_pass_and_a_request_must_put_back(rig: Rig) -> None:
    rig.run(1)
    for _ in range(2):
        rig.ends(0, "first_byte_timeout")
    assert rig.states() == ["unhealthy", "healthy"]
    assert rig.events[-1].cause == "2 requests in a row failed, the last with first_byte_timeout (probe ok, no tokens)"
    rig.ends(0, "ok", 200, age_s=5)
    rig.token(0)
    rig.run(9.8)
    assert rig.states()[0] == "unhealthy"
    assert not rig.board.trial_offered(0, 0, rig.clock.now_ns())
    rig.run(0.4)  # the probe passes, and opens one request
    assert rig.states()[0] == "trial"
    assert rig.board.trial_offered(0, 0, rig.clock.now_ns())
    rig.board.take_trial(0, 0)
    rig.clock.advance(0.1)
    rig.run(5)
    assert not rig.board.trial_offered(0, 0, rig.clock.now_ns())  # exactly one
    assert [at for index, at in rig.sent if index == 0] == pytest.approx([0.0, 11.0], abs=0.1)
    rig.ends(0, "first_byte_timeout", age_s=20)  # from before: tells nothing
    assert rig.states()[0] == "trial"
    rig.ends(0, "ok", 200, age_s=1)
    assert rig.states()[0] == "healthy"
    assert rig.kinds() == ["endpoint_unhealthy", "endpoint_trial", "endpoint_trial", "endpoint_recovered"]
    rig.ends(0, "idle_timeout", age_s=20)
    rig.ends(0, "idle_timeout", age_s=20)
    assert rig.states()[0] == "healthy"


def test_successes_on_the_board_end_a_row_of_failures(rig: Rig) -> None:
    for _ in range(5):
        rig.ends(0, "connection_reset")
        rig.board.workers[0].add_at(PerEndpoint.SUCCESSES, 0)
    assert rig.states()[0] == "healthy"
    rig.ends(0, "connection_reset")
    rig.ends(0, "connection_reset")
    assert rig.states()[0] == "unhealthy"


def test_a_trial_request_that_fails_ejects_again_and_one_that_proves_nothing_is_repeated(rig: Rig) -> None:
    rig.ends(0, "http_5xx", 500)
    rig.ends(0, "http_5xx", 500)
    rig.run(10.2)
    rig.board.take_trial(0, 0)
    rig.ends(0, "http_4xx", 400)
    rig.run(0.1)
    assert rig.board.trial_offered(0, 0, rig.clock.now_ns())
    rig.board.take_trial(0, 0)
    rig.ends(0, "http_5xx", 500)
    assert rig.states()[0] == "unhealthy"


def test_an_offer_that_nobody_takes_goes_to_the_next_living_worker() -> None:
    rig = Rig(workers=3)
    rig.ends(0, "connect_error")
    rig.ends(0, "connect_error")
    rig.pool.worker_lost(2)
    rig.run(10.2)
    offered: list[int] = []
    for _ in range(4):
        offered += [worker for worker in range(3) if rig.board.trial_offered(0, worker, rig.clock.now_ns())]
        rig.run(1.1)
    assert offered == [1, 0, 1, 0]
    holder = rig.board.endpoint(OfEndpoint.TRIAL_WORKER, 0)
    rig.board.take_trial(0, holder)
    rig.run(3)
    assert rig.board.trial_taken(0)
    rig.pool.worker_lost(holder)
    rig.run(0.1)
    assert rig.board.trial_offered(0, 1 - holder, rig.clock.now_ns())
    rig.board.close()


def test_no_probes_at_all_with_interval_zero_and_trials_by_request() -> None:
    rig = Rig(spec=EndpointSpec(health_check_interval_s=0.0, health_recovery_interval_s=3.0))
    rig.ends(1, "truncated")
    rig.ends(1, "truncated")
    rig.run(3.1)
    assert rig.sent == []
    assert rig.states() == ["healthy", "trial"]
    assert rig.board.trial_offered(1, 0, rig.clock.now_ns())
    rig.board.close()


@pytest.mark.parametrize("status", [404, 405, 501])
def test_no_health_path_at_the_first_answer_turns_probing_off(rig: Rig, status: int) -> None:
    rig.answers[0] = None
    rig.run(0.1)  # no answer is not the first answer
    rig.answers[0] = status
    rig.run(20)
    assert rig.kinds() == ["probing_off"]
    assert rig.events[0].cause == f"GET /health answered {status}: no health probes for this endpoint"
    assert rig.pool.probe_counts()["h:0"] == ProbeCount(2, 1)
    assert rig.states()[0] == "healthy"


def test_a_later_404_is_an_answer(rig: Rig) -> None:
    rig.run(1)
    rig.answers[0] = 404
    rig.run(20)
    assert rig.events == []
    assert rig.pool.probe_counts()["h:0"].failed == 0


def test_client_errors_never_eject_and_retry_after_rests(rig: Rig) -> None:
    for _ in range(9):
        rig.ends(0, "http_4xx", 400)
        rig.ends(0, "cancelled")
        rig.ends(0, "http_429", 429)
    for retry_after_s in (3.0, 2.0, 4.0):
        rig.ends(0, "http_429", 429, retry_after_s)
    assert rig.states()[0] == "healthy"
    assert rig.board.endpoint(OfEndpoint.REST_UNTIL_NS, 0) == ORIGIN_NS + 4 * NS_PER_S
    assert [(event.kind, event.detail) for event in rig.events] == [("endpoint_resting", {"rest_s": 3.0})]
    rig.clock.advance(5)
    rig.ends(0, "http_5xx", 503, 1.0)
    assert rig.kinds() == ["endpoint_resting"] * 2


def test_when_nobody_can_be_asked_the_patience_runs(rig: Rig) -> None:
    rig.answers = {0: None, 1: None}
    assert rig.pool.verdict_without_endpoint(rig.clock.now_ns(), open_loop=False) is None
    rig.run(5.2)
    verdicts = [rig.pool.verdict_without_endpoint(rig.clock.now_ns(), open_loop=open_loop) for open_loop in (False, True)]
    assert verdicts == ["wait", "no_endpoint"]
    assert rig.kinds(None) == ["no_endpoint_available"]
    rig.run(60)
    assert rig.pool.verdict_without_endpoint(rig.clock.now_ns(), open_loop=False) == "end"
    rig.answers[1] = 200
    rig.run(10)
    assert rig.pool.verdict_without_endpoint(rig.clock.now_ns(), open_loop=False) is None
    assert rig.kinds(None) == ["no_endpoint_available", "endpoints_available"]


def test_resting_everywhere_makes_open_loop_arrivals_wait(rig: Rig) -> None:
    for endpoint in (0, 1):
        rig.ends(endpoint, "http_429", 429, 3.0)
    rig.run(0.1)
    assert rig.pool.verdict_without_endpoint(rig.clock.now_ns(), open_loop=True) == "wait"
    rig.run(3)
    assert rig.pool.verdict_without_endpoint(rig.clock.now_ns(), open_loop=True) is None


def test_a_single_endpoint_is_judged_but_never_withheld() -> None:
    rig = Rig(n=1)
    rig.answers[0] = None
    rig.run(5.2)
    assert rig.states() == ["unhealthy"]
    assert rig.pool.healthy_names() == []
    assert Picker(rig.board, 0, EndpointSpec(), seed=0).pick(0, rig.clock.now_ns()) == 0
    assert rig.pool.verdict_without_endpoint(rig.clock.now_ns(), open_loop=False) is None
    rig.ends(0, "ok", 200)
    assert rig.states() == ["healthy"]
    rig.board.close()


def test_a_single_endpoint_is_well_again_with_the_first_request_that_it_serves_since() -> None:
    rig = Rig(1)
    for at in (1, 2):
        rig.pool.on_traffic(0, "http_5xx", 500, None, ORIGIN_NS + at, dispatched_ns=ORIGIN_NS)
    assert rig.pool.states() == ["unhealthy"]
    rig.pool.on_traffic(0, "ok", 200, None, ORIGIN_NS + 3, dispatched_ns=ORIGIN_NS + 1)
    assert rig.pool.states() == ["unhealthy"]  # sent before it failed
    rig.pool.on_traffic(0, "ok", 200, None, ORIGIN_NS + 9, dispatched_ns=ORIGIN_NS + 8)
    assert rig.pool.states() == ["healthy"]
    rig.board.close()


def test_real_threads_deliver(rig: Rig) -> None:
    """The default thread, once: everything above runs probes in place."""
    events: list[Event] = []
    clock = FakeClock(ORIGIN_NS)
    pool = Pool(rig.endpoints, EndpointSpec(), rig.board, clock, lambda _: ProbeResult(404, b"", 0.0, None, 0), events.append)
    pool.tick(clock.now_ns())
    for _ in range(100_000):
        pool.tick(clock.now_ns())
        if len(events) == 2:
            break
    assert [event.kind for event in events] == ["probing_off"] * 2
