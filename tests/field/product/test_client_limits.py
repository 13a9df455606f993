"""Limits of the client itself: slots, connections, descriptors, a core that is too busy. None of them may pass for the server's."""

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest

from loadcell.api import BenchResult
from loadcell.metrics.summary import Summary
from loadcell.testing.replies import chat_event, chat_stream, sse, usage_event
from loadcell.testing.scripted_server import ScriptedServer

Serve = Callable[..., ScriptedServer]
Bench = Callable[..., BenchResult]


@pytest.mark.parametrize(("asked", "workers"), [(110, 1), (300, 1), (300, 2)])
def test_as_many_requests_are_in_flight_as_were_asked_for(serve: Serve, bench: Bench, asked: int, workers: int) -> None:
    server = serve(chat_stream("a", "b", first_ms=700))
    result = bench(server, concurrency=asked, num_prompts=asked, workers=workers)
    assert server.peak_requests == asked
    assert result.summary.whole.concurrency.max == asked
    assert result.summary.whole.counts.ok == asked


def test_without_a_limit_all_requests_are_in_flight_at_once(serve: Serve, bench: Bench) -> None:
    server = serve(chat_stream("a", "b", first_ms=700))
    result = bench(server, num_prompts=180)
    assert server.peak_requests == 180
    assert result.summary.whole.concurrency.cap is None
    assert "unlimited" in result.report.read_text()


@pytest.mark.parametrize(("cap", "workers"), [(1, 1), (2, 1), (2, 2)])
def test_waiting_for_a_slot_counts_from_the_schedule(serve: Serve, bench: Bench, cap: int, workers: int) -> None:
    """Twice as many arrivals come as the slots can serve: the k-th waits k half service times."""
    server = serve(chat_stream("a", first_ms=100))
    result = bench(server, request_rate=20 * cap, arrival="constant", concurrency=cap, num_prompts=12 * cap, workers=workers, output_len=1)
    latency = result.summary.whole.latency
    assert server.peak_requests == cap
    assert latency.e2e.mean_ms == pytest.approx(102, abs=25)
    assert latency.scheduled_e2e.mean_ms == pytest.approx(102 + 50 * 5.5, rel=0.25)
    assert latency.queue_delay.mean_ms == pytest.approx(50 * 5.5, rel=0.3)
    assert result.summary.whole.rates.target_per_s == 20 * cap
    achieved = result.summary.whole.rates.achieved_per_s
    assert achieved is not None
    assert achieved == pytest.approx(10 * cap, rel=0.2)
    assert "capped" in {reason.rule for reason in result.summary.reasons}


def test_a_rate_that_the_cap_cannot_carry_is_never_called_valid(serve: Serve, bench: Bench) -> None:
    server = serve(chat_stream("a", first_ms=100))
    result = bench(server, request_rate=200, arrival="constant", concurrency=5, duration=1.0, output_len=1, strict=True)
    counts = result.summary.whole.counts
    assert counts.offered == pytest.approx(200, abs=2)
    assert counts.sent == pytest.approx(50, abs=12)
    assert counts.dropped == counts.offered - counts.sent
    assert counts.by_outcome.get("cancelled", 0) >= counts.dropped
    assert result.summary.verdict == "suspect"
    assert result.exit_code == 1


@pytest.mark.slow
def test_a_client_out_of_descriptors_makes_the_run_invalid(serve: Serve, tmp_path: Path) -> None:
    """An open loop has no bound that could be checked before; what it then lacks is a limit of the client, not a failure of the server."""
    server = serve(chat_stream("a", first_ms=3000))
    done = _limited(tmp_path, 256, 256, [*_usual(server), "--request-rate", "300", "--arrival", "constant", "--num-prompts", "300"])
    summary = _summary(tmp_path)
    assert done.returncode == 1, done.stderr
    assert summary.verdict == "invalid"
    assert "imposed_limit" in {reason.rule for reason in summary.reasons}
    assert "ulimit" in " ".join(summary.errors.values())
    assert set(summary.whole.counts.by_outcome) == {"ok", "no_local_port"}
    assert not any(endpoint.ejections for endpoint in summary.endpoints)


def test_the_soft_limit_of_descriptors_is_raised(serve: Serve, tmp_path: Path) -> None:
    server = serve(chat_stream("a", "b", first_ms=600))
    done = _limited(tmp_path, 128, 2048, [*_usual(server), "--concurrency", "300", "--num-prompts", "300", "--output-len", "2"])
    assert done.returncode == 0, done.stderr
    assert server.peak_requests == 300
    assert _summary(tmp_path).whole.counts.by_outcome == {"ok": 300}


