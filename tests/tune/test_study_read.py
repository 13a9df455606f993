"""A study's file -> StudySpec: strict, with the place of what is wrong."""

from pathlib import Path

import numpy as np
import pytest

from loadcell.errors import UserError
from loadcell.tune.parameters import Constraint
from loadcell.tune.read import prior_of, read_study
from loadcell.tune.spec import known_of, space_of, trials_of

GOOD = """
[study]
name = "small"
seed = 7
sampler = "tpe"
known = [{ seqs = 64 }, { seqs = 128, spec = true, draft = 2 }]
constants = { most = 512 }
budget = { wall-clock = "30m", trials = 40 }
confirm = { candidates = 2, min-rounds = 2, max-rounds = 4 }

[fleet]
engine = "simulated"
devices-per-replica = 2
[fleet.args]
max-num-seqs = 96

[bench]
num-prompts = "20x"
input-len = 128
output-len = 32
goodput = ["ttft:200"]

[load]
mode = "capacity"
high = 256

[[slo]]
metric = "ttft"
statistic = "p95"
limit = "200ms"

[objective]
metric = "goodput"
per = "device"

[[parameter]]
name = "seqs"
kind = "int"
flag = "--max-num-seqs"
low = 8
high = 1024
log = true

[[parameter]]
name = "spec"
kind = "bool"
env = "SPEC"
default = false

[[parameter]]
name = "draft"
kind = "int"
env = "DRAFT"
low = 1
high = 5
when = "spec"

[[parameter]]
name = "dp"
kind = "int"
flag = "--data-parallel-size"
derived = "devices // 1"

[[constraint]]
expression = "seqs <= most"
repair = "seqs"

[warmup]
timeout = "2m"

[trial]
hang = 30
early-stop = false
"""


def read(tmp_path, text, **more):
    file = tmp_path / "study.toml"
    file.write_text(text)
    return read_study(file, **more)


def test_a_whole_file(tmp_path):
    spec = read(tmp_path, GOOD, sets=["study.budget.trials=12", "parameter.seqs.high=256"])
    assert spec.study.name == "small"
    assert spec.study.budget.trials == trials_of(spec.study.budget) == 12
    assert spec.slo == ("ttft p95 <= 200ms",)
    assert spec.load.high == 256
    space = space_of(spec)
    assert space.searched == ("seqs", "spec", "draft")
    assert space.default() == {"seqs": 96, "spec": False, "dp": 2}  # [fleet.args] goes before what the engine would do
    assert space.constants == {"replicas": 1, "devices": 2, "most": 512}
    assert spec.origins["parameter[0].high"].startswith("--set")
    assert spec.origins["parameter[0].low"].endswith("study.toml:40")


def test_no_budget_is_thirty_trials(tmp_path):
    spec = read(tmp_path, GOOD.replace('budget = { wall-clock = "30m", trials = 40 }', ""))
    assert trials_of(spec.study.budget) == 30
    assert trials_of(read(tmp_path, GOOD.replace(", trials = 40", "")).study.budget) is None


OFFERED = """
[study]
parameters = "simulated-default"
leave = ["block_size"]
[fleet]
engine = "simulated"
[fleet.args]
max-model-len = 4096
enable-prefix-caching = false
[bench]
concurrency = 8
[[parameter]]
name = "max_num_seqs"
kind = "int"
flag = "--max-num-seqs"
ladder = [8, 16]
"""


def test_what_the_engine_offers(tmp_path):
    spec = read(tmp_path, OFFERED)
    names = [one.name for one in spec.parameter]
    assert names[0] == "max_num_seqs"
    assert "gpu_memory_utilization" in names
    assert "block_size" not in names
    assert "tensor_parallel_size" not in names
    space = space_of(spec)
    assert space.default()["enable_prefix_caching"] is False
    assert Constraint("max_num_batched_tokens >= max_num_seqs", repair="max_num_batched_tokens") in spec.constraint
    short = {**space.default(), "max_num_seqs": 16, "max_num_batched_tokens": 1024}
    assert space.legal(short) is None
    assert "max_model_len" in (space.legal({**short, "enable_chunked_prefill": False}) or "")
    # a repair keeps chunked prefill off, and makes room for the longest prompt
    assert space.repair({**short, "enable_chunked_prefill": False}) == (
        {**short, "enable_chunked_prefill": False, "max_num_batched_tokens": 4096},
        ("max_num_batched_tokens",),
    )


def test_devices_decide_what_is_offered_of_vllm(tmp_path):
    text = '[study]\nparameters = "vllm-default"\n[fleet]\nengine = "vllm"\nmodel = "m"\n[bench]\nconcurrency = 1\n'
    assert "tensor_parallel_size" not in [one.name for one in read(tmp_path, text).parameter]
    spec = read(tmp_path, text.replace('model = "m"', 'model = "m"\ndevices-per-replica = 6'))
    tp = [one["tensor_parallel_size"] for one in space_of(spec).candidates(np.random.default_rng(0), 200)]
    assert set(tp) == {1, 2}


