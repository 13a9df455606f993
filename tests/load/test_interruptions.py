"""Signals, killed processes and full disks: the run ends, says how, and leaves files that can be read."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadcell.recordlog import read_events, read_log
from loadcell.report.run_folder import open_run
from loadcell.testing.replies import HANG, chat_event, chat_stream, sse
from loadcell.testing.scripted_server import Received, ScriptedServer

from .running import Bench, bench, counting, until

pytestmark = pytest.mark.timeout(90)

SLOW = chat_stream(*["a"] * 20, first_ms=20, every_ms=20)
ENDLESS = sse(chat_event("a"), HANG)


def kinds(folder: Path) -> list[str]:
    return [event.kind for event in read_events(folder / "events.jsonl")]


def whole_folder(run: Bench, code: int) -> dict:
    """All files of a run that ended in an orderly way; its summary."""
    names = {file.name for file in run.folder.iterdir()}
    assert names == {"records.jsonl", "events.jsonl", "run.json", "summary.json", "report.md"}, run.err
    summary = run.summary()
    records = run.records()
    assert [record.index for record in records] == sorted(record.index for record in records)
    assert len({record.index for record in records}) == len(records)
    counts = summary["whole"]["counts"]
    assert counts["offered"] == counts["ok"] + counts["failed"] + counts["cancelled"]
    assert run.process.returncode == code
    return summary


@pytest.mark.parametrize(("number", "code", "reason"), [(signal.SIGINT, 130, "interrupt"), (signal.SIGTERM, 143, "terminated")])
@pytest.mark.parametrize("workers", [1, 2])
def test_one_signal_lets_what_is_in_flight_end(tmp_path, number, code, reason, workers):
    with counting(30, SLOW) as (server, reply), bench(tmp_path / "run", server.base_url, concurrency=8, workers=workers) as run:
        reply.wait()
        run.signal(number)
        run.wait()
    summary = whole_folder(run, code)
    assert summary["stop_reason"] == reason
    assert summary["stop_signal"] == number
    assert summary["partial"]
    assert summary["whole"]["counts"]["by_outcome"] == {"ok": len(run.records())}
    assert len(run.records()) == len([request for request in server.requests if request.method == "POST"])
    assert "draining" in run.err
    assert "Traceback" not in run.err


def test_two_signals_leave_at_once(tmp_path):
    with counting(6, ENDLESS) as (server, reply), bench(tmp_path / "run", server.base_url, concurrency=6) as run:
        reply.wait()
        run.signal(signal.SIGINT)
        until(lambda: "stopping" in kinds(run.folder))
        run.signal(signal.SIGINT)
        run.wait()
    summary = whole_folder(run, 130)
    assert summary["whole"]["counts"]["by_outcome"] == {"cancelled": 6}
    assert all(record.error == "stopped by the end of the run" for record in run.records())


def test_a_signal_after_the_load_does_not_cost_the_records(tmp_path):
    """While files are written the second signal hurries; nothing is lost."""
    with counting(6, ENDLESS) as (server, reply), bench(tmp_path / "run", server.base_url, concurrency=6) as run:
        reply.wait()
        run.signal(signal.SIGINT)
        until(lambda: "stopping" in kinds(run.folder))
        run.signal(signal.SIGINT)
        until(lambda: "measure_ended" in kinds(run.folder))
        run.signal(signal.SIGINT)
        run.wait()
    assert run.process.returncode == 130
    assert "Traceback" not in run.err
    assert len(open_run(run.folder).facts.endpoints) == 1
    assert sum(1 for _ in open_run(run.folder).records) == 6


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_before_the_first_request_leaves_nothing_behind(tmp_path, number, code):
    """The server hangs at the first question, so that the run is still being prepared."""
    with counting(1, [(0.0, HANG)]) as (server, reply), bench(tmp_path / "run", server.base_url, tokenizer="server", concurrency=2) as run:
        reply.wait()
        run.signal(number)
        assert run.wait() == code
    assert not (tmp_path / "run").exists()
    assert "Traceback" not in run.err


def test_a_duration_ends_the_dispatch_and_what_is_in_flight_drains(tmp_path):
    with counting(1, SLOW) as (server, _), bench(tmp_path / "run", server.base_url, concurrency=4, duration=1) as run:
        assert run.wait() == 0
    summary = whole_folder(run, 0)
    assert summary["stop_reason"] == "duration"
    assert summary["whole"]["counts"]["by_outcome"] == {"ok": len(run.records())}
    assert summary["whole"]["window"]["duration_s"] == pytest.approx(1, abs=0.001)
    start = min(record.scheduled_ns for record in run.records())
    assert max(record.attempts[0].dispatched_ns for record in run.records()) < start + 1_050_000_000
    assert max(record.attempts[0].done_ns for record in run.records()) > start + 1_000_000_000


def test_what_does_not_drain_in_time_is_cancelled(tmp_path):
    with (
        counting(1, ENDLESS) as (server, _),
        bench(tmp_path / "run", server.base_url, concurrency=4, duration=0.5, drain_timeout=0.5) as run,
    ):
        run.wait()
    summary = whole_folder(run, 1)
    assert summary["whole"]["counts"]["by_outcome"] == {"cancelled": 4}
    ends = [record.attempts[0].done_ns for record in run.records()]
    start = min(record.scheduled_ns for record in run.records())
    assert all(900_000_000 < end - start < 5_000_000_000 for end in ends)


def test_too_many_failures_stop_the_run_early(tmp_path):
    failing = [(0.0, b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")]
    with (
        counting(1, failing) as (server, _),
        bench(tmp_path / "run", server.base_url, concurrency=2, num_prompts=100_000, max_failures=20) as run,
    ):
        run.wait()
    summary = whole_folder(run, 1)
    assert summary["stop_reason"] == "max_failures"
    assert "--max-failures 20" in summary["stop_detail"]
    assert 20 < summary["whole"]["counts"]["failed"] < 20_000


@pytest.mark.parametrize(("load", "at"), [({"concurrency": 8}, 30), ({"request_rate": 200}, 150)])
def test_a_killed_worker_ends_the_run_with_a_labelled_partial_result(tmp_path, load, at):
    with counting(at, SLOW) as (server, reply), bench(tmp_path / "run", server.base_url, workers=2, num_prompts=5000, **load) as run:
        reply.wait()
        victim = run.workers()[1]
        victim.kill()
        run.wait()
    summary = whole_folder(run, 1)
    assert summary["stop_reason"] == "worker_lost"
    assert summary["lost_workers"] == [1]
    assert summary["partial"]
    assert "killed by signal 9" in summary["stop_detail"]
    assert "worker 1 was lost" in run.err
    assert "worker_lost" in kinds(run.folder)
    # What the other one had in flight ended; the lost one's finished answers are there too.
    assert {record.worker for record in run.records()} == {0, 1}
    assert {record.outcome for record in run.records() if record.worker == 0} == {"ok"}


def test_the_only_worker_killed_is_no_hang_either(tmp_path):
    with counting(20) as (server, reply), bench(tmp_path / "run", server.base_url, concurrency=4, num_prompts=100_000) as run:
        reply.wait()
        run.workers()[0].kill()
        run.wait()
    summary = whole_folder(run, 1)
    assert summary["lost_workers"] == [0]
    assert len(run.records()) > 0


def test_when_control_dies_the_workers_leave_and_the_folder_can_be_reported(tmp_path):
    with counting(40, SLOW) as (server, reply), bench(tmp_path / "run", server.base_url, concurrency=8, workers=2) as run:
        reply.wait()
        workers = run.workers()
        assert len(workers) == 2
        run.process.kill()
        run.process.wait()
        until(lambda: not any(worker.is_running() and worker.status() != "zombie" for worker in workers))
    parts = sorted(run.folder.glob("records.part-*.jsonl"))
    assert len(parts) == 2
    outcomes = Counter(record.outcome for part in parts for record in read_log(part))
    assert outcomes["ok"] > 0
    assert outcomes["ok"] + outcomes["cancelled"] == sum(outcomes.values())
    report = subprocess.run(
        [sys.executable, "-m", "loadcell", "report", str(run.folder)], capture_output=True, text=True, timeout=30, check=False
    )
    assert report.returncode == 0, report.stderr
    assert "the run did not end by itself: 2 part(s)" in report.stderr
    assert run.summary()["partial"]
    assert run.summary()["whole"]["counts"]["ok"] == outcomes["ok"]
    assert sorted(run.folder.glob("records.part-*.jsonl")) == parts


LONG = chat_stream(*["x" * 1000] * 20)
LONG_ANSWERS = {"concurrency": 8, "num_prompts": 400, "save_text": True}


def told_in_one_line(run: Bench, why: str) -> None:
    assert run.process.returncode == 1
    assert "Traceback" not in run.err
    assert len([line for line in run.err.splitlines() if line.startswith("loadcell: error:")]) <= 1, run.err
    (told, *_) = [line for line in run.err.splitlines() if why in line]
    assert "cannot write" in told
    assert "records.part-0.jsonl" in told
    stored = open_run(run.folder)
    assert stored.facts.partial
    assert 10 < sum(1 for record in stored.records if record.outcome == "ok") < 400


def test_a_file_that_may_not_grow_is_one_line_and_a_partial_result_that_can_be_read(tmp_path):
    """RLIMIT_FSIZE is a full disk for whoever writes (EFBIG instead of ENOSPC)."""
    with counting(1, LONG) as (server, _), bench(tmp_path / "run", server.base_url, file_limit=900_000, **LONG_ANSWERS) as run:
        run.wait()
    told_in_one_line(run, "File too large")


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False).returncode:
        pytest.skip("mounting needs privileges that this user has not")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_one_line_and_a_partial_result_that_can_be_read(tmp_path):
    with small_disk(tmp_path / "disk", "1500k") as disk:
        with counting(1, LONG) as (server, _), bench(disk / "run", server.base_url, **LONG_ANSWERS) as run:
            run.wait()
        told_in_one_line(run, "No space left on device")


def test_a_disk_that_is_full_from_the_start_is_one_line_and_nothing_is_sent(tmp_path):
    with small_disk(tmp_path / "disk", "100k") as disk:
        with counting(1) as (server, _), bench(disk / "run", server.base_url, concurrency=8, num_prompts=2000, input_len=100) as run:
            assert run.wait() == 1
        (told,) = [line for line in run.err.splitlines() if "error" in line]
        assert "No space left on device" in told
    assert not [request for request in server.requests if request.method == "POST"]


def test_signals_while_the_workers_start_print_no_traceback(tmp_path):
    """A terminal sends Ctrl-C to the whole group: to interpreters that are still importing too."""
    with counting(1, [(0.0, HANG)]) as (server, reply), bench(tmp_path / "run", server.base_url, tokenizer="server", concurrency=2) as run:
        until(run.workers)
        for worker in run.workers():
            worker.send_signal(signal.SIGINT)
        reply.wait()
        run.signal(signal.SIGINT)
        assert run.wait() == 130
    assert "Traceback" not in run.err


@pytest.mark.slow
def test_a_closed_loop_waits_with_its_slots_when_all_are_down_and_an_open_one_records_it(tmp_path):
    refused = "http://127.0.0.1:9/v1"
    other = "http://127.0.0.1:10/v1"
    down = {"health_check_interval": 0.1, "health_max_failures": 1, "health_recovery_interval": 30, "patience": 1.5, "num_prompts": 100_000}
    with bench(tmp_path / "closed", refused, other, concurrency=4, **down) as run:
        assert run.wait() == 1
    closed = run.summary()
    assert closed["stop_reason"] == "patience"
    assert closed["whole"]["counts"]["offered"] < 200
    with bench(tmp_path / "open", refused, other, request_rate=50, **down) as run:
        assert run.wait() == 1
    opened = run.summary()
    assert opened["stop_reason"] == "patience"
    assert opened["whole"]["counts"]["by_outcome"]["no_endpoint"] > 30
    assert "no endpoint was available for 1.5 s (--patience)" in run.err


def test_requests_that_failed_everywhere_wait_for_whoever_comes_back(tmp_path):
    """They hold all the slots: one of them has to be the trial that shows that an endpoint works again."""
    ok, broken = chat_stream("a", "b", "c"), [(0.0, b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")]

    def reply(request: Received):
        return ok if request.number > 8 else broken

    down = {"health_check_interval": 0, "health_max_failures": 1, "health_recovery_interval": 0.2, "request_max_retries": 20}
    with (
        ScriptedServer(reply) as one,
        ScriptedServer(reply) as other,
        bench(tmp_path / "run", one.base_url, other.base_url, concurrency=3, num_prompts=30, **down) as run,
    ):
        assert run.wait() in (0, 1), run.err
    assert run.summary()["whole"]["counts"]["by_outcome"] == {"ok": 30}
    assert run.summary()["stop_reason"] == "count"
