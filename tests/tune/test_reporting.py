"""Studies over a response surface -> what their folders say: the report is true, the files start what was chosen, and nothing is claimed too early."""

import csv
import json
import sys
import time
import tomllib
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from studies import LIMIT, SEQS, SPACE, Ready, dead, flat, hill

from loadcell.cli.main import main
from loadcell.errors import EnvironmentFailure, UserError
from loadcell.experiment.read import read_experiment
from loadcell.fleet.spec import FleetSpec
from loadcell.tune.parameters import Parameter, Place
from loadcell.tune.reporting import Reporter, report_again
from loadcell.tune.spec import Confirm, FitnessTable, LoadTable, Objective, StudySpec, StudyTable
from loadcell.tune.stopping import Budget
from loadcell.tune.study import Study

SPEC = StudySpec(
    FleetSpec("vllm", model="org/m", port=8100, env={"MODE": "a ${b}", "HF_TOKEN": "[redacted]"}, args={"max-num-seqs": 64}),
    StudyTable("t"),
    bench={"concurrency": 8, "num_prompts": 80},
    slo=("ttft p95 <= 1s",),
    parameter=SPACE,
)


def ready(path, surface=hill, spec=SPEC, **setting):
    found = Ready(path, surface, spec.parameter, **setting)
    (path / "spec.json").write_bytes(msgspec.json.encode(spec))
    return found


def told(path, run):
    closed = run.run()
    return closed, Reporter.of(path, run.record).write(run.record)


def test_the_report_says_what_the_study_announced(tmp_path):
    run = ready(tmp_path / "s", budget=Budget(trials=20))
    closed, results = told(tmp_path / "s", run)
    assert (results.state, results.announced, results.best) == ("complete", closed.announced, closed.best)
    assert results.gain is not None
    assert results.gain.low is not None
    assert 0.5 < results.gain.low < results.gain.value < 5
    assert results.best_value is not None
    assert results.default_value is not None
    assert results.best_value / results.default_value == pytest.approx(1 + results.gain.value, rel=0.1)
    assert [one.binding for one in results.limits] == [True]
    shares = [one.importance or 0 for one in results.parameters]
    assert sum(shares) == pytest.approx(1)
    assert results.parameters[0].name == "seqs"
    assert shares[0] == max(shares), "the surface is a hill over seqs"
    assert [one.name for one in results.parameters if one.changed] == ["seqs"]
    assert len(results.trials) == len(run.fake.calls)
    assert (tmp_path / "s/report.md").read_text().startswith("# BETTER THAN THE DEFAULT: t\n")
    assert len(list(csv.DictReader((tmp_path / "s/trials.csv").read_text().splitlines()))) == len(run.fake.calls)
    assert json.loads((tmp_path / "s/trials.json").read_bytes())["best"] == closed.best


def test_best_toml_is_an_experiment_with_the_best_in_its_place(tmp_path):
    run = ready(tmp_path / "s", budget=Budget(trials=12))
    closed, _ = told(tmp_path / "s", run)
    path = tmp_path / "s/best.toml"
    with pytest.raises(UserError, match="HF_TOKEN"):
        read_experiment(path)
    experiment = read_experiment(path, environment={"HF_TOKEN": "secret"}, env_file=_env(tmp_path))
    assert experiment.fleet is not None
    assert experiment.fleet.args == {
        "max-num-seqs": closed.best["seqs"],
        "gpu-memory-utilization": closed.best["memory"],
        "enable-prefix-caching": closed.best["caching"],
    }
    assert experiment.fleet.env == {"MODE": "a ${b}", "HF_TOKEN": "secret"}
    assert experiment.slo == SPEC.slo
    assert experiment.bench == SPEC.bench
    assert f"# seqs = {closed.best['seqs']}\n" in path.read_text()


def _env(folder):
    path = folder / "keys.env"
    path.write_text("HF_TOKEN=secret\n")
    return path


