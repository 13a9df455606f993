"""A file -> ExperimentSpec: what is taken, what is refused, and the line that is named."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadcell.errors import UserError
from loadcell.experiment.read import read_experiment
from loadcell.experiment.spec import ExperimentSpec, ScenarioRow

FLEET = '[fleet]\nengine = "simulated"\nreplicas = 2\n'


def read(
    folder: Path, text: str, *sets: str, env: str | None = None, environment: Mapping[str, str] | None = None, name: str = "experiment.toml"
) -> ExperimentSpec:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    env_file = None
    if env is not None:
        env_file = folder / "config.env"
        env_file.write_text(env, encoding="utf-8")
    return read_experiment(path, sets=sets, env_file=env_file, environment=environment or {})


def refusal(folder: Path, text: str, *sets: str, **more: Any) -> str:
    with pytest.raises(UserError) as caught:
        read(folder, text, *sets, **more)
    return str(caught.value)


def test_keys_may_be_written_either_way(tmp_path: Path) -> None:
    spec = read(tmp_path, FLEET + 'served-model-name = "m"\nstart_timeout = "5m"\n[bench]\nnum-prompts = 5\ninput_len = 8\n')
    assert spec.fleet is not None
    assert (spec.fleet.served_model_name, spec.fleet.start_timeout) == ("m", "5m")
    assert spec.bench == {"num_prompts": 5, "input_len": 8}


def test_a_file_gives_the_name_that_it_does_not_say(tmp_path: Path) -> None:
    assert read(tmp_path, FLEET, name="my run.toml").name == "my-run"


def test_only_a_fleet_is_enough_for_services(tmp_path: Path) -> None:
    spec = read(tmp_path, FLEET)
    assert spec.scenario == ()
    assert spec.bench == {}


def test_running_services_need_no_fleet(tmp_path: Path) -> None:
    spec = read(tmp_path, '[target]\nbase-url = "http://127.0.0.1:8000"\n[bench]\nconcurrency = 1\n')
    assert spec.fleet is None
    assert spec.target is not None
    assert spec.target.base_url == ("http://127.0.0.1:8000",)


def test_an_engines_own_tables_keep_their_keys(tmp_path: Path) -> None:
    spec = read(tmp_path, FLEET + 'args = {enable-x = true, speculative_config = {n = 3}}\nenv = {OMP_NUM_THREADS = 8, A-B = "x"}\n')
    assert spec.fleet is not None
    assert spec.fleet.args == {"enable-x": True, "speculative_config": {"n": 3}}
    assert spec.fleet.env == {"OMP_NUM_THREADS": "8", "A-B": "x"}


def test_hosts_and_their_containers(tmp_path: Path) -> None:
    spec = read(tmp_path, FLEET + '[[fleet.host]]\nname = "a"\nssh-port = 22\n[fleet.host.docker]\ncontainer = "c"\nsudo = true\n')
    assert spec.fleet is not None
    host = spec.fleet.host[0]
    assert host.docker is not None
    assert (host.name, host.ssh_port, host.docker.container, host.docker.sudo) == ("a", 22, "c", True)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (FLEET + "[bench]\n\nconcurency = 4\n", 6, "did you mean concurrency?"),
        (FLEET + "replica = 2\n", 4, "did you mean replicas?"),
        ("nmae = 1\n" + FLEET, 1, "did you mean name?"),
        (FLEET + '[study]\nname = "a"\n', 4, "a study is run by `loadcell tune`"),
        (FLEET + "[[scenario]]\nconcurrency = 1\n[[scenario]]\nconcurency = 2\n", 7, "did you mean concurrency?"),
        (FLEET + '[[fleet.host]]\nname = "a"\n[[fleet.host]]\nname = "b"\nssh_prot = 2\n', 8, "did you mean ssh_port?"),
        (FLEET + 'port = "any"\n', 4, "port"),
        (FLEET + "start-timeout = 1.5h\n", 4, "not TOML"),
        (FLEET + 'start-timeout = "soon"\n', 4, "seconds, or a text as 90s"),
        (FLEET + "[bench]\nconcurrency = 1\nbase-url = 'http://x'\n", 6, "[target]"),
        (FLEET + "[bench]\nseed = 1\n", 5, "top of the file"),
        (FLEET + "[bench]\nname = 'x'\n", 5, "[[scenario]]"),
        (FLEET + "[bench]\noutput-file = 'x'\n", 5, "raw_outputs"),
        (FLEET + "[bench]\nconcurrency = 0\n", 5, "must be more than 0"),
        (FLEET + "[[scenario]]\nconcurrency = 4\ninput_len = [8, -1]\n", 6, "must be 0 or more"),
        (FLEET + "[bench]\nnum_prompts = '20x'\n", 5, "per concurrency"),
        (FLEET + "[bench]\nconcurrency = []\n", 5, "empty list"),
        (FLEET + "[bench]\nconcurrency = [1, 1]\n", 5, "twice"),
        (FLEET + "[bench]\nnum-prompts = 1\nnum_prompts = 2\n", 5, "given twice"),
        (FLEET + '[[slo]]\nmetric = "ttft"\nstatistic = "p95"\nlimit = 200\n', 4, "no unit"),
        (FLEET + '[[slo]]\nmetric = "tfft"\nlimit = "2ms"\n', 4, "did you mean 'ttft'"),
        (FLEET + "[[slo]]\nmetrik = 'ttft'\n", 5, "did you mean metric?"),
        (FLEET + "[[scenario]]\nname = 'a b'\n", 5, "letters, digits"),
        ("repeats = 0\n" + FLEET, 1, "must be 1 or more"),
        (FLEET + "[scenario]\nconcurrency = 1\n", 4, "two brackets"),
        (FLEET + "[bench]\nburstiness = 0.5\n", 5, "needs a finite --request-rate"),
    ],
)
def test_what_cannot_be_used_is_named_by_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    told = refusal(tmp_path, text)
    assert told.startswith(f"{tmp_path}/experiment.toml:{line}: ")
    assert says in told


def test_neither_services_nor_a_target_is_refused(tmp_path: Path) -> None:
    assert "[fleet]" in refusal(tmp_path, "[bench]\nconcurrency = 1\n")


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_experiment(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('replicas = "2"', "replicas: '2': expected a whole number"),
        ("replicas = true", "replicas: true: expected a whole number"),
        ('vendor = "nvida"', "vendor: 'nvida': choose one of auto, nvidia, amd, ascend, none"),
        ('port = "autto"', "port: 'autto': expected auto or a whole number"),
        ('cpus = "appart"', "cpus: 'appart': expected any, apart or a list of whole numbers"),
        ('devices = "all"', "devices: 'all': expected a list of whole numbers or lists"),
        ("stop-timeout = []", "stop_timeout: []: expected a number or a text"),
        ("env = { KEY = [3] }", "env: expected a table of texts"),
        ("host = [{ name = 3 }]", "host[0].name: 3: expected a text"),
        ("host = [{ ssh = 'a' }]", "host[0]: object missing required field `name`"),
        ('multi-host = { kind = "dp", devices-per-host = 1 }', "multi_host.kind: 'dp': choose one of data_parallel, ray"),
        ('pattern = [{ cause = "oops", pattern = "x" }]', "pattern[0].cause: 'oops': choose one of out_of_memory"),
        ('pattern = [{ cause = "fatal", pattern = "(" }]', "pattern[0].pattern: '(' is no regular expression"),
        ('ready-pattern = "("', "ready_pattern: '(' is no regular expression"),
    ],
)
def test_what_a_place_does_not_take_names_key_value_and_what_it_takes(tmp_path: Path, line: str, said: str) -> None:
    assert f"[fleet] {said}" in refusal(tmp_path, f'[fleet]\nengine = "vllm"\n{line}\n')


def test_an_engine_that_is_none_names_those_that_are(tmp_path: Path) -> None:
    assert ":2: [fleet] engine: 'vlm': choose one of vllm, sglang, mindie, simulated, command" in refusal(
        tmp_path, '[fleet]\nengine = "vlm"\n'
    )


# --- limits


def test_limits_as_tables_and_as_texts(tmp_path: Path) -> None:
    tables = '[[slo]]\nmetric = "ttft"\nstatistic = "p95"\nlimit = "200ms"\n[[slo]]\nmetric = "success_rate"\nlimit = "99%"\n'
    assert read(tmp_path, FLEET + tables).slo == ("ttft p95 <= 200ms", "success_rate >= 99%")
    assert read(tmp_path, 'slo = ["ttft p95 <= 200ms"]\n' + FLEET).slo == ("ttft p95 <= 200ms",)


def test_a_scenario_has_its_own(tmp_path: Path) -> None:
    text = FLEET + "[[scenario]]\nconcurrency = 1\nslo = 'tpot mean <= 5ms'\ngate = true\nrepeats = 2\nname = 'one'\n"
    assert read(tmp_path, text).scenario == (
        ScenarioRow(flags={"concurrency": 1}, name="one", slo=("tpot mean <= 5ms",), gate=True, repeats=2),
    )


# --- --set


@pytest.mark.parametrize(
    ("item", "path", "value"),
    [
        ("fleet.replicas=4", ("fleet", "replicas"), 4),
        ("fleet.served-model-name=my model", ("fleet", "served_model_name"), "my model"),
        ('fleet.model="3"', ("fleet", "model"), "3"),
        ("fleet.model=/a/b=c#d", ("fleet", "model"), "/a/b=c#d"),
        ("fleet.model=${HOME} $$", ("fleet", "model"), "${HOME} $$"),
        ("bench.concurrency=[1, 2]", ("bench", "concurrency"), [1, 2]),
        ("bench.num-prompts=3x", ("bench", "num_prompts"), "3x"),
        ("scenario.0.input_len=9", ("scenario", 0, "flags", "input_len"), 9),
        ("scenario.first.input_len=9", ("scenario", 0, "flags", "input_len"), 9),
        ("fleet.args.max_num_seqs=7", ("fleet", "args", "max-num-seqs"), 7),
        ("fleet.env.NEW=1", ("fleet", "env", "NEW"), "1"),
        ("fleet.args.on=True", ("fleet", "args", "on"), True),
        ("fleet.args.on='True'", ("fleet", "args", "on"), "True"),
        ("fleet.model=/models/\U0001f600 b", ("fleet", "model"), "/models/\U0001f600 b"),
        ("seed=7", ("seed",), 7),
    ],
)
def test_set_goes_before_the_file(tmp_path: Path, item: str, path: tuple[str | int, ...], value: object) -> None:
    text = FLEET + "args = {max-num-seqs = 3}\n[bench]\nconcurrency = 8\n[[scenario]]\nname = 'first'\ninput-len = 4\n"
    spec = read(tmp_path, text, item)
    here: Any = spec
    for part in path:
        here = here[part] if isinstance(here, (dict, tuple)) else getattr(here, str(part))
    assert here == value
    assert sum(origin == f"--set {item.partition('=')[0]}" for origin in spec.origins.values()) == 1


@pytest.mark.parametrize("item", ["fleet.replicas", "=3", "a b=1", "scenario.7.input_len=1", "fleet.engine.x=1", "a=1\nb=2"])
def test_a_set_that_is_none_is_refused(tmp_path: Path, item: str) -> None:
    assert "--set" in refusal(tmp_path, FLEET + "[[scenario]]\ninput_len = 1\n", item)


def test_a_row_that_is_none_names_those_that_are(tmp_path: Path) -> None:
    rows = FLEET + '[[scenario]]\nname = "steady"\ninput_len = 1\n'
    said = refusal(tmp_path, rows, "scenario.stedy.input_len=2")
    assert said == "--set scenario.stedy.input_len=2: there is no stedy: choose one of 0, steady"


def test_a_wrong_value_of_a_set_names_the_set(tmp_path: Path) -> None:
    assert refusal(tmp_path, FLEET, "fleet.replicas=many").startswith("--set fleet.replicas: ")
    assert "did you mean replicas?" in refusal(tmp_path, FLEET, "fleet.replcas=2")


# --- where a value comes from


def test_origins_say_file_env_file_and_set(tmp_path: Path) -> None:
    text = FLEET + 'model = "${MODEL}"\n[bench]\nconcurrency = 1\nnum-prompts = 3\n'
    spec = read(tmp_path, text, "bench.num_prompts=4", env="MODEL=/m\n")
    assert spec.origins["fleet.replicas"] == f"{tmp_path}/experiment.toml:3"
    assert spec.origins["fleet.model"] == f"{tmp_path}/experiment.toml:4 ({tmp_path}/config.env: MODEL)"
    assert spec.origins["bench.num_prompts"] == "--set bench.num_prompts"
    assert "fleet.port" not in spec.origins


def test_the_environment_says_nothing_that_is_not_asked(tmp_path: Path) -> None:
    environment = {"CONCURRENCY": "7", "FLEET_REPLICAS": "9", "LOADCELL_REPLICAS": "9", "replicas": "9"}
    spec = read(tmp_path, FLEET + "[bench]\nconcurrency = 5\n", "bench.concurrency=3", environment=environment)
    assert spec.bench["concurrency"] == 3
    assert spec.fleet is not None
    assert spec.fleet.replicas == 2


# --- ${KEY}


def test_keys_are_offered_by_the_env_file_alone(tmp_path: Path) -> None:
    text = FLEET + 'model = "${ROOT}/m"\n'
    assert "experiment.toml:4: " in refusal(tmp_path, text, environment={"ROOT": "/x"})
    told = refusal(tmp_path, text, env="ROOTS=/x\n")
    assert "${ROOT} has no value" in told
    assert "ROOTS" in told


def test_a_whole_key_is_read_as_its_place_wants(tmp_path: Path) -> None:
    text = (
        '[fleet]\nengine = "${E}"\nreplicas = "${N}"\nport = "${P}"\nmodel = "${N}"\n[bench]\nconcurrency = "${C}"\nsame-prompts = "${T}"\n'
    )
    spec = read(tmp_path, text, env="E=simulated\nN=4\nP=30005\nC=(1 8)\nT=true\n")
    assert spec.fleet is not None
    assert (spec.fleet.engine, spec.fleet.replicas, spec.fleet.port, spec.fleet.model) == ("simulated", 4, 30005, "4")
    assert spec.bench == {"concurrency": ["1", "8"], "same_prompts": True}


def test_a_key_deep_in_an_engines_options_is_text_or_a_switch(tmp_path: Path) -> None:
    text = (
        FLEET
        + 'devices = "${D}"\nargs = {tp = "${N}", on = "${T}", off = "${F}", body = {a = ["${N}"]}, list = "${D}"}\nenv = {A = "${T}"}\n'
    )
    spec = read(tmp_path, text, env="N=2\nT=true\nF=False\nD=(0 1)\n")
    assert spec.fleet is not None
    assert spec.fleet.devices == (0, 1)
    assert spec.fleet.args == {"tp": "2", "on": True, "off": False, "body": {"a": ["2"]}, "list": ["0", "1"]}
    assert spec.fleet.env == {"A": "true"}
    assert msgspec.json.decode(msgspec.json.encode(spec), type=ExperimentSpec) == spec


def test_two_dollars_are_one(tmp_path: Path) -> None:
    spec = read(tmp_path, FLEET + 'env = {A = "$${X} $$5 $HOME"}\n', env="X=1\n")
    assert spec.fleet is not None
    assert spec.fleet.env == {"A": "${X} $5 $HOME"}


def test_a_value_with_quotes_and_lines_stays_one_value(tmp_path: Path) -> None:
    value = 'a"b\\c\nreplicas = 9'
    spec = read(tmp_path, FLEET + 'model = "${M}"\n', env="M='" + value + "'\n")
    assert spec.fleet is not None
    assert (spec.fleet.model, spec.fleet.replicas) == (value, 2)


# --- the cluster file of multihost_infer

CLUSTER = """\
[vllm_mix]
chips_per_node = 8
env = { HCCL_BUFFSIZE = "1024" }
[[vllm_mix.node]]
host = "10.0.0.1"
[[vllm_mix.workers]]
host = "10.0.0.2"
ssh_user = "me"
password = "p"
"""
MULTI = '[fleet]\nengine = "vllm"\nmodel = "m"\nenv = {HCCL_BUFFSIZE = "1"}\n'


def test_a_cluster_file_gives_the_hosts(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(CLUSTER)
    notes: list[str] = []
    path = tmp_path / "e.toml"
    path.write_text(MULTI + f'cluster-file = "{cluster}"\n')
    spec = read_experiment(path, note=notes.append)
    assert spec.fleet is not None
    assert spec.fleet.multi_host is not None
    assert [(host.name, host.ssh) for host in spec.fleet.host] == [("10.0.0.1", None), ("10.0.0.2", "me@10.0.0.2")]
    assert spec.fleet.env == {"HCCL_BUFFSIZE": "1"}
    assert spec.origins["fleet.host"] == f"{cluster} ({path}:5)"
    assert "10.0.0.2" in notes[0]


def test_the_variable_names_it_only_where_the_file_asks(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    environment = {"CLUSTER_CONFIG_PATH": str(tmp_path / "cluster.toml")}
    asked = read(tmp_path, MULTI + "cluster_file = true\n", environment=environment)
    silent = read(tmp_path, MULTI, environment=environment)
    assert asked.fleet is not None
    assert silent.fleet is not None
    assert (len(asked.fleet.host), len(silent.fleet.host)) == (2, 0)
    assert "experiment.toml:5: " in refusal(tmp_path, MULTI + "cluster_file = true\n")


def test_hosts_and_a_cluster_file_are_two_answers(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    text = MULTI + f"cluster_file = '{tmp_path}/cluster.toml'\n[[fleet.host]]\nname = 'a'\n"
    assert "give one of both" in refusal(tmp_path, text)
    assert "No such file" in refusal(tmp_path, MULTI + "cluster_file = '/no/such.toml'\n")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (
            "gate = true\n[target]\nbase-url = 'http://127.0.0.1:1'\n[bench]\nnum-prompts = 1\n",
            1,
            "gate: true, and there is no limit to hold",
        ),
        (
            "slo = ['ttft p95 <= 1s']\n[target]\nbase-url = 'http://127.0.0.1:1'\n[[scenario]]\nnum-prompts = 1\nslo = []\ngate = true\n",
            7,
            "[[scenario]] 1, gate: true, and there is no limit to hold",
        ),
    ],
)
def test_a_gate_that_holds_nothing_is_refused(tmp_path: Path, text: str, line: int, said: str) -> None:
    (tmp_path / "e.toml").write_text(text)
    with pytest.raises(UserError) as refused:
        read_experiment(tmp_path / "e.toml")
    assert str(refused.value).startswith(f"{tmp_path / 'e.toml'}:{line}: {said}")


def test_a_default_in_the_specification_itself_is_refused_with_where_it_goes(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(FLEET + "model = '${M:-demo}'\n")
    (tmp_path / "c.env").write_text("A=1\n")
    with pytest.raises(UserError, match=r"a default is for the env file: say M=\$\{M:-demo\} there, and \$\{M\} here"):
        read_experiment(tmp_path / "e.toml", env_file=tmp_path / "c.env")
