"""Requests on their way in one worker: slots are held through retries and never more than there are; every arrival ends as one record."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from loadcell.client.client import Client
from loadcell.client.limits import Timeouts
from loadcell.client.resolve import resolve
from loadcell.endpoint.board import Board, OfWorker, PerEndpoint, Standing
from loadcell.endpoint.spec import EndpointSpec
from loadcell.load.flight import Flights, Samples
from loadcell.load.plan import Fatal, FieldDropped, SpoolFds, Traffic, WorkerPlan
from loadcell.records import Request, RequestRecord
from loadcell.schedule import ScheduleSpec
from loadcell.testing.replies import DONE, HANG, chat_event, chat_stream, error_event, error_reply, sse
from loadcell.testing.scripted_server import Received, ScriptedServer, in_order
from loadcell.wire.url import parse_endpoint

OK = chat_stream("a", "b")
CUT = sse(chat_event("a"), error_event(), DONE, first_ms=10, every_ms=10)
REFUSED = [(0.0, error_reply(503))]


class CountedSlots:
    """So many places, and the fewest that were ever left."""

    def __init__(self, count: int) -> None:
        self.free = self.fewest = count

    def take(self, now_ns: int) -> int | None:
        if not self.free:
            return None
        self.free -= 1
        self.fewest = min(self.fewest, self.free)
        return 0

    def give(self, at_ns: int) -> None:
        self.free += 1

    def next_ns(self, now_ns: int) -> int | None:
        return None


class Flying:
    """Flights without a worker: `run` begins requests as slots are free, until all have ended."""

    def __init__(self, servers: list[ScriptedServer], slots: int, spec: EndpointSpec, open_loop: bool) -> None:
        self.slots = CountedSlots(slots)
        self.board = Board.create(len(servers), 1)
        ends = [resolve(parse_endpoint(server.base_url, "chat", None, index, None)) for index, server in enumerate(servers)]
        nothing = SpoolFds(bodies=0, index=0, tickets=0)
        plan = WorkerPlan(
            worker=0,
            workers=1,
            endpoints=ends,
            spec=spec,
            timeouts=Timeouts(),
            schedule=ScheduleSpec(concurrency=slots),
            seed=0,
            headers=[],
            ca_file=None,
            insecure=False,
            kernel_stamps=True,
            keep_text=False,
            save_text=False,
            origin_ns=0,
            header="",
            part="",
            board_fd=0,
            warmup=nothing,
            measure=nothing,
            offsets_fd=None,
            slots=None,
            warmup_concurrency=1,
        )
        self.client = Client(ends, plan.timeouts)
        self.told: list[Any] = []
        self.records: list[RequestRecord] = []
        self.flights = Flights(plan, self.board, self.client, "measure", 0, self.slots, open_loop, self.told.append, self.records.append)

    def step(self) -> None:
        now = time.monotonic_ns()
        self.flights.go_on(now)
        wanted = self.flights.next_ns(now) or now + 20_000_000
        self.flights.settle(now)
        for exchange in self.client.poll(min(wanted, now + 20_000_000)):
            self.flights.landed(exchange)

    def run(self, count: int) -> list[RequestRecord]:
        begun, give_up = 0, time.monotonic_ns() + 20_000_000_000
        while begun < count or not self.flights.idle:
            assert time.monotonic_ns() < give_up, f"{count - len(self.records)} requests never ended"
            self.step()
            now = time.monotonic_ns()
            while begun < count and self.slots.take(now) is not None:
                self.flights.begin(Request(index=begun, body=b'{"ignore_eos":true}', stream=True), now, now, now)
                begun += 1
        return self.records


@contextmanager
def flying(*replies: Any, slots: int = 4, open_loop: bool = False, **spec: Any) -> Iterator[tuple[Flying, list[ScriptedServer]]]:
    servers = [ScriptedServer(reply) for reply in replies]
    made = Flying(servers, slots, EndpointSpec(**spec), open_loop)
    try:
        yield made, servers
    finally:
        made.client.close()
        made.board.close()
        for server in servers:
            server.close()


def failing_every(k: int, script: Any):
    return lambda request: script if request.number % k == 0 else OK


@pytest.mark.parametrize("script", [CUT, REFUSED])
@pytest.mark.parametrize("slots", [1, 2, 5])
def test_slots_are_neither_lost_nor_exceeded_under_retries(script, slots):
    """A stream that fails at its end has given its slot back before that is known, and asks for one again."""
    with flying(failing_every(2, script), failing_every(3, script), slots=slots, max_retries=3) as (flying_, servers):
        records = flying_.run(40)
        assert flying_.slots.free == slots
        assert flying_.slots.fewest == 0
        assert max(server.peak_requests for server in servers) <= slots
    assert sorted(record.index for record in records) == list(range(40))
    assert sum(len(record.attempts) for record in records) == sum(len(server.requests) for server in servers)


def test_a_retry_without_a_slot_does_not_stand_in_the_way_of_those_that_hold_one():
    """The first answer fails at its end, when its slot is the second request's; that one is refused, and waits longer, holding it."""
    with flying(in_order(CUT, REFUSED, OK), slots=1, max_retries=2) as (flying_, _):
        records = flying_.run(2)
        assert flying_.slots.free == 1
    assert sorted((record.index, *[attempt.outcome for attempt in record.attempts]) for record in records) == [
        (0, "stream_error", "ok"),
        (1, "http_5xx", "ok"),
    ]