def test_the_launch_holds_the_values_and_no_secret(tmp_path):
    closed, results = told(tmp_path / "s", ready(tmp_path / "s", budget=Budget(trials=12)))
    (launch,) = results.launch
    at = launch.words.index("--max-num-seqs")
    assert launch.words[at + 1] == str(closed.best["seqs"])
    assert launch.env["HF_TOKEN"] is None
    assert (launch.port, launch.image) == (8100, "vllm/vllm-openai:latest")
    names = sorted(path.name for path in (tmp_path / "s/launch").iterdir())
    assert names == ["compose.yaml", "kubernetes.yaml", "launch.sh", "t-replica-0.service"]
    assert f"--max-num-seqs {closed.best['seqs']}" in (tmp_path / "s/launch/launch.sh").read_text()


def test_no_reliable_improvement_leaves_the_default_in_best_toml(tmp_path):
    closed, results = told(tmp_path / "s", ready(tmp_path / "s", flat, budget=Budget(trials=10)))
    assert closed.announced == "no_reliable_improvement"
    assert results.gain is None
    best = tomllib.loads((tmp_path / "s/best.toml").read_text())
    assert best["fleet"]["args"] == {"max-num-seqs": 64, "gpu-memory-utilization": 0.9, "enable-prefix-caching": True}


def test_failures_alike_stand_together_with_their_cause(tmp_path):
    count = iter(range(100))

    def numbered(configuration, rng):
        return dead(configuration, rng) | {"evidence": f"needs {next(count)}.5 GiB", "exit_code": 1, "folder": "trials/x"}

    closed, results = told(tmp_path / "s", ready(tmp_path / "s", numbered, budget=Budget(trials=50)))
    assert closed.state == results.state == "failed"
    (failure,) = results.failures
    assert (failure.outcome, failure.trials, failure.exit_codes) == ("oom_start", [0, 1, 2, 3, 4], [1])
    assert failure.ranges["seqs"][0] <= 64 <= failure.ranges["seqs"][1]
    assert failure.lost_s == 300
    assert not (tmp_path / "s/best.toml").exists()


def test_an_answer_that_no_longer_holds_is_taken_away(tmp_path):
    run = ready(tmp_path / "s", budget=Budget(trials=10))
    told(tmp_path / "s", run)
    assert (tmp_path / "s/best.toml").exists()
    events = tmp_path / "s/events.jsonl"
    events.write_bytes(b"".join(line for line in events.read_bytes().splitlines(keepends=True) if b'"event":"closed"' not in line))
    _, record, reporter, running = report_again(tmp_path / "s")
    results = reporter.write(record)
    assert (running, results.state, results.best) == (False, "cut_off", None)
    assert not (tmp_path / "s/best.toml").exists()
    assert not (tmp_path / "s/launch").exists()
    assert results.incumbent is not None


def test_a_file_of_the_users_named_best_toml_stays(tmp_path):
    run = ready(tmp_path / "s", dead, budget=Budget(trials=3))
    (tmp_path / "s/best.toml").write_text("mine = 1\n")
    told(tmp_path / "s", run)
    assert (tmp_path / "s/best.toml").read_text() == "mine = 1\n"


def test_a_report_stands_after_every_trial_and_ends_no_study(tmp_path):
    class Full:
        written = 0

        def after_trial(self, record, elapsed_s):
            Full.written += 1
            raise EnvironmentFailure("no space left")

        def write(self, record, *, running=False, others=()):
            return None

    run = ready(tmp_path / "s", budget=Budget(trials=5), confirm=Confirm(max_rounds=0))
    study = Study(run.setting, run.folder, run.book, run.fake, run.clock, run.told, reports=Full())
    with run.folder:
        assert study.execute().state == "complete"
    assert Full.written == 5
    assert run.told.notes.count("no space left") == 5


def test_what_was_so_far_is_written_without_an_answer(tmp_path):
    run = ready(tmp_path / "s", budget=Budget(trials=4), confirm=Confirm(max_rounds=0))
    reporter = Reporter.of(tmp_path / "s", run.record)
    study = Study(run.setting, run.folder, run.book, run.fake, run.clock, run.told, reports=reporter)
    run.fake.at = lambda number: number == 2 and study.on_signal(2)
    with run.folder:
        study.execute()
    text = (tmp_path / "s/report.md").read_text()
    assert text.startswith("# INTERRUPTED: t")
    assert "not confirmed" in text
    assert not (tmp_path / "s/best.toml").exists()


