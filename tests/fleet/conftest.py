"""Fleets on this machine: a registry of their own, and the certainty that a test leaves no process."""

import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadcell.fleet.fleet import Fleet
from loadcell.fleet.registry import Registry
from loadcell.fleet.spec import FleetSpec

QUICK = {"ttft-ms": 2, "itl-ms": 1}


def simulated(**how: Any) -> FleetSpec:
    given: dict[str, Any] = {"engine": "simulated", "args": QUICK, "port": "auto", "stop_timeout": 5, "start_timeout": 60}
    return FleetSpec(**(given | how))


def command(*argv: str, **how: Any) -> FleetSpec:
    """Every word may hold {port}; the last is where a command that needs none gets one all the same."""
    given: dict[str, Any] = {
        "engine": "command",
        "command": (*argv, "{port}") if not any("{port}" in word for word in argv) else argv,
        "port": "auto",
        "stop_timeout": 5,
        "start_timeout": 60,
    }
    return FleetSpec(**(given | how))


def of_marker(needle: str) -> list[int]:
    """Processes whose environment holds `needle` as part of LOADCELL_SERVICE."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            environment = (folder / "environ").read_bytes() if folder.name.isdigit() else b""
        except OSError:
            continue
        if any(part.startswith(b"LOADCELL_SERVICE=") and needle.encode() in part for part in environment.split(b"\0")):
            found.append(int(folder.name))
    return found


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "state")


MakeFleet = Callable[..., Fleet]


@pytest.fixture
def make_fleet(tmp_path: Path, registry: Registry) -> Iterator[MakeFleet]:
    """Fleets that are stopped at the end; what they note is in `fleet.notes`."""
    made: list[Fleet] = []

    def make(spec: FleetSpec, name: str = "test", **how: Any) -> Fleet:
        notes: list[str] = []
        fleet = Fleet(spec, tmp_path / f"run-{len(made)}", registry, name=name, note=notes.append, **how)
        fleet.notes = notes  # type: ignore[attr-defined]
        made.append(fleet)
        return fleet

    yield make
    for fleet in made:
        fleet.stop()
        fleet.release()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder for commands that are run as a user runs them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert os.environ["HOME"] == str(tmp_path)
    return tmp_path


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`docker` on the PATH is the stand-in; the folder of what it knows."""
    folder = tmp_path / "bin"
    (folder / "state").mkdir(parents=True)
    text = (Path(__file__).parent / "hosts" / "docker_stand_in.py").read_text()
    program = folder / "docker"
    program.write_text(f"#!{sys.executable} -IS\n{text}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "state"
