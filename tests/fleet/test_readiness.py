"""From a started group to ready, or to why not: every step decided over a host without processes and a clock without waiting."""

import pytest

from loadcell.clock import NS_PER_S
from loadcell.fleet.hosts.host import PortHolder
from loadcell.fleet.inquiry import Reply
from loadcell.fleet.log_tail import LogTail
from loadcell.fleet.readiness import Aside, Limits, NotReadyError, ReadyWait
from loadcell.fleet.spec import Cause
from loadcell.testing.fake_clock import FakeClock
from loadcell.testing.fake_host import FakeHost

PORT = 30005
READY = Reply("ready", "answered", "m")
LOADING = Reply("wait", "GET /health: status 503, still loading")


class Words:
    """Causes by a word of the line."""

    def __init__(self) -> None:
        self.best: tuple[Cause, str] | None = None

    def feed(self, line: str) -> None:
        if "OOM" in line:
            self.best = ("out_of_memory", line)
        elif "FATAL" in line and self.best is None:
            self.best = ("fatal", line)


class AtOnce:
    """Replies as listed, the last one again and again; counts how often it was asked."""

    def __init__(self, *replies: Reply) -> None:
        self.replies, self.asked, self.running = list(replies), 0, False
        self._reply: Reply | None = None

    def begin(self) -> None:
        self.asked += 1
        self._reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    def take(self) -> Reply | None:
        reply, self._reply = self._reply, None
        return reply


class Bench:
    """One wait over a fake host. `until_end` steps five times a second."""

    def __init__(
        self, *replies: Reply, start_s: float = 0, stall_s: float = 0, ready_line: str | None = None, port: int | None = PORT
    ) -> None:
        self.clock, self.host, self.inquiry, self.peer = FakeClock(), FakeHost(), AtOnce(*replies or (LOADING,)), False
        self.host.say("log", "of an earlier start: OOM")
        tail = LogTail(self.host, "log")
        group = self.host.start(["engine"], env={}, cwd=None, log="log", marker="m")
        self.process = self.host.groups[0]
        self.wait = ReadyWait(
            self.host,
            group,
            tail,
            Words(),
            Limits(start_s, stall_s),
            port=port,
            ready_line=None if ready_line is None else lambda line: ready_line in line,
            inquiry=self.inquiry,
            peer_ready=lambda: self.peer,
            now_ns=0,
        )

    def listens(self, pid: int | None = None) -> "Bench":
        self.host.holders[PORT] = PortHolder(PORT, self.process.group.pid if pid is None else pid, "server --old")
        return self

    def until_end(self, limit_s: float = 10_000.0) -> float:
        """Seconds to ready."""
        while self.clock.now_ns() < limit_s * NS_PER_S:
            if self.wait.step(self.clock.now_ns()):
                return self.clock.now_ns() / NS_PER_S
            self.clock.advance(0.2)
        raise AssertionError("neither ready nor refused")

    def refused(self) -> NotReadyError:
        with pytest.raises(NotReadyError) as failure:
            self.until_end()
        return failure.value

    @property
    def now_s(self) -> float:
        return self.clock.now_ns() / NS_PER_S


def test_ready_after_loading() -> None:
    bench = Bench(LOADING, LOADING, READY).listens()
    assert 0.5 <= bench.until_end() <= 3.0
    assert bench.inquiry.asked == 3


def test_a_death_is_told_at_the_next_look_with_code_cause_and_last_lines() -> None:
    bench = Bench(start_s=600)
    assert not bench.wait.step(0)
    bench.host.say("log", "loading weights")
    bench.host.say("log", "CUDA OOM")
    bench.process.end(3)
    failure = bench.refused()
    assert (failure.cause, failure.code, bench.now_s) == ("out_of_memory", 3, 0.0)
    assert failure.lines == ("loading weights", "CUDA OOM")
    assert "out of memory (CUDA OOM)" in str(failure)
    assert "exit code 3" in str(failure)


def test_what_an_earlier_start_said_is_not_this_ones() -> None:
    assert Bench(READY).listens().until_end() < 2


def test_a_death_without_a_known_cause() -> None:
    bench = Bench()
    bench.process.end(-11)
    failure = bench.refused()
    assert (failure.cause, failure.code) == ("exited", -11)
    assert "SIGSEGV" in str(failure)


def test_a_last_line_without_an_end_is_read() -> None:
    bench = Bench()
    bench.host.logs["log"] += b"OOM at the very end"
    bench.process.end(1)
    assert bench.refused().cause == "out_of_memory"


def test_parent_alive_engine_dead_is_told_in_seconds_by_its_log() -> None:
    bench = Bench(start_s=600)
    bench.host.say("log", "FATAL engine init")
    failure = bench.refused()
    assert (failure.cause, failure.code) == ("fatal", None)
    assert 2 < bench.now_s < 6


