"""The bench of the benchmarks: one server on core 0, one client at a time on core 1, and what each run cost.

Knows processes and their resource usage; knows nothing of what is asked of the clients.
"""

import json
import os
import platform
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SERVER_CORE, CLIENT_CORE = 0, 1


class LabError(Exception):
    """A measurement cannot be taken; the text says which command failed and how."""


@dataclass(frozen=True)
class Cost:
    """What one run of a client took: seconds of user+system time of its whole process tree, and its wall time.

    `started_ns` is CLOCK_MONOTONIC just before the process was made. `peak_rss_mb` is the highest sum over the tree when it was
    sampled, else null.
    """

    cpu_s: float
    wall_s: float
    started_ns: int
    stdout: str = field(repr=False)
    peak_rss_mb: float | None = None


class Server:
    """The benchmark server under control of its /config."""

    def __init__(self, port: int, truth: Path) -> None:
        self.port = port
        self.truth = truth
        self.base_url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> dict[str, Any]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.base_url + path, timeout=30) as answer:
            return dict(json.load(answer))

    def prepare(self, **settings: float) -> None:
        """Sets every key that a measurement may have changed, and forgets what was counted."""
        keys = {"ttft": 50, "itl": 20, "per_event": 1, "per_send": 1, "burst": 0, "sync": 0, "chunked": 1, "log": 0, "tag": 0} | settings
        self.get("/config?" + "&".join(f"{key}={value}" for key, value in keys.items()))
        self.get("/reset")

    def dump(self) -> Path:
        self.get("/dump")
        return self.truth


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def server(work: Path) -> Iterator[Server]:
    """Starts the C server on its core and a free port, and stops it in the end."""
    port = free_port()
    binary = HERE / "bin" / "sse_server"
    if not binary.exists():
        raise LabError(f"{binary} is missing: run `make -C {HERE}` first")
    process = subprocess.Popen(pinned(SERVER_CORE, [str(binary), "--port", str(port), "--log", str(work / "truth.bin")]))
    running = Server(port, work / "truth.bin")
    try:
        for _ in range(100):
            if process.poll() is not None:
                raise LabError(f"the benchmark server ended at once with {process.returncode}")
            try:
                answering = running.get("/stats")["pid"]
            except OSError:
                time.sleep(0.02)
                continue
            if answering != process.pid:
                raise LabError(f"process {answering}, not ours, answers on port {port}")
            break
        yield running
    finally:
        process.terminate()
        process.wait()


def pinned(core: int, command: Sequence[str]) -> list[str]:
    return ["taskset", "-c", str(core), *command] if (os.cpu_count() or 1) > 1 else list(command)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """`count` processes that do nothing but burn the client's core."""
    loops = [subprocess.Popen(pinned(CLIENT_CORE, [sys.executable, "-c", "while True: pass"])) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_client(command: Sequence[str], *, sample_rss: bool = False, accept: Sequence[int] = (0,)) -> Cost:
    """Runs one client on its core and waits; its children's time is included once it has waited for them."""
    started_ns = time.monotonic_ns()
    process = subprocess.Popen(pinned(CLIENT_CORE, command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    texts: dict[str, bytes] = {}
    readers = [threading.Thread(target=lambda n=name, p=pipe: texts.__setitem__(n, p.read())) for name, pipe in _pipes(process)]
    peak = _PeakRss(process.pid) if sample_rss else None
    for thread in [*readers, *([peak] if peak else [])]:
        thread.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    wall_s = (time.monotonic_ns() - started_ns) / 1e9
    process.returncode = os.waitstatus_to_exitcode(status)
    for thread in readers:
        thread.join()
    if peak:
        peak.stop()
    if process.returncode not in accept:
        tail = (texts["stderr"] or texts["stdout"]).decode(errors="replace").strip().splitlines()[-15:]
        raise LabError(f"{shlex.join(command)} ended with {process.returncode}:\n" + "\n".join(tail))
    return Cost(
        usage.ru_utime + usage.ru_stime, wall_s, started_ns, texts["stdout"].decode(errors="replace"), peak.peak_mb if peak else None
    )


def _pipes(process: "subprocess.Popen[bytes]") -> list[tuple[str, Any]]:
    return [("stdout", process.stdout), ("stderr", process.stderr)]


class _PeakRss(threading.Thread):
    """Sums the proportional set size of a process and its descendants ten times a second and keeps the highest."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._stopped = threading.Event()
        self.peak_mb = 0.0

    def run(self) -> None:
        while not self._stopped.wait(0.1):
            self.peak_mb = max(self.peak_mb, sum(map(_pss_mb, _descendants(self._pid))))

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def _descendants(pid: int) -> list[int]:
    found, pending = [], [pid]
    while pending:
        current = pending.pop()
        found.append(current)
        try:
            for task in Path(f"/proc/{current}/task").iterdir():
                pending.extend(int(child) for child in (task / "children").read_text().split())
        except OSError:
            continue  # it ended meanwhile
    return found


def _pss_mb(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass  # it ended meanwhile
    return 0.0


def alternate(rounds: int, takes: dict[str, Callable[[], dict[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """Runs A B C A B C …, so that a drift of the machine falls on all alike; returns name -> figure -> samples."""
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in takes}
    for i in range(rounds):
        for name, take in takes.items():
            figures = take()
            shown = "  ".join(f"{key}={value:.4g}" for key, value in figures.items())
            print(f"  {i + 1}/{rounds} {name}: {shown}", file=sys.stderr, flush=True)
            for key, value in figures.items():
                samples[name].setdefault(key, []).append(value)
    return samples


def medians(samples: dict[str, list[float]]) -> dict[str, float]:
    return {key: statistics.median(values) for key, values in samples.items()}


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def host_facts() -> dict[str, Any]:
    """What a reader needs to know of the machine before comparing absolute figures."""
    cpu = next(
        (line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), None
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }


def save(name: str, parameters: dict[str, Any], samples: Any) -> Path:
    """Writes one result with everything it was made of; never over an earlier one."""
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}.json"
    with path.open("x") as file:
        json.dump({"benchmark": name, "host": host_facts(), "parameters": parameters, "samples": samples}, file, indent=1)
    return path