def test_every_attempt_is_recorded_with_its_endpoint_and_control_hears_of_failures():
    with flying([(0.0, error_reply(500))], OK, strategy="round_robin") as (flying_, _):
        records = flying_.run(4)
        flying_.flights.publish()
        assert flying_.board.in_flight() == [0, 0]
        block = flying_.board.workers[0]
        assert (block.get(OfWorker.DONE), block.get(OfWorker.OK), block.get(OfWorker.DISPATCHED)) == (4, 4, 4)
        assert block.get_at(PerEndpoint.ATTEMPTS, 0) == block.get_at(PerEndpoint.FAILURES, 0) == 2
        assert Counter(type(message) for message in flying_.told) == {Traffic: 2}
    by_index = {record.index: [attempt.endpoint for attempt in record.attempts] for record in records}
    assert by_index == {0: [0, 1], 1: [1], 2: [0, 1], 3: [1]}


def test_a_client_error_is_not_retried():
    with flying([(0.0, error_reply(400, "bad"))], OK) as (flying_, servers):
        records = flying_.run(2)
    assert Counter(record.outcome for record in records) == {"http_4xx": 1, "ok": 1}
    assert len(servers[0].requests) == 1


def test_a_refused_field_is_left_out_once_and_for_all():
    def reply(request: Received):
        return [(0.0, error_reply(400, "ignore_eos: Extra inputs are not permitted"))] if b"ignore_eos" in request.body else OK

    with flying(reply, slots=1) as (flying_, servers):
        records = flying_.run(5)
        (told,) = [message for message in flying_.told if isinstance(message, FieldDropped)]
    assert (told.endpoint, told.field) == (0, "ignore_eos")
    assert [record.outcome for record in records] == ["ok"] * 5
    assert [len(record.attempts) for record in records] == [2, 1, 1, 1, 1]
    assert len(servers[0].requests) == 6


def test_a_wrong_key_halts_the_run():
    with flying([(0.0, error_reply(401, "no such key"))], slots=1) as (flying_, _):
        flying_.run(1)
        assert flying_.flights.halted
        (fatal,) = [message for message in flying_.told if isinstance(message, Fatal)]
    assert "401" in fatal.text
    assert "--api-key-env" in fatal.text


@pytest.mark.parametrize("open_loop", [False, True])
def test_when_nobody_can_be_asked_a_closed_loop_waits_and_an_open_one_records_it(open_loop):
    with flying(OK, OK, slots=3, open_loop=open_loop) as (flying_, servers):
        for endpoint in range(2):
            flying_.board.set_endpoint(endpoint, Standing.UNHEALTHY, 0)
        now = time.monotonic_ns()
        for index in range(3):
            flying_.slots.take(now)
            flying_.flights.begin(Request(index=index, body=b"{}", stream=True), now, now, now)
        for _ in range(5):
            flying_.step()
        if open_loop:
            assert flying_.flights.idle
            assert [record.outcome for record in flying_.records] == ["no_endpoint"] * 3
            assert flying_.slots.free == 3
            return
        assert not flying_.flights.idle
        assert (flying_.records, flying_.slots.free) == ([], 0)
        flying_.board.set_endpoint(1, Standing.HEALTHY, 0)
        records = flying_.run(0)
        assert [record.outcome for record in records] == ["ok"] * 3
        assert len(servers[1].requests) == 3


def test_what_waits_when_the_load_ends_is_recorded_as_it_stands():
    with flying(REFUSED, slots=2, max_retries=5) as (flying_, _):
        now = time.monotonic_ns()
        for index in range(2):
            flying_.slots.take(now)
            flying_.flights.begin(Request(index=index, body=b"{}", stream=True), now, now, now)
        while not flying_.flights._retries:
            flying_.step()
        flying_.flights.abandon(time.monotonic_ns())
        flying_.client.cancel_all("cancelled", "stopped by the end of the run", time.monotonic_ns())
        flying_.run(0)
        assert flying_.slots.free == 2
        flying_.flights.never_sent(Request(index=9, body=b"", stream=True), 5, "cancelled", "still waiting for a slot when the load ended")
        assert flying_.slots.free == 2
    assert sorted(record.index for record in flying_.records) == [0, 1, 9]
    assert flying_.records[-1].attempts == []


def test_a_hanging_request_is_in_flight_until_it_is_cancelled():
    with flying([(0.0, HANG)], slots=1) as (flying_, _):
        now = time.monotonic_ns()
        flying_.slots.take(now)
        flying_.flights.begin(Request(index=0, body=b"{}", stream=True), now, now, now)
        flying_.step()
        assert flying_.board.in_flight() == [1]
        flying_.client.cancel_all("cancelled", "stopped by the end of the run", time.monotonic_ns())
        (record,) = flying_.run(0)
        assert flying_.board.in_flight() == [0]
    assert record.outcome == "cancelled"


def test_samples_are_bounded_and_evenly_spread():
    samples = Samples()
    for value in range(1_000_000):
        samples.add(value)
    assert 20_000 < len(samples.values) <= 100_000
    assert samples.values == sorted(samples.values)
    assert abs(sum(samples.values) / len(samples.values) - 500_000) < 25_000
