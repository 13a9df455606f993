"""One service over several hosts: how ranks divide, what each is told, and what is refused before anything starts."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadcell.errors import UserError
from loadcell.fleet.multihost import shape
from loadcell.fleet.plan import HostFound, plan_services
from loadcell.fleet.spec import FleetSpec, ServicePlan

HOSTS = [{"name": "a", "address": "10.0.0.1"}, {"name": "b", "ssh": "root@10.0.0.2", "address": "10.0.0.2"}]
FOUND = {
    "a": HostFound(interface=("eth0", "10.0.0.1"), free_ports=(45001, 45002)),
    "b": HostFound(interface=("eth1", "10.0.0.2")),
}


def service(kind: str = "data_parallel", devices_per_host: int = 8, **keys: Any) -> FleetSpec:
    multi = {"kind": kind, "devices_per_host": devices_per_host} | keys.pop("multi", {})
    given = {"engine": "vllm", "model": "/m", "port": 8000, "vendor": "ascend", "host": HOSTS, "multi_host": multi}
    return msgspec.convert(given | keys, FleetSpec)


def plans(spec: FleetSpec) -> tuple[ServicePlan, ...]:
    return plan_services(spec, FOUND)


def test_head_and_headless_worker() -> None:
    head, worker = plans(service(multi={"tensor_parallel_size": 4}, args={"max-num-seqs": 64, "api-server-count": 2}))
    shared = ("--tensor-parallel-size", "4", "--data-parallel-size", "4", "--data-parallel-size-local", "2")
    at = ("--data-parallel-address", "10.0.0.1", "--data-parallel-rpc-port", "13345")
    assert head.launch.argv == (
        "vllm", "serve", "/m", "--host", "0.0.0.0", "--port", "8000", *shared, *at, "--max-num-seqs", "64", "--api-server-count", "2",
    )  # fmt: skip
    assert worker.launch.argv == (
        "vllm", "serve", "/m", *shared, *at, "--headless", "--data-parallel-start-rank", "2", "--max-num-seqs", "64",
    )  # fmt: skip
    assert (head.name, head.serves, head.base_url) == ("replica-0", True, "http://10.0.0.1:8000")
    assert (worker.name, worker.serves, worker.base_url) == ("replica-0.rank-1", False, None)


def test_the_port_where_ranks_meet_is_the_heads_to_check() -> None:
    assert [plan.meets for plan in plans(service())] == [((13345, "fleet.multi_host.data_parallel_rpc_port"),), ()]
    assert [plan.meets for plan in plans(service(kind="ray", multi={"tensor_parallel_size": 2}))] == [
        ((6379, "fleet.multi_host.ray_port"),),
        (),
    ]


def test_each_rank_talks_over_its_own_interface() -> None:
    head, worker = plans(service(env={"HCCL_BUFFSIZE": "1024", "TP_SOCKET_IFNAME": "bond0"}))
    assert {name: value for name, value in worker.launch.env.items() if name != "ASCEND_RT_VISIBLE_DEVICES"} == {
        "VLLM_HOST_IP": "10.0.0.2",
        "GLOO_SOCKET_IFNAME": "eth1",
        "TP_SOCKET_IFNAME": "bond0",
        "HCCL_SOCKET_IFNAME": "eth1",
        "HCCL_IF_IP": "10.0.0.2",
        "HCCL_BUFFSIZE": "1024",
    }
    assert head.launch.env["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "NCCL_SOCKET_IFNAME" in plans(service(vendor="nvidia"))[0].launch.env
    assert head.launch.env["ASCEND_RT_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"


def test_a_free_rpc_port_is_the_same_for_all_ranks() -> None:
    for plan in plans(service(port="auto", multi={"data_parallel_rpc_port": 0})):
        assert plan.launch.argv[plan.launch.argv.index("--data-parallel-rpc-port") + 1] == "45002"


@pytest.mark.parametrize(
    ("multi", "args", "expected"),
    [
        ({}, {}, (16, 8, 8)),
        ({"tensor_parallel_size": 8}, {}, (2, 1, 8)),
        ({"data_parallel_size": 2}, {"tensor-parallel-size": 4}, (2, 1, 4)),
        ({}, {"-tp": 2, "-dp": 4}, (4, 2, 4)),
        ({"pipeline_parallel_size": 2, "data_parallel_size": 4}, {}, (4, 2, 4)),
    ],
)
def test_how_it_divides(multi: dict[str, Any], args: dict[str, Any], expected: tuple[int, int, int]) -> None:
    spec = service(multi=multi, args=args)
    assert spec.multi_host is not None
    parts = shape(spec, spec.multi_host)
    assert (parts.data_parallel_size, parts.local_size, parts.devices) == expected


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"multi": {"data_parallel_size": 3}}, "data_parallel_size = 3 does not divide over 2 hosts"),
        ({"multi": {"data_parallel_size": 8, "tensor_parallel_size": 4}}, r"4 data-parallel ranks per host × tensor 4 .* = 16 devices"),
        ({"multi": {"tensor_parallel_size": 16}}, "devices_per_host is 8"),
        ({"multi": {"tensor_parallel_size": 2}, "args": {"tensor-parallel-size": 4}}, "give one of them"),
        ({"args": {"data-parallel-start-rank": 1}}, r"fleet\.multi_host"),
        ({"args": {"headless": True}}, r"fleet\.multi_host"),
        ({"replicas": 2}, r"fleet\.replicas = 2"),
        ({"engine": "sglang"}, "not for 'sglang'"),
        ({"devices_per_host": 0}, "devices_per_host = 0"),
        ({"devices": [0, 1]}, r"8 devices each"),
        ({"kind": "ray", "multi": {"tensor_parallel_size": 3}}, "do not divide over 2 hosts"),
        ({"kind": "ray", "multi": {"tensor_parallel_size": 32}}, "takes 16 devices per host"),
        ({"kind": "ray", "multi": {"data_parallel_size": 2}}, "data_parallel_size = 2"),
        ({"kind": "ray", "multi": {"ray_port": 16379}}, "ray_port = 16379"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_before_anything_starts(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        plans(service(**keys))


def test_a_head_on_loopback_is_of_no_use_to_others() -> None:
    spec = service(host=[{"name": "a"}, HOSTS[1]])
    with pytest.raises(UserError, match=r"host a: 127\.0\.0\.1"):
        plan_services(spec, {"a": HostFound(), "b": HostFound()})


def test_the_simulated_engine_is_started_as_vllm_is() -> None:
    head, worker = plans(service(engine="simulated", multi={"tensor_parallel_size": 4}))
    assert head.launch.argv[3:] == (
        "simulate", "--host", "0.0.0.0", "--port", "8000", "--model", "/m", "--tensor-parallel-size", "4", "--data-parallel-size", "4",
        "--data-parallel-size-local", "2", "--data-parallel-address", head.replica.head_address, "--data-parallel-rpc-port", "13345",
    )  # fmt: skip
    assert worker.launch.argv[3:6] == ("simulate", "--model", "/m")
    assert worker.launch.argv[-3:] == ("--headless", "--data-parallel-start-rank", "2")


# --- Ray, by a program that stands for it

_RAY = """#!/bin/sh
echo "$*" >> "{log}"
case "$1" in
    start) trap 'exit 0' TERM; touch "{up}"; {then} ;;
    health-check) test -e "{up}" ;;
    status) printf 'Active:\\n 1 node_a\\n 1 node_b\\nPending:\\n (no pending nodes)\\n node_c\\n' ;;
