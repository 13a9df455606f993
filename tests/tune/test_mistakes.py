"""What a user may get wrong in a study's file: one line that names the key and says what to do, before a folder is made or anything started."""

from pathlib import Path

import pytest

from loadcell.errors import UserError
from loadcell.fleet.registry import Registry
from loadcell.tune.prepare import Asked, Watching, prepared

STUDY = """
[study]
seed = 3
budget = { trials = 4 }
[fleet]
engine = "simulated"
port = "auto"
[fleet.args]
config = "ok.json"
[bench]
concurrency = 4
num-prompts = 40
input-len = 8
output-len = 10
tokenizer = "words"
[[slo]]
metric = "ttft"
statistic = "p95"
limit = "5s"
[objective]
metric = "throughput"
[[parameter]]
name = "seqs"
kind = "int"
flag = "--max-num-seqs"
low = 1
high = 32
default = 1
"""
FLAG = 'flag = "--max-num-seqs"'
SEED = "seed = 3"
CONSTRAINT = "\n[[constraint]]\n"
BOOL = '\n[[parameter]]\nname = "caching"\nkind = "bool"\nflag = "--enable-prefix-caching"\n'
MISTAKES = [
    ("trials = 4", 'trials = "four"', "budget.trials: 'four': expected a whole number"),
    ("trials = 4", "trials = 0", "budget.trials: 0: must be 1 or more"),
    ("trials = 4", "launches = 0", "budget.launches: 0: must be 1 or more"),
    ("trials = 4", "wall-clock = 0", "budget.wall_clock: 0: must be above 0"),
    ("trials = 4", 'wall-clock = "3 hours"', "expected seconds, or a text as 90s, 15m or 2h"),
    ("trials = 4", "trails = 4", "did you mean trials?"),
    (SEED, "seed = -3", "seed: -3: must be 0 or more"),
    (SEED, "confirm = false", "confirm: false: expected a table"),
    (SEED, "confirm = { max-rounds = -1 }", "max_rounds: -1: must be 0 (no confirmation) or more"),
    (SEED, "confirm = { min-rounds = 1, max-rounds = 1 }", "one round has no spread"),
    (SEED, "confirm = { tolerance = 1.5 }", "tolerance: 1.5: a share"),
    (SEED, "confirm = { revert-launches = -1 }", "revert_launches: -1: must be 0"),
    (SEED, 'sampler = "bayes"', "choose one of model, tpe"),
    (SEED, 'storage = "nonsense"', "[study] storage = 'nonsense' cannot be opened"),
    (SEED, 'storage = "postgresql://u:secret@h/db"', "[study] storage = 'postgresql://u:…@h/db'"),
    (SEED, 'parameters = "vllm-default"', 'engine \'simulated\' offers "simulated-default"'),
    (SEED, 'prior = ["none.csv"]', "[study] prior = none.csv: No such file"),
    (SEED, "known = [{ seq = 3 }]", "seq is no parameter that is set: there are seqs"),
    (SEED, "known = [{ seqs = 300 }]", "seqs = 300 is outside its range"),
    (SEED, 'constants = { "a b" = 1 }', "constants.a b: 'a b': expressions speak of it"),
    (SEED, "constants = { seqs = 1 }", "seqs is a [[parameter]], too"),
    ("[[parameter]]", "[parameter]", "write [[parameter]], with two brackets"),
    ("low = 1", "low = 64", "low = 64 is above high = 32"),
    ("low = 1", "low = 1.5", "1.5 is no whole number"),
    ("low = 1", "low = 0\nlog = true", "begins above 0"),
    ("low = 1", "low = 1\nstep = 0", "step = 0: must be above 0"),
    ("low = 1", "ladder = [2, 1]", "a ladder says all its values: leave high out"),
    ("default = 1", 'default = "a"', "default: seqs: 'a': a whole number is expected"),
    ("default = 1", "default = nan", "default: seqs: nan: a finite number is expected"),
    ('name = "seqs"', 'name = "max-seqs"', "use letters, digits and _"),
    ('name = "seqs"', 'name = "and"', "'and' means something in expressions"),
    ('name = "seqs"', 'name = "min"', "'min' means something in expressions"),
    (FLAG, "", "seqs goes nowhere: give one of flag, env"),
    (FLAG, f'{FLAG}\nenv = "A"', "goes to flag and to env"),
    (FLAG, 'flag = ""', "flag: seqs: '': one word is expected"),
    (FLAG, 'flag = "--max num-seqs"', "one word is expected"),
    (FLAG, 'env = "A=B"', "env: seqs: 'A=B': no name that a variable can have"),
    (FLAG, 'flag = "--port"', "use fleet.port"),
    (FLAG, 'file = "none.json"\npath = "a"', "[[parameter]] seqs, file = none.json: No such file"),
    (FLAG, 'file = "ok.json"\npath = "a.b.c"', "'c' stands below something that is neither object nor list"),
    (FLAG, 'load = "concurency"', "concurency is no flag of `loadcell bench`"),
    (FLAG, 'load = "output-dir"', "output-dir is not the load's"),
    (FLAG, "word = true", "no text of [fleet] or [benchmark] says $seqs"),
    ("high = 32", "hgih = 32", "did you mean high?"),
    ("high = 32", 'high = 32\nwhen = "tp > 1"', "tp is no parameter"),
    ("", BOOL.replace("--enable-prefix-caching", "--max-num-seqs"), "caching goes to --max-num-seqs, as seqs does"),
    ("", f"{CONSTRAINT}expression = 'seq >= 1'", "did you mean seqs?"),
    ("", f"{CONSTRAINT}expression = 'seqs > 100'", "no configuration is legal; the default is not: seqs > 100 is false with seqs = 1"),
    ("", f"{BOOL}{CONSTRAINT}expression = 'seqs >= 2'\nrepair = 'caching'", "caching: moving it changes nothing here"),
    ("", '\n[[slo]]\nmetric = "ttft"\nstatistic = "p95"\nlimit = "4s"', "one limit for each figure"),
    ('limit = "5s"', "limit = 5", "no unit"),
    ('"throughput"', '"throughput"\nper = "device"', "per = 'device': no service has devices of its own"),
    ('"throughput"', '"throughput"\npareto = ["throughput", "ttft p95"]', "leave metric out"),
    ('metric = "throughput"', 'pareto = ["throughput"]', "two objectives are expected"),
    ('metric = "throughput"', 'pareto = ["ttft p95", "tpot mean"]', "are both latencies"),
    ("", "\n[load]\nprobes = 3", 'it belongs to mode = "capacity"'),
    ("[bench]\nconcurrency = 4\n", "[load]\nmode = 'capacity'\nlow = 1.5\nhigh = 8\n[bench]\n", "1.5: a concurrency is a whole number"),
    ("", '\n[benchmark]\nargs = { a = 1 }', "loadcell's own load is that of [bench]"),
    ("", '\n[benchmark]\nkind = "evalscopeperf"\nexecutable = "/no/such"', "there is no program /no/such"),
    ("[study]", "[[scenario]]\nname = 'a'\n[stdy]", "this is an experiment: loadcell run FILE"),
    ("[study]", "[[vllm.target_field]]\nname = 'A'\n[study]", "this is a configuration of optix: give it as --from-optix FILE"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), MISTAKES, ids=[f"{at}-{said[:30]}" for at, (_, _, said) in enumerate(MISTAKES)])
