"""Whole studies over services that fail in every way: each trial is told by its cause, the report is true, and whatever ends a study, it goes on."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import msgspec
import pytest
from tests.tune.optix import configs
from tests.tune.optix.test_reported_run import EVALSCOPE

from loadcell.recordlog import read_log
from loadcell.report.study import StudyResults, study_schema
from loadcell.sim.accesslog import AccessLine, read_access_log
from loadcell.tune.events import Began, Record
from loadcell.tune.outcome import TrialResult
from loadcell.tune.study_folder import EVENTS, read_record

from .laboratory import Experiment, assert_clean, free_port, left

pytestmark = [pytest.mark.slow, pytest.mark.faults]

REQUESTS = 24
ENGINE = """
import os, sys, time
import loadcell.cli.main
words = sys.argv[1:]
log = os.path.join({folder!r}, f"{{time.time_ns()}}-{{os.getpid()}}.jsonl")
open(log, "x").close()
words += ["--access-log", log]
slower = os.path.join({folder!r}, "slower")
if os.path.exists(slower):
    for name in ("--ttft-ms", "--itl-ms"):
        at = words.index(name) + 1
        words[at] = str(float(words[at]) * float(open(slower).read()) ** len(os.listdir({folder!r})))
memory = float(words[words.index("--gpu-memory-utilization") + 1])
if memory < 0.4:
    words += ["--fault", "oom_start"]
