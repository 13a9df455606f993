"""Containers, against a stand-in for `docker` that runs them as plain processes: the words that docker is given, and what becomes of its answers."""

import json
import signal
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.fleet.docker_command import MARK, device_words, docker_words, outer_path, run_words
from loadcell.fleet.hosts import agent, open_host
from loadcell.fleet.hosts.docker import DockerRunHost
from loadcell.fleet.hosts.host import Group, Host
from loadcell.fleet.hosts.local import LocalHost
from loadcell.fleet.spec import DockerSpec, HostSpec

from .waiting import until

SLEEP = ("-I", "-S", "-u", "-c", "import time; print('up'); time.sleep(600)")


class TestWords:
    def test_sudo_asks_for_no_password(self) -> None:
        assert docker_words(DockerSpec(image="i", sudo=True)) == ["sudo", "-n", "docker"]

    def test_one_service(self) -> None:
        words = run_words(
            DockerSpec(image="vllm/vllm-openai:v1", args=("-v", "/data:/data")),
            ["vllm", "serve", "/data/a b", "--log", "/runs/1/log"],
            env={"CUDA_VISIBLE_DEVICES": "2,3", "A": "b c"},
            cwd="/w",
            marker="m",
            owner="o",
            cpus=[0, 1],
            folders=["/runs/1", "/runs/2"],
        )
        assert words == [
            *("docker", "run", "-d", "--init", "--label", "loadcell.service=m", "--label", "loadcell.owner=o"),
            *("--network", "host", "--ipc", "host", "--log-driver", "local", "--gpus", '"device=2,3"'),
            *("-e", "A=b c", "-e", "LOADCELL_SERVICE=m", "-v", "/runs/1:/runs/1", "-w", "/w", "--cpuset-cpus", "0,1"),
            *("-v", "/data:/data", "--entrypoint", "vllm", "vllm/vllm-openai:v1", "serve", "/data/a b", "--log", "/runs/1/log"),
        ]  # fmt: skip

    def test_the_specs_own_words_win(self) -> None:
        docker = DockerSpec(image="i", args=("--network=mine", "--shm-size", "16g", "--log-driver", "journald"))
        words = run_words(docker, ["x"], env={}, cwd=None, marker="m", owner="o", cpus=None, folders=())
        assert "--ipc" not in words
        assert [word for word in words if "network" in word] == ["--network=mine"]
        assert words.count("--log-driver") == 1

    def test_devices_are_numbered_anew_inside(self) -> None:
        """With `--gpus device=2,3` the container has 0 and 1: its variable must not say 2,3."""
        assert device_words({"CUDA_VISIBLE_DEVICES": "2,3"}) == (["--gpus", '"device=2,3"'], {})

    def test_ascend(self) -> None:
        words, left = device_words({"ASCEND_RT_VISIBLE_DEVICES": "4,5", "X": "y"})
        assert [word for word in words if word.startswith("/dev/davinci")] == ["/dev/davinci4", "/dev/davinci5", "/dev/davinci_manager"]
        assert left == {"X": "y"}

    def test_amd_keeps_its_variable(self) -> None:
        words, left = device_words({"HIP_VISIBLE_DEVICES": "1"})
        assert "/dev/kfd" in words
        assert left == {"HIP_VISIBLE_DEVICES": "1"}

    def test_a_folder_is_mounted_where_it_is_named_and_once(self) -> None:
        def mounts(*argv: str, folders: tuple[str, ...]) -> list[str]:
            words = run_words(DockerSpec(image="i"), argv, env={}, cwd=None, marker="m", owner="o", cpus=None, folders=folders)
            return [after for word, after in pairwise(words) if word == "-v"]

        assert mounts("x", "--log=/r/replica-1/a.log", folders=("/r/replica-1", "/r/replica-0")) == ["/r/replica-1:/r/replica-1"]
        assert mounts("x", "/r/replica-10/a", folders=("/r/replica-1", "/r/replica-10")) == ["/r/replica-10:/r/replica-10"]
        assert mounts("x", "/r/replica-0/c/a", folders=("/r/replica-0/c", "/r/replica-0")) == ["/r/replica-0:/r/replica-0"]

    def test_the_mark_is_the_agents(self) -> None:
        assert MARK == agent.VARIABLE

    @pytest.mark.parametrize(
        ("args", "path", "outside"),
        [
            (("-v", "/data/models:/models:ro"), "/models/m", "/data/models/m"),
            (("-v", "/data/models:/models"), "/models", "/data/models"),
            (("-v", "/data/models:/models/"), "/models2/m", None),
            (("--volume=/a:/m", "-v", "/b:/m/n"), "/m/n/o", "/b/o"),
            (("-v/a:/m",), "/m/x", "/a/x"),
            (("-v", "named:/models"), "/models/m", None),
            (("-v", "/models"), "/models/m", None),
            (("-v", "/a:/m", "-v", "named:/m/n"), "/m/n/o", None),
            (("--mount", "type=bind,source=/a,target=/m,readonly"), "/m/x", "/a/x"),
            (("--mount=type=bind,src=/a,dst=/m",), "/m/x", "/a/x"),
            (("--mount", "type=volume,src=a,dst=/m"), "/m/x", None),
            (("-v", "/:/host"), "/host/m", "/m"),
            (("--gpus", "all"), "/m", None),
        ],
    )
    def test_which_path_of_the_machine_a_path_inside_is(self, args: tuple[str, ...], path: str, outside: str | None) -> None:
        assert outer_path(args, path) == outside

    @pytest.mark.parametrize("docker", [DockerSpec(), DockerSpec(image="i", container="c")])
    def test_an_image_or_a_container(self, docker: DockerSpec) -> None:
        with pytest.raises(UserError, match="one of image"):
            open_host(HostSpec(name="a", docker=docker))

    def test_a_name_is_never_an_option(self) -> None:
        with pytest.raises(UserError, match=r"docker\.container = '--help'"):
            open_host(HostSpec(name="a", docker=DockerSpec(container="--help")))
        with pytest.raises(UserError, match=r"docker\.image = '--rm'"):
            open_host(HostSpec(name="a", docker=DockerSpec(image="--rm")))


