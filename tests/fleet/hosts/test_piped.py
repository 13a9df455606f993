"""The connection to an agent through a command: here a Python of this machine stands for the far end."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loadcell.errors import EnvironmentFailure
from loadcell.fleet.hosts import agent
from loadcell.fleet.hosts.agent_host import AgentHost
from loadcell.fleet.hosts.host import HostUnreachable
from loadcell.fleet.hosts.piped import Piped, agent_words

from .conftest import Services
from .waiting import until

WORDS, TEXT = agent_words(sys.executable)
PYTHONS = sorted(map(str, (Path.home() / ".pyenv" / "versions").glob("3.*/bin/python3"))) or [sys.executable]
SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def piped(*argv: str, connect_s: float = 20.0, first: bytes = TEXT) -> AgentHost:
    return AgentHost("gpu1", "10.0.0.1", Piped("gpu1", "ssh gpu1", argv or WORDS, first, connect_s=connect_s))


@pytest.fixture
def far() -> Iterator[AgentHost]:
    host = piped()
    yield host
    host.close()


def agent_pid(host: AgentHost) -> int:
    return int(host.call("identity")["pid"])


def _answers(host: AgentHost) -> bool:
    try:
        host.call("identity")
    except HostUnreachable:
        return False
    return True


class TestAnswers:
    def test_the_same_as_here(self, far: AgentHost, services: Services) -> None:
        group = services.start(SLEEP, host=far)
        until(lambda: far.read_log(group.log, 0)[1] == b"up\n")
        assert far.look(group).members[0].pid == group.pid
        assert far.find(group.marker, group.log) == group
        far.signal(group, signal.SIGTERM)
        until(lambda: not far.look(group).members)
        assert far.look(group).exit_code == -15

    def test_bytes_and_long_files(self, far: AgentHost, tmp_path: Path) -> None:
        path = tmp_path / "big"
        path.write_bytes(os.urandom(9 << 20))
        assert far.fetch(str(path)) == path.read_bytes()

    def test_what_cannot_be_done_there_is_no_loss_of_connection(self, far: AgentHost, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        before = agent_pid(far)
        with pytest.raises(EnvironmentFailure, match=r"host gpu1: .*file") as told:
            far.write_file(str(tmp_path / "file" / "x"), "")
        assert not isinstance(told.value, HostUnreachable)
        assert agent_pid(far) == before

    def test_a_slow_command_holds_nobody_up(self, far: AgentHost, tmp_path: Path) -> None:
        """The command ends only when it sees the file that a later call writes."""
        path = tmp_path / "go"
        with ThreadPoolExecutor(1) as apart:
            slow = apart.submit(far.run, ["sh", "-c", f"while ! test -e {path}; do sleep 0.01; done; echo done"])
            far.write_file(str(path), "")
            assert slow.result().out == "done\n"

    def test_from_many_threads(self, far: AgentHost) -> None:
        with ThreadPoolExecutor(8) as apart:
            answers = list(apart.map(lambda number: far.run(["echo", str(number)]).out, range(40)))
        assert answers == [f"{number}\n" for number in range(40)]

    def test_what_a_login_shell_prints_first_is_skipped(self) -> None:
        host = piped("sh", "-c", 'echo "Welcome to gpu1"; echo \'["json"]\'; echo 7; exec "$@"', "sh", *WORDS)
        assert host.run(["echo", "x"]).out == "x\n"
        host.close()

    @pytest.mark.parametrize("python", PYTHONS)
    def test_on_every_python_that_is_here(self, python: str, services: Services) -> None:
        words, text = agent_words(python)
        host = piped(*words, first=text)
        group = services.start("raise SystemExit(5)", host=host)
        until(lambda: not host.look(group).alive)
        assert host.look(group).exit_code == 5
        host.close()


class TestLoss:
    def test_services_go_on_and_the_next_call_connects_again(self, far: AgentHost, services: Services) -> None:
        group = services.start(SLEEP, host=far)
        first = agent_pid(far)
        os.kill(first, signal.SIGKILL)
        until(lambda: agent.identity(first)["started"] == 0)
        until(lambda: _answers(far))  # a call into the cut says so, the next one connects
        assert far.look(group).alive
        assert agent_pid(far) != first

    def test_a_call_under_way_is_cut_not_repeated(self, far: AgentHost, tmp_path: Path) -> None:
        path = tmp_path / "ran"
        with ThreadPoolExecutor(1) as apart:
            under_way = apart.submit(far.run, ["sh", "-c", f"echo x >> {path}; sleep 600"])
            until(path.exists)
            os.kill(agent_pid(far), signal.SIGKILL)
            with pytest.raises(HostUnreachable, match="connection cut"):
                under_way.result()
        assert path.read_text() == "x\n"

    def test_the_agent_leaves_when_the_connection_ends(self, far: AgentHost) -> None:
        pid = agent_pid(far)
        far.close()
        until(lambda: agent.identity(pid)["started"] == 0)

    def test_no_answer_in_time(self, far: AgentHost) -> None:
        pid = agent_pid(far)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(HostUnreachable, match=r"host gpu1 \(ssh gpu1\): no answer to identity in 0.2 s"):
            far.call("identity", 0.2)
        assert agent_pid(far) != pid  # connected again

    @pytest.mark.parametrize(
        ("argv", "why"),
        [
            (["no-such-ssh"], "cannot run no-such-ssh"),
            (["sh", "-c", "echo 'Permission denied (publickey).' >&2; exit 255"], r"no agent: Permission denied \(publickey\)"),
            (["sh", "-c", "cat > /dev/null; echo 'python3: not found' >&2; exit 127"], None),
        ],
    )
    def test_why_it_cannot_be_reached(self, argv: list[str], why: str | None) -> None:
        with pytest.raises(HostUnreachable, match=why or "no answer in 0.5 s"):
            piped(*argv, connect_s=0.5).run(["true"])

    def test_one_connection_for_all_threads(self, far: AgentHost) -> None:
        begin = threading.Barrier(6)

        def ask(_: int) -> int:
            begin.wait()
            return agent_pid(far)

        with ThreadPoolExecutor(6) as apart:
            assert len(set(apart.map(ask, range(6)))) == 1