@pytest.mark.parametrize(
    ("old", "new", "line", "why"),
    [
        ("seed = 7", "sead = 7", 4, "did you mean seed?"),
        ('sampler = "tpe"', 'sampler = "tpa"', 5, "'tpa': choose one of"),
        ("low = 8\n", "lo = 8\n", 40, "did you mean low?"),
        ("low = 8\n", "low = 2048\n", 40, "above high"),
        ("low = 8\n", "", 36, "give low and high"),
        ('flag = "--max-num-seqs"', 'flag = "--x"\nenv = "Y"', 36, "goes to flag and to env"),
        ('env = "SPEC"', "", 44, "spec goes nowhere"),
        ('when = "spec"', 'when = "spek"', 56, "did you mean spec?"),
        ('expression = "seqs <= most"', 'expression = "seqs <= "', 65, "invalid syntax"),
        ('repair = "seqs"', 'repair = "dp"', 66, "name a parameter that is searched"),
        ("{ seqs = 64 }", "{ seqs = 600 }", 6, "it is not legal: seqs <= most is false"),
        ("{ seqs = 64 }", "{ sequences = 64 }", 6, "sequences is no parameter"),
        ('wall-clock = "30m"', 'wall-clock = "30x"', 8, "expected seconds"),
        ("high = 256", "", 23, "give the largest concurrency"),
        ("high = 256", "high = 0.5", 23, "a range above 0"),
        ('mode = "capacity"', "", 25, "leave high out"),
        ("input-len = 128", "input-length = 128", 19, "did you mean input_len?"),
        ("input-len = 128", "concurrency = 4", 19, "it is what [load] looks for"),
        ('goodput = ["ttft:200"]', "", 33, "goodput counts requests"),
        ('metric = "goodput"', 'pareto = ["throughput", "ttft p95"]', None, None),
        ('metric = "goodput"', 'pareto = ["throughput", "speed"]', 33, "is none of"),
        ('metric = "goodput"', 'pareto = ["throughput", "throughput"]', 33, "two different"),
        ('kind = "bool"', 'kind = "boolean"', 46, "'boolean': choose one of"),
        ("min-rounds = 2", "min-rounds = 1", 9, "no spread"),
        ("hang = 30", 'hang = "soon"', 72, "expected seconds"),
        ("max-num-seqs = 96", 'max-num-seqs = "many"', 36, "which is no int"),
        ("input-len = 128", "input-len = -3", 19, "input-len"),
        ("[warmup]", '[benchmark]\nkind = "evalscopeperf"\n[warmup]', None, "fixed"),
    ],
)
def test_refusals_name_the_line(tmp_path, old, new, line, why):
    assert GOOD.count(old) >= 1
    text = GOOD.replace(old, new, 1)
    if why is None:
        read(tmp_path, text)
        return
    with pytest.raises(UserError) as refused:
        read(tmp_path, text)
    assert why in str(refused.value)
    if line is not None:
        assert f"study.toml:{line}: " in str(refused.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[study]\n", "there is no [fleet]"),
        ('[fleet]\nengine = "simulated"\n', "nothing to search"),
        ('[study]\nparameters = "vllm-default"\n[fleet]\nengine = "simulated"\n', 'offers "simulated-default"'),
        ('[study]\nparameters = "command-default"\n[fleet]\nengine = "command"\n', "offers none"),
        ('[study]\nleave = ["x"]\n[fleet]\nengine = "simulated"\n', "can be left alone"),
        ('[fleet]\nengine = "simulated"\n[[parameter]]\nname = "a"\n', "kind is missing"),
        ('[fleet]\nengine = "simulated"\n[[parameter]]\nname = "a"\nkind = "bool"\nload = "consurrency"\n', "no flag of `loadcell bench`"),
        ('[fleet]\nengine = "command"\n[[parameter]]\nname = "a"\nkind = "bool"\nflag = "--a"\n', "no place for flags"),
        ('[fleet]\nengine = "mindie"\n[[parameter]]\nname = "a"\nkind = "bool"\nflag = "--a"\n', "MindIE reads a file"),
        ('[fleet]\nengine = "simulated"\n[[parameter]]\nname = "a"\nkind = "bool"\npath = "a"\n', "say which file"),
        ('[fleet]\nengine = "simulated"\n[[parameter]]\nname = "a"\nkind = "bool"\nfile = "gone.json"\npath = "a"\n', "gone.json"),
    ],
)
def test_more_refusals(tmp_path, text, why):
    with pytest.raises(UserError) as refused:
        read(tmp_path, text)
    assert why in str(refused.value)


EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_example():
    spec = read_study(EXAMPLES / "tune_simulated.toml")
    space = space_of(spec)
    assert space.default()["max_num_seqs"] == 8  # what runs today
    assert known_of(spec, space) == ({**space.default(), "max_num_seqs": 16},)
    assert len(space.candidates(np.random.default_rng(0), 50, [space.default()])) == 50


def test_prior_trials_of_two_histories(tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(
            f"generate_speed,seqs,spec,draft\n{100 + len(name)},{64 if name == 'a.csv' else 80},False,\n0,96,False,\n"
        )
    notes = []
    text = GOOD.replace("seed = 7", f'seed = 7\nprior = ["{tmp_path}/a.csv", "{tmp_path}/b.csv"]').replace(
        'metric = "goodput"', 'metric = "throughput"'
    )
    found = prior_of(read(tmp_path, text), notes.append)
    assert [(one.number, one.configuration["seqs"], one.objective) for one in found] == [(-1, 64, 105 / 2), (-2, 80, 105 / 2)]
    assert all("1 trial to learn from (1 left out: no throughput" in note for note in notes)
