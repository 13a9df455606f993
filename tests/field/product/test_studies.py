"""Studies that other tuners got wrong, each as `loadcell tune` runs it, over an engine that fails as it is told."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadcell.clock import NS_PER_S, MonotonicClock

pytestmark = pytest.mark.slow

ENGINE = Path(__file__).with_name("fake_engine.py")
BENCH = {"concurrency": 8, "num-prompts": 16, "input-len": 8, "output-len": 8, "tokenizer": "words", "health-check-interval": 0}


class Done:
    """A study that came to its end, by what it left."""

    def __init__(self, folder: Path, code: int, out: str, err: str) -> None:
        self.folder, self.code, self.out, self.err = folder, code, out, err

    @property
    def results(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "trials.json").read_bytes())
        return found

    @property
    def trials(self) -> list[dict[str, Any]]:
        return self.results["trials"]  # type: ignore[no-any-return]

    @property
    def report(self) -> str:
        return (self.folder / "report.md").read_text()

    def outcomes(self) -> dict[Any, str]:
        return {next(iter(one["configuration"].values())): one["outcome"] for one in self.trials if one["kind"] != "drift"}


Tune = Callable[..., Done]


@pytest.fixture
def starts(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """Every start of the engine, as it wrote it down."""

    def read() -> list[dict[str, Any]]:
        path = tmp_path / "starts"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return read


@pytest.fixture
def tune(tmp_path: Path) -> Tune:
    """Run a study of `parameters` (TOML rows) over the fake engine with these words; `more`: further TOML."""

    def run(
        parameters: str, words: str = "", *, budget: str = "trials = 5", more: str = "", bench: dict[str, Any] | None = None, **study: str
    ) -> Done:
        engine = [sys.executable, str(ENGINE), "--port", "{port}", "--starts", str(tmp_path / "starts"), *words.split()]
        engine += [word for name in ("batch", "memory") if f"name = '{name}'" in parameters for word in (f"--{name}", f"${name}")]
        given = "".join(f"{key} = {value}\n" for key, value in ({"confirm": "{ max-rounds = 0 }", "seed": "1"} | study).items())
        flags = "".join(f"{key} = {json.dumps(value)}\n" for key, value in (BENCH | (bench or {})).items() if value is not None)
        path = tmp_path / "study.toml"
        path.write_text(
            f"[study]\nname = 's'\nbudget = {{ {budget} }}\n{given}\n"
            f"[fleet]\nengine = 'command'\nmodel = 'm'\nvendor = 'none'\nport = 'auto'\nstart-timeout = '20s'\nstop-timeout = '5s'\n"
            f"command = {json.dumps(engine)}\n\n[bench]\n{flags}\n{parameters}\n{more}"
        )
        done = subprocess.run(
            [sys.executable, "-m", "loadcell", "tune", "study.toml", "--output-dir", "out"],
            cwd=tmp_path,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        return Done(tmp_path / "out", done.returncode, done.stdout, done.stderr)

    return run


def parameter(name: str, values: str, kind: str = "int") -> str:
    return f"[[parameter]]\nname = '{name}'\nkind = '{kind}'\nword = true\n{values}\n"


@pytest.mark.slow
def test_an_out_of_memory_setting_is_not_proposed_again(tune: Tune, starts: Any) -> None:
    """PBR-164."""
    done = tune(parameter("batch", "low = 1\nhigh = 256\ndefault = 8"), "--oom-above 64", budget="trials = 20")
    searched = [one for one in done.trials if one["kind"] != "drift"]
    values = [one["configuration"]["batch"] for one in searched]
    assert len(set(values)) == len(values), "an identical configuration is never run again"
    died = [one for one in done.trials if one["configuration"]["batch"] > 64]
    assert {one["outcome"] for one in died} == {"oom_start"}
    assert len(died) <= 6, "three quarters of the range die"
    assert len([value for value in values[10:] if value > 64]) <= 2, "what was learnt is kept to"
    assert all(one["launch_s"] < 5 and one["measure_s"] == 0 for one in died), "a failed trial is cheap"
    assert any(failure["outcome"] == "oom_start" and len(failure["trials"]) == len(died) for failure in done.results["failures"])
    assert "| out of memory at the start | launch |" in done.report
    assert "CUDA out of memory" in done.report
    assert len(starts()) == len(done.trials)


def test_failed_trials_are_not_resubmitted_without_end(tune: Tune, starts: Any) -> None:
    """PBR-165."""
    done = tune(parameter("batch", "low = 100\nhigh = 256\ndefault = 100"), "--oom-above 64", budget="trials = 5")
    assert (len(starts()), len(done.trials)) == (5, 5)
    assert done.code == 1
    assert "no trial succeeded: 5 of 5 ended as oom_start" in " ".join(done.out.split())
    assert all(one["attempts"] == 1 for one in done.trials)


def test_hours_of_trials_that_cannot_start_end_after_a_few_with_the_cause_first(tune: Tune, starts: Any) -> None:
    """PBR-180."""
    done = tune(parameter("batch", "low = 1\nhigh = 256\ndefault = 8"), "--no-model", budget="trials = 50")
    assert len(starts()) == 5
    assert done.code == 1
    first, second = done.out.splitlines()[:2]
    assert first == "FAILED: s"
    assert second.strip().startswith("no trial succeeded: 5 of 5 ended as ")
    assert "/nope/model is not a local folder" in " ".join(done.out.split())
    assert done.report.startswith("# FAILED: s\n")
    assert not (done.folder / "best.toml").exists()


def test_a_model_that_is_not_there_is_refused_before_the_first_trial(tmp_path: Path, tune: Tune) -> None:
    """PBR-180, where it can be known."""
    text = tune(parameter("batch", "low = 1\nhigh = 9\ndefault = 8"), budget="trials = 1").folder.parent / "study.toml"
    text.write_text(text.read_text().replace("model = 'm'", "model = '/nope/model'"))
    done = subprocess.run(
        [sys.executable, "-m", "loadcell", "tune", "study.toml", "--output-dir", "other"],
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "/nope/model" in done.stderr
    assert not (tmp_path / "other").exists()


def test_a_measurement_that_hangs_costs_no_other_trial(tune: Tune) -> None:
    """PBR-170."""
    done = tune(
        parameter("batch", "ladder = [8, 9, 10, 11, 12]\ndefault = 8"), "--hangs 10", sampler="'grid'", more="[trial]\nhang = '3s'\n"
    )
    assert done.outcomes() == {8: "ok", 9: "ok", 10: "hung", 11: "ok", 12: "ok"}
    ended = [one["ended"] for one in done.trials]
    assert ended == sorted(ended)
    assert len(list(csv.DictReader((done.folder / "trials.csv").read_text().splitlines()))) == 5
    assert "no token of any of" in next(one["evidence"] for one in done.trials if one["outcome"] == "hung")


def test_two_that_fail_first_end_no_search(tune: Tune) -> None:
    """PBR-171."""
    done = tune(
        parameter("batch", "ladder = [4, 8, 16, 100, 200]\ndefault = 200"), "--oom-above 64", sampler="'grid'", known="[{ batch = 100 }]"
    )
    assert [one["outcome"] for one in done.trials[:2]] == ["oom_start", "oom_start"]
    assert sorted(value for value, outcome in done.outcomes().items() if outcome == "ok") == [4, 8, 16]
    assert done.code == 0
    assert "Tried to allocate 200.00 GiB" in str(done.trials[0]["evidence"]), "the child's last words are quoted"


def test_memory_that_suffices_for_the_start_alone_is_infeasible(tune: Tune) -> None:
    """PBR-172."""
    done = tune(
        parameter("memory", "ladder = [0.9, 0.95, 0.98]\ndefault = 0.9", "float"), "--dies-at 5 --dies-from-memory 0.98", sampler="'grid'"
    )
    assert done.outcomes() == {0.9: "ok", 0.95: "ok", 0.98: "oom_load"}
    failed = next(one for one in done.trials if one["outcome"] == "oom_load")
    assert failed["phase"] in ("warmup", "measure")
    assert not failed["feasible"]
    assert "out of memory under load" in failed["evidence"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_in_a_trial_leaves_no_server(tmp_path: Path, tune: Tune, starts: Any, number: int) -> None:
    """PBR-144."""
    tune(parameter("batch", "ladder = [8, 9, 10]\ndefault = 8"), budget="trials = 0")
    process = subprocess.Popen(
        [sys.executable, "-m", "loadcell", "tune", "study.toml", "--output-dir", "out2", "--set", "study.budget.trials=3"],
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    clock = MonotonicClock()
    give_up = clock.now_ns() + 60 * NS_PER_S
    while len(starts()) < 2:  # the second trial's service is there, the first trial is in the record
        assert clock.now_ns() < give_up
        clock.sleep_until(clock.now_ns() + NS_PER_S // 20)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert out.startswith("INTERRUPTED: s\n"), out
    told = json.loads((tmp_path / "out2/trials.json").read_bytes())
    assert (told["state"], [one["number"] for one in told["trials"]]) == ("interrupted", [0])
    assert told["in_flight"] == [1]
    mine = str(tmp_path / "starts")
    assert not [one for one in psutil.process_iter(["cmdline"]) if mine in (one.info["cmdline"] or [])]


STAND_IN = """#!{python}
import json, os, sys
words = sys.argv
folder, case = words[words.index("--result-dir") + 1], words[words.index("--case") + 1]
told = {{"completed": 10, "total_input_tokens": 10, "total_output_tokens": 1000, "duration": 10.0, "request_throughput": 1.0,
        "output_throughput": 100.0, "mean_ttft_ms": 10.0, "mean_tpot_ms": 5.0}}