def test_a_front_is_told_with_its_trials(tmp_path):
    spec = msgspec.structs.replace(SPEC, objective=Objective(pareto=("throughput", "ttft p95")))

    def second(result):
        latency = result.figures.get("ttft_p95")
        return 1 / latency if latency else None

    _, results = told(tmp_path / "s", ready(tmp_path / "s", spec=spec, second=second, budget=Budget(trials=14)))
    assert results.front
    for one, other in zip(results.front, results.front[1:], strict=False):
        assert one.objective < other.objective
        assert one.second > other.second
    assert (results.objective.metric, results.objective.second) == ("throughput", "ttft p95")


def test_a_capacity_curve_and_optix_fitness(tmp_path):
    spec = msgspec.structs.replace(SPEC, load=LoadTable("capacity", low=1, high=64), bench={"num_prompts": 80}, fitness=FitnessTable())

    def surface(configuration, rng):
        one = hill(configuration, rng)
        if one["outcome"] == "oom_start":
            return one
        probes = [{"load": load, "why": "root", "margins": {LIMIT: load / 16 - 1}, "objective": load, "outcome": "ok"} for load in (16, 8)]
        curve = {"probes": probes, "status": "found", "load": 16, "interval": [16, None], "confirmed": True, "text": "16 is within"}
        figures = one["figures"] | {"ttft_mean": 2.0, "tpot_mean": 0.05, "success_rate": 1.0}
        return one | {"extra": {"capacity": curve}, "load": {"concurrency": 16.0}, "figures": figures}

    closed, results = told(tmp_path / "s", ready(tmp_path / "s", surface, spec, budget=Budget(trials=10)))
    assert {one.label for one in results.capacity} == {"best", "default"}
    assert [point.load for point in results.capacity[0].points] == [8, 16]
    first = results.trials[0]
    assert first.fitness == pytest.approx(0.4 * 5000 / first.figures["throughput"] + 0.2 + 0.3 + 0.1)
    assert read_experiment(tmp_path / "s/best.toml", env_file=_env(tmp_path)).bench["concurrency"] == 16
    assert closed.best is not None


def test_devices_of_the_machine_that_was_tuned_are_those_of_the_launch(tmp_path):
    path = tmp_path / "s"
    fleet = FleetSpec("vllm", model="/models/m", replicas=2, devices_per_replica=2, args={"tensor-parallel-size": 2})
    spec = msgspec.structs.replace(SPEC, fleet=fleet, parameter=(SEQS,))
    run = ready(path, spec=spec, budget=Budget(trials=2), confirm=Confirm(max_rounds=0))
    run.run()
    launches, why = Reporter.of(path, run.record).launches_of({"seqs": 64}, {"hardware": "8 × NVIDIA H200", "version": "0.32.0"})
    assert why is None
    assert [one.devices for one in launches] == [[0, 1], [2, 3]]
    assert [one.env["CUDA_VISIBLE_DEVICES"] for one in launches] == ["0,1", "2,3"]
    assert [one.port for one in launches] == [8000, 8001]
    assert launches[0].image == "vllm/vllm-openai:v0.32.0"
    few, why = Reporter.of(path, run.record).launches_of({"seqs": 64}, {"hardware": "2 × NVIDIA H200"})
    assert few == ()
    assert why is not None
    assert "2 devices each need 4" in why
    bare, why = Reporter.of(path, run.record).launches_of({"seqs": 64}, {"hardware": None})
    assert why is None
    assert bare[0].env == {}


