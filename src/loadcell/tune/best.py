"""The configuration that a study chose -> an experiment's file (`best.toml`) that starts and measures it, and how each service is started. Pure.

best.toml is an experiment: `loadcell fleet up best.toml` starts the services, `loadcell run best.toml` measures them with the study's load and limits.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec
import tomli_w

from loadcell.errors import LoadcellError
from loadcell.fleet.engines import ENGINES
from loadcell.fleet.hosts.host import DeviceUse
from loadcell.fleet.plan import HostFound, hosts_of, plan_services
from loadcell.fleet.spec import FleetSpec, HostSpec, ServicePlan
from loadcell.load.redact import HIDDEN
from loadcell.report.study import ServiceLaunch
from loadcell.tune.parameters import Configuration
from loadcell.tune.placing import Placed, placed
from loadcell.tune.spec import StudySpec
from loadcell.tune.write import plain

FIRST_PORT: Final = 8000
_HARDWARE: Final = re.compile(r"([0-9]+) × (.+)")
_VENDORS: Final = (("nvidia", "NVIDIA"), ("ascend", "Ascend"), ("ascend", "910"), ("amd", "AMD"), ("amd", "Instinct"))
_IMAGES: Final = {"vllm": ("vllm/vllm-openai", "v"), "sglang": ("lmsysorg/sglang", "v")}


def best_toml(spec: StudySpec, where: Placed, load: Mapping[str, float], head: str) -> str:
    """`spec` without secrets; a variable that held one is taken from the environment (`${NAME}`). `load`: what was found within the trial."""
    fleet = plain(where.fleet)
    if "env" in fleet:
        fleet["env"] = {name: _asked(name, value) for name, value in fleet["env"].items()}
    tree: dict[str, Any] = {"name": f"{spec.study.name}-best", "seed": spec.study.seed}
    if spec.slo:
        tree["slo"] = list(spec.slo)
    if isinstance(fleet.get("args"), dict):
        fleet["args"] = {name.removeprefix("--"): value for name, value in fleet["args"].items()}
    tree["fleet"] = _literal(fleet, ("env",))
    bench = dict(where.bench)
    if spec.load.mode != "fixed" and spec.load.knob in load:
        value = load[spec.load.knob]
        bench[spec.load.knob] = round(value) if spec.load.knob == "concurrency" else value
    if bench and spec.benchmark.kind == "loadcell":
        tree["bench"] = _literal(plain(bench), ())
    comment = "".join(f"# {line}".rstrip() + "\n" for line in head.splitlines())
    return f"{comment}\n{tomli_w.dumps(tree, multiline_strings=True)}"


def chosen(spec: StudySpec, configuration: Configuration, sources: Mapping[str, str]) -> Placed:
    """Where its values stand. Raises UserError."""
    return placed(spec, configuration, sources)


def _asked(name: str, value: str) -> str:
    return f"${{{name}}}" if HIDDEN in value else value.replace("${", "$${")


def _literal(tree: Any, but: Sequence[str]) -> Any:
    """`${` in a text stands for something in an experiment's file: here it is the text itself. Files of a replica are texts, too."""
    if isinstance(tree, str):
        return tree.replace("${", "$${")
    if isinstance(tree, Mapping):
        return {key: value if key in but else _literal(value, ()) for key, value in tree.items()}
    return [_literal(item, ()) for item in tree] if isinstance(tree, list) else tree


def launches(
    fleet: FleetSpec,
    fingerprint: Mapping[str, str | None],
    folder: str,
    config_text: str | None,
    which: Callable[[str], str | None] = lambda _: None,
) -> tuple[tuple[ServiceLaunch, ...], str | None]:
    """Planned anew from what the study knew of its machines, with ports from 8000 on where any free one would do; or why that cannot be done.

    `folder`: where files that are rendered for a replica would lie. `which`: where a program is on this machine.
    """
    if fleet.port == "auto":
        fleet = msgspec.structs.replace(fleet, port=FIRST_PORT)
    try:
        plans = _plans(fleet, fingerprint.get("hardware"), folder, config_text, "127.0.0.1")
        inside = _plans(fleet, fingerprint.get("hardware"), folder, config_text, "0.0.0.0")  # noqa: S104 - as seen from inside a container
    except LoadcellError as failure:
        return (), f"how the best is started cannot be told without its machines: {str(failure).splitlines()[0]}"
    hosts = {host.name: host for host in hosts_of(fleet)}
    pairs = zip(plans, inside, strict=True)
    return tuple(_launch(fleet, plan, there, hosts[plan.replica.host], fingerprint.get("version"), which) for plan, there in pairs), None


