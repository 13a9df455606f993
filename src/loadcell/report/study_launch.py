"""How the services of the best configuration are started -> a shell script, a compose file, systemd units, Kubernetes objects. Pure.

They are a start, not a deployment: names of images and of secrets are to be looked at. What was secret stands nowhere: it is asked of the
environment, of a file beside the unit, or of a Kubernetes secret.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from loadcell.report.study import ServiceLaunch

NO_IMAGE: Final = "IMAGE"
_RESOURCES: Final = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "ascend": "huawei.com/Ascend910"}
_VARIABLES: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
"""They name devices by the machine's numbers: in a container, which sees only its own, they would be counted twice."""
_ASCEND: Final = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
_ASCEND_DRIVER: Final = "/usr/local/Ascend/driver"
_START_S: Final = 3600
_PERIOD_S: Final = 10


def command_line(one: ServiceLaunch) -> str:
    """One line for sh: folder, variables, words. A secret is asked of the environment."""
    variables = [f'{name}="${{{name}:?}}"' if value is None else f"{name}={shlex.quote(value)}" for name, value in sorted(one.env.items())]
    line = " ".join([*variables, shlex.join(one.words)])
    return f"cd {shlex.quote(one.cwd)} && {line}" if one.cwd else line


def script(launches: Sequence[ServiceLaunch], head: str) -> str:
    """Starts them all, each in the background, and waits; of several hosts the lines stand below the host's name, to be run there."""
    hosts = list(dict.fromkeys(one.host for one in launches))
    lines = ["#!/bin/sh", *_comment(head), "set -eu"]
    folders = dict.fromkeys(str(PurePosixPath(path).parent) for one in launches for path in one.files)
    lines += [f"mkdir -p {shlex.quote(folder)}" for folder in folders]
    for one in launches:
        for path, content in one.files.items():
            end = _end_mark(content)
            lines += [f"cat > {shlex.quote(path)} <<'{end}'"]
            lines += [content.rstrip("\n"), end]
    for host in hosts:
        if len(hosts) > 1:
            lines += ["", f"# on {host}:"]
        for one in launches:
            if one.host == host:
                line = command_line(one)
                text = f"({line}) &" if one.cwd else f"{line} &"
                lines.append(text if len(hosts) == 1 else f"# {text}")
    return "\n".join([*lines, *(["wait"] if len(hosts) == 1 else [])]) + "\n"


def systemd(launches: Sequence[ServiceLaunch], name: str, head: str) -> dict[str, str]:
    """File name -> unit, one per service."""
    units = {}
    for one in launches:
        unit = f"{_label(name)}-{_label(one.name)}"
        secret = [key for key, value in one.env.items() if value is None]
        words = one.words if one.words[0].startswith("/") else ["/usr/bin/env", *one.words]
        lines = [
            *_comment(head),
            "[Unit]",
            f"Description={_unit_text(f'{name}: {one.name}')}",
            "After=network-online.target",
            "Wants=network-online.target",
            "",
            "[Service]",
            *([f"WorkingDirectory={_unit_text(one.cwd)}"] if one.cwd else []),
            *(f"Environment={_unit_word(f'{key}={value}')}" for key, value in sorted(one.env.items()) if value is not None),
            *([f"# {', '.join(secret)} stand in this file, a line NAME=value each:"] if secret else []),
            *([f"EnvironmentFile=/etc/{unit}.env"] if secret else []),
            f"ExecStart={' '.join(_unit_word(word, command=True) for word in words)}",
            "Restart=on-failure",
            "RestartSec=10",
            "TimeoutStopSec=60",
            "KillMode=mixed",
            "LimitNOFILE=1048576",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
        ]
        units[f"{unit}.service"] = "\n".join(lines) + "\n"
    return units


def compose(launches: Sequence[ServiceLaunch], head: str) -> str:
    """A service each. Devices are given by their numbers on the machine."""
    services: dict[str, Any] = {}
    for one in launches:
        service: dict[str, Any] = {
            "image": one.image or NO_IMAGE,
            "entrypoint": [_dollars(word) for word in one.inside[:1]],
            "command": [_dollars(word) for word in one.inside[1:]],
            "init": True,
            "ipc": "host",
            "restart": "unless-stopped",
        }
        env = {key: f"${{{key}:?}}" if value is None else _dollars(value) for key, value in sorted(one.env.items()) if _kept(key, one)}
        mounts = [f"{path}:{path}:ro" for path in _mounts(one)]
        if env:
            service["environment"] = env
        if one.port:
            service["ports"] = [f"{one.port}:{one.port}"]
            service["healthcheck"] = {
                "test": ["CMD-SHELL", f"curl -fsS -m 5 http://127.0.0.1:{one.port}{one.health_path} >/dev/null || exit 1"],
                "interval": "10s",
                "retries": 6,
                "start_period": f"{_START_S}s",
            }
        if one.cwd:
            service["working_dir"] = one.cwd
        if one.vendor == "nvidia" and one.devices:
            wanted = {"driver": "nvidia", "device_ids": [str(index) for index in one.devices], "capabilities": ["gpu"]}
            service["deploy"] = {"resources": {"reservations": {"devices": [wanted]}}}
        elif one.vendor == "ascend" and one.devices:
            service["devices"] = [f"{path}:{path}" for path in (*(f"/dev/davinci{index}" for index in one.devices), *_ASCEND)]
            mounts.append(f"{_ASCEND_DRIVER}:{_ASCEND_DRIVER}:ro")
        elif one.vendor == "amd" and one.devices:
            service["devices"] = ["/dev/kfd:/dev/kfd", "/dev/dri:/dev/dri"]
            service["group_add"] = ["video"]
        if mounts:
            service["volumes"] = mounts
        services[_label(one.name)] = service
    return _yaml([{"services": services}], head)


