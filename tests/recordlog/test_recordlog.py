"""The log survives what happens to files: cuts, marks, newer writers, full disks, parts of dead workers."""

import multiprocessing
import os
import resource
import signal
from pathlib import Path

import msgspec
import pytest

from loadcell.clock import Anchor
from loadcell.errors import EnvironmentFailure, UserError
from loadcell.recordlog import (
    Appender,
    LogHeader,
    encode_events,
    encode_header,
    encode_record,
    join_parts,
    read_events,
    read_header,
    read_log,
    read_records,
)
from loadcell.records import Attempt, Event, RequestRecord

HEADER = LogHeader(run_id="r1", name="bench", created="2026-01-01T00:00:00Z", origin=Anchor(monotonic_ns=5, wall_ns=7))


def record(index: int, **fields: object) -> RequestRecord:
    return msgspec.convert({"index": index, "scheduled_ns": index * 10, "outcome": "ok", **fields}, RequestRecord)


def write_log(path: Path, *records: RequestRecord, tail: bytes = b"") -> Path:
    path.write_bytes(encode_header(HEADER) + b"".join(encode_record(r) for r in records) + tail)
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    attempt = Attempt(endpoint=1, outcome="ok", sent_ns=3, chunk_us=[10, 20, 30], chunk_tokens=[1, 2, 1], text="中文\u2028\n")
    records = [record(0), RequestRecord(index=1, scheduled_ns=2, outcome="ok", attempts=[attempt])]
    path = write_log(tmp_path / "records.jsonl", *records)
    log = read_log(path)
    assert log.header == HEADER == read_header(path)
    assert list(log) == records
    assert list(log) == records, "a log can be read twice"
    assert log.dropped_fragments == 0


def test_a_token_costs_at_most_eight_bytes() -> None:
    gaps = [50_000_000, *([20_013] * 999)]
    line = encode_record(RequestRecord(index=0, scheduled_ns=0, outcome="ok", attempts=[Attempt(endpoint=0, outcome="ok", chunk_us=gaps)]))
    assert len(line) <= 8 * 1000


@pytest.mark.parametrize("text", ["plain", "中文 is three bytes a character"])
def test_a_line_cut_anywhere_is_dropped_and_the_rest_kept(tmp_path: Path, text: str) -> None:
    last = encode_record(record(2, error=text))
    for cut in range(1, len(last) - 1):
        log = read_log(write_log(tmp_path / "records.jsonl", record(0), record(1), tail=last[:cut]))
        assert log.dropped_fragments == 1
        assert [r.index for r in log] == [0, 1]


def test_a_last_line_that_lacks_only_its_newline_counts(tmp_path: Path) -> None:
    log = read_log(write_log(tmp_path / "records.jsonl", record(0), tail=encode_record(record(1))[:-1]))
    assert [r.index for r in log] == [0, 1]
    assert log.dropped_fragments == 0


def test_a_tail_of_zeros_after_a_power_loss_is_dropped(tmp_path: Path) -> None:
    log = read_log(write_log(tmp_path / "records.jsonl", record(0), tail=b"\0" * 200_000))
    assert [r.index for r in log] == [0]
    assert log.dropped_fragments == 1


