"""A real vLLM server as a process of ours: started in a group of its own, waited for, asked, ended whatever happens."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MODEL = "tiny"
MAX_MODEL_LEN = 4096
# With bfloat16 vLLM's attention uses AMX tiles: on a busy virtual machine one worker in a dozen died of SIGILL at its first request.
DTYPE = "float32"
READY_S = 600  # on two busy cores a start takes minutes
_TERM_S = 30

# Ends with the tests even where they are killed (PR_SET_PDEATHSIG: SIGTERM, on which vLLM ends its whole tree). Leaves the client
# a core of its own, as it has where engines run on machines of their own: on two cores full of engines it is late by 30 to 100 ms.
_LAUNCH = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
os.nice(10)
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, cores[:-1] or cores)
os.execv(sys.argv[1], sys.argv[1:])
"""
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


class Engine:
    """One server on `port`; its output goes to `log`, over all its starts."""

    def __init__(self, vllm: Path, model: Path, port: int, log: Path) -> None:
        self.vllm, self.model, self.port, self.log = vllm, model, port, log
        self._words = [str(vllm), "serve", str(model), "--load-format", "dummy", "--served-model-name", MODEL, "--host", "127.0.0.1"]
        self._words += ["--port", str(port), "--max-model-len", str(MAX_MODEL_LEN), "--enforce-eager", "--dtype", DTYPE]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"http://{self.name}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _LAUNCH, *self._words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | ENVIRONMENT,
                start_new_session=True,
            )

    def wait_ready(self, deadline: float) -> None:
        """Return when it has generated a token: `/health` says 200 before the first request can show that the engine works."""
        self.wait_healthy(deadline)
        self.ask("POST", "/v1/completions", {"model": MODEL, "prompt": "a", "max_tokens": 1})

    def wait_healthy(self, deadline: float) -> None:
        while not self._healthy():
            if not self.running:
                raise RuntimeError(f"vLLM on port {self.port} ended before it was ready:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"vLLM on port {self.port} was not ready after {READY_S} s:\n{self.tail()}")
            time.sleep(0.5)

    def kill(self) -> None:
        """SIGKILL of the whole group: the machine under it is gone."""
        if self._process is not None:
            _signal_group(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """As an operator would; what is left after that is killed."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_TERM_S)
        except subprocess.TimeoutExpired:
            pass  # the kill below is for this
        finally:
            self.kill()

    def ask(self, method: str, path: str, body: Any = None, timeout_s: float = 60) -> str:
        """The body of a 200; anything else raises."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read().decode()
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeError(f"{method} {path} answered {response.status}: {answer}")
        return answer

    def counters(self) -> dict[str, float]:
        """vLLM's own figures: every sample of `/metrics` by its name, summed over labels."""
        sums: dict[str, float] = {}
        for line in self.ask("GET", "/metrics").splitlines():
            if line and not line.startswith("#"):
                name, value = line.partition("{")[0].split(" ")[0], line.rsplit(" ", 1)[1]
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def tail(self, lines: int = 40) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join([f"({self.log})", *text.splitlines()[-lines:]])

    def _healthy(self) -> bool:
        try:
            self.ask("GET", "/health", timeout_s=5)
        except (OSError, http.client.HTTPException, RuntimeError):
            return False
        return True


def free_ports(count: int) -> list[int]:
    """Held all at once, so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def start_all(engines: Iterable[Engine]) -> None:
    """Start those that do not run, together, and wait for them."""
    missing = [engine for engine in engines if not engine.running]
    for engine in missing:
        engine.start()
    deadline = ready_by()
    for engine in missing:
        engine.wait_ready(deadline)


def ready_by() -> float:
    return time.monotonic() + READY_S


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of it has ended already
        os.killpg(group, number)
