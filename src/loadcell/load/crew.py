"""The worker processes of one run, seen from control: start them, talk to them, notice when one dies."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from loadcell.load.plan import MESSAGE_SIZE, FromWorker, Leave, ToWorker, WorkerPlan, decode_from_worker, encode
from loadcell.load.signals import held_back

_LEAVE_S = 5.0


class Crew:
    """`spawn` starts the interpreters; each waits for its plan, so that they load while control prepares."""

    def __init__(self, count: int, pass_fds: Sequence[int]) -> None:
        self._sockets: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self.lost: list[int] = []
        for _ in range(count):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_SIZE)
            ours.settimeout(0)
            command = [sys.executable, "-m", "loadcell.load.worker", str(theirs.fileno())]
            with held_back():  # Ctrl-C reaches an interpreter that is still importing too: it is for control to act on
                process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(*pass_fds, theirs.fileno()), env=_environment())
            theirs.close()
            self._sockets.append(ours)
            self._processes.append(process)

    def __len__(self) -> int:
        return len(self._processes)

    def give_plan(self, worker: int, plan: WorkerPlan) -> None:
        stdin = self._processes[worker].stdin
        assert stdin is not None
        try:
            stdin.write(msgspec.json.encode(plan))
            stdin.close()
        except BrokenPipeError:
            return  # it has died: `messages` tells

    def tell_all(self, message: ToWorker) -> None:
        for worker, sock in enumerate(self._sockets):
            if worker not in self.lost:
                try:
                    sock.send(encode(message))
                except (BrokenPipeError, ConnectionError):
                    continue  # it has died: `messages` tells

    def messages(self, timeout_s: float) -> Iterator[tuple[int, FromWorker | None]]:
        """What workers have said, waiting up to `timeout_s` for the first; (worker, null) once when one has died."""
        alive = [worker for worker in range(len(self)) if worker not in self.lost]
        waiting = select.poll()
        for worker in alive:
            waiting.register(self._sockets[worker], select.POLLIN)
        ready = {fd for fd, _ in waiting.poll(timeout_s * 1000)}
        for worker in alive:
            if self._sockets[worker].fileno() in ready:
                yield from self._read(worker)

    def _read(self, worker: int) -> Iterator[tuple[int, FromWorker | None]]:
        while True:
            try:
                raw = self._sockets[worker].recv(MESSAGE_SIZE)
            except BlockingIOError:
                return
            except ConnectionError:
                raw = b""
            if not raw:
                self.lost.append(worker)
                yield worker, None
                return
            yield worker, decode_from_worker(raw)

    def kill(self, worker: int) -> None:
        """End one that does not listen any more; its death is told by `messages`. Again, or after its death: nothing happens."""
        self._processes[worker].kill()

    def exit_text(self, worker: int) -> str:
        """How a lost worker ended, for a person."""
        try:
            code = self._processes[worker].wait(timeout=_LEAVE_S)
        except subprocess.TimeoutExpired:
            return "closed its socket"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def dismiss(self) -> None:
        """Let all leave; one that does not within 5 s is killed. They are ours alone, and by pid."""
        self.tell_all(Leave())
        for sock in self._sockets:
            sock.close()
        for process in self._processes:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()
            try:
                process.wait(timeout=_LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment() -> dict[str, str]:
    """Ours, with the place of this package first, so that a worker runs the same code as control."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": root if not path else f"{root}{os.pathsep}{path}"}
