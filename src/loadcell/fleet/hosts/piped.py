"""A command that ends in a Python there (ssh, docker exec) -> a connection to the agent that runs in it.

The agent's text goes through the command's stdin first, then one JSON line per call. The connection is made at the first call, and made
again at the next call after it was cut; a call that is under way when it is cut is not repeated, for it may have been done.
"""

import contextlib
import itertools
import json
import os
import queue
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from loadcell.fleet.hosts import agent
from loadcell.fleet.hosts.agent_host import AgentRefusal
from loadcell.fleet.hosts.host import HostUnreachable

CONNECT_S: Final = 30.0
IDLE_S: Final = agent.IDLE_S * 2 / 3
"""Older silence: the agent may be about to leave, so the next call takes a new connection."""
CLOSE_S: Final = 2.0
ERROR_LINES: Final = 6


def agent_words(python: str) -> tuple[list[str], bytes]:
    """The words that run the agent, and what to send to it first."""
    text = agent.source()
    return [python, "-I", "-B", "-S", "-u", "-c", agent.bootstrap("serve", len(text))], text


class Piped:
    """`agent_host.Connection` through a command. `name`: of the host; `through`: what the command is, for errors (`ssh gpu1`)."""

    def __init__(self, name: str, through: str, argv: Sequence[str], first: bytes, *, connect_s: float = CONNECT_S) -> None:
        self._name = name
        self._through = through
        self._argv = tuple(argv)
        self._first = first
        self._connect_s = connect_s
        self._lock = threading.Lock()
        self._line: _Line | None = None

    def call(self, name: str, values: dict[str, Any], timeout_s: float) -> Any:
        line = self._connected()
        answer = line.ask(name, values, timeout_s)
        if answer is None:
            self._drop(line)
            raise self._unreachable(f"no answer to {name} in {timeout_s:g} s")
        if "cut" in answer:
            self._drop(line)
            raise self._unreachable(f"connection cut{line.last_words()}")
        if "error" in answer:
            raise AgentRefusal(answer["error"])
        return answer["value"]

    def close(self) -> None:
        with self._lock:
            if self._line is not None:
                self._line.close()
            self._line = None

    def _connected(self) -> "_Line":
        with self._lock:
            if self._line is not None and (self._line.ended() or self._line.idle_s() > IDLE_S):
                self._line.close()
                self._line = None
            if self._line is None:
                self._line = self._connect()
            return self._line

    def _connect(self) -> "_Line":
        try:
            line = _Line(self._argv, self._first)
        except OSError as error:
            raise self._unreachable(f"cannot run {self._argv[0]}: {error}") from error
        if line.greeting(self._connect_s):
            return line
        ended = line.ended()
        line.close(at_once=True)
        raise self._unreachable(f"no agent{line.last_words()}" if ended else f"no answer in {self._connect_s:g} s{line.last_words()}")

    def _drop(self, line: "_Line") -> None:
        with self._lock:
            if self._line is line:
                self._line = None
        line.close(at_once=True)

    def _unreachable(self, why: str) -> HostUnreachable:
        return HostUnreachable(f"host {self._name} ({self._through}): {why}")


class _Line:
    """One run of the command: a thread hands each answer to who waits for it; null: the command has ended."""

    def __init__(self, argv: Sequence[str], first: bytes) -> None:
        # In a session of its own: Ctrl-C at our terminal is ours to handle, and must not cut the connections.
        self._ran = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, env=dict(os.environ)
        )
        self._numbers = itertools.count(1)
        self._writing = threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any]]] = {0: queue.SimpleQueue()}
        self._cut = False
        self._errors: deque[str] = deque(maxlen=ERROR_LINES)
        self._used = time.monotonic()
        self._threads = [threading.Thread(target=read, daemon=True) for read in (self._read_answers, self._read_errors)]
        for thread in self._threads:
            thread.start()
        self._write(first)

    def greeting(self, timeout_s: float) -> bool:
        """Whether the agent has said that it is there."""
        return self._wait(0, timeout_s) not in (None, {"cut": True})

    def ask(self, name: str, values: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        """The answer; `cut` where the connection ended; null where none came in time."""
        with self._writing:
            number = next(self._numbers)
            self._waiting[number] = queue.SimpleQueue()
        if self._cut:
            self._waiting.pop(number, None)
            return {"cut": True}
        self._write(json.dumps({"id": number, "call": name, "with": values}).encode() + b"\n")
        return self._wait(number, timeout_s)

    def ended(self) -> bool:
        return self._cut

    def idle_s(self) -> float:
        return time.monotonic() - self._used

    def last_words(self) -> str:
        """What the command said on stderr, to end a sentence with."""
        self._threads[1].join(CLOSE_S if self._cut else 0)
        said = "; ".join(self._errors)
        return f": {said}" if said else ""

    def close(self, *, at_once: bool = False) -> None:
        """The agent leaves when its stdin ends. `at_once`: the command hangs, and so could a farewell."""
        if at_once:
            self._ran.kill()
        assert self._ran.stdin is not None
        with contextlib.suppress(OSError):  # what could not be written need not be
            self._ran.stdin.close()
        try:
            self._ran.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._ran.kill()
            self._ran.wait()
        for thread in self._threads:
            thread.join(CLOSE_S)

    def _write(self, data: bytes) -> None:
        assert self._ran.stdin is not None
        with contextlib.suppress(OSError, ValueError), self._writing:  # ended: the reading thread says so
            self._ran.stdin.write(data)
            self._ran.stdin.flush()
            self._used = time.monotonic()

    def _wait(self, number: int, timeout_s: float) -> dict[str, Any] | None:
        try:
            return self._waiting[number].get(timeout=timeout_s)
        except queue.Empty:
            return None
        finally:
            self._waiting.pop(number, None)

    def _read_answers(self) -> None:
        assert self._ran.stdout is not None
        with self._ran.stdout as answers:
            for line in answers:
                answer = _answer(line)
                if answer is not None:
                    waiter = self._waiting.get(0 if "agent" in answer else answer.get("id", -1))
                    if waiter is not None:
                        waiter.put(answer)
        with self._writing:
            self._cut = True
            left = list(self._waiting.values())
        for waiter in left:
            waiter.put({"cut": True})

    def _read_errors(self) -> None:
        assert self._ran.stderr is not None
        with self._ran.stderr as said:
            for line in said:
                text = line.decode("utf-8", "replace").strip()
                if text:
                    self._errors.append(text[:300])


def _answer(line: bytes) -> dict[str, Any] | None:
    """Null for what a login shell prints before the agent speaks."""
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
