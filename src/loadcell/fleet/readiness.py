"""From a started process group to ready, or to the reason why it never will be. Inference is allowed here, before any clock starts.

`ReadyWait.step` looks once: process, log, port, and the state of the questions over HTTP (`inquiry`), which run aside so that no slow
answer delays the news of a death. It decides; who calls it sleeps between the steps.
"""

import threading
from collections.abc import Callable
from typing import Final, Literal, Protocol

from msgspec import Struct

from loadcell.clock import NS_PER_S
from loadcell.errors import EnvironmentFailure
from loadcell.fleet.hosts.host import Group, Host, HostUnreachable, Look
from loadcell.fleet.inquiry import Reply
from loadcell.fleet.log_tail import LogTail
from loadcell.fleet.monitor import exit_text, has_ended
from loadcell.fleet.spec import Cause

ASK_EVERY_NS: Final = NS_PER_S // 2
_CAUSE_GRACE_NS: Final = 5 * NS_PER_S
_ENDING_NS: Final = 30 * NS_PER_S
_DEFUNCT_GRACE_NS: Final = 60 * NS_PER_S
_UNREACHABLE_NS: Final = 10 * NS_PER_S

FailureCause = Cause | Literal["exited", "timed_out", "stalled", "not_ready", "host_unreachable", "hung", "member_lost", "aborted"]


