"""What is left on the disk: nothing overwritten, no line torn, and a run that was stopped or killed still tells what it saw."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadcell.api import BenchResult
from loadcell.clock import MonotonicClock
from loadcell.errors import UserError
from loadcell.metrics.summary import Summary
from loadcell.recordlog import read_log
from loadcell.testing.replies import Script, chat_event, chat_stream, sse, usage_event
from loadcell.testing.scripted_server import Received, ScriptedServer, by_path

Serve = Callable[..., ScriptedServer]
Bench = Callable[..., BenchResult]
Command = Callable[..., "subprocess.CompletedProcess[str]"]
StrictJson = Callable[[str | bytes], Any]

ANSWER = chat_stream("a", "b")


def _words(server: ScriptedServer, *more: str) -> list[str]:
    words = ["bench", "--base-url", server.base_url, "--model", "m", "--tokenizer", "words", "--input-len", "8", "--output-len", "2"]
    return [*words, "--output-dir", "run", *more]


def _summary(folder: Path) -> Summary:
    return msgspec.json.decode((folder / "summary.json").read_bytes(), type=Summary)


def _assert_whole(folder: Path, strict_json: StrictJson) -> None:
    """Every file of the run can be read to its end by anybody, and no part is left over."""
    assert {path.name for path in folder.iterdir()} == {"records.jsonl", "events.jsonl", "run.json", "summary.json", "report.md"}
    for path in folder.glob("*.jsonl"):
        content = path.read_bytes()
        assert content.endswith(b"\n")
        assert all(strict_json(line) for line in content.splitlines())
    for path in folder.glob("*.json"):
        strict_json(path.read_bytes())


def test_runs_of_one_second_and_one_name_keep_apart(serve: Serve, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    server = serve(ANSWER)
    folders = [bench(server, num_prompts=2, concurrency=1, output_dir=None, name=name).folder for name in ("a", "a", "a", "b")]
    assert len({folder.resolve() for folder in folders}) == 4
    assert all(sum(1 for _ in read_log(folder / "records.jsonl")) == 2 for folder in folders)
    assert all(re.fullmatch(r"\d{8}-\d{6}-[ab](-\d+)?", folder.name) for folder in folders)


def test_nothing_is_overwritten_without_a_word(serve: Serve, bench: Bench, tmp_path: Path) -> None:
    """Found before the run, not after it; and a refused run changes nothing."""
    server = serve(ANSWER)
    seed, vllm = tmp_path / "seed.jsonl", tmp_path / "vllm.json"
    seed.write_text("mine")
    vllm.write_text("mine too")
    first = bench(server, num_prompts=2, concurrency=1)
    kept = {path: path.read_bytes() for path in first.folder.iterdir()}
    sent = len(server.requests)
    for flags in (
        {"output_dir": str(first.folder)},
        {"output_file": str(seed)},
        {"save_result": True, "result_dir": str(tmp_path), "result_filename": vllm.name},
    ):
        with pytest.raises(UserError, match=r"overwr|not empty"):
            bench(server, num_prompts=2, concurrency=1, **flags)
    assert len(server.requests) == sent
    assert {path: path.read_bytes() for path in first.folder.iterdir()} == kept
    assert (seed.read_text(), vllm.read_text()) == ("mine", "mine too")
    bench(server, num_prompts=2, concurrency=1, output_file=str(seed), overwrite=True)
    assert len(seed.read_text().splitlines()) == 3


def test_results_are_appended_when_that_is_asked_for(serve: Serve, bench: Bench, tmp_path: Path, strict_json: StrictJson) -> None:
    server = serve(ANSWER)
    for count in (2, 3, 4):
        bench(server, num_prompts=count, concurrency=1, append_result=True, result_dir=str(tmp_path), result_filename="all.json")
    assert [strict_json(line)["completed"] for line in (tmp_path / "all.json").read_text().splitlines()] == [2, 3, 4]


_CJK = sse(chat_event("你好世界" * 20), chat_event(finish_reason="stop"), usage_event(4, 2))


@pytest.mark.parametrize("cut", [1, 2, 31, 32])
def test_a_torn_last_line_costs_one_record(serve: Serve, bench: Bench, command: Command, cut: int) -> None:
    """Torn anywhere, also inside a character of several bytes."""
    result = bench(serve(_CJK), num_prompts=6, concurrency=1, save_text=True)
    log = result.folder / "records.jsonl"
    whole = log.read_bytes()
    torn = whole[:-cut] if cut < 30 else whole[: whole.rindex("世".encode()) + 1 + cut % 3]
    log.write_bytes(torn)
    done = command("report", str(result.folder))
    assert done.returncode == 0, done.stderr
    lost = cut > 1
    assert _summary(result.folder).whole.counts.ok == 6 - lost
    assert ("half-written" in done.stderr) == lost
    assert log.read_bytes() == torn
    assert [record.index for record in read_log(log)] == list(range(6 - lost))


def test_a_damaged_line_in_the_middle_is_named(serve: Serve, bench: Bench, command: Command) -> None:
    result = bench(serve(ANSWER), num_prompts=6, concurrency=1)
    log = result.folder / "records.jsonl"
    lines = log.read_bytes().split(b"\n")
    lines[3] = lines[3][:40]
    log.write_bytes(b"\n".join(lines))
    done = command("report", str(result.folder))
    assert done.returncode == 2
    assert f"{log}:4" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(("workers", "count", "size"), [(4, 400, 20_000), (2, 200, 100_000), (1, 50, 300_000)])
def test_large_records_of_many_workers_never_share_a_line(
    serve: Serve, bench: Bench, strict_json: StrictJson, workers: int, count: int, size: int
) -> None:
    def reply(request: Received) -> Script:
        return sse(chat_event(f"{request.number:06d}" + "x" * size), chat_event(finish_reason="stop"), usage_event(4, 2))

    result = bench(serve(reply), num_prompts=count, concurrency=16, workers=workers, save_text=True)
    lines = (result.folder / "records.jsonl").read_bytes().splitlines()
    records = [strict_json(line) for line in lines[1:]]
    assert [record["index"] for record in records] == list(range(count))
    assert len({record["attempts"][0]["text"] for record in records}) == count
    assert all(len(record["attempts"][0]["text"]) == size + 6 for record in records)
    _assert_whole(result.folder, strict_json)


class Stopped:
    """A run in a process of its own that gets signals once requests are on their way."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "loadcell", *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def send(self, *signals: int, after_s: float = 0.0, apart_s: float = 0.1) -> float:
        """Send them and wait for the end; seconds from the first to the end."""
        pause = threading.Event()
        pause.wait(after_s)
        began_ns = MonotonicClock().now_ns()
        for at, number in enumerate(signals):
            if at:
                pause.wait(apart_s)
            self.process.send_signal(number)
        self.out, self.err = self.process.communicate(timeout=30)
        return (MonotonicClock().now_ns() - began_ns) / 1e9


