"""Specifications and found hosts -> plans: who gets which port, devices and variables, and what is refused by name."""

from typing import Any

import msgspec
import pytest

from loadcell.errors import EnvironmentFailure, UserError
from loadcell.fleet.engines import ENGINES
from loadcell.fleet.hosts.host import DeviceUse
from loadcell.fleet.plan import HostFound, devices_by_config, inherited_notes, plan_services, ports_wanted
from loadcell.fleet.spec import FleetSpec, ServicePlan


def fleet(**keys: Any) -> FleetSpec:
    return msgspec.convert({"engine": "vllm", "model": "/m", "port": 30005} | keys, FleetSpec)


def gpus(count: int, vendor: str = "nvidia", **holders: str) -> tuple[DeviceUse, ...]:
    held = {int(name.removeprefix("d")): ((77, command),) for name, command in holders.items()}
    return tuple(DeviceUse(index, vendor, "H200", 4.0, 143771.0, held.get(index, ())) for index in range(count))


def local(spec: FleetSpec, **found: Any) -> tuple[ServicePlan, ...]:
    return plan_services(spec, {"local": HostFound(**found)})


def devices(plans: tuple[ServicePlan, ...]) -> list[tuple[int, ...]]:
    return [plan.replica.devices for plan in plans]


# --- the seed's four services


@pytest.mark.parametrize(
    "keys",
    [
        {"devices": [[0, 1], [2, 3], [4, 5], [6, 7]]},
        {"devices": [0, 1, 2, 3, 4, 5, 6, 7]},
        {"devices_per_replica": 2},
        {},
    ],
    ids=["lists", "pool", "count", "from the options"],
)
def test_four_services_of_two_devices(keys: dict[str, Any]) -> None:
    plans = local(fleet(replicas=4, args={"tensor-parallel-size": 2}, **keys), devices=gpus(8))
    assert devices(plans) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [plan.replica.port for plan in plans] == [30005, 30006, 30007, 30008]
    assert [plan.launch.env["CUDA_VISIBLE_DEVICES"] for plan in plans] == ["0,1", "2,3", "4,5", "6,7"]
    assert [plan.base_url for plan in plans] == [f"http://127.0.0.1:{30005 + n}" for n in range(4)]
    assert [plan.name for plan in plans] == ["replica-0", "replica-1", "replica-2", "replica-3"]
    assert plans[1].launch.argv == ("vllm", "serve", "/m", "--host", "127.0.0.1", "--port", "30006", "--tensor-parallel-size", "2")


@pytest.mark.parametrize(
    ("vendor", "name"), [("nvidia", "CUDA_VISIBLE_DEVICES"), ("amd", "HIP_VISIBLE_DEVICES"), ("ascend", "ASCEND_RT_VISIBLE_DEVICES")]
)
def test_the_variable_is_the_vendors(vendor: str, name: str) -> None:
    found = local(fleet(), devices=gpus(2, vendor))[0].launch.env
    said = local(fleet(vendor=vendor, devices=[1]))[0].launch.env
    assert (found, said) == ({name: "0"}, {name: "1"})


def test_without_devices_and_tool_nothing_is_assumed() -> None:
    plan = local(fleet())[0]
    assert plan.replica.devices == ()
    assert plan.launch.env == {}
    with pytest.raises(UserError, match=r"fleet\.vendor"):
        local(fleet(devices=[0]))
    with pytest.raises(UserError, match=r"fleet\.devices_per_replica"):
        local(fleet(devices_per_replica=1))


def test_the_simulated_engine_takes_no_device_that_was_only_found() -> None:
    spec = fleet(engine="simulated", args={"tensor-parallel-size": 2})
    assert devices(local(spec, devices=gpus(8, d0="train.py"))) == [()]
    assert devices(local(msgspec.structs.replace(spec, devices=(4, 5)))) == [(4, 5)]


# --- devices in use


def test_of_found_devices_those_in_use_are_left_alone() -> None:
    plans = local(fleet(replicas=2), devices=gpus(4, d0="train.py"), taken=(2,))
    assert devices(plans) == [(1,), (3,)]