class NotReadyError(EnvironmentFailure):
    """One service did not become ready. `cause`: a word for machines, the text for people. `code`: its process's exit code; `lines`: the log's last."""

    def __init__(self, text: str, cause: FailureCause, *, code: int | None = None, lines: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.cause: FailureCause = cause
        self.code = code
        self.lines = lines


class Causes(Protocol):
    """As `fleet.causes.CauseFinder`: lines in, the most specific cause out."""

    def feed(self, line: str) -> None: ...

    @property
    def best(self) -> tuple[Cause, str] | None: ...


class Limits(Struct, frozen=True):
    """Seconds; 0: none."""

    start_s: float
    stall_s: float


class Inquiry(Protocol):
    """The questions over HTTP, asked so that nobody waits for them: `Aside`, or a fake."""

    @property
    def running(self) -> bool: ...

    def begin(self) -> None: ...

    def take(self) -> Reply | None:
        """The reply, once; null while there is none."""


class ReadyWait:
    """`inquiry`: begun again and again until it replies ready. `port`, null where the group serves none (a headless rank): then `peer_ready` says when its head is."""

    def __init__(
        self,
        host: Host,
        group: Group,
        tail: LogTail,
        causes: Causes,
        limits: Limits,
        *,
        port: int | None,
        ready_line: "Callable[[str], bool] | None",
        inquiry: Inquiry,
        peer_ready: Callable[[], bool],
        now_ns: int,
    ) -> None:
        self._host, self._group, self._tail, self._causes, self._limits = host, group, tail, causes, limits
        self._port, self._ready_line, self._peer_ready = port, ready_line, peer_ready
        self._inquiry = inquiry
        self._began_ns = self._news_ns = self._answered_ns = now_ns
        self._asked_ns = now_ns - ASK_EVERY_NS
        self._caused_ns: int | None = None
        self._defunct_ns: int | None = None
        self._line_seen = ready_line is None
        self.waiting_for = "the process to start"
        self.log_size = 0

    def step(self, now_ns: int) -> bool:
        """True when it is ready. Raises NotReadyError when it will not be."""
        try:
            look = self._host.look(self._group)
            self._read(self._tail.new_lines(look.log_size), now_ns)
        except HostUnreachable as cut:
            self._unreachable(now_ns, cut)
            return False
        self._answered_ns, self.log_size = now_ns, look.log_size
        if has_ended(look):
            self._ended(look)
        self._fatal_lines(now_ns)
        self._lost_children(look, now_ns)
        ready = self._ask(now_ns)
        if not ready:
            self._timeouts(now_ns)
        return ready

    def elapsed_s(self, now_ns: int) -> float:
        return (now_ns - self._began_ns) / NS_PER_S

    def _read(self, lines: list[str], now_ns: int) -> None:
        if lines:
            self._news_ns = now_ns
        for line in lines:
            self._causes.feed(line)
            if self._ready_line is not None and not self._line_seen:
                self._line_seen = self._ready_line(line)

    def _unreachable(self, now_ns: int, cut: HostUnreachable) -> None:
        if now_ns - self._answered_ns > _UNREACHABLE_NS:
            raise self._failure(f"its host cannot be reached: {cut}", "host_unreachable") from cut

    def _ended(self, look: Look) -> None:
        for line in self._tail.rest(look.log_size):
            self._causes.feed(line)
        best = self._causes.best
        ended = f"it ended while starting: {exit_text(look.exit_code)}"
        if best is None:
            raise self._failure(ended, "exited", code=look.exit_code)
        raise self._failure(f"{_in_words(best[0])} ({best[1].strip()}); {ended}", best[0], code=look.exit_code)

    def _fatal_lines(self, now_ns: int) -> None:
        """Its log says that it cannot go on: it gets a moment to say why in more detail, and to end by itself with its code.

        vLLM takes 4 s for that, and 13 s on a busy machine, and says what it does: the moment is of silence.
        """
        best = self._causes.best
        if best is None:
            return
        if self._caused_ns is None:
            self._caused_ns = now_ns
        silent_ns = now_ns - max(self._caused_ns, self._news_ns)
        if silent_ns >= _CAUSE_GRACE_NS or now_ns - self._caused_ns >= _ENDING_NS:
            raise self._failure(f"{_in_words(best[0])} ({best[1].strip()}); its process has not ended", best[0])

    def _lost_children(self, look: Look, now_ns: int) -> None:
        """A child that has ended, a parent that does not notice, and a minute without a line: nothing will come of it."""
        dead = look.defunct
        self._defunct_ns = None if not dead else self._defunct_ns if self._defunct_ns is not None else now_ns
        if self._defunct_ns is None or now_ns - max(self._defunct_ns, self._news_ns) < _DEFUNCT_GRACE_NS or not self._limits.stall_s:
            return
        pids = ", ".join(str(member.pid) for member in dead)
        raise self._failure(f"its child process {pids} has ended, its parent waits on, and its log says nothing more", "member_lost")

    def _ask(self, now_ns: int) -> bool:
        if self._port is None:
            self.waiting_for = "the replica's first rank to answer"
            return self._peer_ready()
        if not self._line_seen:
            self.waiting_for = "ready_pattern in its log"
            return False
        reply = self._inquiry.take()
        if reply is not None:
            self.waiting_for = reply.text
            if reply.kind == "refused":
                raise self._failure(reply.text, "not_ready")
            # Whose answer was it? A stranger may have taken the port meanwhile.
            return reply.kind == "ready" and self._owned()
        if not self._inquiry.running and now_ns - self._asked_ns >= ASK_EVERY_NS and self._owned():
            self._asked_ns = now_ns
            self._inquiry.begin()
        return False

    def _owned(self) -> bool:
        """Whether the port is our group's, as far as that can be told. A stranger's is refused: a stale server would be measured."""
        assert self._port is not None
        ours = self._host.listener_of(self._group, self._port)
        if ours:
            return True
        holder = self._host.port_holder(self._port)
        if holder is None or holder.kind == "connection":
            self.waiting_for = f"port {self._port} to be listened on"
            return False
        if ours is None:
            return True  # somebody listens, and nothing tells who: the model's name has to do
        whose = f"process {holder.pid} ({holder.command})" if holder.pid else "another process"
        raise self._failure(
            f"port {self._port} is answered by {whose}, which is not of this service: stop it, or choose another port", "port_taken"
        )

    def _timeouts(self, now_ns: int) -> None:
        elapsed = self.elapsed_s(now_ns)
        if self._limits.start_s and elapsed >= self._limits.start_s:
            told = f"start_timeout = {self._limits.start_s:g} s; 0 means none"
            raise self._failure(f"not ready after {elapsed:.1f} s ({told}), waiting for: {self.waiting_for}", "timed_out")
        silent = (now_ns - self._news_ns) / NS_PER_S
        if self._limits.stall_s and silent >= self._limits.stall_s and not self._inquiry.running:
            told = f"stall_timeout = {self._limits.stall_s:g} s; 0 means none"
            raise self._failure(
                f"no new line in its log for {silent:.1f} s ({told}) after {elapsed:.1f} s, waiting for: {self.waiting_for}", "stalled"
            )

    def _failure(self, text: str, cause: FailureCause, code: int | None = None) -> NotReadyError:
        return NotReadyError(text, cause, code=code, lines=tuple(self._tail.last))


class Aside:
    """One call at a time in a thread of its own. A call that is given up ends by its own deadlines and holds nothing up."""

    def __init__(self, call: Callable[[], Reply]) -> None:
        self._call = call
        self._thread: threading.Thread | None = None
        self._reply: Reply | None = None

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self) -> None:
        self._thread = threading.Thread(target=self._run, name="inquiry", daemon=True)
        self._thread.start()

    def take(self) -> Reply | None:
        """The reply, once."""
        if self.running or self._reply is None:
            return None
        reply, self._reply = self._reply, None
        return reply

    def _run(self) -> None:
        try:
            self._reply = self._call()
        except EnvironmentFailure as failure:
            self._reply = Reply("wait", str(failure))
        except Exception as bug:  # noqa: BLE001  (a thread's end would be a wait without end)
            self._reply = Reply("refused", f"{type(bug).__name__}: {bug}")


_WORDS: Final[dict[str, str]] = {
    "out_of_memory": "out of memory",
    "bad_arguments": "bad arguments",
    "port_taken": "its port is taken",
    "missing_model": "the model is missing",
    "driver_fault": "driver fault",
    "fatal": "fatal error",
}


def _in_words(cause: Cause) -> str:
    return _WORDS[cause]