def test_a_mistake_is_named_in_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, said: str):
    monkeypatch.chdir(tmp_path)
    assert old in STUDY
    Path("ok.json").write_text('{"a": {"b": 1}}')
    Path("study.toml").write_text(STUDY.replace(old, new, 1) if old else STUDY + new)
    with pytest.raises(UserError) as wrong, prepared(Asked(source=Path("study.toml")), {}, Registry(tmp_path / "state"), Watching()):
        pass
    assert said in str(wrong.value)
    assert "\n" not in str(wrong.value)
    assert "secret" not in str(wrong.value)
    assert not list(tmp_path.glob("runs/*"))


def test_what_looks_alike_but_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two that are never active together share a place; a word that another is derived from; a repair through what is derived."""
    monkeypatch.chdir(tmp_path)
    Path("ok.json").write_text('{"a": {"b": 1}}')
    more = (
        f'{BOOL}when = "seqs > 8"\n{BOOL.replace("caching", "other", 1)}when = "seqs <= 8"\n'
        '[[parameter]]\nname = "ratio"\nkind = "float"\nword = true\nlow = 1.0\nhigh = 2.0\ndefault = 1.0\n'
        '[[parameter]]\nname = "tokens"\nkind = "int"\nflag = "--max-num-batched-tokens"\nderived = "floor(ratio * 1024)"\n'
        '[[constraint]]\nexpression = "tokens <= 2000"\nrepair = "ratio"\n'
    )
    Path("study.toml").write_text(STUDY + more)
    with prepared(Asked(source=Path("study.toml")), {}, Registry(tmp_path / "state"), Watching()) as ready:
        assert ready.study.space.searched == ("seqs", "caching", "other", "ratio")