def test_as_long_as_it_says_how_it_ends_it_may_end_by_itself() -> None:
    bench = Bench(start_s=600)
    bench.host.say("log", "OOM: tried to allocate")
    for _ in range(5):
        assert not bench.wait.step(bench.clock.advance(4))
        bench.host.say("log", "shutting down")
    bench.process.end(1)
    failure = bench.refused()
    assert (failure.cause, failure.code) == ("out_of_memory", 1)


def test_the_more_specific_cause_that_follows_is_the_one() -> None:
    bench = Bench()
    bench.host.say("log", "FATAL engine init")
    bench.wait.step(0)
    bench.host.say("log", "OOM: tried to allocate")
    assert bench.refused().cause == "out_of_memory"


def test_a_dead_child_that_its_parent_does_not_notice() -> None:
    bench = Bench(start_s=600, stall_s=600)
    bench.process.add_child(77, "Z")
    failure = bench.refused()
    assert failure.cause == "member_lost"
    assert "77" in str(failure)
    assert 59 < bench.now_s < 62


def test_a_dead_child_while_the_log_goes_on_is_nothing() -> None:
    bench = Bench(*[LOADING] * 200, READY, stall_s=600).listens()
    bench.process.add_child(77, "Z")
    while not bench.wait.step(bench.clock.advance(0.5)):
        bench.host.say("log", "loading")
    assert bench.now_s > 99


def test_a_stale_server_on_the_port_is_refused_and_never_asked() -> None:
    bench = Bench(READY).listens(pid=4242)
    failure = bench.refused()
    assert failure.cause == "port_taken"
    assert "process 4242 (server --old)" in str(failure)
    assert bench.inquiry.asked == 0


def test_a_port_taken_while_it_was_asked_is_refused() -> None:
    bench = Bench(READY).listens()
    bench.clock.advance(1)
    assert not bench.wait.step(bench.clock.now_ns())
    bench.listens(pid=4242)
    assert bench.refused().cause == "port_taken"


def test_nothing_is_asked_before_it_listens() -> None:
    bench = Bench(READY, start_s=5)
    assert bench.refused().cause == "timed_out"
    assert bench.inquiry.asked == 0


def test_a_refusal_ends_the_wait() -> None:
    bench = Bench(Reply("refused", "wrong model: it serves old, not m"), start_s=600).listens()
    failure = bench.refused()
    assert (failure.cause, str(failure)) == ("not_ready", "wrong model: it serves old, not m")
    assert bench.now_s < 2


def test_the_start_limit_tells_the_time_and_what_was_missing() -> None:
    bench = Bench(start_s=10).listens()
    failure = bench.refused()
    assert failure.cause == "timed_out"
    assert "not ready after 10.0 s (start_timeout = 10 s; 0 means none)" in str(failure)
    assert "status 503" in str(failure)


def test_no_limit_and_limits_of_hours() -> None:
    for start_s in (0, 7200):
        bench = Bench(*[LOADING] * 6000, READY, start_s=start_s).listens()
        assert bench.until_end() > 3000


def test_a_silent_log_is_a_stall_and_a_progress_bar_is_none() -> None:
    bench = Bench(stall_s=30).listens()
    for _ in range(100):
        bench.host.logs["log"] += b"\rLoading: 64%"
        assert not bench.wait.step(bench.clock.advance(1))
    failure = bench.refused()
    assert failure.cause == "stalled"
    assert 129 < bench.now_s < 132


def test_a_question_that_is_being_answered_is_no_stall() -> None:
    bench = Bench(stall_s=30).listens()
    bench.inquiry.running = True
    for _ in range(100):
        assert not bench.wait.step(bench.clock.advance(1))


def test_a_ready_pattern_comes_before_the_questions() -> None:
    bench = Bench(READY, ready_line="startup complete").listens()
    for _ in range(10):
        assert not bench.wait.step(bench.clock.advance(1))
    assert bench.inquiry.asked == 0
    bench.host.say("log", "INFO: startup complete.")
    bench.until_end()
    assert bench.inquiry.asked == 1


def test_a_rank_that_serves_nothing_is_ready_with_its_head_and_is_watched_till_then() -> None:
    bench = Bench(port=None)
    assert not bench.wait.step(0)
    bench.peer = True
    assert bench.wait.step(1)
    bench = Bench(port=None)
    bench.process.end(1)
    assert bench.refused().code == 1


def test_a_host_that_is_away_for_a_moment_and_one_that_stays_away() -> None:
    bench = Bench(READY).listens()
    bench.host.cut = True
    for _ in range(5):
        assert not bench.wait.step(bench.clock.advance(1))
    bench.host.cut = False
    bench.until_end()
    bench = Bench(READY).listens()
    bench.host.cut = True
    assert bench.refused().cause == "host_unreachable"


def test_aside_gives_each_reply_once_and_a_bug_is_no_wait_without_end() -> None:
    def broken() -> Reply:
        raise ZeroDivisionError("x")

    aside = Aside(broken)
    aside.begin()
    while aside.running:
        pass
    assert aside.take() == Reply("refused", "ZeroDivisionError: x")
    assert aside.take() is None