sys.exit(loadcell.cli.main.main(["simulate", *words]))
"""
"""The simulated engine, with an access log of its own for each launch, that does not start with little memory. Beside a file `slower`, each launch is
slower than the one before by the factor in it.
"""

STUDY = """
[study]
name = "faults"
seed = 3
budget = {{ trials = {trials} }}
confirm = {{ candidates = 1, min-rounds = 2, max-rounds = 2 }}
known = {known}
[fleet]
engine = "simulated"
executable = ["{python}", "{folder}/engine.py"]
port = "auto"
start-timeout = "{start}s"
stop-timeout = 5
[fleet.args]
ttft-ms = 200
itl-ms = 4
[bench]
concurrency = 6
num-prompts = {requests}
input-len = 8
output-len = 10
tokenizer = "words"
health-check-interval = 0.5
[trial]
hang = "4s"
early-stop = false
[[slo]]
metric = "ttft"
statistic = "p95"
limit = "9s"
[objective]
metric = "throughput"
[[parameter]]
name = "max_num_seqs"
kind = "int"
flag = "--max-num-seqs"
ladder = [2, 4, 6]
default = 2
[[parameter]]
name = "memory"
kind = "float"
flag = "--gpu-memory-utilization"
low = 0.3
high = 0.9
step = 0.1
default = 0.9
[[parameter]]
name = "trouble"
kind = "categorical"
flag = "--fault"
choices = {troubles}
default = "fail_health,until=0.001"
"""
NONE = "fail_health,until=0.001"
FLAPS = "fail_health,every=2"
TROUBLES: dict[str, tuple[str, str, str, int | None]] = {
    "oom_load,running=3": ("oom_load", "measure warmup", "memory", 1),
    "hang,after_requests=14": ("hung", "measure", "no token of any of 6 requests in flight for 4 s", None),
    "slow_start,delay=90": ("start_timeout", "launch", "start_timeout = 12 s", None),
    "crash,after_requests=14,code=9": ("crashed", "measure", "exit code 9", 9),
}
"""What is wrong -> outcome, phase, a part of the evidence, exit code."""


def study(folder: Path, known: list[dict[str, object]] | None = None, trials: int = 4, **how: object) -> Path:
    (folder / "access").mkdir(exist_ok=True)
    (folder / "engine.py").write_text(ENGINE.format(folder=str(folder / "access")))
    listed = ", ".join("{" + ", ".join(f"{name} = {json.dumps(value)}" for name, value in one.items()) + "}" for one in known or [])
    choices = how.pop("choices", [NONE, FLAPS])
    given = {"start": 60, "requests": REQUESTS} | how
    text = STUDY.format(python=sys.executable, folder=folder, trials=trials, known=f"[{listed}]", troubles=json.dumps(choices), **given)
    (folder / "study.toml").write_text(text)
    return folder


class Tune(Experiment):
    """`loadcell tune`."""

    def __init__(self, folder: Path, *words: str, env: dict[str, str] | None = None) -> None:
        super().__init__(folder, *(words or ("study.toml", "--output-dir", "run")), env=env, verb="tune")

    def record(self) -> Record:
        return read_record(self.run)

    def study(self) -> StudyResults:
        body = (self.run / "trials.json").read_bytes()
        jsonschema.Draft202012Validator(study_schema()).validate(json.loads(body))
        return msgspec.json.decode(body, type=StudyResults)

    def until_event(self, holds: Callable[[Record], object], what: str) -> None:
        def come() -> object:
            return (self.run / EVENTS).exists() and b'"opened"' in (self.run / EVENTS).read_bytes() and holds(self.record())

        self.until(come, what)

    def over(self) -> Record:
        """What must hold after the end, whatever it was: nothing runs, and what is written agrees with what happened."""
        assert "Traceback" not in self.err, self.err
        assert_clean(self.folder)
        record, told = self.record(), self.study()
        assert {(one.number, one.tag, one.outcome, one.evidence, one.objective) for one in told.trials} >= {
            (one.number, tag, one.outcome, one.evidence, one.objective) for tag, one in record.results.items()
        }
        with (self.run / "trials.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [(row["number"], row["outcome"]) for row in rows] == [(str(one.number), one.outcome) for one in told.trials]
        report = (self.run / "report.md").read_text()
        for failure in told.failures:
            assert failure.evidence[:20] in report.replace("\\", "")
        shown = loadcell(self.folder, "study", "show", "run")
        assert shown.returncode == 0, shown.stderr
        return record


def loadcell(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    return subprocess.run(
        [sys.executable, "-m", "loadcell", *words], cwd=folder, env=env, capture_output=True, text=True, timeout=90, check=False
    )


def launches(folder: Path) -> list[list[AccessLine]]:
    """Requests for tokens of each launch of a service, in order; nothing for one that did not come to listen."""
    return [[line for line in read_access_log(path) if line.is_generation] for path in sorted((folder / "access").glob("*.jsonl"))]


def requests_of(run: Path, result: TrialResult) -> int:
    """Of all loads of a trial (one that the client was late for is made twice), from its own records."""
    assert result.folder is not None
    return sum(1 for path in (run / result.folder).glob("load*/records.jsonl") for _ in read_log(path))


# --- services that fail


def test_each_trial_is_told_by_its_trouble_and_the_answer_is_true(folder: Path) -> None:
    """The region without memory, every trouble, and the best one, whose /health fails every other time."""
    broken: list[dict[str, object]] = [{"trouble": text} for text in TROUBLES]
    study(folder, [{"memory": 0.3}, *broken, {"max_num_seqs": 6, "trouble": FLAPS}], 7, choices=[NONE, FLAPS, *TROUBLES], start=12)
    run = Tune(folder)
    assert run.wait(240) == 0, run.err
    record = run.over()
    by = {str(one.configuration["trouble"]): one for one in record.searching() if one.number > 1}
    for text, (outcome, phases, words, code) in TROUBLES.items():
        one = by[text]
        assert (one.outcome, one.phase in phases, one.objective, one.attempts) == (outcome, True, None, 1), one
        assert words in (one.evidence or ""), one
        assert code is None or one.exit_code == code, one
    little = record.results["search/1"]
    assert (little.outcome, little.phase) == ("oom_start", "launch")
    assert "out of memory" in (little.evidence or "")
    assert by[FLAPS].outcome in ("ok", "invalid_measurement")
    told = run.study()
    assert {failure.outcome for failure in told.failures} >= {"oom_start", "oom_load", "hung", "start_timeout", "crashed"}
    nothing_foreign(run.folder, run.run, record)
    good = [one for tag, one in record.results.items() if tag.startswith("confirm/") and not tag.endswith("/again")]
    if len(good) == 4 and all(one.outcome == "ok" for one in good):
        assert told.announced == "winner", (told.answer, run.err)
        assert told.best is not None
        assert told.best["max_num_seqs"] == 6
        assert told.gain is not None
        assert told.gain.value > 0.5
        assert "max-num-seqs" in (run.run / "best.toml").read_text()


def nothing_foreign(folder: Path, run: Path, record: Record) -> None:
    """Each launch was asked once whether it is ready, before its load, and otherwise for its load alone: by our records, request for request."""
    trials = [one for one in record.results.values() if one.phase != "plan"]
    logs = launches(folder)
    assert len(logs) == sum(one.attempts for one in trials)
    at = 0
    for one in trials:
        own, at = logs[at : at + one.attempts], at + one.attempts
        if one.outcome in ("ok", "slo_violated"):
            asked = own[-1]
            assert len(asked) == 1 + requests_of(run, one), one
            assert min(line.arrival_ns for line in asked[1:]) > asked[0].end_ns
        elif one.phase == "launch":
            assert sum(map(len, own)) <= one.attempts, one
        else:
            assert len(own[-1]) <= 1 + 2 * (REQUESTS + 6), one


def test_a_machine_that_slows_down_is_told_and_taken_out_of_what_is_compared(folder: Path) -> None:
    """By 6 % with each launch: the eighth trial measures the default again, which is a third slower by then."""
    study(folder, [{"max_num_seqs": 6}], 9, choices=[NONE, FLAPS])
    (folder / "access" / "slower").write_text("1.06")
    few = ["--set", "study.confirm.max_rounds=0", "--set", "study.confirm.min_rounds=0"]
    run = Tune(folder, "study.toml", "--output-dir", "run", *few)
    assert run.wait(180) == 0, run.err
    record = run.over()
    told = run.study()
    control = next(one for one in told.trials if one.kind == "drift")
    assert control.number == 7
    if control.outcome == "invalid_measurement":  # this machine was too busy to tell
        return
    (drifted,) = record.drifts
    assert drifted.significant
    assert drifted.ratio is not None
    assert 0.5 < drifted.ratio < 0.85
    text = f"the baseline gave {drifted.ratio - 1:+.1%} against trial "
    report = " ".join((folder / "run" / "report.md").read_text().split())
    assert text in run.err
    assert f"{text}{run.err.partition(text)[2].split(':')[0]}: the machine has drifted" in report
    late = [one for one in told.trials if one.objective is not None and one.number > 4]
    assert late
    for one in late:  # what each would have given on the machine as it was
        assert one.corrected is not None
        assert one.objective is not None
        assert one.corrected > 1.1 * one.objective


VLLM = """#!{python}
import os, sys, time
words = sys.argv[1:]
if words == ["--version"]:
    print("0.22.1"), sys.exit()