def kubernetes(launches: Sequence[ServiceLaunch], name: str, head: str) -> str:
    """A Deployment with as many replicas, and a Service over them. All replicas are alike but for their port, and each has a pod of its own here."""
    serving = [one for one in launches if one.serves]
    one, label = serving[0], _label(name)
    port = one.port or 8000
    secret = f"{label}-secrets"
    env: list[dict[str, Any]] = [
        {"name": key, "value": value} if value is not None else {"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for key, value in sorted(one.env.items())
        if _kept(key, one, all_devices=True)
    ]
    probe = {"httpGet": {"path": one.health_path, "port": port}, "periodSeconds": _PERIOD_S, "timeoutSeconds": 5}
    container: dict[str, Any] = {
        "name": "engine",
        "image": one.image or NO_IMAGE,
        "command": one.inside[:1],
        "args": [word.replace("$(", "$$(") for word in one.inside[1:]],
        "ports": [{"containerPort": port}],
        "startupProbe": {**probe, "failureThreshold": _START_S // _PERIOD_S},
        "livenessProbe": {**probe, "failureThreshold": 6},
        "readinessProbe": {**probe, "failureThreshold": 2},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - in its pod
    }
    if env:
        container["env"] = env
    if one.cwd:
        container["workingDir"] = one.cwd
    if one.devices and one.vendor in _RESOURCES:
        container["resources"] = {"limits": {_RESOURCES[one.vendor]: len(one.devices)}}
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if one.model_path:
        volumes.append({"name": "model", "hostPath": {"path": one.model_path}})
        container["volumeMounts"].append({"name": "model", "mountPath": one.model_path, "readOnly": True})
    objects: list[dict[str, Any]] = []
    if one.files:
        keys = {path: f"file-{at}" for at, path in enumerate(one.files)}
        data = {keys[path]: content for path, content in one.files.items()}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{label}-files"}, "data": data})
        volumes.append({"name": "files", "configMap": {"name": f"{label}-files"}})
        container["volumeMounts"] += [{"name": "files", "mountPath": path, "subPath": key} for path, key in keys.items()]
    objects.append(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": label},
            "spec": {
                "replicas": len(serving),
                "selector": {"matchLabels": {"app": label}},
                "template": {
                    "metadata": {"labels": {"app": label}},
                    "spec": {"containers": [container], "volumes": volumes},
                },
            },
        }
    )
    ports = [{"port": port, "targetPort": port}]
    objects.append(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": label}, "spec": {"selector": {"app": label}, "ports": ports}}
    )
    return _yaml(objects, head)


def fits_containers(launches: Sequence[ServiceLaunch]) -> str | None:
    """Why there is no compose file and no Kubernetes object; null: there is."""
    if not launches:
        return "there is no configuration to start"
    if any(not one.serves for one in launches):
        return "one service over several hosts is started as the script says"
    return None


FORMATS: Final[dict[str, Callable[[Sequence[ServiceLaunch], str, str], str]]] = {
    "sh": lambda launches, _, head: script(launches, head),
    "compose": lambda launches, _, head: compose(launches, head),
    "systemd": lambda launches, name, head: "\n".join(f"# {file}\n{text}" for file, text in systemd(launches, name, head).items()),
    "kubernetes": kubernetes,
}


def _kept(key: str, one: ServiceLaunch, *, all_devices: bool = False) -> bool:
    return key not in _VARIABLES or (key == "HIP_VISIBLE_DEVICES" and one.vendor == "amd" and not all_devices)


def _mounts(one: ServiceLaunch) -> list[str]:
    return [*([one.model_path] if one.model_path else []), *one.files]


def _comment(head: str) -> list[str]:
    return [f"# {line}".rstrip() for line in head.splitlines()]


def _yaml(objects: Sequence[Any], head: str) -> str:
    import yaml

    class Plain(yaml.SafeDumper):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - what is said twice is written twice
            return True

    texts = [yaml.dump(one, Dumper=Plain, sort_keys=False, allow_unicode=True, width=120) for one in objects]
    return "".join(f"{line}\n" for line in _comment(head)) + "---\n".join(texts)


def _dollars(text: str) -> str:
    """compose puts variables into what it reads."""
    return text.replace("$", "$$")


def _unit_text(text: str) -> str:
    return text.replace("%", "%%").replace("\n", " ")


def _unit_word(word: str, *, command: bool = False) -> str:
    """A word as systemd reads it: `%` and, in a command, `$` are doubled; quoted where it has to be."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    text = text.replace("$", "$$") if command else text
    return text if re.fullmatch(r"[A-Za-z0-9_./:=,@+%$-]+", text) else f'"{text}"'


def _label(name: str) -> str:
    """A name as DNS has it."""
    text = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:50].strip("-")
    return text if text and text[0].isalpha() else f"study-{text}".rstrip("-")


def _end_mark(content: str) -> str:
    mark = "END"
    while any(line == mark for line in content.splitlines()):
        mark += "_"
    return mark
