"""multihost_infer's cluster file, as its users have it."""

import pytest

from loadcell.errors import UserError
from loadcell.fleet.cluster_file import parse_cluster, with_cluster
from loadcell.fleet.plan import HostFound, plan_services
from loadcell.fleet.spec import DockerSpec, FleetSpec, HostSpec, MultiHostSpec

CLUSTER = """
docker_use_sudo = true

[vllm_mix]
chips_per_node = 16
data_parallel_rpc_port = 13389
env = { HCCL_BUFFSIZE = 1024, VLLM_USE_V1 = "1" }

[[vllm_mix.node]]
host = "192.168.0.10"
nic_name = "enp1s0"

[[vllm_mix.workers]]
host = "192.168.0.11"
ssh_port = 2222
ssh_user = "llm"
docker_container_id = "vllm-worker"
nic_name = "enp2s0"

[[vllm_mix.workers]]
host = "192.168.0.12"
"""
ALONE = """
docker_use_sudo = false
[vllm_mix]
chips_per_node = 8
[[vllm_mix.node]]
host = "10.1.2.3"
nic_name = "eth0"
"""


def test_hosts_and_service() -> None:
    cluster = parse_cluster(CLUSTER, "config.toml")
    assert cluster.hosts == (
        HostSpec("192.168.0.10", address="192.168.0.10", nic="enp1s0"),
        HostSpec(
            "192.168.0.11", ssh="llm@192.168.0.11", ssh_port=2222, docker=DockerSpec(container="vllm-worker", sudo=True),
            address="192.168.0.11", nic="enp2s0",
        ),
        HostSpec("192.168.0.12", ssh="root@192.168.0.12", ssh_port=22, address="192.168.0.12"),
    )  # fmt: skip
    spec = with_cluster(FleetSpec("vllm", model="/m", args={"tensor-parallel-size": 4}, env={"VLLM_USE_V1": "0"}), cluster)
    assert spec.multi_host == MultiHostSpec("data_parallel", devices_per_host=16, data_parallel_size=3, data_parallel_rpc_port=13389)
    assert spec.env == {"HCCL_BUFFSIZE": "1024", "VLLM_USE_V1": "0"}


def test_a_cluster_of_one_host_is_a_service_like_any() -> None:
    spec = with_cluster(FleetSpec("vllm", model="/m", port=9975, vendor="ascend"), parse_cluster(ALONE, "config.toml"))
    (plan,) = plan_services(spec, {"10.1.2.3": HostFound(free_ports=(20001,))})
    assert plan.base_url == "http://10.1.2.3:9975"
    assert "--headless" not in plan.launch.argv
    assert plan.launch.argv[plan.launch.argv.index("--data-parallel-size") + 1] == "1"
    assert plan.launch.argv[plan.launch.argv.index("--data-parallel-rpc-port") + 1] == "20001"


def test_a_size_in_the_options_is_the_one_that_counts() -> None:
    spec = with_cluster(FleetSpec("vllm", model="/m", args=("--data-parallel-size", "6")), parse_cluster(CLUSTER, "c"))
    assert spec.multi_host is not None
    assert spec.multi_host.data_parallel_size is None


def test_passwords_are_not_used_and_that_is_said() -> None:
    cluster = parse_cluster(CLUSTER + 'password = "bXlfcGFzc3dvcmQ="\n', "config.toml")
    (note,) = cluster.notes
    assert "192.168.0.12" in note
    assert "bXlf" not in note


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("x = [", "no TOML"),
        ("docker_use_sudo = true", "vllm_mix"),
        (CLUSTER.replace("nic_name", "nic_nam"), "nic_name"),
        (CLUSTER.replace("chips_per_node", "chips_pernode"), "chips_per_node"),
        (CLUSTER.replace("192.168.0.12", "192.168.0.11"), "stands twice"),
        (CLUSTER.replace("[[vllm_mix.workers]]", "[[vllm_mix.node]]").replace("ssh_port = 2222\nssh_user = \"llm\"\ndocker_container_id = \"vllm-worker\"\n", ""), "3 times"),
        (CLUSTER.replace("ssh_port = 2222", 'ssh_port = "x"'), "ssh_port"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(text: str, named: str) -> None:
    with pytest.raises(UserError, match=rf"config\.toml.*{named}"):
        parse_cluster(text, "config.toml")


def test_hosts_twice_are_refused() -> None:
    with pytest.raises(UserError, match=r"fleet\.host"):
        with_cluster(FleetSpec("vllm", model="/m", host=(HostSpec("x"),)), parse_cluster(ALONE, "c"))
