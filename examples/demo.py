"""Four simulated replicas on free ports, loaded through round robin for about 20 s. `make demo` runs it.

The client gets a core of its own, as on a real test bench: beside busy engines it would be late, and loadcell would say so.
The replicas stop when their standard input closes, so that none outlives this script, however it ends.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

REPLICAS = 4
START_S = 30.0
LOADCELL = [sys.executable, "-m", "loadcell"]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on: all are held at once, so that they differ."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def split_cpus() -> tuple[str, str]:
    """CPUs for the replicas, and one for the client, as taskset takes them. Empty where there is only one."""
    *engines, client = sorted(os.sched_getaffinity(0))
    return (",".join(map(str, engines)), str(client)) if engines and shutil.which("taskset") else ("", "")


def pinned(cpus: str) -> list[str]:
    return ["taskset", "-c", cpus] if cpus else []


@contextmanager
def replica(port: int, seed: int, cpus: str) -> Iterator[subprocess.Popen[bytes]]:
    words = ["simulate", "--port", str(port), "--seed", str(seed), "--profile", "h100:llama-3.1-8b", "--exit-on-stdin-eof"]
    process = subprocess.Popen([*pinned(cpus), *LOADCELL, *words], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10)


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise SystemExit(f"the replica on port {port} did not start")


def main() -> int:
    ports = free_ports(REPLICAS)
    engines, client = split_cpus()
    with ExitStack() as running:
        replicas = [running.enter_context(replica(port, seed, engines)) for seed, port in enumerate(ports)]
        for process, port in zip(replicas, ports, strict=True):
            wait_until_ready(process, port)
        listed = ",".join(map(str, ports))
        load = "--concurrency 32 --input-len 512 --output-len 128 --duration 15 --warmup-requests 32 --lb-strategy round_robin --name demo"
        words = f"bench --host 127.0.0.1 --ports {listed} {load}"
        print(f"$ {' '.join([*pinned(client), 'loadcell', words])}\n", flush=True)
        return subprocess.run([*pinned(client), *LOADCELL, *words.split()], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
