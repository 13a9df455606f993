"""What may be sent next and when: slots under a cap, tickets, and a worker's share of a schedule."""

import os
from array import array

import pytest

from loadcell.load.arrivals import ClosedArrivals, LocalSlots, NoCap, ScheduledArrivals, SharedSlots
from loadcell.load.spool import Slots
from loadcell.schedule import ScheduleSpec, cap_at

S = 1_000_000_000


class Tickets:
    """Stands in for a spool: gives these, then none yet, then none any more."""

    def __init__(self, *given: int | None) -> None:
        self._given = list(given)

    def ticket(self) -> int | None:
        return self._given.pop(0)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_the_workers_shares_of_a_cap_add_up_to_it(workers):
    sets = [LocalSlots(ScheduleSpec(concurrency=5), worker, workers, 100) for worker in range(workers)]
    taken = 0
    for slots in sets:
        while slots.take(100) is not None:
            taken += 1
        assert slots.next_ns(100) is None
    assert taken == 5


def test_a_slot_tells_since_when_it_was_free():
    slots = LocalSlots(ScheduleSpec(concurrency=1), 0, 1, 100)
    assert slots.take(500) == 100
    assert slots.take(600) is None
    slots.give(700)
    assert slots.take(699) is None
    assert slots.next_ns(650) == 700
    assert slots.take(800) == 700


@pytest.mark.parametrize("workers", [1, 3])
def test_under_a_ramp_the_slots_open_as_the_cap_grows(workers):
    spec = ScheduleSpec(concurrency=20, ramp_concurrency_s=4.0)
    sets = [LocalSlots(spec, worker, workers, 7 * S) for worker in range(workers)]
    taken = 0
    for elapsed in range(0, 5 * S, S // 50):
        taken += sum(1 for slots in sets for _ in iter(lambda slots=slots, at=7 * S + elapsed: slots.take(at), None))
        assert taken == cap_at(spec, elapsed)
    assert taken == 20


def test_shared_slots_are_looked_at_again_soon():
    read_fd, write_fd = Slots.create(1)
    slots = SharedSlots(Slots(read_fd, write_fd), 50)
    assert slots.take(100) == 50
    assert slots.take(100) is None
    assert 100 < slots.next_ns(100) <= 1_000_100
    slots.give(300)
    assert slots.take(400) == 300
    os.close(read_fd)
    os.close(write_fd)


def test_without_a_cap_there_is_always_room():
    assert NoCap().take(5) == 0
    assert NoCap().next_ns(5) == 5


def test_a_closed_loop_takes_tickets_and_is_scheduled_when_its_slot_was_free():
    arrivals = ClosedArrivals(Tickets(0, 1, -1, -1, 2, None))  # type: ignore[arg-type]
    assert arrivals.take(100, 40) == (0, 40)
    assert arrivals.take(110, 50) == (1, 50)
    assert arrivals.take(1_000, 900) is None
    assert arrivals.starved_since_ns == 1_000
    assert arrivals.due_ns(1_100) > 1_100
    assert arrivals.take(5_000, 900) is None
    assert arrivals.take(9_000, 900) == (2, 900)
    assert arrivals.starved_ns == 8_000
    assert arrivals.take(9_500, 9_400) is None
    assert arrivals.due_ns(9_600) is None


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_arrival_of_a_schedule_belongs_to_one_worker(workers):
    offsets = memoryview(array("q", [10 * index for index in range(11)]))
    taken = []
    for worker in range(workers):
        arrivals = ScheduledArrivals(offsets, worker, workers, 1_000, lambda: 11)
        while (due := arrivals.due_ns(0)) is not None:
            index, scheduled = arrivals.take(due, 0)
            assert scheduled == due == 1_000 + 10 * index
            taken.append(index)
    assert sorted(taken) == list(range(11))


def test_an_arrival_that_is_not_prepared_yet_is_asked_for_again():
    produced = 1
    arrivals = ScheduledArrivals(memoryview(array("q", [0, 10])), 0, 1, 0, lambda: produced)
    assert arrivals.take(0, 0) == (0, 0)
    assert arrivals.take(10, 0) is None
    assert arrivals.due_ns(11) == 10 + 500_000
    produced = 2
    assert arrivals.take(600_000, 0) == (1, 10)
    assert arrivals.starved_ns == 600_000 - 10


def test_what_was_due_and_not_sent_can_be_skipped_to_the_end():
    arrivals = ScheduledArrivals(memoryview(array("q", [0, 10, 20])), 0, 2, 100, lambda: 3)
    assert [arrivals.skip(), arrivals.skip(), arrivals.skip()] == [(0, 100), (2, 120), None]