def said(state: Path, verb: str) -> list[list[str]]:
    return [words for line in (state / "words").read_text().splitlines() if (words := json.loads(line))[0] == verb]


@pytest.fixture
def host(state: Path) -> Host:
    return open_host(HostSpec(name="box", docker=DockerSpec(image="img")))


def start(host: Host, tmp_path: Path, *words: str, marker: str = "m-1", **asked: object) -> Group:
    values = {"env": {}, "cwd": None, "log": str(tmp_path / "logs" / "a.log"), "marker": marker, **asked}
    return host.start([sys.executable, *words], **values)


class TestRunning:
    def test_from_start_to_end(self, host: Host, state: Path, tmp_path: Path) -> None:
        group = start(host, tmp_path, *SLEEP)
        assert group.pid == 0
        assert group.container
        until(lambda: host.read_log(group.log, 0)[1] == b"up\n")
        look = host.look(group)
        assert look.alive
        assert [member.command.endswith("time.sleep(600)") for member in look.members] == [True]
        assert host.find("m-1", group.log) == group
        assert host.signal(group, signal.SIGTERM) == 1
        until(lambda: not host.look(group).alive)
        assert host.look(group).exit_code == -15
        assert host.fetch(group.log) == b"up\n"
        assert not list(state.glob("*.json"))  # removed once its log and code are kept
        assert host.find("m-1", group.log) is None

    def test_its_end_is_known_after_the_container_is_removed(self, host: Host, tmp_path: Path) -> None:
        group = start(host, tmp_path, "-c", "print('bad argument'); raise SystemExit(2)")
        until(lambda: not host.look(group).alive)
        assert [host.look(group).exit_code for _ in range(2)] == [2, 2]
        assert host.fetch(group.log) == b"bad argument\n"

    def test_killed_for_want_of_memory_is_told_in_the_log(self, host: Host, tmp_path: Path) -> None:
        group = start(host, tmp_path, "-c", "raise SystemExit(1)", "oom")
        until(lambda: not host.look(group).alive)
        assert b"out of memory" in host.fetch(group.log)

    def test_a_container_that_is_not_ours_is_never_touched(self, host: Host, state: Path, tmp_path: Path) -> None:
        """The id is recorded, but its label says another service: the record is stale."""
        group = start(host, tmp_path, *SLEEP)
        record = state / f"{group.container}.json"
        ours = record.read_text()
        record.write_text(ours.replace("m-1", "another"))
        assert host.signal(group, signal.SIGKILL) == 0
        assert not host.look(group).alive
        assert not said(state, "kill")
        assert not said(state, "rm")
        record.write_text(ours)
        host.signal(group, signal.SIGKILL)
        until(lambda: not host.look(group).alive)

    def test_stopped_and_continued_as_a_whole(self, host: Host, state: Path, tmp_path: Path) -> None:
        group = start(host, tmp_path, *SLEEP)
        host.signal(group, signal.SIGSTOP)
        until(lambda: host.look(group).members[0].state == "T")
        host.signal(group, signal.SIGSTOP)
        assert len(said(state, "pause")) == 1
        host.signal(group, signal.SIGTERM)  # a paused container takes no signal before it is unpaused
        until(lambda: not host.look(group).alive)

    def test_files_that_we_wrote_for_it_are_mounted(self, host: Host, state: Path, tmp_path: Path) -> None:
        host.write_file(str(tmp_path / "replica-0" / "config.json"), "{}")
        host.write_file(str(tmp_path / "replica-1" / "config.json"), "{}")
        group = start(host, tmp_path, *SLEEP, env={"CONFIG": str(tmp_path / "replica-0" / "config.json")})
        (words,) = said(state, "run")
        assert [word for word in words if word.startswith(str(tmp_path))] == [f"{tmp_path}/replica-0:{tmp_path}/replica-0"]
        host.signal(group, signal.SIGKILL)
        until(lambda: not host.look(group).alive)

    def test_its_folder_is_made_and_mounted(self, host: Host, state: Path, tmp_path: Path) -> None:
        folder = tmp_path / "services" / "replica-0"
        host.make_folder(str(folder))
        host.make_folder(str(folder))
        assert folder.is_dir()
        group = start(host, tmp_path, *SLEEP, env={"ACCESS_LOG": f"{folder}/access.log"})
        assert f"{folder}:{folder}" in said(state, "run")[0]
        host.signal(group, signal.SIGKILL)
        until(lambda: not host.look(group).alive)

    def test_a_start_that_docker_refuses(self, state: Path, tmp_path: Path) -> None:
        refused = open_host(HostSpec(name="box", docker=DockerSpec(image="no-such-image")))
        with pytest.raises(EnvironmentFailure, match="host box: docker run: Unable to find image 'no-such-image'"):
            start(refused, tmp_path, *SLEEP)
        assert not list(state.glob("*.json"))  # what was made of it is removed

    def test_a_daemon_that_does_not_answer_is_not_an_end(self, host: Host, state: Path, tmp_path: Path) -> None:
        group = start(host, tmp_path, *SLEEP)
        docker = state.parent / "docker"
        text = docker.read_text()
        docker.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2; exit 1\n")
        with pytest.raises(EnvironmentFailure, match="Cannot connect to the Docker daemon"):
            host.look(group)
        docker.write_text(text)
        host.signal(group, signal.SIGKILL)
        until(lambda: not host.look(group).alive)

    def test_ports_and_devices_are_the_machines(self, host: Host) -> None:
        assert isinstance(host, DockerRunHost)
        (port,) = host.free_ports("127.0.0.1", 1)
        assert host.bindable("127.0.0.1", port)
        assert host.address == LocalHost().address


def test_inside_a_container_that_runs_already(state: Path, tmp_path: Path) -> None:
    """The agent runs in it; the container itself is given no word but exec."""
    docker = state.parent / "docker"
    docker.write_text(f'#!/bin/sh\nprintf "%s\\n" "$1 $2 $3" >> {tmp_path}/words\nshift 3\nexec "$@"\n')
    host = open_host(HostSpec(name="box", python=sys.executable, docker=DockerSpec(container="mindie")))
    group = start(host, tmp_path, *SLEEP)
    until(lambda: host.read_log(group.log, 0)[1] == b"up\n")
    host.signal(group, signal.SIGTERM)
    until(lambda: not host.look(group).members)
    assert host.look(group).exit_code == -15
    host.close()
    assert (tmp_path / "words").read_text() == "exec -i mindie\n"
