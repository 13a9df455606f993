"""The agent on this machine, with real processes."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from loadcell.errors import EnvironmentFailure
from loadcell.fleet.hosts import agent
from loadcell.fleet.hosts.host import Group
from loadcell.fleet.hosts.local import LocalHost

from .conftest import Services
from .waiting import until

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
FORKS = "import os,time\nfor _ in range(2):\n    if os.fork() == 0: time.sleep(600)\nprint('up', flush=True)\ntime.sleep(600)"
LEAVES_SESSION = "import os,time\nif os.fork() == 0:\n    os.setsid()\n    print('away', flush=True)\n    time.sleep(600)\ntime.sleep(600)"
SPAWNS = "import os,signal,time\nsignal.signal(signal.SIGUSR1, lambda *_: os.fork() and print('born', flush=True))\nprint('up', flush=True)\nwhile True: time.sleep(600)"  # fmt: skip
FORGETS_ALL = (
    "import os,sys,time\nif os.fork() == 0:\n    os.setsid()\n"
    "    os.execve(sys.executable, ['python', '-I', '-S', '-c', \"print('away', flush=True); import time; time.sleep(600)\"], {})\ntime.sleep(600)"
)
DEAF = "import signal,time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)"


def log_of(host: LocalHost, group: Group) -> str:
    return host.read_log(group.log, 0)[1].decode()


def is_up(host: LocalHost, group: Group, text: str = "up") -> None:
    until(lambda: text in log_of(host, group))


class TestTheFile:
    def test_it_runs_on_old_pythons_with_nothing_but_their_library(self) -> None:
        tree = ast.parse(agent.source(), feature_version=(3, 6))
        imported = {a.name.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
        imported |= {(node.module or "").partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert imported <= sys.stdlib_module_names


class TestStarting:
    def test_a_session_of_its_own_whose_leader_is_the_program(self, host: LocalHost, services: Services) -> None:
        group = services.start(SLEEP)
        assert os.getsid(group.pid) == group.pid != os.getsid(0)
        assert host.look(group).members[0].pid == group.pid

    def test_words_and_variables_arrive_as_they_are(self, host: LocalHost, services: Services) -> None:
        words = ["a b", "$HOME", "`id`", "'q\"", '{"a": 1}', "", "é\n"]
        program = "import json,os,sys; print(json.dumps([sys.argv[1:], os.environ['X'], os.getcwd(), os.environ['LOADCELL_SERVICE']]))"
        group = services.start(program, *words, env={"X": "$Y z"}, cwd=str(services.folder))
        until(lambda: not host.look(group).alive)
        assert msgspec.json.decode(log_of(host, group)) == [words, "$Y z", str(services.folder), group.marker]
        assert host.look(group).exit_code == 0

    def test_it_inherits_no_ignored_signal_no_stdin_and_no_open_file(self, host: LocalHost, services: Services) -> None:
        program = (
            "import os\nlines = open('/proc/self/status').read().splitlines()\n"
            "print([l for l in lines if l.startswith(('SigBlk','SigIgn'))], os.read(0, 1), sorted(os.listdir('/proc/self/fd'))[:4])"
        )
        # Python itself ignores SIGPIPE and SIGXFSZ once it runs: a shell tells the truth.
        asked = {"env": {}, "cwd": None, "log": str(services.folder / "sh.log"), "marker": "m"}
        shell = host.start(["sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status; ls /proc/$$/fd"], **asked)
        until(lambda: not host.look(shell).alive)
        ignored, *handles = log_of(host, shell).split()[1:4:2], log_of(host, shell).split()[4:]
        # Two signals are the C library's own: nobody can set them, and a parent such as timeout(1) passes them on ignored.
        settable = sum(1 << (number - 1) for number in signal.valid_signals())
        assert [int(mask, 16) & settable for mask in ignored] == [0, 0]
        assert set(handles[0]) <= {"0", "1", "2", "10"}
        group = services.start(program)
        until(lambda: not host.look(group).alive)
        assert "b''" in log_of(host, group)

    @pytest.mark.parametrize(("argv", "code"), [(["no-such-program"], 127), (["/etc/hostname"], 126)])
    def test_a_program_that_cannot_run_has_ended_and_says_so(self, host: LocalHost, tmp_path: Path, argv: list[str], code: int) -> None:
        group = host.start(argv, env={}, cwd=None, log=str(tmp_path / "a" / "b.log"), marker="m")
        until(lambda: host.look(group).exit_code is not None)
        assert host.look(group).exit_code == code
        assert f"loadcell: cannot start {argv[0]}" in log_of(host, group)

    def test_a_folder_that_is_not_there_is_named(self, host: LocalHost, tmp_path: Path) -> None:
        group = host.start(["true"], env={}, cwd=str(tmp_path / "none"), log=str(tmp_path / "x.log"), marker="m")
        until(lambda: host.look(group).exit_code is not None)
        assert f"in folder {tmp_path / 'none'}" in log_of(host, group)

    def test_a_log_that_cannot_be_made_is_refused(self, host: LocalHost, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(EnvironmentFailure, match=r"host local: .*file"):
            host.start(["true"], env={}, cwd=None, log=str(tmp_path / "file" / "x.log"), marker="m")

    def test_a_restart_appends_to_the_log_and_forgets_the_last_code(self, host: LocalHost, services: Services) -> None:
        first = services.start("print('one'); raise SystemExit(3)")
        until(lambda: host.look(first).exit_code == 3)
        second = services.start(SLEEP)
        assert host.look(second).exit_code is None
        is_up(host, second)
        assert log_of(host, second) == "one\nup\n"

    def test_on_the_cpus_that_are_given(self, host: LocalHost, services: Services) -> None:
        cpu = min(os.sched_getaffinity(0))
        group = services.start(SLEEP, cpus=[cpu])
        assert os.sched_getaffinity(group.pid) == {cpu}

    def test_more_output_than_a_pipe_holds_stops_nothing(self, host: LocalHost, services: Services) -> None:
        group = services.start("import os\nfor _ in range(16): os.write(1, b'x' * 65536); os.write(2, b'y' * 65536)\nprint('up')")
        until(lambda: not host.look(group).alive)
        assert host.look(group).log_size == 2 * 16 * 65536 + 3


class TestEnding:
    @pytest.mark.parametrize(("program", "code"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", -9)])
    def test_how_it_ended_is_written_down(self, host: LocalHost, services: Services, program: str, code: int) -> None:
        group = services.start(program)
        until(lambda: not host.look(group).alive)
        assert host.look(group).exit_code == code  # never "dead, and nothing tells why"

    def test_killed_from_outside(self, host: LocalHost, services: Services) -> None:
        group = services.start(SLEEP)
        os.kill(group.pid, signal.SIGKILL)
        until(lambda: not host.look(group).alive)
        assert host.look(group).exit_code == -9

    def test_children_outlive_a_killed_leader_and_are_found_and_ended(self, host: LocalHost, services: Services) -> None:
        group = services.start(FORKS)
        is_up(host, group)
        os.kill(group.pid, signal.SIGKILL)
        until(lambda: not host.look(group).alive)
        left = host.look(group)
        assert len(left.members) == 2
        assert left.exit_code == -9
        assert host.signal(group, signal.SIGKILL) == 2
        until(lambda: not host.look(group).members)

    @pytest.mark.parametrize("program", [LEAVES_SESSION, FORGETS_ALL])
    def test_a_child_that_leaves_the_session_even_without_its_variables(self, host: LocalHost, services: Services, program: str) -> None:
        group = services.start(program)
        is_up(host, group, "away")
        child = next(m for m in host.look(group).members if m.pid != group.pid)
        assert os.getsid(child.pid) == child.pid
        os.kill(group.pid, signal.SIGKILL)
        until(lambda: not host.look(group).alive)
        assert [m.pid for m in host.look(group).members] == [child.pid]
        host.signal(group, signal.SIGTERM)
        until(lambda: not host.look(group).members)

    def test_one_that_ignores_sigterm_is_still_there_until_killed(self, host: LocalHost, services: Services) -> None:
        group = services.start(DEAF)
        is_up(host, group)
        assert host.signal(group, signal.SIGTERM) == 1
        assert host.look(group).alive
        host.signal(group, signal.SIGKILL)
        until(lambda: not host.look(group).alive)
        assert host.look(group).exit_code == -9

    def test_a_stopped_process_shows_it(self, host: LocalHost, services: Services) -> None:
        group = services.start(SLEEP)
        host.signal(group, signal.SIGSTOP)
        until(lambda: host.look(group).members[0].state == "T")
        assert host.look(group).alive

    def test_the_waiter_leaves_with_the_last_descendant(self, host: LocalHost, services: Services) -> None:
        group = services.start(FORKS)
        is_up(host, group)
        assert Path(f"/proc/{group.waiter}").exists()
        host.signal(group, signal.SIGKILL)
        until(lambda: agent.identity(group.waiter)["started"] == 0)

    def test_without_its_waiter_the_group_is_still_found(self, host: LocalHost, services: Services) -> None:
        group = services.start(LEAVES_SESSION)
        is_up(host, group, "away")
        os.kill(group.waiter, signal.SIGKILL)
        until(lambda: agent.identity(group.waiter)["started"] == 0)
        assert len(host.look(group).members) == 2
        os.kill(group.pid, signal.SIGKILL)
        until(lambda: len(host.look(group).members) == 1)

    def test_our_own_group_and_our_own_process_are_never_hit(self, host: LocalHost, services: Services) -> None:
        program = "\n".join([
            f"import json, os, sys; sys.path.insert(0, {str(Path(agent.__file__).parent)!r}); import agent",
            "log = sys.argv[1]",
            "group = agent.start(argv=['sleep', '600'], env={}, cwd=None, log=log, marker='inner', exit_file=log + '.exit')",
            "agent.send_signal(group, 15)",
            "while agent.look(group)['members']: pass",
            "print('outer lives', os.environ['LOADCELL_SERVICE'])",
        ])  # fmt: skip
        group = services.start(program, str(services.folder / "inner.log"))
        until(lambda: not host.look(group).alive)
        assert log_of(host, group) == f"outer lives {group.marker}\n"


class TestLooksBetweenTwoPasses:
    """A look reads only what is new, and its own; it knows no less for that."""

    @pytest.fixture(autouse=True)
    def no_second_pass(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(agent, "_seen", [(float("-inf"), float("-inf"), {})])
        monkeypatch.setattr(agent, "LATELY_S", -1.0)
        monkeypatch.setattr(agent, "ALL_S", float("inf"))

    def test_strangers_that_were_there_are_not_read_again(
        self, host: LocalHost, services: Services, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        group = services.start(FORKS)
        is_up(host, group)
        host.look(group)
        read, real = [], agent._process
        monkeypatch.setattr(agent, "_process", lambda pid: read.append(pid) or real(pid))
        assert len(host.look(group).members) == 3
        assert os.getpid() not in read
        assert set(read) >= {member.pid for member in host.look(group).members}

    def test_a_child_that_came_and_one_that_went(self, host: LocalHost, services: Services) -> None:
        group = services.start(SPAWNS)
        is_up(host, group)
        assert len(host.look(group).members) == 1
        os.kill(group.pid, signal.SIGUSR1)
        is_up(host, group, "born")
        child = next(member.pid for member in host.look(group).members if member.pid != group.pid)
        os.kill(child, signal.SIGKILL)
        until(lambda: agent.identity(child)["started"] == 0)
        look = host.look(group)
        assert ([one.pid for one in look.members], [one.pid for one in look.defunct]) == ([group.pid], [child])

    def test_one_whose_parent_went_and_that_kept_neither_session_nor_variables(self, host: LocalHost, services: Services) -> None:
        group = services.start(FORGETS_ALL)
        is_up(host, group, "away")
        child = next(member.pid for member in host.look(group).members if member.pid != group.pid)
        os.kill(group.pid, signal.SIGKILL)
        until(lambda: not host.look(group).alive)
        assert [(one.pid, one.parent) for one in host.look(group).members] == [(child, group.waiter)]

    def test_a_stopped_and_a_killed_leader(self, host: LocalHost, services: Services) -> None:
        group = services.start(SLEEP)
        assert host.look(group).alive
        host.signal(group, signal.SIGSTOP)
        until(lambda: agent._process(group.pid).state == "T")
        assert host.look(group).members[0].state == "T"
        os.kill(group.pid, signal.SIGKILL)
        until(lambda: not host.look(group).alive)
        look = host.look(group)
        assert (look.members, look.defunct, look.exit_code) == ((), (), -9)
        assert not host.look(group).alive

    def test_a_leader_that_has_just_ended_is_there_until_its_waiter_has_written_how(self, host: LocalHost, services: Services) -> None:
        group = services.start(SLEEP)
        os.kill(group.waiter, signal.SIGSTOP)
        try:
            os.kill(group.pid, signal.SIGKILL)
            until(lambda: (process := agent._process(group.pid)) is not None and process.state == "Z")
            look = host.look(group)
            assert ([(one.pid, one.state) for one in look.members], look.alive, look.exit_code) == ([(group.pid, "?")], True, None)
        finally:
            os.kill(group.waiter, signal.SIGCONT)
        until(lambda: not host.look(group).alive)
        assert (host.look(group).members, host.look(group).exit_code) == ((), -9)


class TestStrangers:
    @pytest.fixture
    def decoy(self) -> subprocess.Popen[bytes]:
        with subprocess.Popen(["sleep", "600"], start_new_session=True) as made:
            yield made
            made.kill()

    @pytest.mark.parametrize("wrong", [{"started": -1}, {"boot_id": "another"}])
    def test_a_recycled_pid_is_nobody(self, host: LocalHost, decoy: subprocess.Popen[bytes], wrong: dict[str, object]) -> None:
        me = agent.identity(decoy.pid)
        true = Group(decoy.pid, me["started"], me["boot_id"], "gone", "/none.log", "/none.exit")
        stale = msgspec.structs.replace(true, **{**wrong, **({"started": me["started"] - 5} if "started" in wrong else {})})
        assert host.look(true).members
        assert host.look(stale) == msgspec.structs.replace(host.look(stale), alive=False, members=())
        assert host.signal(stale, signal.SIGKILL) == 0
        assert decoy.poll() is None

    def test_a_recycled_session_without_its_leader_is_nobody(self, host: LocalHost, tmp_path: Path) -> None:
        program = "import os,time\nif os.fork() == 0: time.sleep(600)\n"
        with subprocess.Popen([sys.executable, "-I", "-S", "-c", program], start_new_session=True) as stranger:
            stranger.wait()
        child = next(p for p in agent._processes().values() if p.session == stranger.pid)
        try:
            group = Group(stranger.pid, child.started - 100, agent.boot_id(), "gone", str(tmp_path / "l"), str(tmp_path / "e"))
            assert host.signal(group, signal.SIGKILL) == 0
            assert agent._process(child.pid) is not None
        finally:
            os.kill(child.pid, signal.SIGKILL)

    def test_a_name_proves_nothing(self, host: LocalHost, services: Services) -> None:
        ours, decoy = services.start(SLEEP, "vllm serve", name="a"), services.start(SLEEP, "vllm serve", name="b")
        host.signal(ours, signal.SIGKILL)
        until(lambda: not host.look(ours).members)
        assert host.look(decoy).alive


class TestFinding:
    def test_a_start_that_was_never_written_down(self, host: LocalHost, services: Services) -> None:
        group = services.start(LEAVES_SESSION)
        is_up(host, group, "away")
        assert host.find(group.marker, group.log) == group

    def test_nothing_of_it(self, host: LocalHost) -> None:
        assert host.find("never-started", "/x.log") is None


class TestCommands:
    def test_code_output_and_environment(self, host: LocalHost) -> None:
        ended = host.run(["sh", "-c", "echo $X; echo bad >&2; exit 4"], env={"X": "y"})
        assert (ended.code, ended.out, ended.err) == (4, "y\n", "bad\n")

    def test_a_program_that_is_not_there(self, host: LocalHost) -> None:
        assert host.run(["no-such-program"]).code == 127

    def test_one_that_does_not_end_is_killed_with_its_children(self, host: LocalHost) -> None:
        ended = host.run(["sh", "-c", "sleep 600 & echo $!; wait"], timeout_s=0.3)
        assert ended.code == -9
        assert "no end within 0.3 s" in ended.err
        until(lambda: agent.identity(int(ended.out))["started"] == 0)

    def test_a_daemon_that_keeps_its_output_open_delays_nothing(self, host: LocalHost) -> None:
        ended = host.run(["sh", "-c", "sleep 600 & echo $!"], timeout_s=10)
        os.kill(int(ended.out), signal.SIGKILL)
        assert ended.code == 0

    def test_files(self, host: LocalHost, tmp_path: Path) -> None:
        path = str(tmp_path / "new" / "config.json")
        assert host.fetch(path) == b""
        assert not host.exists(path)
        host.write_file(path, "é")
        assert host.fetch(path) == "é".encode()
        assert host.exists(path)

    def test_interfaces(self, host: LocalHost) -> None:
        assert host.interface_address("lo") == ("lo", "127.0.0.1")
        assert host.interface_address(None, "127.0.0.1") == ("lo", "127.0.0.1")
        assert host.interface_address("no-such-nic") is None