def test_byte_order_mark_carriage_returns_and_blank_lines_are_tolerated(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    plain = encode_header(HEADER) + encode_record(record(0)) + b"\n" + encode_record(record(1))
    path.write_bytes(b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n"))
    assert read_header(path) == HEADER
    assert [r.index for r in read_records(path)] == [0, 1]


def test_keys_of_a_newer_writer_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    header = msgspec.json.encode({**msgspec.to_builtins(HEADER), "mood": "fine"})
    path.write_bytes(header + b'\n{"index":3,"scheduled_ns":1,"outcome":"ok","mood":1,"attempts":[{"endpoint":0,"outcome":"ok","x":1}]}\n')
    (only,) = read_records(path)
    assert only.index == 3
    assert only.attempts[0].outcome == "ok"


def test_another_schema_version_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(encode_header(msgspec.structs.replace(HEADER, schema="loadcell.records/9")))
    with pytest.raises(UserError, match=r"loadcell\.records/9.*reads 'loadcell\.records/1'"):
        read_log(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b'{"completed": 3}\n', "not the header"),
        (b"\xff\xfe\n", "not the header"),
        (encode_header(HEADER)[:40], "not the header"),
        (b'{"schema":"loadcell.records/1","run_id":"x"}\n', "not a whole header"),
    ],
)
def test_a_file_without_a_header_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_log(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.jsonl: No such file"):
        read_header(tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize("bad", [b"{half\n", b'{"index":"x"}\n', b'{"index":1,"scheduled_ns":1,"outcome":"ok","error":"\xe4\xb8"}\n'])
def test_a_corrupt_line_in_the_middle_names_its_number(tmp_path: Path, bad: bytes) -> None:
    path = write_log(tmp_path / "records.jsonl", record(0), tail=bad + encode_record(record(2)))
    with pytest.raises(UserError, match=r"records\.jsonl:3 cannot be read"):
        list(read_records(path))


def test_an_appender_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "records.part-0.jsonl"
    with Appender(path) as appender:
        appender.write(encode_header(HEADER) + encode_record(record(0)))
        appender.sync()
    with pytest.raises(UserError, match="never overwritten"):
        Appender(path)
    assert [r.index for r in read_records(path)] == [0]


def test_an_appender_in_a_missing_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="cannot create"):
        Appender(tmp_path / "nowhere" / "part.jsonl")


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "part.jsonl"
    code = multiprocessing.get_context("fork").Process(target=_fill, args=(path,))
    code.start()
    code.join()
    assert code.exitcode == 0
    log = read_log(path)
    assert log.dropped_fragments == 0
    assert [r.index for r in log] == [0, 1]


def _fill(path: Path) -> None:
    """A file-size limit stands in for a full disk: the kernel writes what fits and then fails."""
    line = encode_record(record(1, error="x" * 400))
    head = encode_header(HEADER) + encode_record(record(0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit = len(head) + len(line) + 100
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    appender = Appender(path)
    appender.write(head)
    appender.write(line)
    try:
        appender.write(line)
    except EnvironmentFailure:
        os._exit(0)
    os._exit(1)


def test_parts_are_joined_in_the_order_of_arrivals(tmp_path: Path) -> None:
    parts = [tmp_path / f"records.part-{k}.jsonl" for k in range(3)]
    write_log(parts[0], record(4), record(0), record(2))
    write_log(parts[1], record(3), record(0, phase="warmup"), tail=b'{"index":9,"sched')
    parts[2].write_bytes(b"")
    out = tmp_path / "records.jsonl"
    result = join_parts(parts, out)
    assert [(r.phase, r.index) for r in read_log(out)] == [("warmup", 0), ("measure", 0), ("measure", 2), ("measure", 3), ("measure", 4)]
    assert (result.records, result.dropped_fragments, result.unreadable) == (5, 1, ["records.part-2.jsonl"])
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


def test_a_join_never_overwrites_and_keeps_the_parts(tmp_path: Path) -> None:
    part = write_log(tmp_path / "records.part-0.jsonl", record(0))
    out = write_log(tmp_path / "records.jsonl", record(7))
    before = out.read_bytes()
    with pytest.raises(UserError, match="never overwritten"):
        join_parts([part], out)
    assert out.read_bytes() == before
    assert part.exists()


def test_a_join_with_nothing_to_join_says_so(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="nothing was recorded"):
        join_parts([tmp_path / "records.part-0.jsonl"], tmp_path / "records.jsonl")


def test_many_writers_lose_and_mix_nothing(tmp_path: Path) -> None:
    """Eight processes, 1,000 records of 20 KiB each."""
    fork = multiprocessing.get_context("fork")
    parts = [tmp_path / f"records.part-{worker}.jsonl" for worker in range(8)]
    writers = [fork.Process(target=_write_part, args=(part, worker)) for worker, part in enumerate(parts)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    out = tmp_path / "records.jsonl"
    assert join_parts(parts, out).records == 1000
    assert [r.index for r in read_records(out)] == list(range(1000))
    assert out.read_bytes().count(b"\n") == 1001


def _write_part(part: Path, worker: int) -> None:
    with Appender(part) as appender:
        appender.write(encode_header(HEADER))
        for index in range(worker, 1000, 8):
            appender.write(encode_record(record(index, worker=worker, error="x" * 20_480)))


def test_events_are_read_back_and_a_cut_one_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert read_events(path) == []
    events = [Event(at_ns=1, kind="ejected", endpoint="h:1", cause="中文"), Event(at_ns=2, kind="note", detail={"n": 1})]
    lines = encode_events(events)
    path.write_bytes(lines)
    assert read_events(path) == events
    path.write_bytes(lines[:-4])
    assert read_events(path) == events[:1]
    path.write_bytes(lines[:10])
    assert read_events(path) == []
