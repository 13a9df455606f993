"""Requests on disk, tickets and slots in pipes: each is taken once, by whoever is first."""

import os
import subprocess
import sys
from array import array
from collections import Counter
from pathlib import Path

import pytest

from loadcell.errors import EnvironmentFailure
from loadcell.load.spool import Slots, SpoolReader, SpoolWriter, write_offsets
from loadcell.records import Request


@pytest.fixture
def spool(tmp_path):
    writer = SpoolWriter(tmp_path)
    yield writer
    writer.close()


def made(index: int, size: int = 10) -> Request:
    return Request(index=index, body=b"x" * size, stream=True, session=f"s{index}")


def test_requests_come_back_by_their_index_in_any_order(spool, tmp_path):
    for index in range(300):
        spool.add(made(index, size=3_000 * (index % 2)))
    spool.publish()
    reader = SpoolReader(spool.fds)
    for index in (299, 0, 150, 151, 0):
        assert reader.request(index) == made(index, size=3_000 * (index % 2))
    assert list(tmp_path.iterdir()) == []  # unlinked: nothing is left whoever dies


def test_tickets_say_none_yet_and_none_any_more(spool):
    reader = SpoolReader(spool.fds)
    assert reader.ticket() == -1
    assert spool.issue_tickets(7, 2) == 2
    assert (reader.ticket(), reader.ticket(), reader.ticket()) == (7, 8, -1)
    spool.close_tickets()
    assert reader.ticket() is None


def test_a_full_pipe_takes_only_some_tickets_and_loses_none(spool):
    issued = 0
    while taken := spool.issue_tickets(issued, 5_000):
        issued += taken
    assert issued < 50_000
    reader = SpoolReader(spool.fds)
    assert [reader.ticket() for _ in range(issued)] == list(range(issued))
    assert reader.ticket() == -1


DRAW = """
import os, sys
from loadcell.load.plan import SpoolFds
from loadcell.load.spool import SpoolReader
fd = int(sys.argv[1])
reader = SpoolReader(SpoolFds(bodies=0, index=0, tickets=fd))
drawn = []
while (ticket := reader.ticket()) is not None:
    drawn.append(ticket)
print(*[ticket for ticket in drawn if ticket >= 0])
"""


def test_several_processes_draw_every_ticket_once(spool):
    fd = spool.fds.tickets
    source = str(Path(sys.modules["loadcell"].__file__ or "").parents[1])
    drawers = [
        subprocess.Popen(
            [sys.executable, "-c", DRAW, str(fd)], pass_fds=[fd], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": source}
        )
        for _ in range(3)
    ]
    issued = 0
    while issued < 20_000:
        issued += spool.issue_tickets(issued, 20_000 - issued)
    spool.close_tickets()
    drawn = [list(map(int, drawer.communicate(timeout=30)[0].split())) for drawer in drawers]
    assert Counter(ticket for some in drawn for ticket in some) == Counter(range(20_000))
    assert all(some == sorted(some) for some in drawn)


def test_a_full_disk_is_an_environment_failure(tmp_path):
    writer = SpoolWriter(tmp_path)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer.fds.bodies)
    os.close(full)
    writer.add(made(0))
    with pytest.raises(EnvironmentFailure, match=r"prepared requests cannot be written to .*: No space left"):
        writer.publish()
    writer.close()


def test_a_folder_that_cannot_be_written_is_an_environment_failure(tmp_path):
    with pytest.raises(EnvironmentFailure, match="cannot write to"):
        SpoolWriter(tmp_path / "missing")


@pytest.mark.parametrize("count", [1, 3, 70_000])
def test_slots_are_as_many_as_there_are(count):
    read_fd, write_fd = Slots.create(count)
    slots = Slots(read_fd, write_fd)
    assert sum(slots.take() for _ in range(count)) == count
    assert not slots.take()
    slots.give()
    assert slots.take()
    assert not slots.take()
    os.close(read_fd)
    os.close(write_fd)


def test_offsets_are_written_as_eight_bytes_each(tmp_path):
    fd = os.memfd_create("offsets")
    write_offsets(array("q", [0, 5, 1 << 40]), fd)
    write_offsets(None, fd)
    assert os.pread(fd, 100, 0) == array("q", [0, 5, 1 << 40]).tobytes()
    os.close(fd)
