"""Containers of their own: the image is asked for, what is in it is not, and that is said."""

import pytest

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.fleet.docker_command import start_line
from loadcell.fleet.hosts.host import Ended
from loadcell.fleet.images import images_of, refuse_missing_images, refuse_missing_mounts, unasked_programs
from loadcell.fleet.spec import DockerSpec, HostSpec, Launch, Replica, ServicePlan
from loadcell.testing.fake_host import FakeHost

IMAGE = DockerSpec(image="img:1")
ABSENT = Ended(1, "", "Error response from daemon: No such image: img:1")


def plan(host: str, *argv: str, folder: str = "") -> ServicePlan:
    return ServicePlan(Replica("replica-0", 0, host, 30005, folder=folder), Launch(argv, {"A": "b c"}), cwd="/w")


def missing(answer: Ended, docker: DockerSpec = IMAGE, program: str = "docker") -> list[str]:
    host = FakeHost("box")
    host.answers[program] = answer
    return refuse_missing_images({"box": docker}, {"box": host})


def test_which_hosts_are_asked() -> None:
    hosts = [HostSpec("here"), HostSpec("box", docker=IMAGE), HostSpec("running", docker=DockerSpec(container="c"))]
    assert images_of(hosts) == {"box": IMAGE}


def test_docker_is_asked_for_the_image() -> None:
    host = FakeHost("box")
    assert refuse_missing_images({"box": DockerSpec(image="img:1", sudo=True)}, {"box": host}) == []
    (words,) = host.commands
    assert words[:5] == ("sudo", "-n", "docker", "image", "inspect")
    assert words[-1] == "img:1"


def test_one_that_is_not_there_is_told_to_be_pulled() -> None:
    (note,) = missing(ABSENT)
    assert "host box: image img:1 is not there yet" in note


@pytest.mark.parametrize("args", [("--pull", "never"), ("--pull=never",)])
def test_or_refused_where_nobody_may_pull(args: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"host box: there is no image img:1, and docker\.args say --pull never"):
        missing(ABSENT, DockerSpec(image="img:1", args=args))


def test_a_machine_without_docker_and_a_daemon_that_does_not_answer() -> None:
    with pytest.raises(UserError, match="'docker' is no program on host box"):
        missing(Ended(127, "", ""))
    with pytest.raises(EnvironmentFailure, match=r"host box: docker image inspect img:1: Cannot connect .* \(code 1\)"):
        missing(Ended(1, "", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock"))
    with pytest.raises(EnvironmentFailure, match="a password is required"):
        missing(Ended(1, "", "sudo: a password is required"), DockerSpec(image="i", sudo=True), "sudo")


def test_the_model_is_looked_for_where_a_mount_takes_it_from() -> None:
    host = FakeHost("box")
    mounted = {"box": DockerSpec(image="i", args=("-v", "/data:/models:ro"))}
    host.paths.add("/data/m")
    assert refuse_missing_mounts("/models/m", mounted, {"box": host}) == []
    with pytest.raises(UserError, match=r"fleet\.model = '/models/n': docker\.args of host box mount /data/n there"):
        refuse_missing_mounts("/models/n", mounted, {"box": host})
    (note,) = refuse_missing_mounts("/elsewhere/m", mounted, {"box": host})
    assert "the model /elsewhere/m is not looked for" in note


def test_the_program_is_the_images_business() -> None:
    notes = unasked_programs([plan("box", "vllm"), plan("box", "vllm"), plan("here", "vllm")], {"box": IMAGE})
    assert notes == ["host box: the program vllm is not looked for: it is in image img:1, or not"]


def test_the_line_that_starts_it() -> None:
    folder = "/runs/1/services/replica-0"
    asked = plan("box", "vllm", "serve", "/m m", "--log", f"{folder}/access.log", folder=folder)
    line = start_line(asked, HostSpec("box", docker=DockerSpec(image="img:1", args=("-v", "/data:/data"), sudo=True)))
    assert line.startswith("sudo -n docker run -d --init --label loadcell.service=replica-0 ")
    assert (
        f"-e 'A=b c' -e LOADCELL_SERVICE=replica-0 -v {folder}:{folder} -w /w -v /data:/data --entrypoint vllm img:1 serve '/m m'" in line
    )
    assert start_line(asked, None) == start_line(asked, HostSpec("x", docker=DockerSpec(container="c")))
    assert start_line(asked, None).startswith("cd /w && A='b c' vllm serve '/m m'")
