"""One service's life: plan + host -> a process group that is started, waited for, watched and stopped. The table is `lifecycle`.

It owns exactly the group that it started (or was told of), and looks at nothing else. Not aware of its siblings, nor of any load.
"""

import threading
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from loadcell.clock import NS_PER_S, Clock
from loadcell.fleet.hosts.host import Group, Host, HostUnreachable, Look, Member
from loadcell.fleet.inquiry import Question, Reply, inquire
from loadcell.fleet.interrupts import Flag
from loadcell.fleet.lifecycle import Event, State, after
from loadcell.fleet.log_tail import LogTail
from loadcell.fleet.monitor import FATAL, Finding, Sighting, observe
from loadcell.fleet.readiness import Aside, Causes, Limits, NotReadyError, ReadyWait
from loadcell.fleet.spec import Launch, ServicePlan
from loadcell.fleet.stopping import stop_group

LOOK_EVERY_NS: Final = NS_PER_S // 5
_WAITED_NS: Final = 5 * NS_PER_S
_RELEASE_NS: Final = 5 * NS_PER_S
_UNREADY_STOP_S: Final = 5.0
"""One that never was ready has no requests to end, and vLLM takes no SIGTERM while it loads."""
_BEFORE_TIMEOUT_S: Final = 300.0
_AFTER_TIMEOUT_S: Final = 60.0
_TAIL_BYTES: Final = 1 << 16


class ServiceStatus(Struct, frozen=True):
    """`pid`: the service's main process; null: none lives, or its container does not tell. `log`: its path on its host."""

    name: str
    state: State
    cause: str | None
    base_url: str | None
    host: str
    devices: tuple[int, ...]
    port: int
    pid: int | None
    restarts: int
    log: str


class Terms(Struct, frozen=True):
    """What one service is started under. Seconds and bytes; 0: none. `cpus` null: all of the host's."""

    limits: Limits
    stop_s: float
    log_cap: int
    cpus: tuple[int, ...] | None
    question: Question
    new_causes: Callable[[], Causes]
    ready_line: Callable[[str], bool] | None = None


