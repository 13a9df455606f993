"""What makes two measurements comparable: engine, version, model, workload, search, hardware -> short texts; and whether two sets of them agree.

A study that is resumed, or that machines share, must not mix figures of different things. What cannot be told is null, and contradicts nothing.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from loadcell import __version__
from loadcell.errors import LoadcellError, UserError
from loadcell.fleet.hosts import open_host
from loadcell.fleet.plan import hosts_of
from loadcell.tune.spec import StudySpec

CPUINFO: Final = Path("/proc/cpuinfo")
_CPU: Final = re.compile(r"^(?:model name|Processor|cpu model)\s*:\s*(.+)$", re.MULTILINE)
_PACKAGES: Final = {"vllm": "vllm", "sglang": "sglang"}
_NOT_MEASURED: Final = ("port", "pattern", "start_timeout", "stall_timeout", "ready_request_timeout", "stop_timeout", "restarts", "log_cap")
"""Keys of [fleet] that shape no figure."""


def fingerprint(spec: StudySpec, hardware: str | None, version: str | None) -> dict[str, str | None]:
    """Pure. The budget, the sampler, timeouts and rounds are left out: a study may go on with others."""
    fleet = {key: value for key, value in msgspec.to_builtins(spec.fleet).items() if key not in _NOT_MEASURED}
    external = msgspec.to_builtins(spec.benchmark)
    return {
        "engine": spec.fleet.engine,
        "version": version,
        "model": spec.fleet.model or None,
        "hardware": hardware,
        "services": _hash(fleet),
        "workload": _hash([spec.bench, external, spec.study.seed, msgspec.to_builtins(spec.load)]),
        "limits and objective": _hash([spec.slo, msgspec.to_builtins(spec.objective)]),
        "parameters": _hash([msgspec.to_builtins(spec.parameter), msgspec.to_builtins(spec.constraint), spec.study.constants]),
    }


def refuse_other(before: Mapping[str, str | None], now: Mapping[str, str | None], where: str) -> None:
    """UserError for the first thing that differs."""
    for key, was in before.items():
        have = now.get(key)
        if was is not None and have is not None and was != have:
            shown = f": {was} before, {have} now" if key in ("engine", "version", "model", "hardware") else ""
            raise UserError(f"{where}: its {key} {_are(key)} not the same{shown}; figures of both must not be mixed: start a new study")


def fingerprint_of(spec: StudySpec, environment: Mapping[str, str]) -> dict[str, str | None]:
    """Looks at the machines."""
    return fingerprint(spec, hardware_of(spec), version_of(spec, environment))


def hardware_of(spec: StudySpec) -> str | None:
    """`8 × NVIDIA H200` of each host, or `2 CPUs (AMD EPYC)`, of this machine where there is no device."""
    texts = []
    for one in hosts_of(spec.fleet):
        host = open_host(one)
        try:
            devices = host.devices("auto")
        except LoadcellError:
            devices = None
        finally:
            host.close()
        if devices:
            names = [device.name for device in devices]
            texts.append(", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)))
        elif one.ssh is None:
            texts.append(_processor())
    return "; ".join(texts) or None


def version_of(spec: StudySpec, environment: Mapping[str, str], which: Callable[..., str | None] = shutil.which) -> str | None:
    """Of the engine, by what is installed beside its executable; nothing is run."""
    if spec.fleet.engine == "simulated":
        return __version__
    package = _PACKAGES.get(spec.fleet.engine)
    words = spec.fleet.executable or spec.fleet.engine
    found = which(words if isinstance(words, str) else words[0], path=environment.get("PATH"))
    if package is None or found is None or any(host.ssh or host.docker for host in spec.fleet.host):
        return None
    at = Path(found).parent.parent
    return next(
        (
            path.name.removesuffix(".dist-info").split("-")[1]
            for path in sorted(at.glob(f"lib/python3*/site-packages/{package}-*.dist-info"))
        ),
        None,
    )


def _processor() -> str:
    """Written otherwise than devices are: `2 × AMD …` would be two GPUs to whoever writes how the best is started."""
    try:
        found = _CPU.search(CPUINFO.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        found = None
    return f"{os.cpu_count()} CPUs ({found[1].strip() if found else os.uname().machine})"


def _are(key: str) -> str:
    return "are" if key in ("services", "limits and objective", "parameters") else "is"


def _hash(tree: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(tree, order="deterministic")).hexdigest()[:12]
