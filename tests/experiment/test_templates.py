"""The files that we hand out: examples and templates are read, say all keys, and hold what they promise."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadcell.experiment.init import ENGINE_NAMES, template
from loadcell.experiment.matrix import Cell, matrix
from loadcell.experiment.read import read_experiment
from loadcell.experiment.spec import ExperimentSpec, ScenarioRow
from loadcell.fleet.spec import DockerSpec, FleetSpec, HostSpec, LogPattern, MultiHostSpec

EXAMPLES = Path(__file__).parents[2] / "examples"

# The seed's table: concurrency, input length, output length, requests.
SEED = [
    *((c, 512, 256, 20 * c) for c in (1, 4, 8, 16, 32, 64, 128)),
    *((c, 2048, 512, 20 * c) for c in (1, 8, 32, 128)),
    *((c, 4096, 1024, 20 * c) for c in (1, 8, 32, 128)),
]


def cells_of(name: str) -> tuple[ExperimentSpec, tuple[Cell, ...]]:
    spec = read_experiment(EXAMPLES / name)
    return spec, matrix(spec)


def shapes(cells: tuple[Cell, ...]) -> list[tuple[Any, ...]]:
    return [tuple(cell.flags[key] for key in ("concurrency", "input_len", "output_len", "num_prompts")) for cell in cells]


def test_the_fifteen_scenarios_on_eight_devices() -> None:
    spec, cells = cells_of("four_replicas_h200.toml")
    assert shapes(cells) == SEED
    assert spec.fleet is not None
    assert (spec.fleet.engine, spec.fleet.model, spec.fleet.served_model_name) == (
        "vllm",
        "/data/models/DeepSeek-V4-Flash",
        "deepseek-v4-flash",
    )
    assert (spec.fleet.replicas, spec.fleet.port, spec.fleet.devices) == (4, 30005, ((0, 1), (2, 3), (4, 5), (6, 7)))
    assert isinstance(spec.fleet.args, dict)
    assert spec.fleet.args["tensor-parallel-size"] == 2
    flags = {key: cells[0].flags[key] for key in spec.bench if key != "num_prompts"}
    assert flags == {
        "warmup_requests": 4,
        "lb_strategy": "round_robin",
        "temperature": 0.0,
        "health_check_interval": 5,
        "health_max_failures": 2,
        "health_recovery_interval": 10,
        "request_max_retries": 2,
    }


def test_its_simulated_twin_has_the_same_loads() -> None:
    _, real = cells_of("four_replicas_h200.toml")
    spec, cells = cells_of("four_replicas_simulated.toml")
    assert [shape[:3] for shape in shapes(cells)] == [shape[:3] for shape in shapes(real)]
    assert [cell.name for cell in cells] == [cell.name for cell in real]
    assert [slo.text for slo in cells[0].slos] == [slo.text for slo in real[0].slos]
    assert spec.fleet is not None
    assert (spec.fleet.engine, spec.fleet.replicas, spec.fleet.port, spec.fleet.cpus) == ("simulated", 4, "auto", "apart")


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_template_can_be_read_as_it_stands(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(template(engine))
    spec = read_experiment(path)
    assert spec.fleet is not None
    assert spec.fleet.engine == engine
    assert len(matrix(spec)) == 4


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_what_is_commented_out_can_be_said(engine: str, tmp_path: Path) -> None:
    """Every commented line is right: with all of them active the keys are still known (values that exclude each other aside)."""
    active = []
    for line in template(engine).splitlines():
        bare = line.removeprefix("# ")
        is_setting = bare != line and (bare.startswith("[") or " = " in bare.split("#")[0])
        active.append(bare if is_setting else line)
    text = "\n".join(active)
    seen = set()
    once = []
    for line in text.splitlines():
        key = line.partition(" = ")[0] if not line.startswith("[") else None
        if line.startswith("["):
            seen = set()
        elif key in seen or key == "cluster-file":  # stands for hosts, which are given here
            continue
        seen.add(key)
        once.append(line)
    path = tmp_path / "experiment.toml"
    path.write_text("\n".join(once))
    spec = read_experiment(path)
    assert spec.fleet is not None
    assert spec.fleet.host[0].docker is not None
    assert spec.fleet.multi_host is not None
    assert spec.fleet.pattern
    assert spec.target is not None


def test_the_templates_hold_every_key() -> None:
    every = "".join(map(template, ENGINE_NAMES))
    structs: tuple[type[msgspec.Struct], ...] = (ExperimentSpec, FleetSpec, HostSpec, MultiHostSpec, LogPattern, ScenarioRow, DockerSpec)
    for struct in structs:
        for field in struct.__struct_fields__:
            if field not in ("origins", "flags"):
                assert any(
                    form in every
                    for form in (f"{field.replace('_', '-')} = ", f".{field}", f"[{field.replace('_', '-')}", f".{field.replace('_', '-')}")
                ), field