def test_memory_without_a_holder_is_use_too() -> None:
    full = DeviceUse(0, "nvidia", "H200", 120000.0, 143771.0, ())
    assert devices(local(fleet(), devices=(full, *gpus(2)[1:]))) == [(1,)]


def test_too_few_free_devices_name_their_holders() -> None:
    with pytest.raises(EnvironmentFailure, match=r"process 77 \(train\.py\)"):
        local(fleet(replicas=2), devices=gpus(2, d0="train.py"))
    with pytest.raises(UserError, match=r"fleet\.replicas = 3"):
        local(fleet(replicas=3, devices=[0, 1]), devices=gpus(2))


def test_named_devices_are_taken_as_named() -> None:
    assert devices(local(fleet(devices=[0]), devices=gpus(2, d0="train.py"))) == [(0,)]
    with pytest.raises(UserError, match="no device 9"):
        local(fleet(devices=[9]), devices=gpus(2))


# --- several hosts


HOSTS = [{"name": "a", "ssh": "a", "address": "10.0.0.1"}, {"name": "b", "ssh": "b", "address": "10.0.0.2"}]


def test_replicas_are_spread_evenly_and_neighbours_stay_together() -> None:
    plans = plan_services(fleet(replicas=4, host=HOSTS), {"a": HostFound(devices=gpus(4)), "b": HostFound(devices=gpus(4))})
    assert [(plan.replica.host, plan.replica.port, plan.replica.devices) for plan in plans] == [
        ("a", 30005, (0,)), ("a", 30006, (1,)), ("b", 30005, (0,)), ("b", 30006, (1,)),
    ]  # fmt: skip
    assert [plan.base_url for plan in plans][2] == "http://10.0.0.2:30005"
    assert plans[2].launch.argv[3:5] == ("--host", "0.0.0.0")


def test_a_host_gets_no_more_than_its_devices_carry() -> None:
    plans = plan_services(fleet(replicas=4, host=HOSTS), {"a": HostFound(devices=gpus(1)), "b": HostFound(devices=gpus(4))})
    assert [plan.replica.host for plan in plans] == ["a", "b", "b", "b"]


def test_two_aliases_of_one_address_share_its_ports() -> None:
    hosts = [host | {"address": "10.0.0.1"} for host in HOSTS]
    plans = plan_services(fleet(replicas=2, vendor="none", host=hosts), {"a": HostFound(), "b": HostFound()})
    assert [plan.replica.port for plan in plans] == [30005, 30006]


# --- ports, names, variables


def test_automatic_ports_are_those_that_were_found_free() -> None:
    spec = fleet(replicas=2, port="auto")
    assert ports_wanted(spec) == 2
    assert [plan.replica.port for plan in local(spec, free_ports=(41001, 41007))] == [41001, 41007]
    with pytest.raises(EnvironmentFailure, match="free ports"):
        local(spec, free_ports=(41001,))


def test_variables_of_the_specification_win_but_devices_are_the_plans() -> None:
    plan = local(fleet(env={"VLLM_LOGGING_LEVEL": "DEBUG", "OWN": "{name}:{port}"}, devices=[3], vendor="nvidia"))[0]
    assert plan.launch.env == {"VLLM_LOGGING_LEVEL": "DEBUG", "OWN": "replica-0:30005", "CUDA_VISIBLE_DEVICES": "3"}
    with pytest.raises(UserError, match=r"fleet\.env\.CUDA_VISIBLE_DEVICES"):
        local(fleet(env={"CUDA_VISIBLE_DEVICES": "5"}, devices=[3], vendor="nvidia"))


def test_inherited_variables_that_act_are_named_without_their_value() -> None:
    (note,) = inherited_notes(fleet(env={"VLLM_USE_V1": "1"}), ["VLLM_USE_V1", "VLLM_API_KEY", "HOME", "NCCL_DEBUG"])
    assert "NCCL_DEBUG, VLLM_API_KEY" in note
    assert "VLLM_USE_V1" not in note
    assert inherited_notes(fleet(), ["HOME"]) == ()