assert words[0] == "serve", words
ours = ("--host", "--port", "--served-model-name", "--max-num-seqs", "--max-num-batched-tokens", "--max-model-len", "--gpu-memory-utilization")
kept = [word for at, word in enumerate(words[2:]) if word in ours or words[2:][at - 1] in ours and at]
log = os.path.join({logs!r}, f"{{time.time_ns()}}.jsonl")
faults = ["--fault", "fail_health,every=3", "slow_health,delay=3,every=2"]
os.execv({python!r}, [{python!r}, "-m", "loadcell", "simulate", "--model", words[1], "--access-log", log, *faults, *kept])
"""


def test_the_reported_study_is_asked_for_nothing_but_its_load_and_no_probe_ends_a_trial(folder: Path) -> None:
    """A public report's two files and its command. There each second of the load had a request for tokens of the tuner's own, and a slow one ended the
    trial. Here /health fails and is slow all the time.
    """
    for name in ("bin", "access", "model"):
        (folder / name).mkdir()
    evalscope = EVALSCOPE.replace('"20260904_073000"', "str(time.time_ns())")  # as there, a new folder below the same one for each run
    for name, text in (("vllm", VLLM), ("evalscope", evalscope)):
        (folder / "bin" / name).write_text(text.format(python=sys.executable, logs=str(folder / "access")))
        (folder / "bin" / name).chmod(0o755)
    (folder / "cluster.toml").write_text(configs.CLUSTER)
    text = configs.REPORTED.replace("9975", str(free_port())).replace("/data/models/Qwen3-0.6B", str(folder / "model"))
    text = text.replace("/tmp/evalscope_out", str(folder / "out")).replace("--number 400", "--number 160")
    (folder / "config.toml").write_text(text)
    words = ["--from-optix", "config.toml", "-e", "multihost_infer", "-b", "evalscopeperf", "--backup", "--output-dir", "run"]
    words += ["--set", "study.budget.trials=2", "--set", "study.confirm.candidates=1"]
    words += ["--set", "study.confirm.min_rounds=2", "--set", "study.confirm.max_rounds=2"]
    env = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "CLUSTER_CONFIG_PATH": str(folder / "cluster.toml")}
    run = Tune(folder, *words, env=env)
    assert run.wait(240) == 0, run.err
    record = run.over()
    assert len(record.searching()) == 2
    assert {one.outcome for one in record.results.values()} == {"ok"}, record.results
    assert {one.kind for one in record.results.values()} >= {"default", "confirm"}
    logs = launches(folder)
    assert len(logs) == len(record.results)
    for asked in logs:
        load = [line for line in asked if (line.prompt_head or "").startswith("question")]
        assert len(load) == 160
        first = min(line.arrival_ns for line in load)
        assert [line.end_ns < first for line in asked if line not in load] == [True]  # whether it is ready, before its load


# --- studies that are ended


def test_killed_at_every_kind_of_moment_it_goes_on_and_repeats_nothing(folder: Path) -> None:
    """One study, killed as a service starts, in a load, between two trials, and in its confirmation."""
    study(folder, [{"max_num_seqs": 6}], 3, requests=18)
    trials = folder / "run" / "trials"
    kinds: dict[str, Callable[[Record], object]] = {
        "a launch": lambda record: "search/0" in record.began and len(left(folder)) > 1,
        "a load": lambda record: "search/1" in record.began and list(trials.glob("0001*/load*/events.jsonl")),
        "between two trials": lambda record: "search/1" in record.results,
        "the confirmation": lambda record: "confirm/0/1" in record.results and "confirm/1/1" in record.began,
    }
    kept: dict[str, TrialResult] = {}
    flying: list[Began] = []
    for at, (kind, holds) in enumerate(kinds.items()):
        run = Tune(folder, *(("--resume", "run") if at else ()))
        run.until_event(holds, kind)
        run.send(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL, run.err
        record = run.record()
        assert kept.items() <= record.results.items(), kind
        assert len(record.in_flight()) <= 1, kind
        kept, flying = dict(record.results), [*flying, *record.in_flight()]
    assert len(flying) >= 3
    run = Tune(folder, "--resume", "run")
    assert run.wait(150) == 0, run.err
    record = run.over()
    assert kept.items() <= record.results.items()
    assert len(record.searching()) == 3
    assert not record.in_flight()
    lines = [json.loads(line) for line in (folder / "run" / EVENTS).read_bytes().splitlines()]
    ended = [line["tag"] for line in lines if line["event"] == "ended"]
    assert len(set(ended)) == len(ended), "a trial was measured twice"
    began = [line["tag"] for line in lines if line["event"] == "began"]
    assert sorted(began) == sorted([*ended, *(one.tag for one in flying)]), "at most the trial in flight is begun again"
    assert record.closed is not None
    assert record.closed.state == "complete"


@pytest.mark.parametrize("phase", ["launch", "measure"])
def test_ctrl_c_ends_it_with_what_there_is(folder: Path, phase: str) -> None:
    study(folder, [{"max_num_seqs": 6}], 4, requests=18)
    run = Tune(folder)
    load = folder / "run" / "trials" / "0001" / "load"
    run.until_event(lambda record: "search/1" in record.began and (phase == "launch" or (load / "events.jsonl").exists()), phase)
    run.send(signal.SIGINT)
    assert run.wait() == 130, run.err
    record = run.over()
    assert set(record.results) == {"search/0"}
    told = run.study()
    assert (told.state, [one.number for one in told.trials if one.outcome != "cancelled"]) == ("interrupted", [0])
    assert told.trials[0].objective
    assert "go on with: loadcell tune --resume run" in run.err
    assert "INTERRUPTED" in (folder / "run" / "report.md").read_text()


# --- studies that are refused, and studies in which nothing works


@pytest.mark.parametrize("what", ["device", "port"])
def test_two_studies_refuse_each_others_devices_and_ports(folder: Path, what: str) -> None:
    """While the first measures: its services have them; the second leaves nothing behind, and does not disturb the first."""
    study(folder, [], 1, requests=18)
    port = free_port()
    words = ["--set", f"fleet.port={port}"] if what == "port" else ["--set", "fleet.devices=[[0, 1]]", "--set", "fleet.vendor=nvidia"]
    words += ["--set", "study.confirm.max_rounds=0", "--set", "study.confirm.min_rounds=0"]
    one = Tune(folder, "study.toml", "--output-dir", "run", *words)
    one.until_event(lambda record: "search/0" in record.began, "its first trial")
    two = Tune(folder, "study.toml", "--output-dir", "run2", *words)
    assert two.wait() == 1, two.err
    assert two.err.count("loadcell: error:") == 1
    assert f"{what} {port if what == 'port' else 0} on local" in two.err
    pids = {one.process.pid, *one.services().values()}  # the study, or its service where one runs just now
    assert any(f"process {pid}" in two.err for pid in pids), two.err
    assert not (folder / "run2").exists()
    assert one.wait() == 0, one.err
    assert one.over().results["search/0"].attempts == 1


def test_where_nothing_starts_it_stops_early_and_the_commonest_cause_comes_first(folder: Path) -> None:
    choices = ["oom_start", "exit,after=0,code=3"]
    study(folder, [{"trouble": choices[1]}], 30, choices=choices)
    text = (folder / "study.toml").read_text().replace(f'default = "{NONE}"', 'default = "oom_start"')
    (folder / "study.toml").write_text(text)
    run = Tune(folder)
    assert run.wait(150) == 1, run.err
    record = run.over()
    assert len(record.results) <= 8
    assert record.searched is not None
    assert (record.searched.reason, record.searched.failed) == ("nothing_starts", True)
    assert record.closed is not None
    assert record.closed.text.startswith("no trial succeeded: ")
    counts = [len(failure.trials) for failure in run.study().failures]
    assert counts == sorted(counts, reverse=True)
    assert run.study().failures[0].outcome == "oom_start"
    said = " ".join(run.out.split())
    assert "ended as oom_start" in said
    assert "out of memory" in said
    assert not (folder / "run" / "best.toml").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('kind = "float"', 'kind = "flaot"', "flaot"),
        ("max-rounds", "max-runds", "max_rounds"),
        ("high = 0.9", "high = 0.1", "high"),
        ("[objective]", "[objective", "study.toml"),
        ('metric = "ttft"', 'metric = "tttft"', "ttft"),
        ("", "[[constraint]]\nexpression = 'max_num_seqs >= '\n", "max_num_seqs >= "),
        ("", "[[constraint]]\nexpression = 'max_num_seq > 1'\n", "max_num_seqs"),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_one_line(folder: Path, old: str, new: str, said: str) -> None:
    study(folder)
    text = (folder / "study.toml").read_text()
    (folder / "study.toml").write_text(text.replace(old, new) if old else text + new)
    run = Tune(folder)
    assert run.wait() == 2, run.err
    assert run.err.count("\n") == 1, run.err
    assert run.err.startswith("loadcell: error: ")
    assert said in run.err
    assert not (folder / "run").exists()