@pytest.mark.parametrize("load", [["--concurrency", "300"], ["--num-prompts", "300"], ["--request-rate", "5", "--concurrency", "300"]])
def test_too_low_a_hard_limit_is_refused_before_anything_is_sent(serve: Serve, tmp_path: Path, load: list[str]) -> None:
    server = serve(chat_stream("a"))
    done = _limited(tmp_path, 128, 256, [*_usual(server), *load])
    assert done.returncode in (1, 2)
    assert "descriptors" in done.stderr
    assert "256" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert server.requests == []
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_client_that_is_kept_from_running_says_so(serve: Serve, tmp_path: Path) -> None:
    """Its worker is frozen for 80 ms again and again: answers wait for it, and the figures must not pass for the server's."""
    server = serve(chat_stream("a", "b", "c", first_ms=5, every_ms=5))
    words = [*_usual(server), "--concurrency", "4", "--duration", "2.5", "--output-len", "3"]
    process = subprocess.Popen([sys.executable, "-m", "loadcell", *words], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    stop, pause = threading.Event(), threading.Event()

    def freeze() -> None:
        while not stop.is_set() and process.poll() is None:
            for worker in psutil.Process(process.pid).children() if process.poll() is None and server.peak_requests else []:
                os.kill(worker.pid, signal.SIGSTOP)
                pause.wait(0.08)
                os.kill(worker.pid, signal.SIGCONT)
            pause.wait(0.1)

    freezer = threading.Thread(target=freeze)
    freezer.start()
    try:
        _, errors = process.communicate(timeout=30)
    finally:
        stop.set()
        freezer.join()
    summary = _summary(tmp_path)
    assert process.returncode == 1, errors
    assert summary.client.lag_p99_ms is not None
    assert summary.client.lag_p99_ms > 40
    assert "client_lag" in {reason.rule for reason in summary.reasons}
    assert "client-limited" in (tmp_path / "run" / "report.md").read_text()


def test_lag_percentiles_of_the_loop_stand_in_every_report(serve: Serve, bench: Bench) -> None:
    result = bench(serve(chat_stream("a", "b", first_ms=20)), concurrency=4, num_prompts=40, workers=2)
    assert [worker.worker for worker in result.summary.client.workers] == [0, 1]
    for worker in result.summary.client.workers:
        assert worker.lag_p50_us is not None
        assert worker.lag_p99_us is not None
        assert worker.lag_max_us is not None
        assert worker.lag_p50_us <= worker.lag_p99_us <= worker.lag_max_us
    assert "loop lag p50" in result.report.read_text()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_answers(serve: Serve, tmp_path: Path) -> None:
    """Resident size of every process once a quarter of the answers have come, and at the end. Answers are on the disk, not in memory."""
    sizes: list[tuple[int, dict[int, int]]] = []
    answer = sse(chat_event("x" * 2048), chat_event(finish_reason="stop"), usage_event(4, 1))

    def look(request: object) -> object:
        if len(server.requests) in (2000, 7900):
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
            sizes.append((len(server.requests), {one.pid: one.memory_info().rss for one in family}))
        return answer

    server = serve(look)
    words = [*_usual(server), "--concurrency", "8", "--num-prompts", "8000", "--save-text", "--quiet", "--output-len", "1"]
    process = subprocess.Popen([sys.executable, "-m", "loadcell", *words], cwd=tmp_path)
    assert process.wait(timeout=100) in (0, 1)
    (_, early), (_, late) = sizes[0], sizes[-1]
    for pid, size in early.items():
        assert late[pid] <= 1.2 * size
    assert (tmp_path / "run" / "records.jsonl").stat().st_size > 8000 * 2048


def _usual(server: ScriptedServer) -> list[str]:
    words = ["--base-url", server.base_url, "--model", "m", "--tokenizer", "words", "--input-len", "8", "--output-dir", "run", "--quiet"]
    return ["bench", *words, "--no-progress"]


def _limited(folder: Path, soft: int, hard: int, words: list[str]) -> "subprocess.CompletedProcess[str]":
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    return subprocess.run(
        [sys.executable, "-m", "loadcell", *words],
        cwd=folder,
        preexec_fn=lower,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _summary(folder: Path) -> Summary:
    return msgspec.json.decode((folder / "run" / "summary.json").read_bytes(), type=Summary)
