"""What can be known of an image before a container of it is started: host + docker + paths -> refusals, and what nobody has asked, as texts.

Docker is asked whether the image is there. What is in it is not looked at, because that would take a container.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.fleet.docker_command import docker_words, outer_path
from loadcell.fleet.hosts.host import Host
from loadcell.fleet.spec import DockerSpec, HostSpec, ServicePlan

_NOT_FOUND: Final = 127
_MISSING: Final = ("no such image", "image not known")


def images_of(hosts: Sequence[HostSpec]) -> dict[str, DockerSpec]:
    """Of hosts whose services are containers of their own, by name."""
    return {host.name: host.docker for host in hosts if host.docker is not None and host.docker.image is not None}


def refuse_missing_images(images: Mapping[str, DockerSpec], hosts: Mapping[str, Host]) -> list[str]:
    """A note for each that will be pulled. Raises UserError, EnvironmentFailure."""
    return [text for name, docker in images.items() if (text := _missing_image(hosts[name], docker)) is not None]


def _missing_image(host: Host, docker: DockerSpec) -> str | None:
    told = host.run([*docker_words(docker), "image", "inspect", "--format", "{{.Id}}", docker.image or ""])
    if told.code == 0:
        return None
    program = docker_words(docker)[0]
    if told.code == _NOT_FOUND:
        raise UserError(f"{program!r} is no program on host {host.name}, which docker.image = {docker.image!r} needs: install it there")
    said = told.err.strip()
    if not any(words in said.lower() for words in _MISSING):
        raise EnvironmentFailure(f"host {host.name}: docker image inspect {docker.image}: {said} (code {told.code})")
    if _never_pulls(docker.args):
        raise UserError(f"host {host.name}: there is no image {docker.image}, and docker.args say --pull never: pull it, or leave that out")
    return f"host {host.name}: image {docker.image} is not there yet: `docker run` will pull it, which counts as part of the start"


def _never_pulls(args: Sequence[str]) -> bool:
    return "--pull=never" in args or any(pair == ("--pull", "never") for pair in pairwise(args))


def refuse_missing_mounts(path: str, images: Mapping[str, DockerSpec], hosts: Mapping[str, Host]) -> list[str]:
    """The model's path inside, looked for where a mount of `docker.args` takes it from; a note where none tells. Raises UserError."""
    notes = []
    for name, docker in images.items():
        outside = outer_path(docker.args, path)
        if outside is None:
            notes.append(f"host {name}: the model {path} is not looked for: no -v or --mount in docker.args brings in a folder for it")
        elif not hosts[name].exists(outside):
            raise UserError(
                f"fleet.model = {path!r}: docker.args of host {name} mount {outside} there, and there is no such path on the machine"
            )
    return notes


def unasked_programs(plans: Sequence[ServicePlan], images: Mapping[str, DockerSpec]) -> list[str]:
    """What is in an image shows when a container of it starts."""
    asked = dict.fromkeys((plan.replica.host, plan.launch.argv[0]) for plan in plans if plan.replica.host in images)
    return [f"host {name}: the program {program} is not looked for: it is in image {images[name].image}, or not" for name, program in asked]
