"""Prepared requests on their way from control to the workers: written once, in order, read by index.

Serialising is control's work, before a request is due. They pass through an unlinked file, so that a run of any length costs no
process memory, and a worker needs no round trip to get the next one.
"""

import fcntl
import os
import struct
from array import array
from pathlib import Path
from typing import Final

import msgspec

from loadcell.errors import EnvironmentFailure
from loadcell.load.plan import SpoolFds
from loadcell.records import Request

_TICKET: Final = struct.Struct("<I")
_PLACE: Final = struct.Struct("<qq")
_BATCH_BYTES: Final = 1 << 18
_TICKETS_ALONE: Final = 64
_PLACES_AHEAD: Final = 128
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Request)


class SpoolWriter:
    """Control's end of one phase. A request may be taken up once `publish` has returned."""

    def __init__(self, folder: Path) -> None:
        import tempfile  # not at the top: a worker reads spools, and starts sooner without

        self._folder = folder
        try:
            self._bodies = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - lives as long as the run
            self._index = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise EnvironmentFailure(f"cannot write to {folder}: {error.strerror}") from error
        self.tickets_out, self._tickets_in = os.pipe()
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._places = bytearray()
        self._end = 0

    @property
    def fds(self) -> SpoolFds:
        return SpoolFds(bodies=self._bodies.fileno(), index=self._index.fileno(), tickets=self.tickets_out)

    def add(self, request: Request) -> None:
        """Requests come in the order of their index, from 0."""
        encoded = _encoder.encode(request)
        self._places += _PLACE.pack(self._end, len(encoded))
        self._end += len(encoded)
        self._held.append(encoded)
        self._held_bytes += len(encoded)
        if self._held_bytes >= _BATCH_BYTES:
            self.publish()

    def publish(self) -> None:
        """Make everything added so far readable. Raises EnvironmentFailure (a full disk)."""
        try:
            _write_all(self._bodies.fileno(), b"".join(self._held))
            _write_all(self._index.fileno(), self._places)
        except OSError as error:
            raise EnvironmentFailure(f"prepared requests cannot be written to {self._folder}: {error.strerror}") from error
        self._held, self._held_bytes, self._places = [], 0, bytearray()

    def issue_tickets(self, first: int, count: int) -> int:
        """Offer requests to a closed loop's workers, lowest index first; how many the pipe took (the rest: later)."""
        os.set_blocking(self._tickets_in, False)
        try:
            written = os.write(self._tickets_in, b"".join(_TICKET.pack(index) for index in range(first, first + min(count, 1024))))
        except BlockingIOError:
            return 0
        return written // _TICKET.size

    def close_tickets(self) -> None:
        """No more tickets: a worker that finds none knows that it is done."""
        if self._tickets_in >= 0:
            os.close(self._tickets_in)
            self._tickets_in = -1

    def close(self) -> None:
        self.close_tickets()
        if self.tickets_out >= 0:
            os.close(self.tickets_out)
            self.tickets_out = -1
        self._bodies.close()
        self._index.close()


class SpoolReader:
    """A worker's end. Reads by index without moving a shared file position. `alone`: no other worker draws tickets, so many may be taken at once."""

    def __init__(self, fds: SpoolFds, *, alone: bool = False) -> None:
        self._fds = fds
        self._ticket_bytes = _TICKET.size * (_TICKETS_ALONE if alone else 1)
        self._tickets: list[int] = []
        self._places: list[tuple[int, int]] = []
        self._first_place = 0
        os.set_blocking(fds.tickets, False)

    def request(self, index: int) -> Request:
        """The request `index`, which must have been published."""
        at = index - self._first_place
        if not 0 <= at < len(self._places):
            places = os.pread(self._fds.index, _PLACE.size * _PLACES_AHEAD, index * _PLACE.size)
            self._places = list(_PLACE.iter_unpack(places[: len(places) // _PLACE.size * _PLACE.size]))
            self._first_place, at = index, 0
        start, length = self._places[at]
        return _decoder.decode(os.pread(self._fds.bodies, length, start))

    def ticket(self) -> int | None:
        """The next arrival index; -1 when none is there yet, null when no more will come. Each is given to one worker only."""
        if not self._tickets:
            try:
                raw = os.read(self._fds.tickets, self._ticket_bytes)
            except BlockingIOError:
                return -1
            if not raw:
                return None
            self._tickets = [index for (index,) in _TICKET.iter_unpack(raw)]
            self._tickets.reverse()
        return self._tickets.pop()


class Slots:
    """The free slots of a cap that several workers share: as many bytes in a pipe. The kernel hands each to one taker."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd

    @staticmethod
    def create(count: int) -> tuple[int, int]:
        """(read end, write end) of a pipe that holds `count` slots. The caller closes both."""
        read_fd, write_fd = os.pipe()
        if count > 65_536:
            fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, count)
        os.set_blocking(read_fd, False)
        _write_all(write_fd, b"s" * count)
        return read_fd, write_fd

    def take(self) -> bool:
        try:
            return bool(os.read(self._read_fd, 1))
        except BlockingIOError:
            return False

    def give(self) -> None:
        os.write(self._write_fd, b"s")


def write_offsets(offsets: "array[int] | None", fd: int) -> None:
    """The arrival offsets, 8 bytes each, into an empty file that the workers map."""
    if offsets:
        _write_all(fd, memoryview(offsets).cast("B"))


def _write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
