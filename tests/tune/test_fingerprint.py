"""What a study says of the engine and the machine that it measured: a version as it is, and processors that are no devices."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from loadcell.tune.best import launches
from loadcell.tune.fingerprint import hardware_of, version_of
from loadcell.tune.spec import StudySpec

from .trials import study


def of_vllm(executable: Path | None = None) -> StudySpec:
    spec = study()
    return replace(
        spec,
        fleet=replace(spec.fleet, engine="vllm", model="/models/tiny", executable=None if executable is None else str(executable), args=()),
    )


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu"])
def test_the_version_is_that_of_the_package_beside_the_program(tmp_path: Path, version: str) -> None:
    (tmp_path / "lib" / "python3.11" / "site-packages" / f"vllm-{version}.dist-info").mkdir(parents=True)
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert version_of(of_vllm(program), {}) == version


def test_where_there_is_no_device_the_processors_are_told_and_nothing_asks_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server on CPUs of AMD has no GPU of AMD."""
    monkeypatch.setattr("loadcell.fleet.hosts.local.LocalHost.devices", lambda *_: None)
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor\n")
    monkeypatch.setattr("loadcell.tune.fingerprint.CPUINFO", cpuinfo)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    spec = of_vllm()
    hardware = hardware_of(spec)
    assert hardware == "8 CPUs (AMD EPYC 9654 96-Core Processor)"
    ((one,), why) = launches(spec.fleet, {"hardware": hardware, "version": "0.32.0"}, str(tmp_path), None)
    assert why is None
    assert (one.devices, one.vendor, one.image) == ([], None, "vllm/vllm-openai:v0.32.0")
    assert not [name for name in one.env if name.endswith("VISIBLE_DEVICES")]