@pytest.fixture
def busy() -> Any:
    """(server, event): the event is set once thirty answers have been asked for."""
    enough = threading.Event()
    count = 0
    lock = threading.Lock()

    def reply(request: Received) -> Script:
        nonlocal count
        with lock:
            count += request.method == "POST"
            if count >= 30:
                enough.set()
        return chat_stream("a", "b", first_ms=40)

    with ScriptedServer(by_path({"/v1/chat/completions": reply})) as server:
        yield server, enough


@pytest.mark.parametrize(
    ("signals", "code", "reason", "workers"),
    [
        ([signal.SIGINT], 130, "interrupt", 1),
        ([signal.SIGTERM], 143, "terminated", 2),
        ([signal.SIGINT, signal.SIGINT], 130, "interrupt", 2),
        ([signal.SIGTERM, signal.SIGTERM, signal.SIGTERM], 143, "terminated", 1),
        ([signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGINT], 130, "interrupt", 1),
    ],
)
def test_a_run_stopped_by_hand_keeps_its_statistics(
    busy: Any, tmp_path: Path, strict_json: StrictJson, signals: list[int], code: int, reason: str, workers: int
) -> None:
    server, enough = busy
    run = Stopped(
        tmp_path, _words(server, "--duration", "60", "--concurrency", "4", "--workers", str(workers), "--output-file", "seed.jsonl")
    )
    assert enough.wait(20)
    took_s = run.send(*signals)
    assert run.process.returncode == code, run.err
    assert took_s < 10
    assert "Traceback" not in run.err
    summary = _summary(tmp_path / "run")
    assert summary.partial
    assert summary.stop_reason == reason
    assert summary.stop_signal == signals[0]
    assert summary.whole.counts.ok >= 20
    assert summary.whole.latency.ttft.n == summary.whole.counts.ok
    report = (tmp_path / "run" / "report.md").read_text()
    assert "PARTIAL" in report
    assert signal.Signals(signals[0]).name in report
    _assert_whole(tmp_path / "run", strict_json)
    lines = [strict_json(line) for line in (tmp_path / "seed.jsonl").read_text().splitlines()]
    assert lines[-1]["completed"] == summary.whole.counts.ok
    assert "report.md" in run.out


@pytest.mark.slow
def test_a_second_signal_does_not_wait_for_what_is_in_flight(tmp_path: Path, strict_json: StrictJson) -> None:
    """Answers that would take a minute: the first signal gives them five seconds, the second none."""
    asked = threading.Event()

    def reply(request: Received) -> Script:
        if request.method == "POST":
            asked.set()
        return chat_stream(*(["t "] * 600), first_ms=20, every_ms=100)

    with ScriptedServer(reply) as server:
        run = Stopped(tmp_path, _words(server, "--num-prompts", "4", "--concurrency", "4"))
        assert asked.wait(20)
        took_s = run.send(signal.SIGINT, signal.SIGINT, after_s=0.5)
    assert run.process.returncode == 130, run.err
    assert took_s < 3.5
    summary = _summary(tmp_path / "run")
    assert summary.whole.counts.by_outcome == {"cancelled": 4}
    _assert_whole(tmp_path / "run", strict_json)


