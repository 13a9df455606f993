"""Logs: read from any offset over rotations, capped while they are written."""

from pathlib import Path

import pytest

from loadcell.fleet.hosts import agent
from loadcell.fleet.hosts.local import LocalHost

from .conftest import Services
from .waiting import until


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def read_all(host: LocalHost, path: Path, offset: int, limit: int = 1 << 20) -> tuple[int, bytes]:
    parts = []
    while True:
        offset, part = host.read_log(str(path), offset, limit)
        parts.append(part)
        if not part:
            return offset, b"".join(parts)


class TestReading:
    @pytest.mark.parametrize(("offset", "expected"), [(0, b"0123456789"), (4, b"456789"), (10, b""), (-3, b"789"), (-50, b"0123456789")])
    def test_from_an_offset(self, host: LocalHost, tmp_path: Path, offset: int, expected: bytes) -> None:
        path = tmp_path / "a.log"
        path.write_bytes(b"0123456789")
        assert host.read_log(str(path), offset) == (10, expected)

    def test_a_log_that_is_not_there_yet(self, host: LocalHost, tmp_path: Path) -> None:
        assert host.read_log(str(tmp_path / "a.log"), 0) == (0, b"")
        assert host.read_log(str(tmp_path / "a.log"), -100) == (0, b"")


class TestCapping:
    def test_below_the_cap_nothing_happens(self, host: LocalHost, tmp_path: Path) -> None:
        path = tmp_path / "a.log"
        path.write_bytes(b"x" * 100)
        host.cap_log(str(path), 100)
        host.cap_log(str(tmp_path / "none.log"), 100)
        assert [p.name for p in tmp_path.iterdir()] == ["a.log"]

    def test_the_newest_half_is_kept_and_the_cut_is_noted(self, host: LocalHost, tmp_path: Path) -> None:
        path = tmp_path / "a.log"
        path.write_bytes(bytes(range(200)))
        host.cap_log(str(path), 100)
        note, _, kept = (tmp_path / "a.log.1").read_bytes().partition(b"\n")
        assert b"cut at 150 bytes" in note
        assert kept == bytes(range(150, 200))
        assert path.stat().st_size == 0
        assert agent.log_size(str(path)) == 200

    @pytest.mark.parametrize("limit", [7, 1000])
    def test_offsets_count_over_rotations(self, host: LocalHost, tmp_path: Path, limit: int) -> None:
        path = tmp_path / "a.log"
        whole = b"".join(b"%06d\n" % number for number in range(100))
        append(path, whole[:350])
        host.cap_log(str(path), 100)
        append(path, whole[350:500])
        host.cap_log(str(path), 100)
        append(path, whole[500:])
        assert read_all(host, path, 480, limit) == (700, whole[480:])  # part of it was rotated away meanwhile: nothing is missed
        assert read_all(host, path, 0, limit) == (700, whole[450:])  # older bytes are gone: skipped
        assert host.read_log(str(path), -230)[0] == 700

    def test_kept_part_was_taken_away(self, host: LocalHost, tmp_path: Path) -> None:
        path = tmp_path / "a.log"
        append(path, b"x" * 300)
        host.cap_log(str(path), 100)
        append(path, b"new")
        (tmp_path / "a.log.1").unlink()
        assert host.read_log(str(path), 0) == (303, b"new")

    def test_a_flood_is_bounded_and_a_follower_misses_nothing(self, host: LocalHost, services: Services) -> None:
        """20 MiB at 10 MiB/s under a cap of 4 MiB, read while it is rotated."""
        lines, cap = 20 << 10, 4 << 20
        program = (
            "import os, time\nbegan = time.monotonic()\n"
            f"for n in range({lines}):\n    os.write(1, b'%01023d\\n' % n)\n    time.sleep(max(0, began + n / 10240 - time.monotonic()) if n % 128 == 0 else 0)"
        )
        group = services.start(program)
        most, offset, text = 0, 0, b""
        while host.look(group).alive or offset < agent.log_size(group.log):
            offset, data = host.read_log(group.log, offset)
            text += data
            host.cap_log(group.log, cap)
            most = max(most, sum(path.stat().st_size for path in services.folder.glob("service.log*")))
        assert most < cap * 1.25
        numbers = [int(line) for line in text.splitlines()]
        # A copy and a truncation are two calls: a line that is written between them is gone.
        assert len(numbers) >= lines - 10
        assert numbers == sorted(set(numbers))

    def test_the_log_outlives_its_writer(self, host: LocalHost, services: Services) -> None:
        group = services.start("print('last words'); import os; os.kill(os.getpid(), 9)")
        until(lambda: not host.look(group).alive)
        assert host.fetch(group.log) == b"last words\n"