def test_a_file_that_parameters_change_stands_in_the_launch(tmp_path):
    source = tmp_path / "engine.json"
    source.write_text('{"a": {"b": 1}}')
    spec = msgspec.structs.replace(
        SPEC,
        fleet=FleetSpec("command", command=("engine", "--config", str(source), "--port", "{port}"), port=8000, vendor="none"),
        parameter=(Parameter("b", "int", Place(file=str(source), path="a.b"), low=1, high=9, default=1),),
    )
    run = ready(tmp_path / "s", spec=spec, budget=Budget(trials=2), confirm=Confirm(max_rounds=0))
    _, results = told(tmp_path / "s", run)
    (path, content), *_ = results.launch[0].files.items()
    assert json.loads(content) == {"a": {"b": 1}}
    assert path in results.launch[0].words
    source.unlink()
    again = Reporter.of(tmp_path / "s", run.record).write(run.record)
    assert again.launch == []
    assert any("best.toml cannot be made" in text for text in again.notices)


def test_trials_of_other_machines_stay_in_the_report(tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    one = ready(tmp_path / "a", storage=url, budget=Budget(trials=4), confirm=Confirm(max_rounds=0))
    one.run()
    other = ready(tmp_path / "b", storage=url, budget=Budget(trials=7), confirm=Confirm(max_rounds=0))
    reporter = Reporter.of(tmp_path / "b", other.record)
    study = Study(other.setting, other.folder, other.book, other.fake, other.clock, other.told, reports=reporter)
    with other.folder:
        study.execute()
    first = json.loads((tmp_path / "b/trials.json").read_bytes())["trials"]
    assert [one["tag"] for one in first].count("other machine") == 4
    assert len(first) == 7
    assert reporter.write(other.record).trials == study.reported.trials


def test_a_report_of_many_trials_is_cheap(tmp_path):
    run = ready(tmp_path / "s", budget=Budget(trials=40), confirm=Confirm(max_rounds=0), sampler="random")
    run.run()
    reporter = Reporter.of(tmp_path / "s", run.record)
    began = time.process_time()
    for _ in range(5):
        reporter.after_trial(run.record, 1.0)
    assert (time.process_time() - began) / 5 < 0.25


# --- the command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("command") / "s"
    told(path, ready(path, budget=Budget(trials=10)))
    return path


def test_show_tells_the_answer_and_writes_the_reports_again(folder, capsys):
    (folder / "report.md").unlink()
    assert main(["study", "show", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("BETTER THAN THE DEFAULT: t\n")
    assert "seqs  64 -> " in out
    assert str(folder / "report.md") in out
    assert (folder / "report.md").exists()
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == out


@pytest.mark.parametrize("kind", ["toml", "sh", "systemd", "compose", "kubernetes", "csv", "json", "markdown"])
def test_export_writes_every_format(folder, capsys, kind):
    assert main(["study", "export", str(folder), "--format", kind]) == 0
    assert "seqs" in capsys.readouterr().out


def test_export_of_a_trial_goes_to_a_new_file(folder, tmp_path, capsys):
    out = tmp_path / "zero.toml"
    assert main(["study", "export", str(folder), "--trial", "0", "-o", str(out)]) == 0
    assert tomllib.loads(out.read_text())["fleet"]["args"]["max-num-seqs"] == 64
    assert "the configuration of trial 0" in out.read_text()
    assert main(["study", "export", str(folder), "-o", str(out)]) == 2
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "--trial", "9999"], "no such trial"),
        (["export", "--trial", "0", "--format", "csv"], "holds all trials"),
        (["show", "--trial", "0"], "belongs to export"),
    ],
)
def test_wrong_use_is_said(folder, capsys, words, said):
    assert main(["study", words[0], str(folder), *words[1:]]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_is_no_study_is_refused(tmp_path, capsys):
    assert main(["study", "show", str(tmp_path)]) == 2
    assert "tells of a study" in capsys.readouterr().err


def test_without_an_answer_a_trial_must_be_named(tmp_path, capsys):
    path = tmp_path / "s"
    told(path, ready(path, dead, budget=Budget(trials=3)))
    assert main(["study", "export", str(path)]) == 2
    assert "--trial" in capsys.readouterr().err
    assert main(["study", "export", str(path), "--trial", "0"]) == 0
