"""What docker is told: a service -> the words of its `docker run`, and which path of the machine a path inside the container is. Pure.

The container gets the host's network and IPC unless the spec's own words say otherwise, and the devices that the service's variables name.
"""

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from loadcell.fleet.command_line import shell_line
from loadcell.fleet.spec import DockerSpec, HostSpec, ServicePlan

SERVICE_LABEL: Final = "loadcell.service"
OWNER_LABEL: Final = "loadcell.owner"
MARK: Final = "LOADCELL_SERVICE"
ASCEND_COMMON: Final = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
ASCEND_DRIVER: Final = ("/usr/local/Ascend/driver", "/usr/local/dcmi", "/usr/local/bin/npu-smi", "/etc/ascend_install.info")
_BY_HAND: Final = "by-hand"


def docker_words(docker: DockerSpec) -> list[str]:
    """`sudo -n`: asks for no password; what needs one fails."""
    return ["sudo", "-n", "docker"] if docker.sudo else ["docker"]


def device_words(env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The devices that a service's variables name, as words for `docker run`, and the variables that stay.

    Inside, devices are numbered anew from 0: a variable that names them by the machine's numbers must not go in. AMD's are all
    let in, and its variable stays.
    """
    left = dict(env)
    words: list[str] = []
    if (nvidia := left.pop("CUDA_VISIBLE_DEVICES", "")) != "":
        words += ["--gpus", f'"device={nvidia}"']
    if (ascend := left.pop("ASCEND_RT_VISIBLE_DEVICES", "")) != "":
        nodes = [*(f"/dev/davinci{index.strip()}" for index in ascend.split(",")), *ASCEND_COMMON]
        words += [word for node in nodes for word in ("--device", node)]
        words += [word for path in ASCEND_DRIVER for word in ("-v", f"{path}:{path}:ro")]
    if "HIP_VISIBLE_DEVICES" in left:
        words += ["--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video"]
    return words, left


def run_words(
    docker: DockerSpec, argv: Sequence[str], *, env: dict[str, str], cwd: str | None, marker: str, owner: str, cpus: Sequence[int] | None, folders: Iterable[str]
) -> list[str]:  # fmt: skip
    """`docker run -d …` for one service. `folders`: that we made for it; those that its words or variables name are mounted where they are.
    `--init` so that signals reach the program and its orphans are reaped.
    """
    assert docker.image is not None
    devices, left = device_words(env)
    given = {word.partition("=")[0] for word in docker.args}
    words = [*docker_words(docker), "run", "-d", "--init", "--label", f"{SERVICE_LABEL}={marker}", "--label", f"{OWNER_LABEL}={owner}"]
    words += [] if given & {"--network", "--net"} else ["--network", "host"]
    words += [] if given & {"--ipc", "--shm-size"} else ["--ipc", "host"]
    words += [] if "--log-driver" in given else ["--log-driver", "local"]
    words += devices
    words += [word for key, value in {**left, MARK: marker}.items() for word in ("-e", f"{key}={value}")]
    words += [word for folder in _named(folders, (*argv, *env.values())) for word in ("-v", f"{folder}:{folder}")]
    words += [] if cwd is None else ["-w", cwd]
    words += [] if cpus is None else ["--cpuset-cpus", ",".join(map(str, cpus))]
    return [*words, *docker.args, "--entrypoint", argv[0], docker.image, *argv[1:]]


def _named(folders: Iterable[str], texts: Collection[str]) -> list[str]:
    """The folders that stand in the texts, without those below another one: `…/replica-1` does not stand in `…/replica-10/x`."""
    named = sorted({folder for folder in folders if any(_stands_in(folder, text) for text in texts)})
    return [folder for folder in named if not any(folder.startswith(f"{above}/") for above in named)]


def _stands_in(folder: str, text: str) -> bool:
    at = text.find(folder)
    while at >= 0:
        after = text[at + len(folder) : at + len(folder) + 1]
        if not after or not (after.isalnum() or after in "-_."):
            return True
        at = text.find(folder, at + 1)
    return False


def start_line(plan: ServicePlan, host: HostSpec | None) -> str:
    """The line that starts it on its machine, to read and to paste. In a container of its own its marks are those of a start by hand."""
    if host is None or host.docker is None or host.docker.image is None:
        return shell_line(plan.launch, plan.cwd)
    launch, folder = plan.launch, plan.replica.folder
    return shlex.join(
        run_words(
            host.docker,
            launch.argv,
            env=launch.env,
            cwd=plan.cwd,
            marker=plan.name,
            owner=_BY_HAND,
            cpus=None,
            folders=[folder] if folder else [],
        )
    )


def outer_path(args: Sequence[str], path: str) -> str | None:
    """The machine's path that `path` is inside, by the mounts in `docker.args`; null: none of them brings it in from a folder of the machine."""
    best: tuple[int, str] | None = None
    for source, target in _mounts(args):
        inside = target.rstrip("/")
        if path != inside and not path.startswith(f"{inside}/"):
            continue
        if best is None or len(inside) > best[0]:
            best = (len(inside), f"{source.rstrip('/')}{path[len(inside) :]}" if source else "")
    return best[1] or None if best else None


def _mounts(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(source, target) of each; the source is empty where it is no folder of the machine: a volume with a name or without."""
    for kind, value in _values(args):
        if kind == "volume":
            first, colon, rest = value.partition(":")
            yield (first if colon and first.startswith(("/", ".")) else "", rest.partition(":")[0] if colon else first)
        else:
            fields = dict(field.partition("=")[::2] for field in value.split(","))
            source = fields.get("source", fields.get("src", ""))
            target = fields.get("target", fields.get("destination", fields.get("dst", "")))
            yield (source if fields.get("type", "volume") == "bind" else "", target)


def _values(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    kinds = {"-v": "volume", "--volume": "volume", "--mount": "mount"}
    following = [*args[1:], ""]
    for word, after in zip(args, following, strict=True):
        flag, equals, value = word.partition("=")
        if flag in kinds and (equals or word == flag):
            yield kinds[flag], value if equals else after
        elif word.startswith("-v/"):
            yield "volume", word[2:]
