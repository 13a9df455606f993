"""What the client sustains here: `loadcell bench` in a process of its own against the replay server -> `Capability`.

The measured client is the whole product: its start, its parsing and the writing of records included.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
from msgspec import Struct

from loadcell.errors import EnvironmentFailure
from loadcell.recordlog import read_log
from loadcell.records import RequestRecord
from loadcell.sim.replay import ReplayFacts, ReplaySpec

# Each phase lasts two to four seconds; all of it stays under twenty.
STEADY_STREAMS: Final = 256
FULL_STREAMS: Final = 2048
RATE: Final = 1000
_TOKENS: Final = 100
_ITL_MS: Final = 20.0
_RUN_LIMIT_S: Final = 60.0
_FILES_IN_RESERVE: Final = 64


class Capability(Struct, frozen=True):
    """`start_s`: process made -> first request read by the server. `cpu_us_per_token`: user+system time of the client's process
    tree at `steady_streams` streams, its start subtracted. `itl_error`: |gap seen − gap sent|. `lag`: sent − scheduled at
    1,000 requests/s. `tokens_per_s` was delivered to one worker at `full_streams` streams while `offered_tokens_per_s` was sent, using
    `core_share` of one CPU; `coalesced_share` of its events shared a read with a later one. `server_limited`: the replay server could
    not keep its own pace, so the client may sustain more.
    """

    start_s: float
    cpu_us_per_token: float
    steady_streams: int
    itl_error_p50_us: float
    itl_error_p99_us: float
    lag_p50_ms: float
    lag_p99_ms: float
    full_streams: int
    offered_tokens_per_s: float
    tokens_per_s: float
    core_share: float
    coalesced_share: float
    server_limited: bool

    @property
    def sustainable_tokens_per_s(self) -> float:
        """Tokens/s of one worker that uses a whole CPU, from the CPU time that a token took in the full phase."""
        return self.tokens_per_s / max(self.core_share, 1e-9)


class _Replayed(Struct, frozen=True):
    """One bench against one replay server. `sent`: request number -> (received_ns, [sent_ns]); stamps of CLOCK_MONOTONIC."""

    started_ns: int
    cpu_s: float
    origin_ns: int
    records: list[RequestRecord]
    sent: dict[int, tuple[int, Any]]
    facts: ReplayFacts


def measure(command: Sequence[str] = (sys.executable, "-m", "loadcell"), file_limit: int = 4096) -> Capability:
    """Runs four short loads. Raises EnvironmentFailure when one of them does not come to its end."""
    import numpy as np

    room = max(1, file_limit - _FILES_IN_RESERVE)
    steady_streams, full_streams = min(STEADY_STREAMS, room), min(FULL_STREAMS, room)
    with TemporaryDirectory(prefix="loadcell-doctor-") as name, _server_apart() as server_cpu:
        work = Path(name)

        def load(ttft_ms: float, itl_ms: float, tokens: int, requests: int, *pace: str) -> _Replayed:
            return _bench(command, work, ReplaySpec(ttft_ms=ttft_ms, itl_ms=itl_ms, tokens=tokens, cpu=server_cpu), requests, pace)

        tiny = load(1, 1, 2, 1, "--concurrency", "1")
        steady = load(20, _ITL_MS, _TOKENS, 2 * steady_streams, "--concurrency", str(steady_streams))
        paced = load(10, 5, 20, 2 * RATE, "--request-rate", str(RATE), "--arrival", "constant")
        full = load(20, _ITL_MS, _TOKENS, full_streams, "--concurrency", str(full_streams))

    errors_us = _itl_errors_us(steady)
    lags_ms = [(record.attempts[-1].sent_ns or 0) / 1e6 - record.scheduled_ns / 1e6 for record in paced.records]
    arrivals_us = np.concatenate([np.cumsum(record.attempts[-1].chunk_us) for record in full.records])
    low, high = np.percentile(arrivals_us, [10, 90])
    seconds = (arrivals_us.max() - arrivals_us.min()) / 1e6
    tokens_per_s = float(np.count_nonzero((arrivals_us >= low) & (arrivals_us < high)) / (high - low) * 1e6)
    full_us_per_token = (full.cpu_s - tiny.cpu_s) / len(arrivals_us) * 1e6
    return Capability(
        start_s=(tiny.sent[1][0] - tiny.started_ns) / 1e9,
        cpu_us_per_token=(steady.cpu_s - tiny.cpu_s) / (len(steady.records) * _TOKENS) * 1e6,
        steady_streams=steady_streams,
        itl_error_p50_us=float(np.percentile(errors_us, 50)),
        itl_error_p99_us=float(np.percentile(errors_us, 99)),
        lag_p50_ms=float(np.percentile(lags_ms, 50)),
        lag_p99_ms=float(np.percentile(lags_ms, 99)),
        full_streams=full_streams,
        offered_tokens_per_s=full_streams / _ITL_MS * 1e3,
        tokens_per_s=tokens_per_s,
        core_share=min(1.0, full_us_per_token * tokens_per_s / 1e6),
        coalesced_share=sum(record.attempts[-1].coalesced for record in full.records) / len(arrivals_us),
        server_limited=full.facts.late_mean_us > _ITL_MS * 1e3 / 4 or seconds > 1.2 * _TOKENS * _ITL_MS / 1e3,
    )


def _itl_errors_us(run: _Replayed) -> Any:
    import numpy as np

    errors = []
    for record in run.records:
        attempt = record.attempts[-1]
        _, sent_ns = run.sent[attempt.input_tokens or 0]
        if len(attempt.chunk_us) == len(sent_ns):
            errors.append(np.abs(np.array(attempt.chunk_us[1:]) - np.diff(sent_ns) / 1e3))
    if not errors:
        raise EnvironmentFailure("no request of the measuring load could be compared with the replay server's log")
    return np.concatenate(errors)


def _bench(command: Sequence[str], work: Path, spec: ReplaySpec, requests: int, pace: Sequence[str]) -> _Replayed:
    log, folder = work / "sent.bin", work / f"run-{time.monotonic_ns()}"
    with _replay_server(msgspec.structs.replace(spec, log=str(log))) as (port, finish):
        words = [*command, "bench", "--base-url", f"http://127.0.0.1:{port}", "--model", "replay", "--dataset-name", "random"]
        words += ["--input-len", "20", "--output-len", str(spec.tokens), "--tokenizer", "words", "--num-prompts", str(requests), *pace]
        words += ["--disable-tqdm", "--health-check-interval", "0", "--output-dir", str(folder)]
        started_ns = time.monotonic_ns()
        cpu_s = _run(words, folder / "records.jsonl")
        facts = finish()
    records_log = read_log(folder / "records.jsonl")
    records = [record for record in records_log if record.outcome == "ok"]
    if len(records) < 0.99 * requests:
        raise EnvironmentFailure(f"only {len(records)} of {requests} requests to the replay server on 127.0.0.1 were answered")
    return _Replayed(started_ns, cpu_s, records_log.header.origin.monotonic_ns, records, _read_sent(log), facts)


def _run(words: Sequence[str], result: Path) -> float:
    """Runs one bench to its end; user+system seconds of it and of the children it waited for.

    Exit code 1 may be an invalid verdict, which is no obstacle here; a missing `result` is.
    """
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True) as process:
        before = os.times()
        try:
            _, errors = process.communicate(timeout=_RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise EnvironmentFailure(
                f"the measuring load did not end within {_RUN_LIMIT_S:.0f} s: this machine is too busy to be judged"
            ) from None
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        after = os.times()
    if process.returncode not in (0, 1) or not result.exists():
        last = (errors.decode(errors="replace").strip().splitlines() or [""])[-1]
        raise EnvironmentFailure(f"the measuring load ended with {process.returncode}: {last}")
    return after.children_user - before.children_user + after.children_system - before.children_system


@contextmanager
def _replay_server(spec: ReplaySpec) -> Iterator[tuple[int, Any]]:
    """Starts the server in a process of its own; yields its port and the function that ends it and returns its facts."""
    words = [sys.executable, "-m", "loadcell.sim.replay", msgspec.json.encode(spec).decode()]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def finish() -> ReplayFacts:
            out, _ = process.communicate(timeout=_RUN_LIMIT_S)
            return msgspec.json.decode(out, type=ReplayFacts)

        try:
            port = process.stdout.readline()
            if not port:
                raise EnvironmentFailure("the replay server did not start")
            yield int(port), finish
        finally:
            if process.poll() is None:
                process.kill()


@contextmanager
def _server_apart() -> Iterator[int | None]:
    """Keeps one allowed CPU for the server: this process, and so its children, leave it; the server moves there. Null with one CPU."""
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        yield None
        return
    server_cpu = min(allowed)
    os.sched_setaffinity(0, allowed - {server_cpu})
    try:
        yield server_cpu
    finally:
        os.sched_setaffinity(0, allowed)


def _read_sent(path: Path) -> dict[int, tuple[int, Any]]:
    import numpy as np

    words, at = np.fromfile(path, dtype=np.int64), 0
    sent: dict[int, tuple[int, Any]] = {}
    while at < len(words):
        count = int(words[at + 2])
        sent[int(words[at])] = (int(words[at + 1]), words[at + 3 : at + 3 + count])
        at += 3 + count
    return sent
