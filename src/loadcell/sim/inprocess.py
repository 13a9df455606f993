"""An engine for tests and notebooks: `with running_engine(SimSpec(...)) as engine: engine.base_url`.

It is a process of its own, as a real one is, started from this interpreter; it ends with the block, and by itself when its owner dies.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from msgspec.structs import replace

import loadcell.sim
from loadcell.clock import NS_PER_S, MonotonicClock
from loadcell.errors import EnvironmentFailure
from loadcell.sim.accesslog import AccessLine, read_access_log
from loadcell.sim.flags import argv_from_spec
from loadcell.sim.spec import SimSpec

_PATIENCE_NS: Final = 2 * NS_PER_S
_LOOK_AGAIN_NS: Final = 10_000_000


class RunningEngine:
    """One started engine. `base_url` ends with /v1; `root_url` does not."""

    def __init__(self, process: subprocess.Popen[bytes], base_url: str, log: Path) -> None:
        self.process = process
        self.base_url = base_url
        self.root_url = base_url.removesuffix("/v1")
        self.port = int(base_url.split("://", 1)[1].split("/", 1)[0].rsplit(":", 1)[1])
        self._log = log

    def access_log(self, at_least: int = 0) -> list[AccessLine]:
        """Lines of all requests that have ended; waits up to 2 s for `at_least` generation lines (the engine flushes every 50 ms)."""
        clock = MonotonicClock()
        give_up_ns = clock.now_ns() + _PATIENCE_NS
        while True:
            lines = read_access_log(self._log)
            if sum(line.is_generation for line in lines) >= at_least or clock.now_ns() > give_up_ns:
                return lines
            clock.sleep_until(clock.now_ns() + _LOOK_AGAIN_NS)

    def generations(self, at_least: int = 0) -> list[AccessLine]:
        """The generation lines of `access_log`."""
        return [line for line in self.access_log(at_least) if line.is_generation]

    def stop(self, grace_s: float = 2.0) -> int:
        """SIGTERM, then SIGKILL; returns the exit code. Idempotent."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        return self.process.wait()


@contextmanager
def running_engine(spec: SimSpec | None = None, **changes: object) -> Iterator[RunningEngine]:
    """Start an engine on a free port (unless the spec names one other than the default) and stop it at the end of the block.

    `changes` are fields of SimSpec. Raises EnvironmentFailure when it does not start; its words stand on standard error.
    """
    spec = replace(SimSpec(port=0) if spec is None else spec, **changes)
    with TemporaryDirectory(prefix="loadcell-sim-") as folder:
        log = Path(spec.access_log or Path(folder, "access.jsonl"))
        spec = replace(spec, access_log=str(log), exit_on_stdin_eof=True, port=0 if spec.port == SimSpec().port else spec.port)
        engine = start(spec, log)
        try:
            yield engine
        finally:
            engine.stop()


def start(spec: SimSpec, log: Path) -> RunningEngine:
    """Start the process and wait for its line; the caller stops it."""
    source = str(Path(loadcell.sim.__file__ or "").parents[2])
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, "-m", "loadcell.sim", *argv_from_spec(spec)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    if " on http" not in line:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        raise EnvironmentFailure(f"the simulated engine did not start: exit code {process.wait()}")
    return RunningEngine(process, line.rsplit(" on ", 1)[1].strip(), log)