other = {{"nan": float("nan"), "null": None, "empty": ""}}
if case in other:
    told["output_throughput"] = other[case]
if case == "missing":
    del told["output_throughput"]
os.makedirs(folder, exist_ok=True)
open(folder + "/result.json", "w").write(json.dumps(told))
"""


def test_a_score_that_is_no_number_is_a_failed_trial(tmp_path: Path, tune: Tune) -> None:
    """PBR-168, PBR-174: arithmetic is done on what was measured, and on nothing else."""
    tool = tmp_path / "vllm"
    tool.write_text(STAND_IN.format(python=sys.executable))
    tool.chmod(0o755)
    done = tune(
        parameter("case", "choices = ['good', 'nan', 'null', 'empty', 'missing']\ndefault = 'good'", "categorical"),
        more=f"[benchmark]\nkind = 'vllm_benchmark'\nexecutable = ['{tool}', 'bench', 'serve']\nargs = ['--case', '$case']\n",
        bench=dict.fromkeys(BENCH),
        sampler="'grid'",
    )
    assert done.outcomes() == {"good": "ok", **dict.fromkeys(("nan", "null", "empty", "missing"), "bench_failed")}, done.err
    assert all(one["objective"] is None for one in done.trials if one["outcome"] == "bench_failed")
    assert all("output_throughput" in one["evidence"] for one in done.trials if one["outcome"] == "bench_failed")
    assert done.results["incumbent"] == done.trials[0]["number"], "the best is unaffected"
    assert _states(done.folder) <= {"COMPLETE", "FAIL", "PRUNED"}, "none is left running"


def _states(folder: Path) -> set[str]:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.load_study(study_name="s", storage=JournalStorage(JournalFileBackend(str(folder / "study.journal"))))
    return {trial.state.name for trial in study.get_trials(deepcopy=False)}


SLOS = "[[slo]]\nmetric = 'success_rate'\nlimit = '95%'\n[[slo]]\nmetric = 'ttft'\nstatistic = 'p99'\nlimit = '0.5s'\n"


def test_a_limit_has_its_unit_and_its_statistic(tune: Tune) -> None:
    """PBR-175: 2 % of errors against 5 %, 300 ms against 0.5 s."""
    done = tune(
        parameter("batch", "ladder = [16, 32]\ndefault = 16"),
        "--errors 50",
        more=SLOS,
        sampler="'grid'",
        bench={"num-prompts": 100, "concurrency": 16, "request-max-retries": 0},
    )
    assert done.outcomes() == {16: "ok", 32: "ok"}
    for one in done.trials:
        assert 0.96 < one["figures"]["success_rate"] < 1
        assert 0.25 < one["figures"]["ttft_p99"] < 0.5
        assert all(margin is not None and margin < 0 for margin in one["margins"].values())


def test_a_limit_on_what_is_never_measured_is_refused_before_the_start(tune: Tune, starts: Any) -> None:
    """PBR-175."""
    done = tune(parameter("batch", "ladder = [16, 32]\ndefault = 16"), more=SLOS, bench={"stream": False})
    assert done.code == 2
    assert "not streamed have no ttft" in done.err
    assert starts() == []
    assert not done.folder.exists()


@pytest.mark.slow
def test_a_search_for_the_largest_load_stays_within_its_bounds(tune: Tune) -> None:
    """PBR-176."""
    done = tune(
        parameter("batch", "ladder = [200, 256]\ndefault = 256"),
        budget="trials = 1",
        more="[load]\nmode = 'capacity'\nknob = 'concurrency'\nlow = 4\nhigh = 138\n[[slo]]\nmetric = 'ttft'\nstatistic = 'p95'\nlimit = '60s'\n",
        bench={"concurrency": None, "num-prompts": "2x"},
    )
    if "the client itself was late" in str(done.trials[0]["evidence"]):
        pytest.skip("this machine was too busy to measure on")
    assert done.code == 0, done.err
    (curve,) = [one for one in done.results["capacity"] if one["label"] == "default"]
    loads = [point["load"] for point in curve["points"]]
    assert 4 <= min(loads) <= max(loads) == 138
    assert (curve["status"], curve["load"]) == ("bound_reached", 138)
    assert "bound reached, limit not found" in curve["text"]
    assert "bound reached, limit not found" in done.report


def test_one_exception_ends_no_study(tmp_path: Path) -> None:
    """PBR-167: a ValueError while trial 1 is measured, an OSError as trial 2 starts its service."""
    from loadcell.fleet.hosts import open_host
    from loadcell.fleet.hosts.host import Host
    from loadcell.fleet.registry import Registry
    from loadcell.fleet.spec import FleetSpec, HostSpec
    from loadcell.tune.events import Opened
    from loadcell.tune.parameters import Parameter, Place
    from loadcell.tune.sampler import SearchSpec
    from loadcell.tune.setting import Setting
    from loadcell.tune.spec import Confirm, StudySpec, space_of
    from loadcell.tune.stopping import Budget
    from loadcell.tune.storage import open_book
    from loadcell.tune.study import Study
    from loadcell.tune.study_folder import StudyFolder
    from loadcell.tune.trial import Trial

    opened: list[int] = []

    def opening(spec: HostSpec) -> Host:
        opened.append(1)
        if len(opened) == 2:
            raise ValueError("could not convert string to float: 'n/a'")
        if len(opened) in (3, 4):  # the machine's fault: tried once more
            raise OSError(12, "Cannot allocate memory")
        return open_host(spec)

    engine = (sys.executable, str(ENGINE), "--port", "{port}", "--starts", str(tmp_path / "starts"), "--batch", "$batch")
    spec = StudySpec(
        FleetSpec("command", model="m", vendor="none", port="auto", command=engine, start_timeout=20),
        bench={name.replace("-", "_"): value for name, value in BENCH.items()},
        parameter=(Parameter("batch", "int", Place(word=True), ladder=(8, 9, 10, 11, 12), default=8),),
    )
    (tmp_path / "out").mkdir()
    space = space_of(spec)
    with StudyFolder.make(tmp_path / "out") as folder:
        folder.append(Opened("", "s", "s.toml", "spec.json", by="x"))
        book = open_book(None, folder.path / "study.journal", "s", "grid", SearchSpec(space, 1, (), ()), by="x")
        trial = Trial(spec, folder.path, Registry(tmp_path / "state"), {}, open_host=opening)
        closed = Study(Setting(space, Budget(trials=5), Confirm(max_rounds=0)), folder, book, trial, MonotonicClock()).execute()
        results = list(folder.record.results.values())
    assert (closed.state, len(results)) == ("complete", 5)
    assert [one.outcome for one in results] == ["ok", "bench_failed", "infrastructure", "ok", "ok"]
    assert "could not convert string to float" in str(results[1].evidence)
    for one in results[1:3]:
        assert "Traceback" in (folder.path / str(one.folder) / "error.txt").read_text()
    assert _states(folder.path) <= {"COMPLETE", "FAIL", "PRUNED"}