esac
"""


def _stand_in(folder: Path, then: str) -> Path:
    ray = folder / "ray"
    ray.write_text(_RAY.format(log=folder / "calls", up=folder / "up", then=then))
    ray.chmod(0o755)
    return ray


def _launch(folder: Path, rank: int, engine: list[str], then: str) -> subprocess.Popen[str]:
    spec = service(
        kind="ray",
        multi={"tensor_parallel_size": 8, "pipeline_parallel_size": 2, "ray_executable": str(_stand_in(folder, then))},
        executable=engine,
    )
    launch = plans(spec)[rank].launch
    return subprocess.Popen(
        launch.argv, env=os.environ | launch.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def _end(process: subprocess.Popen[str]) -> str:
    os.killpg(process.pid, signal.SIGTERM)
    return process.communicate(timeout=20)[0]


WAIT = "while :; do sleep 0.05; done"


def test_over_ray_the_head_is_a_node_and_the_engine(tmp_path: Path) -> None:
    engine = ["/bin/sh", "-c", 'echo "engine $*"; echo "at $RAY_ADDRESS"; exec 1>&-; sleep 60', "x"]
    process = _launch(tmp_path, 0, engine, WAIT)
    assert process.stdout is not None
    said = [process.stdout.readline().strip() for _ in range(3)]
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=20)
    assert said == [
        "waiting for 2 nodes of the Ray cluster at 10.0.0.1:6379",
        "engine serve /m --host 0.0.0.0 --port 8000 --tensor-parallel-size 8 --pipeline-parallel-size 2 --distributed-executor-backend ray",
        "at 10.0.0.1:6379",
    ]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert "start --head --port=6379 --node-ip-address=10.0.0.1 --disable-usage-stats --block" in calls


def test_over_ray_a_worker_is_a_node_that_stays(tmp_path: Path) -> None:
    (tmp_path / "up").touch()
    process = _launch(tmp_path, 1, ["never"], f"echo up; {WAIT}")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    _end(process)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [
        "health-check --address 10.0.0.1:6379",
        "start --address=10.0.0.1:6379 --node-ip-address=10.0.0.2 --disable-usage-stats --block",
    ]


def test_an_engine_does_not_outlive_its_ray_node(tmp_path: Path) -> None:
    process = _launch(tmp_path, 0, ["/bin/sh", "-c", "exec sleep 60"], "sleep 0.2; exit 3")
    assert process.wait(timeout=20) == -signal.SIGTERM
    process.communicate()


def test_ray_is_asked_for_before_anything_starts() -> None:
    head, worker = plans(service(kind="ray", multi={"tensor_parallel_size": 16}))
    assert [plan.before[0].argv for plan in (head, worker)] == [("ray", "--version")] * 2
    assert head.launch.env["ASCEND_RT_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
