"""What `loadcell check` says: pure text from a specification, its cells and a plan."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from loadcell.experiment.check import report, requests_of
from loadcell.experiment.matrix import matrix
from loadcell.experiment.read import read_experiment
from loadcell.fleet.spec import Launch, Replica, ServicePlan
from loadcell.schedule import ScheduleSpec

TEXT = """\
seed = 3
[fleet]
engine = "simulated"
replicas = 2
[fleet.env]
HF_TOKEN = "hf_verysecretvalue"
[bench]
num-prompts = "20x"
warmup-requests = 4
header = ["Authorization: Bearer abcdefghijkl"]
[[scenario]]
concurrency = [1, 32]
input-len = 512
output-len = 256
slo = ["ttft p95 <= 200ms"]
[[scenario]]
name = "open"
request-rate = 4
duration = 30
num-prompts = 1000
gate = true
[[slo]]
metric = "success_rate"
limit = "99%"
"""


def plan(index: int) -> ServicePlan:
    replica = Replica(name=f"replica-{index}", index=index, host="local", port=30005 + index, devices=(2 * index, 2 * index + 1))
    launch = Launch(argv=("vllm", "serve", "/my models/a b"), env={"CUDA_VISIBLE_DEVICES": "0,1", "HF_TOKEN": "hf_verysecretvalue"})
    return ServicePlan(replica=replica, launch=launch, base_url=f"http://127.0.0.1:{30005 + index}")


def lines(folder: Path, text: str = TEXT, *, planned: bool = True) -> list[str]:
    path = folder / "e.toml"
    path.write_text(text)
    spec = read_experiment(path)
    return list(report(spec, matrix(spec), (plan(0), plan(1)) if planned else None))


def one(said: list[str], *parts: str) -> str:
    (line,) = (line for line in said if all(part in line for part in parts))
    return line


def test_the_first_line_says_how_much_it_is(tmp_path: Path) -> None:
    assert lines(tmp_path)[0] == "e: 3 scenarios, 3 cells, 780 requests; seed 3"


def test_cells_with_their_counts_and_limits(tmp_path: Path) -> None:
    said = lines(tmp_path)
    assert one(said, " c32-i512-o256 ").split(None, 2)[2].split() == [
        *("closed", "loop,", "concurrency", "32", "512", "256", "640", "4", "success_rate", ">=", "99%;", "ttft", "p95", "<=", "200ms")
    ]
    assert " ≈ 120 " in one(said, " open ", "open loop")
    assert one(said, " open ", "open loop").endswith("success_rate >= 99% (gate)")


def test_command_lines_can_be_pasted(tmp_path: Path) -> None:
    said = lines(tmp_path)
    commands = [line.partition("$ ")[2] for line in said if line.startswith("    $ ")]
    assert len(commands) == 2
    assert shlex.split(commands[0])[-3:] == ["vllm", "serve", "/my models/a b"]
    assert "devices 2,3" in one(said, "replica-1", "30006")


def test_no_secret_is_printed(tmp_path: Path) -> None:
    told = "\n".join(lines(tmp_path))
    assert "hf_very" not in told
    assert "abcdefghijkl" not in told


def test_settings_and_where_they_come_from(tmp_path: Path) -> None:
    said = lines(tmp_path)
    assert one(said, "fleet.replicas ").split() == ["fleet.replicas", "2", f"{tmp_path}/e.toml:4"]
    assert one(said, "fleet.restarts ").split() == ["fleet.restarts", "2", "default"]
    assert one(said, "slo[0]").split() == ["slo[0]", "success_rate", ">=", "99%", f"{tmp_path}/e.toml:23"]
    assert one(said, "scenario[0].concurrency").split()[1] == "[1,32]"


def test_hosts_of_the_file_are_no_default(tmp_path: Path) -> None:
    said = lines(tmp_path, TEXT + '[[fleet.host]]\nname = "a"\naddress = "10.0.0.1"\n')
    assert not any("fleet.host " in line for line in said)
    assert one(said, "fleet.host[0].name").split() == ["fleet.host[0].name", "a", f"{tmp_path}/e.toml:26"]


def test_what_a_cluster_file_gives_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(
        '[vllm_mix]\nenv = { HCCL_BUFFSIZE = "1024", A = "1" }\n[[vllm_mix.node]]\nhost = "10.0.0.1"\n[[vllm_mix.workers]]\nhost = "10.0.0.2"\n'
    )
    told = f'[fleet]\nengine = "vllm"\nmodel = "m"\ncluster-file = "{tmp_path}/cluster.toml"\n[fleet.env]\nA = "2"\n'
    said = lines(tmp_path, told, planned=False)
    where = [f"{tmp_path}/cluster.toml", f"({tmp_path}/e.toml:4)"]
    assert one(said, "fleet.env.HCCL_BUFFSIZE").split() == ["fleet.env.HCCL_BUFFSIZE", "1024", *where]
    assert one(said, "fleet.env.A ").split() == ["fleet.env.A", "2", f"{tmp_path}/e.toml:6"]
    assert one(said, "fleet.host ").split()[-2:] == where
    assert not any(line.split()[:1] == ["fleet.env"] for line in said)


def test_variables_of_a_cluster_file_alone(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text('[vllm_mix]\nenv = { B = "1" }\n[[vllm_mix.node]]\nhost = "10.0.0.1"\n')
    said = lines(tmp_path, f'[fleet]\nengine = "vllm"\nmodel = "m"\ncluster-file = "{tmp_path}/cluster.toml"\n', planned=False)
    assert not any("fleet.env " in line for line in said)
    assert one(said, "fleet.env.B ").split()[1:3] == ["1", f"{tmp_path}/cluster.toml"]


def test_services_that_run_are_named(tmp_path: Path) -> None:
    said = lines(tmp_path, '[target]\nbase-url = "http://h:1"\n[bench]\nconcurrency = 1\n', planned=False)
    assert "  http://h:1" in said


def test_services_alone(tmp_path: Path) -> None:
    assert "services only" in lines(tmp_path, '[fleet]\nengine = "simulated"\n')[0]


@pytest.mark.parametrize(
    ("schedule", "count"),
    [
        ({"num_prompts": 7}, 7),
        ({"num_prompts": None, "concurrency": 1, "duration_s": 5.0}, None),
        ({"num_prompts": None, "request_rate": 2.0, "duration_s": 5.0}, 10),
        ({"num_prompts": 4, "request_rate": 2.0, "duration_s": 5.0}, 4),
        ({"num_prompts": 40, "request_rate": 2.0, "duration_s": 5.0}, 10),
        ({"num_prompts": None, "steps": ((2.0, 3.0), (4.0, 1.0))}, 10),
        ({"num_prompts": None, "trace_s": (0.0, 1.0, 9.0), "duration_s": 5.0}, 2),
        ({"num_prompts": 5, "request_rate": float("inf"), "duration_s": 5.0}, 5),
    ],
)
def test_how_many_requests(schedule: dict[str, Any], count: int | None) -> None:
    assert requests_of(ScheduleSpec(**schedule)) == count
