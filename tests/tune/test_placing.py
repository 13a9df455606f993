import json
import tomllib

import pytest
import yaml

from loadcell.experiment.spec import SpecError
from loadcell.fleet.plan import HostFound, plan_services
from loadcell.fleet.spec import FleetSpec
from loadcell.tune.parameters import Parameter, Place
from loadcell.tune.placing import check_sources, placed, rendered, with_option
from loadcell.tune.spec import BenchmarkTable, StudySpec


def one(name, kind="int", **where):
    return Parameter(name, kind, Place(**where), low=1, high=64, default=8) if kind == "int" else Parameter(name, kind, Place(**where))


def study(parameters, fleet=None, **more):
    return StudySpec(fleet or FleetSpec("simulated", model="m", args={"seed": 1}), parameter=tuple(parameters), **more)


def argv(fleet):
    return plan_services(fleet, {"local": HostFound(free_ports=(8001,), folder="/run")})[0].launch


@pytest.mark.parametrize(
    ("args", "flag", "value", "after"),
    [
        ({"max_num_seqs": 4, "seed": 1}, "--max-num-seqs", 64, {"seed": 1, "--max-num-seqs": 64}),
        ({"enable-x/no-enable-x": True}, "--enable-x", False, {"--enable-x": False}),
        (("--max-num-seqs", "4", "--seed", "1"), "--max-num-seqs", 64, ("--seed", "1", "--max-num-seqs", "64")),
        (("--max-num-seqs=4",), "--max-num-seqs", 0.5, ("--max-num-seqs", "0.5")),
        (("--x", "--y"), "--x", False, ("--y",)),
        (("--y",), "--x/--no-x", False, ("--y", "--no-x")),
        (("--y",), "--x", True, ("--y", "--x")),
    ],
)
def test_an_option_replaces_what_was_there(args, flag, value, after):
    assert with_option(args, flag, value) == after


def test_false_is_said_where_the_engine_has_a_word_for_it():
    spec = study([one("c", "bool", flag="--enable-prefix-caching")], FleetSpec("vllm", model="m", args=("--seed", "1")))
    assert placed(spec, {"c": False}, {}).fleet.args == ("--seed", "1", "--no-enable-prefix-caching")
    other = study([one("c", "bool", flag="--enable-mixed-chunk")], FleetSpec("sglang", model="m", args=("--seed", "1")))
    assert placed(other, {"c": False}, {}).fleet.args == ("--seed", "1")


def test_each_place():
    spec = study(
        [one("seqs", flag="--max-num-seqs"), one("conn", env="MAX_CONN"), one("users", load="--max-concurrency"), one("note", word=True)],
        FleetSpec("simulated", model="m", args={"seed": "$note"}, env={"KEPT": "a$note", "OTHER": "$HOME $$note"}),
        bench={"concurrency": 1, "num_prompts": 10},
    )
    put = placed(spec, {"seqs": 32, "conn": 7, "users": 16, "note": 3}, {})
    assert put.bench == {"num_prompts": 10, "concurrency": 16}
    assert put.load == {"concurrency": 16.0}
    launch = argv(put.fleet)
    words = " ".join(launch.argv)
    assert "--max-num-seqs 32" in words
    assert "--seed 3" in words
    assert launch.env == {"KEPT": "a3", "OTHER": "$HOME $note", "MAX_CONN": "7"}
    assert spec.fleet.args == {"seed": "$note"}  # the study's own stays


def test_what_is_absent_is_left_to_the_engine():
    spec = study(
        [one("seqs", flag="--max-num-seqs"), one("more", word=True)],
        FleetSpec("vllm", model="m", args=("--a", "$more", "${more}", "x$more")),
    )
    put = placed(spec, {}, {})
    assert put.fleet.args == ("--a", "x")
    assert placed(spec, {"more": 5}, {}).fleet.args == ("--a", "5", "5", "x5")