def _plans(fleet: FleetSpec, hardware: str | None, folder: str, config_text: str | None, address: str) -> tuple[ServicePlan, ...]:
    """With the devices that the study saw; where it saw none, without any of their own."""
    hosts = hosts_of(fleet)
    told = (hardware or "").split("; ")
    devices = [_devices(text) for text in told] if len(told) == len(hosts) else [None] * len(hosts)
    found = {
        host.name: HostFound(address=_address(host, address), devices=there, free_ports=(0,), folder=folder)
        for host, there in zip(hosts, devices, strict=True)
    }
    try:
        return plan_services(fleet, found, config_text)
    except LoadcellError:
        if fleet.devices is not None or fleet.multi_host is not None or any(devices):
            raise
        bare = msgspec.structs.replace(fleet, vendor="none", devices_per_replica=None)
        return plan_services(bare, {name: msgspec.structs.replace(one, devices=None) for name, one in found.items()}, config_text)


def _address(host: HostSpec, here: str) -> str:
    if host.ssh is None:
        return here
    return host.ssh.rpartition("@")[2]


def _devices(text: str) -> tuple[DeviceUse, ...] | None:
    """`8 × NVIDIA H200` -> eight of them."""
    found = _HARDWARE.fullmatch(text)
    vendor = next((vendor for vendor, mark in _VENDORS if found is not None and mark in found[2]), None)
    if found is None or vendor is None:
        return None
    return tuple(DeviceUse(index, vendor, found[2], None, None, ()) for index in range(int(found[1])))


def _launch(
    fleet: FleetSpec, plan: ServicePlan, there: ServicePlan, host: HostSpec, version: str | None, which: Callable[[str], str | None]
) -> ServiceLaunch:  # fmt: skip
    words, inside = list(plan.launch.argv), list(there.launch.argv)
    if host.ssh is None and host.docker is None and "/" not in words[0]:
        words[0] = which(words[0]) or words[0]
    inside[0] = PurePosixPath(inside[0]).name
    folder = plan.replica.folder
    model = ENGINES[fleet.engine].model_path(fleet)
    return ServiceLaunch(
        name=plan.name,
        host=plan.replica.host,
        words=words,
        inside=inside,
        env={name: None if HIDDEN in value else value for name, value in plan.launch.env.items()},
        port=plan.replica.port or None,
        image=_image(fleet, host, version),
        serves=plan.serves,
        cwd=plan.cwd,
        files={f"{folder}/{path}": content for path, content in plan.launch.files},
        devices=list(plan.replica.devices),
        vendor=_vendor(plan),
        model_path=model if model and model.startswith("/") else None,
        health_path=fleet.health_path or ENGINES[fleet.engine].health_path,
    )


def _vendor(plan: ServicePlan) -> str | None:
    names = {"CUDA_VISIBLE_DEVICES": "nvidia", "HIP_VISIBLE_DEVICES": "amd", "ASCEND_RT_VISIBLE_DEVICES": "ascend"}
    found = next((vendor for name, vendor in names.items() if name in plan.launch.env), None)
    return found or ("ascend" if plan.replica.devices and "MIES_CONFIG_JSON_PATH" in plan.launch.env else None)


def _image(fleet: FleetSpec, host: HostSpec, version: str | None) -> str | None:
    """The one that it ran in, else the engine's own of that version."""
    if host.docker is not None and host.docker.image is not None:
        return host.docker.image
    known = _IMAGES.get(fleet.engine)
    if known is None:
        return None
    plain_version = (version or "").partition("+")[0]
    return f"{known[0]}:{known[1]}{plain_version}" if plain_version else f"{known[0]}:latest"