class Service:
    """`group` is null until the first launch. Safe to look at from other threads; moved by one at a time."""

    def __init__(self, plan: ServicePlan, host: Host, terms: Terms, log: str, marker: str, clock: Clock) -> None:
        self.plan, self.host, self.log, self.marker = plan, host, log, marker
        self.state: State = "defined"
        self.cause: str | None = None
        self.failure: NotReadyError | None = None
        self.group: Group | None = None
        self.restarts = 0
        self.model: str | None = None
        """The name under which it answered."""
        self.given_up = False
        """It has been failing beyond its restarts, and that has been said."""
        self._terms, self._clock = terms, clock
        self._sighting = Sighting()
        self._wait: ReadyWait | None = None
        self._capped_at = 0
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def port(self) -> int:
        return self.plan.replica.port

    @property
    def question(self) -> Question:
        return self._terms.question

    @property
    def stop_s(self) -> float:
        return self._terms.stop_s

    def move(self, event: Event) -> None:
        with self._lock:
            self.state = after(self.state, event)

    # --- to ready

    def launch(self, on_group: Callable[[Group], None], peer_ready: Callable[[], bool]) -> None:
        """Write its files, run what comes before it, start it. `on_group` is told at once, so that no group goes unrecorded."""
        self.cause = self.failure = None
        self.move("launch")
        tail = LogTail(self.host, self.log)
        self._make_folder()
        for command in self.plan.before:
            self._run_before(command, tail)
        launch = self.plan.launch
        self.group = self.host.start(
            launch.argv, env=launch.env, cwd=self.plan.cwd, log=self.log, marker=self.marker, cpus=self._terms.cpus
        )
        on_group(self.group)
        self._sighting, self._capped_at = Sighting(), 0
        self.move("process_up")
        self._wait = ReadyWait(
            self.host,
            self.group,
            tail,
            self._terms.new_causes(),
            self._terms.limits,
            port=self.port if self.plan.serves else None,
            ready_line=self._terms.ready_line,
            inquiry=Aside(self._inquire),
            peer_ready=peer_ready,
            now_ns=self._clock.now_ns(),
        )

    def _make_folder(self) -> None:
        """Its own folder, where something is to be in it: files, or what the words and variables of its start have there."""
        folder, launch = self.plan.replica.folder, self.plan.launch
        if folder and (launch.files or any(folder in text for text in (*launch.argv, *launch.env.values()))):
            self.host.make_folder(folder)
        for path, content in launch.files:
            self.host.write_file(f"{folder}/{path}", content)

    def step(self) -> bool:
        """One look on the way to ready; true when it is. Raises NotReadyError, and is failed then."""
        assert self._wait is not None
        ready = self._wait.step(self._clock.now_ns())
        self._cap(self._wait.log_size)
        if ready:
            self.move("inference_ok")
        return ready

    def fail(self, failure: NotReadyError) -> None:
        """It will not become ready. Its group, if any, still has to be stopped."""
        self.cause, self.failure = str(failure), failure
        if self.state in ("starting", "loading"):
            self.move("died" if failure.code is not None else "timed_out" if failure.cause in ("timed_out", "stalled") else "refused")

    def again(self) -> None:
        """From failed or stopped to defined: one restart more."""
        self.move("restart")
        self.restarts += 1

    def _inquire(self) -> Reply:
        reply = inquire(self._terms.question)
        self.model = reply.model or self.model
        return reply

    def _run_before(self, command: Launch, tail: LogTail) -> None:
        env = {**command.env, "LOADCELL_SERVICE": self.marker}  # what it leaves running is found, and stopped, with the service
        ended = self.host.run(command.argv, timeout_s=_BEFORE_TIMEOUT_S, env=env)
        if ended.code != 0:
            lines = (*tail.last, *ended.out.splitlines()[-10:], *ended.err.splitlines()[-20:])
            raise NotReadyError(f"`{' '.join(command.argv)}` ended with {ended.code}", "exited", code=ended.code, lines=lines)

    # --- while it serves

    def watch(self, *, lasting: bool = False) -> tuple[Finding, ...]:
        """One look at its processes, and what is new. What is fatal makes it failed."""
        if self.group is None or self.state not in ("ready", "serving", "failed"):
            return ()
        look: Look | None
        began_ns = self._clock.now_ns()
        try:
            look = self.host.look(self.group)
        except HostUnreachable:
            look = None
        waited = self._clock.now_ns() - began_ns >= _WAITED_NS
        self._sighting, findings = observe(self._sighting, look, lasting=lasting, waited=waited)
        for finding in findings:
            if finding.kind in FATAL and self.state in ("ready", "serving"):
                self.cause = self._explained(finding)
                self.move("died")
        if look is not None:
            self._cap(look.log_size)
        return findings

    @property
    def hung(self) -> bool:
        return self._sighting.hung

    @property
    def empty(self) -> bool:
        """It has ended, and no process of it is left: nobody will answer in its name."""
        return self._sighting.empty

    @property
    def unreachable(self) -> bool:
        return self._sighting.unreachable

    def count_failed(self, cause: str) -> None:
        """It lives and is of no use (stopped by a signal): counted as failed from here on."""
        if self.state in ("ready", "serving"):
            self.cause = cause
            self.move("died")

    def _explained(self, finding: Finding) -> str:
        """The finding, and what the end of the log says of it."""
        if finding.kind != "died":
            return f"{finding.kind.replace('_', ' ')}: {finding.text}"
        causes = self._terms.new_causes()
        try:
            lines = self.last_lines()
        except HostUnreachable:
            lines = ()
        for line in lines:
            causes.feed(line)
        best = causes.best
        return f"died: {finding.text}" + (f"; {best[1].strip()}" if best else f"; last line: {lines[-1].strip()}" if lines else "")

    def last_lines(self, count: int = 40) -> tuple[str, ...]:
        """The log's last lines. Raises HostUnreachable."""
        _, data = self.host.read_log(self.log, -_TAIL_BYTES)
        lines = [line for line in data.decode("utf-8", "replace").replace("\r", "\n").split("\n") if line.strip()]
        return tuple(lines[-count:])

    def _cap(self, log_size: int) -> None:
        cap = self._terms.log_cap
        if cap and log_size - self._capped_at > cap // 2:
            self._capped_at = log_size
            self.host.cap_log(self.log, cap)

    # --- to the end

    def stop(self, hurry: Flag) -> tuple[str, ...]:
        """Terminate the group, wait, kill the group, look at what is left; texts of that. `hurry`: kill without waiting."""
        if self.state == "stopped":
            return ()
        launched = self.state != "defined"
        grace_s = self._terms.stop_s if self.state in ("ready", "serving", "draining") else min(self._terms.stop_s, _UNREADY_STOP_S)
        self.move("stop")
        if not launched:
            return ()
        try:
            left = self._end(grace_s, hurry)
            texts = [f"process {member.pid} ({member.command[:120]}) is still there" for member in left]
            texts += self._port_left() if self.plan.serves else []
        except HostUnreachable as cut:
            self.move("timed_out")
            return (f"{self.name}: not stopped, its host cannot be reached ({cut}); the next start will, when it can be",)
        self.move("timed_out" if left else "gone")
        return tuple(f"{self.name}: {text}" for text in texts)

    def clear(self, hurry: Flag) -> None:
        """End what is left of a failed one; it stays failed. Raises HostUnreachable."""
        self._end(0.0, hurry)
        self.move("gone")

    def _end(self, grace_s: float, hurry: Flag) -> tuple[Member, ...]:
        """End the group, and undo what was run before its start. A start that broke off may have left one that nobody told us of."""
        group = self.group or self.host.find(self.marker, self.log)
        left = stop_group(self.host, group, grace_s, self._clock, hurry) if group is not None else ()
        for command in self.plan.after:
            self.host.run(command.argv, timeout_s=_AFTER_TIMEOUT_S, env=command.env)
        return left

    def _port_left(self) -> list[str]:
        """A port that nobody can listen on yet, said with who has it. A process that is not ours will not give it back: no wait for that."""
        deadline_ns = self._clock.now_ns() + _RELEASE_NS
        while not self.host.bindable(self.plan.replica.bind, self.port):
            holder = self.host.port_holder(self.port)
            if holder is not None and holder.pid and holder.kind == "listener":
                return [f"port {self.port} is held by process {holder.pid} ({holder.command})"]
            now_ns = self._clock.now_ns()
            if now_ns >= deadline_ns:
                return [f"port {self.port} is not free yet"]
            self._clock.sleep_until(now_ns + LOOK_EVERY_NS)
        return []

    def status(self) -> ServiceStatus:
        replica = self.plan.replica
        return ServiceStatus(
            self.name,
            self.state,
            self.cause,
            self.plan.base_url if self.plan.serves else None,
            replica.host,
            replica.devices,
            replica.port,
            self._pid(),
            self.restarts,
            self.log,
        )

    def _pid(self) -> int | None:
        lives = self.state in ("starting", "loading", "ready", "serving", "draining")
        return self.group.pid or None if self.group is not None and lives else None