def test_a_value_that_is_an_option_becomes_its_words():
    more = Parameter("more", "categorical", Place(word=True), choices=("", "--compilation-config '{\"level\": 3}'"))
    spec = study([more], FleetSpec("vllm", model="m", args=("--a", "$more", "$more")))
    assert placed(spec, {"more": ""}, {}).fleet.args == ("--a",)
    words = ("--compilation-config", '{"level": 3}')
    assert placed(spec, {"more": more.choices[1]}, {}).fleet.args == ("--a", *words, *words)


def test_the_benchmark_has_its_words_too():
    bench = BenchmarkTable("evalscopeperf", args=("--parallel", "$users"), env={"N": "${users}"})
    put = placed(study([one("users", load="concurrency")], benchmark=bench), {"users": 12}, {})
    assert put.benchmark.args == ("--parallel", "12")
    assert put.benchmark.env == {"N": "12"}


JSON = '{"a": {"b": [{"c": 1}, {"c": 2}]}, "kept": "ü"}'


def test_a_copy_of_a_file_goes_where_the_file_was_named():
    place = {"file": "conf/own.json", "path": "a.b.1.c"}
    spec = study(
        [one("c", **place)], FleetSpec("simulated", args={"model": "x", "config": "conf/own.json"}, env={"C": "--file=conf/own.json"})
    )
    check_sources(spec, {"conf/own.json": JSON})
    put = placed(spec, {"c": 9}, {"conf/own.json": JSON})
    assert put.fleet.args["config"] == "{folder}/own.json"
    assert put.fleet.env["C"] == "--file={folder}/own.json"
    assert json.loads(put.fleet.files["own.json"]) == {"a": {"b": [{"c": 1}, {"c": 9}]}, "kept": "ü"}
    fleet = FleetSpec("simulated", args={"config": "{folder}/own.json"}, files=put.fleet.files)
    launch = argv(fleet)
    assert launch.argv[-1] == "/run/replica-0/own.json"
    assert dict(launch.files) == put.fleet.files


def test_toml_and_yaml():
    c = one("c", file="x", path="a.b.c")
    assert tomllib.loads(rendered("x.toml", "[a]\nk = 1\n", [(c, 0.5)])) == {"a": {"k": 1, "b": {"c": 0.5}}}
    assert yaml.safe_load(rendered("x.yml", "a: {k: [1, ü]}\n", [(c, True)])) == {"a": {"k": [1, "ü"], "b": {"c": True}}}


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.json", "{", "no JSON"),
        ("a.json", "[1]", "names and values at its top"),
        ("a.ini", "x", "a file that ends in"),
        ("a.yaml", "{", "no YAML"),
        ("a.json", '{"a": 3}', "neither object nor list"),
        ("a.json", '{"b": 3}', "nothing in \\[fleet\\] names it"),
    ],
)
def test_files_that_cannot_be_used(name, text, why):
    with pytest.raises(SpecError, match=why):
        check_sources(study([one("c", file=name, path="a.b.c")]), {name: text})


def test_mindies_own_file_is_changed_by_its_engine():
    spec = study([one("b", path="BackendConfig.ScheduleConfig.maxBatchSize")], FleetSpec("mindie", model="/m", config_file="c.json"))
    assert placed(spec, {"b": 5}, {}).fleet.config == {"BackendConfig.ScheduleConfig.maxBatchSize": 5}
    named = study([one("b", file="c.json", path="a.b")], FleetSpec("mindie", model="/m", config_file="c.json"))
    check_sources(named, {"c.json": "{}"})
    assert placed(named, {"b": 5}, {"c.json": "{}"}).fleet.config == {"a.b": 5}


def test_options_that_multiply_devices_decide_how_many_there_are():
    spec = study(
        [one("tp", flag="--tensor-parallel-size")], FleetSpec("vllm", model="m", devices=(0, 1, 2, 3), devices_per_replica=4, vendor="none")
    )
    plan = plan_services(placed(spec, {"tp": 2}, {}).fleet, {"local": HostFound(free_ports=(8001,))})[0]
    assert plan.replica.devices == (0, 1)


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", ""])
def test_files_stay_below_the_replicas_folder(path):
    from loadcell.errors import UserError

    with pytest.raises(UserError, match="below the folder"):
        argv(FleetSpec("simulated", files={path: "x"}))