def test_the_url_follows_the_options() -> None:
    assert local(fleet(args={"ssl-certfile": "c.pem", "root-path": "/gw"}))[0].base_url == "https://127.0.0.1:30005/gw"
    assert local(fleet(args={"host": "0.0.0.0"}))[0].launch.argv.count("--host") == 1


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"replicas": 0}, r"fleet\.replicas = 0"),
        ({"port": 70000}, r"fleet\.port = 70000"),
        ({"port": 65535, "replicas": 2}, r"fleet\.port = 65535"),
        ({"restarts": -1}, r"fleet\.restarts"),
        ({"devices": [0, 0]}, "stands twice"),
        ({"devices": [[0, 1]], "replicas": 2}, "one list per replica"),
        ({"devices": [[0], [0]], "replicas": 2, "vendor": "nvidia"}, "given to two replicas"),
        ({"devices": [[0], 1], "replicas": 2}, "not both"),
        ({"devices": [[0, 1]], "devices_per_replica": 1}, r"fleet\.devices\[0\]"),
        ({"devices": [0, 1], "devices_per_replica": 1, "args": {"tensor-parallel-size": 2}}, r"fleet\.devices_per_replica = 1"),
        ({"args": {"port": 1}}, r"fleet\.args\.port.*fleet\.port"),
        ({"args": ["--port=1"]}, r"fleet\.args\.port.*fleet\.port"),
        ({"args": {"tensor-parallel-size": 0}}, "tensor-parallel-size"),
        ({"model": None}, r"fleet\.model"),
        ({"env": {"A=B": "x"}}, r"fleet\.env"),
        ({"engine": "mindie"}, r"fleet\.config_file"),
        ({"engine": "mindie", "config_file": "c", "replicas": 2}, r"fleet\.devices_per_replica is missing"),
        ({"served_model_name": "a", "args": {"served-model-name": "b"}}, "give one of them"),
        ({"engine": "simulated", "served_model_name": "a", "args": ["--served-model-name", "b"]}, "give one of them"),
        ({"engine": "command"}, r"fleet\.command is missing"),
        ({"engine": "command", "command": ["serve"]}, r"\{port\}"),
        ({"engine": "command", "command": ["serve", "{port}", "{prot}"]}, r"fleet\.command\[2\]"),
        ({"engine": "simulated", "args": {"access-log": "{nmae}.log"}}, r"\{nmae\}"),
        ({"host": [{"name": "a"}, {"name": "a"}]}, "stands twice"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(keys: dict[str, Any], named: str) -> None:
    spec = fleet(**keys)
    with pytest.raises(UserError, match=named):
        plan_services(spec, {host.name: HostFound() for host in spec.host} or {"local": HostFound()})


# --- the adapters' own


def test_the_program_may_be_another_and_hold_spaces() -> None:
    assert local(fleet(executable="/opt/my venv/bin/vllm"))[0].launch.argv[:2] == ("/opt/my venv/bin/vllm", "serve")
    assert local(fleet(executable=["uv", "run", "vllm"]))[0].launch.argv[:4] == ("uv", "run", "vllm", "serve")


def test_false_says_no_where_vllm_would_default_to_true() -> None:
    argv = local(fleet(args={"enable-prefix-caching": False, "some-flag": False}))[0].launch.argv
    assert argv[-1] == "--no-enable-prefix-caching"


def test_sglang_counts_attention_ranks_once() -> None:
    of = ENGINES["sglang"].devices_needed
    assert of(fleet(engine="sglang", args={"tp": 8, "dp": 8, "enable-dp-attention": True})) == 8
    assert of(fleet(engine="sglang", args={"tp": 2, "dp": 4})) == 8
    assert of(fleet(engine="sglang", args=["--tp-size", "4"])) == 4


def test_a_simulated_access_log_per_replica() -> None:
    plans = local(fleet(engine="simulated", replicas=2, args={"access-log": "{folder}/access.jsonl"}), folder="/r")
    assert [plan.launch.argv[-1] for plan in plans] == ["/r/replica-0/access.jsonl", "/r/replica-1/access.jsonl"]


# --- MindIE's file

CONFIG = """{"Version": "1.0.0", "ServerConfig": {"port": 1025, "managementIpAddress": "127.0.0.2", "httpsEnabled": true, "maxLinkNum": 1000},
"BackendConfig": {"npuDeviceIds": [[0, 1, 2, 3]], "ModelDeployConfig": {"ModelConfig": [{"modelName": "x", "worldSize": 4, "cpuMemSize": 5}]}}}"""


def mindie(config: dict[str, Any], text: str = CONFIG) -> ServicePlan:
    spec = fleet(engine="mindie", config_file="c.json", config=config, served_model_name="q", devices=[4, 5], devices_per_replica=2)
    return plan_services(spec, {"local": HostFound(folder="/r")}, text)[0]


def test_mindie_reads_a_copy_in_the_replicas_folder() -> None:
    plan = mindie({"BackendConfig.ScheduleConfig.maxBatchSize": 64, "BackendConfig.ModelDeployConfig.ModelConfig.0.cpuMemSize": 0})
    ((name, content),) = plan.launch.files
    assert plan.launch.env["MIES_CONFIG_JSON_PATH"] == f"/r/replica-0/{name}"
    assert plan.cwd == "/r/replica-0"
    assert plan.launch.argv == ("mindieservice_daemon",)
    assert "ASCEND_RT_VISIBLE_DEVICES" not in plan.launch.env
    assert msgspec.json.decode(content) == {
        "Version": "1.0.0",
        "ServerConfig": {
            "port": 30005, "managementPort": 30005, "metricsPort": 30005, "ipAddress": "127.0.0.1", "httpsEnabled": False, "maxLinkNum": 1000,
        },
        "BackendConfig": {
            "npuDeviceIds": [[4, 5]],
            "ScheduleConfig": {"maxBatchSize": 64},
            "ModelDeployConfig": {"ModelConfig": [{"modelName": "q", "worldSize": 2, "cpuMemSize": 0, "modelWeightPath": "/m"}]},
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "text", "named"),
    [
        ({}, "{", r"fleet\.config_file"),
        ({}, "[]", r"fleet\.config_file"),
        ({"ServerConfig.port": 1}, CONFIG, r"fleet\.config\.ServerConfig\.port.*fleet\.port"),
        ({"Version.x": 1}, CONFIG, r"fleet\.config\.Version\.x"),
        ({"BackendConfig.ModelDeployConfig.ModelConfig.7.x": 1}, CONFIG, r"'7' is no entry of a list of 1"),
    ],
)
def test_mindie_refuses_by_path(config: dict[str, Any], text: str, named: str) -> None:
    with pytest.raises(UserError, match=named):
        mindie(config, text)


@pytest.mark.parametrize(
    ("keys", "devices"),
    [
        ({"args": {"tensor-parallel-size": 1, "data_parallel_size": 8}}, 8),
        ({"args": ("-tp", "2", "--pipeline-parallel-size=2")}, 4),
        ({"engine": "sglang", "args": {"tp": 4}}, 4),
        ({"args": {"tensor-parallel-size": 1}}, 1),
        ({"devices_per_replica": 2}, 2),
        ({"devices": ((0, 1), (2, 3)), "replicas": 2}, 2),
        ({"devices": ((0, 1), (2,)), "replicas": 2}, None),
        ({"args": {"max-num-seqs": 8}}, None),
        ({"args": {"tensor-parallel-size": 2}, "vendor": "none"}, None),
        ({"engine": "command", "command": ("x", "{port}")}, None),
    ],
)
def test_devices_of_a_replica_as_the_specification_alone_tells(keys: dict[str, Any], devices: int | None) -> None:
    """Unknown is null, and never one."""
    assert devices_by_config(FleetSpec(**({"engine": "vllm", "model": "org/m"} | keys))) == devices
