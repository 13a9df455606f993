"""Requests are made ahead of the load, no further than needed, and an error reaches whoever waits."""

import threading
from array import array

import pytest

from loadcell.load.producer import Producer
from loadcell.load.spool import SpoolReader, SpoolWriter
from loadcell.records import Request


def make(index: int) -> Request:
    return Request(index=index, body=b"{}", stream=True)


@pytest.fixture
def spool(tmp_path):
    writer = SpoolWriter(tmp_path)
    yield writer
    writer.close()


def test_a_closed_loop_gets_a_ticket_for_every_request_and_then_the_end(spool):
    producer = Producer(spool, make, 3_000, None, lambda _: None, lambda: 0, 8)
    reader = SpoolReader(spool.fds)
    producer.start()
    assert producer.wait_primed(10)
    drawn = []
    while (ticket := reader.ticket()) is not None:
        if ticket >= 0:
            drawn.append(ticket)
            assert reader.request(ticket).index == ticket
    assert drawn == list(range(3_000))
    producer.stop()
    assert producer.error is None


def test_a_schedule_is_made_three_seconds_ahead(spool):
    elapsed, published = 0, []
    reached = threading.Event()

    def tell(made: int) -> None:
        published.append(made)
        if made >= 400:
            reached.set()

    offsets = array("q", [10_000_000 * index for index in range(1_000)])
    producer = Producer(spool, make, 1_000, offsets, tell, lambda: elapsed, 64)
    producer.start()
    assert producer.wait_primed(10)
    assert producer.made <= 301
    elapsed = 1_000_000_000
    assert reached.wait(10)
    producer.stop()
    assert producer.made <= 401
    assert published == sorted(published)


def test_an_error_ends_it_and_wakes_who_waits(spool):
    def broken(index: int) -> Request:
        if index == 5:
            raise ValueError("no such row")
        return make(index)

    producer = Producer(spool, broken, 10, None, lambda _: None, lambda: 0, 10)
    producer.start()
    assert producer.wait_primed(10)
    producer.stop()
    assert str(producer.error) == "no such row"
    assert SpoolReader(spool.fds).ticket() is None


def test_an_endless_one_stops_when_told(spool):
    producer = Producer(spool, make, None, None, lambda _: None, lambda: 0, 4)
    producer.start()
    assert producer.wait_primed(10)
    producer.stop()
    assert 4 <= producer.made < 20_000


def test_all_can_be_made_first(spool):
    producer = Producer(spool, make, 5_000, array("q", [10**12] * 5_000), lambda _: None, lambda: 0, 4)
    producer.start()
    assert producer.wait_primed(10)
    producer.make_all_first()
    assert producer.wait_primed(10)
    assert producer.made == 5_000
    producer.stop()
