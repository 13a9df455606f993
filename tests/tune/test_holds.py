"""Two studies on one machine: what the first has for itself, the second is refused, also while no service of the first runs."""

from pathlib import Path

import msgspec
import pytest

from loadcell.errors import EnvironmentFailure
from loadcell.fleet.registry import Registry, this_process
from loadcell.tune.holds import Hold, held


def hold(name, **what):
    return Hold(this_process(), name, f"/runs/{name}", **{key: frozenset(value) for key, value in what.items()})


def test_a_device_of_another_study_is_refused_by_its_name(tmp_path: Path):
    registry = Registry(tmp_path)
    with (
        held(registry, hold("first", devices=[("local", 0), ("local", 1)])),
        pytest.raises(
            EnvironmentFailure, match=r"device 1 on local is taken by study first \(process \d+, folder /runs/first\).*fleet\.devices"
        ),
        held(registry, hold("second", devices=[("local", 1), ("local", 2)])),
    ):
        pass


def test_a_fixed_port_of_another_study_is_refused(tmp_path: Path):
    registry = Registry(tmp_path)
    with (
        held(registry, hold("first", ports=[("local", 8000)])),
        pytest.raises(EnvironmentFailure, match=r"port 8000 on local is taken by study first.*fleet\.port"),
        held(registry, hold("second", ports=[("local", 8000)])),
    ):
        pass


def test_others_go_together_and_an_end_lets_go(tmp_path: Path):
    registry = Registry(tmp_path)
    with held(registry, hold("first", devices=[("local", 0)])), held(registry, hold("second", devices=[("local", 1), ("gpu2", 0)])):
        assert len(list((tmp_path / "studies").iterdir())) == 2
    with held(registry, hold("third", devices=[("local", 0)])):
        assert len(list((tmp_path / "studies").iterdir())) == 1


def test_a_study_whose_process_is_gone_holds_nothing(tmp_path: Path):
    registry = Registry(tmp_path)
    gone = msgspec.structs.replace(hold("first", ports=[("local", 8000)]), owner=msgspec.structs.replace(this_process(), started=1))
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "first-1.json").write_bytes(msgspec.json.encode(gone))
    (tmp_path / "studies" / "torn.json").write_bytes(b"{")
    with held(registry, hold("second", ports=[("local", 8000)])):
        assert [path.name.split("-")[0] for path in (tmp_path / "studies").iterdir()] == ["second"]
