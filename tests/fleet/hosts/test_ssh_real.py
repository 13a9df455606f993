"""A real sshd of this test's own on loopback: its keys, its configuration, its port."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadcell.fleet.hosts.agent_host import AgentHost
from loadcell.fleet.hosts.host import HostUnreachable
from loadcell.fleet.hosts.ssh import SshHost, ssh_words
from loadcell.fleet.spec import HostSpec

from .conftest import Services
from .waiting import until

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
SLEEP = "import os,time\nif os.fork() == 0: os.setsid()\nprint('up', flush=True)\ntime.sleep(600)"

pytestmark = [
    pytest.mark.skipif(SSHD is None, reason="sshd is not installed (Debian: openssh-server)"),
    pytest.mark.skipif(shutil.which("ssh") is None, reason="ssh is not installed (Debian: openssh-client)"),
]


@pytest.fixture
def spec(tmp_path: Path) -> Iterator[HostSpec]:
    """The machine as a host over ssh; sshd in the foreground of a process that is ours."""
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd of root refuses to run without it
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    (tmp_path / "authorized").write_text((tmp_path / "key.pub").read_text())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {tmp_path}/host_key\nAuthorizedKeysFile {tmp_path}/authorized\nPidFile none\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
    )
    (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {(tmp_path / 'host_key.pub').read_text()}")
    options = (f"IdentityFile={tmp_path}/key", f"UserKnownHostsFile={tmp_path}/known", "IdentitiesOnly=yes", "GlobalKnownHostsFile=none")
    user = pwd.getpwuid(os.getuid()).pw_name
    found = HostSpec(name="loop", ssh=f"{user}@127.0.0.1", ssh_port=port, ssh_options=options, python=sys.executable)
    log = tmp_path / "sshd.log"
    with log.open("wb") as said, subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(tmp_path / "sshd_config")], stderr=said) as daemon:
        try:
            until(lambda: b"Server listening" in log.read_bytes() or daemon.poll() is not None)
            assert daemon.poll() is None, log.read_text()
            subprocess.run([*ssh_words(found), "true"], check=False, capture_output=True)
            if "account is locked" in log.read_text():
                pytest.skip(f"sshd lets {user} not in: the account is locked")
            yield found
        finally:
            daemon.terminate()


@pytest.fixture
def far(spec: HostSpec) -> Iterator[AgentHost]:
    host = SshHost(spec)
    yield host
    host.close()


def test_a_service_from_start_to_end(far: AgentHost, services: Services) -> None:
    group = services.start(SLEEP, "a b", "$HOME", host=far, env={"X": "`id`"})
    until(lambda: far.read_log(group.log, 0)[1].count(b"up") == 2)
    assert len(far.look(group).members) == 2
    assert far.look(group).members[0].command.endswith("a b $HOME")
    far.signal(group, signal.SIGTERM)
    until(lambda: not far.look(group).members)
    assert far.look(group).exit_code == -15
    assert far.fetch(group.log) == b"up\nup\n"


def test_services_go_on_without_the_connection(far: AgentHost, spec: HostSpec, services: Services) -> None:
    group = services.start(SLEEP, host=far)
    far.close()
    later = SshHost(spec)
    assert later.look(group).alive
    assert later.find(group.marker, group.log) == group
    later.close()


def test_a_connection_that_is_cut_in_the_middle(far: AgentHost, services: Services) -> None:
    """The sshd of this connection is killed, as a network that is cut ends it."""
    group = services.start(SLEEP, host=far)
    before = far.call("identity")["pid"]
    session = far.run(["sh", "-c", "cut -d' ' -f4 /proc/$PPID/stat"]).out.strip()  # the parent of the agent
    assert "sshd" in far.call("commands", pids=[int(session)])[0]
    os.kill(int(session), signal.SIGKILL)

    def back() -> bool:
        try:
            return far.look(group).alive
        except HostUnreachable:
            return False

    until(back)
    assert far.call("identity")["pid"] != before


def test_its_address_is_what_ssh_connects_to(far: AgentHost) -> None:
    assert far.address == "127.0.0.1"


def test_a_key_that_is_not_known_there(spec: HostSpec, tmp_path: Path) -> None:
    (tmp_path / "authorized").write_text("")
    with pytest.raises(HostUnreachable, match=r"host loop \(ssh .*\): no agent: .*Permission denied"):
        SshHost(spec).run(["true"])


def test_a_python_that_is_not_there(spec: HostSpec) -> None:
    missing = HostSpec(name="loop", ssh=spec.ssh, ssh_port=spec.ssh_port, ssh_options=spec.ssh_options, python="python3.0")
    with pytest.raises(HostUnreachable, match=r"python3\.0"):
        SshHost(missing).run(["true"])


def test_nobody_there(spec: HostSpec) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nobody = HostSpec(name="loop", ssh=spec.ssh, ssh_port=port)
    with pytest.raises(HostUnreachable, match="Connection refused"):
        SshHost(nobody).run(["true"])
