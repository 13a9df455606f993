"""Who has a port, tried as servers do."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loadcell.fleet.hosts import agent
from loadcell.fleet.hosts.local import LocalHost
from loadcell.fleet.preflight import outgoing_ports

from .conftest import Services
from .waiting import until

LISTEN = "import socket,sys,time\ns = socket.socket()\ns.setsockopt(1, {option}, 1)\ns.bind(('127.0.0.1', int(sys.argv[1])))\ns.listen()\nprint('up', flush=True)\ntime.sleep(600)"  # fmt: skip
REUSEADDR, REUSEPORT = 2, 15


def test_a_free_one_is_bindable_and_nobody_holds_it(host: LocalHost) -> None:
    (port,) = host.free_ports("127.0.0.1", 1)
    assert host.bindable("127.0.0.1", port)
    assert host.port_holder(port) is None


def test_free_ports_differ_and_avoid(host: LocalHost) -> None:
    first = host.free_ports("127.0.0.1", 20)
    assert len(set(first)) == 20
    assert not set(host.free_ports("127.0.0.1", 20, first)) & set(first)


def test_a_listener_is_named(host: LocalHost) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not host.bindable("127.0.0.1", port)
        assert not host.bindable("0.0.0.0", port)
        holder = host.port_holder(port)
        assert holder is not None
        assert holder.kind == "listener"
        assert holder.pid > 0
        assert "python" in holder.command


def test_the_local_end_of_a_live_connection_is_refused(host: LocalHost) -> None:
    """Nobody listens there, a connect would be refused, and yet a server cannot have it."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        port = client.getsockname()[1]
        assert not host.bindable("127.0.0.1", port)
        holder = host.port_holder(port)
        assert holder is not None
        assert holder.kind == "connection"


def test_one_that_is_bound_and_silent(host: LocalHost) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert not host.bindable("127.0.0.1", port)
        holder = host.port_holder(port)
        assert holder is not None
        assert (holder.kind, holder.pid) == ("unknown", 0)


def test_time_wait_counts_for_nothing(host: LocalHost) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # with SO_REUSEADDR, as servers do
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the server's side closes first: TIME_WAIT is its
            assert client.recv(1) == b""
    assert any(f":{port:04X} " in line and line.split()[3] == "06" for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    assert host.bindable("127.0.0.1", port)
    assert host.port_holder(port) is None


def test_a_clients_time_wait_counts(host: LocalHost) -> None:
    """Clients do not set SO_REUSEADDR: for a minute their port is nobody's, and yet no server can have it."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        port = client.getsockname()[1]
        accepted, _ = server.accept()
        client.shutdown(socket.SHUT_WR)
        client.close()  # first: TIME_WAIT is the client's
        closing = host.port_holder(port)
        assert closing is not None
        assert (closing.kind, closing.pid) == ("closing", 0)
        accepted.close()
        until(lambda: (holder := host.port_holder(port)) is not None and holder.kind == "time_wait")
    assert not host.bindable("127.0.0.1", port)


@pytest.fixture(params=["asked of the kernel", "read from its tables"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "read from its tables":
        monkeypatch.setattr(agent, "_listening", lambda _: None)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_the_kernel_tells_what_its_tables_say(address: str) -> None:
    if ":" in address and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as server:
        port = server.getsockname()[1]
        inodes = [inode for state, inode in agent._sockets(port) if state == agent.TCP_LISTEN]
        assert agent._listening(port) == inodes == [str(os.fstat(server.fileno()).st_ino)]
    assert agent._listening(port) == []


def test_a_kernel_that_does_not_tell_is_no_empty_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "NETLINK_SOCK_DIAG", 31)  # a protocol that nobody speaks
    assert agent._listening(1) is None
    monkeypatch.setattr(agent, "NETLINK_SOCK_DIAG", 4)
    monkeypatch.setattr(agent, "SOCK_DIAG_BY_FAMILY", 19)  # a question that it does not know
    assert agent._listening(1) is None


@pytest.mark.usefixtures("way")
class TestWhoseListener:
    def test_ours_even_when_a_child_listens(self, host: LocalHost, services: Services) -> None:
        (port,) = host.free_ports("127.0.0.1", 1)
        child = (
            f"import subprocess,sys\nsubprocess.run([sys.executable, '-I', '-S', '-c', {LISTEN.format(option=REUSEADDR)!r}, sys.argv[1]])"
        )
        group = services.start(child, str(port))
        until(lambda: host.read_log(group.log, 0)[1])
        assert host.listener_of(group, port) is True

    def test_a_stale_server(self, host: LocalHost, services: Services) -> None:
        group = services.start("import time; time.sleep(600)")
        with socket.create_server(("127.0.0.1", 0)) as server:
            assert host.listener_of(group, server.getsockname()[1]) is False

    def test_nobody(self, host: LocalHost, services: Services) -> None:
        group = services.start("import time; time.sleep(600)")
        (port,) = host.free_ports("127.0.0.1", 1)
        assert host.listener_of(group, port) is None

    def test_a_port_that_is_shared_with_a_stranger_is_not_ours(self, host: LocalHost, services: Services) -> None:
        """Engines that set SO_REUSEPORT share a port with a stale one, and half of the requests are answered by it."""
        (port,) = host.free_ports("127.0.0.1", 1)
        program = LISTEN.format(option=REUSEPORT)
        group = services.start(program, str(port))
        until(lambda: host.read_log(group.log, 0)[1])
        with subprocess.Popen([sys.executable, "-I", "-S", "-c", program, str(port)], stdout=subprocess.PIPE) as stranger:
            assert stranger.stdout is not None
            stranger.stdout.readline()
            try:
                assert host.listener_of(group, port) is False
            finally:
                stranger.kill()
        until(lambda: host.listener_of(group, port) is True)


def test_what_the_machine_gives_to_connections(host: LocalHost) -> None:
    given = outgoing_ports(host)
    assert given is not None
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getsockname()[1] in given
