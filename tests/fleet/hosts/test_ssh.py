"""The words given to ssh. A shell stands for the far end's: what it makes of them must be what was meant."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from loadcell.errors import UserError
from loadcell.fleet.hosts import open_host
from loadcell.fleet.hosts.piped import agent_words
from loadcell.fleet.hosts.ssh import SshHost, host_of, over_ssh, ssh_words
from loadcell.fleet.spec import DockerSpec, HostSpec

GPU1 = HostSpec(name="gpu1", ssh="me@gpu1")


class TestWords:
    def test_it_asks_for_nothing_and_notices_a_cut(self) -> None:
        words = ssh_words(GPU1)
        assert words[0] == "ssh"
        assert words[-2:] == ["--", "me@gpu1"]
        assert {"BatchMode=yes", "ServerAliveInterval=5", "ServerAliveCountMax=3"} <= set(words)

    def test_port_and_the_specs_own_options_first(self) -> None:
        """ssh takes the first value that it is given for an option."""
        words = ssh_words(HostSpec(name="a", ssh="a", ssh_port=2222, ssh_options=("ProxyJump=bastion", "ConnectTimeout=60")))
        assert words[words.index("-p") + 1] == "2222"
        assert words.index("ConnectTimeout=60") < words.index("ConnectTimeout=10")
        assert words[words.index("ProxyJump=bastion") - 1] == "-o"

    @pytest.mark.parametrize("destination", ["-oProxyCommand=touch /tmp/x", "", "a b", "-l"])
    def test_a_destination_is_never_an_option(self, destination: str) -> None:
        with pytest.raises(UserError, match="host a: ssh = "):
            ssh_words(HostSpec(name="a", ssh=destination))

    @pytest.mark.parametrize("words", [["a b", "$HOME", "`id`", "'q\"", '{"a": 1}', "", ";", "é", "*", "!x", "#", "a\\b"]])
    def test_every_word_arrives_through_the_far_shell(self, words: list[str]) -> None:
        line = over_ssh(GPU1, [sys.executable, "-c", "import json,sys; print(json.dumps(sys.argv[1:]))", *words])[-1]
        told = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout
        assert json.loads(told) == words

    @pytest.mark.parametrize(
        ("destination", "host"),
        [("gpu1", "gpu1"), ("me@gpu1", "gpu1"), ("ssh://me@gpu1:22", "gpu1"), ("ssh://gpu1", "gpu1"), ("me@fe80::1", "fe80::1"), ("ssh://me@[fe80::1]:22", "fe80::1")],
    )  # fmt: skip
    def test_the_host_of_a_destination(self, destination: str, host: str) -> None:
        assert host_of(destination) == host


class TestAddress:
    def test_what_ssh_connects_to(self) -> None:
        assert SshHost(GPU1, resolve=lambda _: "10.1.2.3").address == "10.1.2.3"

    def test_as_the_spec_says(self) -> None:
        assert SshHost(HostSpec(name="a", ssh="a", address="10.9.9.9"), resolve=lambda _: "10.1.2.3").address == "10.9.9.9"

    def test_the_users_configuration_is_asked(self, tmp_path: Path) -> None:
        config = tmp_path / "config"
        config.write_text("Host gpu1\n  HostName 10.7.7.7\n")
        assert SshHost(HostSpec(name="a", ssh="me@gpu1", ssh_options=(f"Include={config}",))).address in {"10.7.7.7", "gpu1"}


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `ssh` on the PATH that notes its words and gives the last one to a shell, as sshd does."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word" >> {tmp_path}/words; done\nfor word in "$@"; do :; done\nexec sh -c "$word"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return tmp_path / "words"


class TestOpened:
    def test_a_host_over_ssh(self, stand_in: Path) -> None:
        host = open_host(HostSpec(name="gpu1", ssh="me@gpu1", address="127.0.0.1", python=sys.executable))
        assert not stand_in.exists()  # nothing is connected before the first call
        assert host.run(["echo", "$HOME `id` 'x"]).out == "$HOME `id` 'x\n"
        assert host.run(["echo", "again"]).out == "again\n"
        assert stand_in.read_text().count("me@gpu1") == 1  # one connection
        host.close()

    def test_inside_a_container_over_ssh(self, stand_in: Path, tmp_path: Path) -> None:
        docker = tmp_path / "bin" / "docker"
        docker.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/docker\nshift 3\nexec "$@"\n')
        docker.chmod(0o755)
        spec = HostSpec(name="w", ssh="me@gpu1", address="x", python=sys.executable, docker=DockerSpec(container="mindie 1"))
        host = open_host(spec)
        assert host.run(["echo", "inside"]).out == "inside\n"
        assert (tmp_path / "docker").read_text().splitlines()[:3] == ["exec", "-i", "mindie 1"]
        host.close()


def test_the_command_line_tells_what_runs() -> None:
    words, _ = agent_words("python3")
    assert shlex.split(over_ssh(GPU1, words)[-1])[:6] == ["exec", "python3", "-I", "-B", "-S", "-u"]