@pytest.mark.slow
def test_a_signal_before_the_first_request_leaves_nothing_behind(tmp_path: Path) -> None:
    asked = threading.Event()

    def reply(request: Received) -> Script:
        asked.set()
        return [(60_000.0, b"")]

    with ScriptedServer(reply) as server:
        run = Stopped(tmp_path, _words(server, "--num-prompts", "4", "--ready-check-timeout-sec", "60"))
        assert asked.wait(20)
        took_s = run.send(signal.SIGINT)
    assert run.process.returncode == 130
    assert took_s < 8
    assert "Traceback" not in run.err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_was_killed_can_still_be_reported(busy: Any, tmp_path: Path, command: Command, workers: int) -> None:
    server, enough = busy
    run = Stopped(tmp_path, _words(server, "--duration", "60", "--concurrency", "4", "--workers", str(workers), "--save-text"))
    assert enough.wait(20)
    run.send(signal.SIGKILL, after_s=0.3)
    assert run.process.returncode == -signal.SIGKILL
    parts = sorted((tmp_path / "run").glob("records.part-*.jsonl"))
    assert len(parts) == workers
    done = command("report", "run")
    assert done.returncode == 0, done.stderr
    assert "did not end by itself" in done.stderr
    summary = _summary(tmp_path / "run")
    assert summary.partial
    assert summary.whole.counts.ok >= 25
    assert sorted((tmp_path / "run").glob("records.part-*.jsonl")) == parts


def test_no_process_outlives_a_killed_run(busy: Any, tmp_path: Path) -> None:
    server, enough = busy
    run = Stopped(tmp_path, _words(server, "--duration", "60", "--concurrency", "4", "--workers", "2"))
    assert enough.wait(20)
    children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
    assert len(children) == 2
    run.send(signal.SIGKILL)
    clock = MonotonicClock()
    give_up_ns = clock.now_ns() + 5_000_000_000
    while any(_alive(pid) for pid in children) and clock.now_ns() < give_up_ns:
        clock.sleep_until(clock.now_ns() + 20_000_000)
    assert not any(_alive(pid) for pid in children)


def _alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_worker_that_is_killed_leaves_a_partial_result(busy: Any, tmp_path: Path, strict_json: StrictJson) -> None:
    server, enough = busy
    run = Stopped(tmp_path, _words(server, "--duration", "60", "--concurrency", "4", "--workers", "2"))
    assert enough.wait(20)
    worker = int(Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()[0])
    os.kill(worker, signal.SIGKILL)
    run.out, run.err = run.process.communicate(timeout=30)
    summary = _summary(tmp_path / "run")
    assert summary.partial
    assert summary.stop_reason == "worker_lost"
    assert summary.lost_workers == [0]
    assert summary.whole.counts.ok >= 20
    assert "worker 0" in (tmp_path / "run" / "report.md").read_text()
    assert run.process.returncode == 1
    _assert_whole(tmp_path / "run", strict_json)


def test_a_folder_that_cannot_be_written_is_told_before_any_request(serve: Serve, bench: Bench, tmp_path: Path) -> None:
    server = serve(ANSWER)
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="--output-dir"):
            bench(server, num_prompts=2, output_dir=str(folder))
    assert not any(request.method == "POST" for request in server.requests)


def test_records_are_on_the_disk_while_the_run_goes_on(busy: Any, tmp_path: Path) -> None:
    server, enough = busy
    run = Stopped(tmp_path, _words(server, "--duration", "60", "--concurrency", "4"))
    assert enough.wait(20)
    clock = MonotonicClock()
    give_up_ns = clock.now_ns() + 5_000_000_000
    part, lines = tmp_path / "run" / "records.part-0.jsonl", 0
    while lines < 20 and clock.now_ns() < give_up_ns:
        lines = part.read_bytes().count(b"\n")
        clock.sleep_until(clock.now_ns() + 20_000_000)
    assert lines >= 20
    assert json.loads(part.read_bytes().splitlines()[0])["schema"] == "loadcell.records/1"
    run.send(signal.SIGINT)


def test_a_run_that_is_refused_late_leaves_no_folder_of_runs(command: Command, tmp_path: Path) -> None:
    done = command("bench", "--base-url", "http://127.0.0.1:9", "--model", "m", "--tokenizer", "nowhere.json")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_worker_that_is_stopped_for_good_does_not_hold_the_run_for_good(busy: Any, tmp_path: Path, strict_json: StrictJson) -> None:
    server, enough = busy
    run = Stopped(tmp_path, _words(server, "--duration", "2", "--drain-timeout", "0.5", "--concurrency", "4", "--workers", "2"))
    assert enough.wait(20)
    worker = int(Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()[0])
    os.kill(worker, signal.SIGSTOP)
    run.out, run.err = run.process.communicate(timeout=50)
    summary = _summary(tmp_path / "run")
    assert (summary.partial, summary.stop_reason, summary.lost_workers) == (True, "worker_lost", [0])
    assert run.process.returncode == 1
    _assert_whole(tmp_path / "run", strict_json)
