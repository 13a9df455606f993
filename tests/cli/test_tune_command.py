"""`loadcell tune` over the simulated engine: from a file to an answer, killed and resumed, ended by a signal, refused."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.tune.optix import configs
from tests.tune.optix import test_reported_run as reported

from loadcell import api
from loadcell.tune.study_folder import read_record

pytestmark = pytest.mark.slow

STUDY = """
[study]
name = "small"
seed = 3
budget = { trials = 4 }
confirm = { candidates = 1, min-rounds = 2, max-rounds = 2 }
[fleet]
engine = "simulated"
port = "auto"
start-timeout = "1m"
stop-timeout = 5
[fleet.args]
ttft-ms = 20
itl-ms = 2
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
name = "max_num_seqs"
kind = "int"
flag = "--max-num-seqs"
ladder = [1, 4, 8, 16, 32]
default = 1
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(STUDY)
    return path


def begin(*words: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "loadcell", "tune", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*words: str | Path) -> tuple[int, str, str]:
    started = begin(*words)
    out, err = started.communicate(timeout=110)
    return started.returncode, out, err


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def told(text: str, folder: Path) -> bool:
    """Whether the study's record says so."""
    return (folder / "events.jsonl").exists() and text in (folder / "events.jsonl").read_text()


def loading(folder: Path, number: int) -> bool:
    """Whether requests of that trial's load have ended."""
    parts = (folder / "trials" / f"{number:04d}").glob("load*/records*.jsonl")
    return any(part.read_bytes().count(b"\n") > 1 for part in parts)


def services() -> list[int]:
    """Processes that a study of this test has started, by the variable that marks them."""
    mine = str(Path("state").resolve())
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except psutil.Error:
            continue
        if "LOADCELL_SERVICE" in environment and environment.get("XDG_STATE_HOME") == mine and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


@pytest.mark.slow
def test_from_a_file_to_an_answer(study: Path):
    code, out, err = run(study, "--output-dir", "s")
    assert code == 0, err
    assert out.startswith("BETTER THAN THE DEFAULT: small\n")
    assert "Gain over the default: +" in out
    assert "max_num_seqs  1 -> " in out
    assert "trial 0 (default): max_num_seqs=1" in err
    record = read_record(Path("s"))
    assert record.closed is not None
    assert record.closed.announced == "winner"
    assert [one.number for one in record.results.values()] == list(range(len(record.results)))


@pytest.mark.slow
def test_killed_and_resumed_it_measures_what_is_left_and_no_service_stays(study: Path):
    first = begin(study, "--output-dir", "s")
    wait_for(lambda: loading(Path("s"), 1))
    first.kill()
    first.communicate()
    before, in_flight = set(read_record(Path("s")).results), {one.number for one in read_record(Path("s")).in_flight()}
    assert in_flight == {1}
    assert services(), "the killed study's service outlives it"
    code, _, err = run("--resume", "s")
    assert code == 0, err
    record = read_record(Path("s"))
    assert before <= set(record.results)
    assert "trial 0 (default)" not in err
    assert len(record.searching()) == 4
    assert in_flight <= {one.number for one in record.results.values()}
    assert not services()
    assert not list((Path("state") / "loadcell" / "fleet" / "studies").glob("*.json"))


def fleet(action: str, *words: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "loadcell", "fleet", action, *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_its_services_are_shown_as_its_own_and_stopped_by_nobody_else_before_it_is_gone(study: Path):
    started = begin(study, "--output-dir", "s", "--set", "bench.num-prompts=100000")
    wait_for(lambda: loading(Path("s"), 0))
    trial = Path("s/trials/0000").resolve()
    code, out, _ = fleet("status", "small.toml")
    assert code == 0, out
    assert f"run {started.pid}: a run of loadcell in {trial}, under way" in out
    assert fleet("logs", "small.toml")[1].startswith("loadcell simulate: serving")
    code, out, err = fleet("down", "small.toml")
    assert (code, out) == (1, "")
    assert "replica-0 of small.toml: not stopped" in err
    assert f"`kill {started.pid}`" in err
    started.kill()
    started.communicate()
    assert f"run {started.pid}: a run of loadcell in {trial}, gone" in fleet("status", "small.toml")[1]
    code, out, _ = fleet("down", "small.toml")
    assert (code, out.count("stopped (process")) == (0, 1)
    assert not services()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_says_how_to_go_on(study: Path, number: signal.Signals):
    started = begin(study, "--output-dir", "s")
    wait_for(lambda: loading(Path("s"), 0))
    os.kill(started.pid, number)
    _, err = started.communicate(timeout=60)
    assert started.returncode in (128 + number, 128 + signal.SIGTERM)
    assert "go on with: loadcell tune --resume s" in err
    record = read_record(Path("s"))
    assert record.closed is not None
    assert record.closed.state == "interrupted"


@pytest.mark.slow
def test_a_second_study_on_the_same_port_is_refused_and_leaves_nothing(study: Path):
    first = begin(study, "--output-dir", "a", "--set", "fleet.port=18437")
    wait_for(lambda: told('"event":"opened"', Path("a")))
    code, _, err = run(study, "--output-dir", "b", "--set", "fleet.port=18437")
    assert code == 1
    assert "18437" in err
    assert "taken by" in err
    assert not Path("b").exists()
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)


@pytest.mark.slow
def test_a_study_in_python(study: Path):
    found = api.tune(study, output_dir="s", sets=["study.confirm.max_rounds=0", "study.confirm.min_rounds=0"], sampler="random")
    assert (found.exit_code, found.closed.announced, found.best) == (0, "not_confirmed", {"max_num_seqs": 1})
    assert len(found.trials) == 4


@pytest.mark.slow
def test_a_study_that_is_about_other_things_is_not_gone_on_with(study: Path):
    api.tune(study, output_dir="s", sets=["study.budget.trials=1"])
    code, _, err = run("--resume", "s", "--set", "bench.concurrency=8")
    assert code == 2
    assert "its workload is not the same" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "FILE: give the study's file"),
        (["small.toml", "-e", "vllm"], "-e belongs to --from-optix"),
        (["small.toml", "--from-optix", "c.toml"], "Leave one out"),
        (["--resume", "s", "--output-dir", "t"], "leave one out"),
        (["--resume", "."], "no events.jsonl there tells of a study"),
        (["none.toml"], "none.toml"),
        (["small.toml", "--sampler", "best"], "choose from model"),
    ],
)
def test_what_is_refused(study: Path, words: list[str], said: str):
    code, _, err = run(*words)
    assert code == 2
    assert said in err
    assert not Path("runs").exists()


@pytest.mark.slow
def test_the_reported_files_of_optix_as_a_whole_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Launched, confirmed, answered; in no trial is the service asked for anything but the load, but for the one question of readiness before it."""
    log, bin_folder, model = tmp_path / "access.jsonl", tmp_path / "bin", tmp_path / "model"
    bin_folder.mkdir(), model.mkdir()
    dated = reported.EVALSCOPE.replace('"20260904_073000"', 'time.strftime("%Y%m%d_%H%M%S")')  # a folder per run, as the real one makes
    for name, text in (("vllm", reported.VLLM), ("evalscope", dated)):
        (bin_folder / name).write_text(text.format(python=sys.executable, log=str(log)))
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_folder), prepend=":")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("CLUSTER_CONFIG_PATH", str(tmp_path / "cluster.toml"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.toml").write_text(configs.CLUSTER)
    text = configs.REPORTED.replace("9975", reported.free_port()).replace("/data/models/Qwen3-0.6B", str(model))
    (tmp_path / "config.toml").write_text(text.replace("/tmp/evalscope_out", str(tmp_path / "out")))
    few = ["--set", "study.budget.trials=3", "--set", "study.confirm={candidates = 1, min-rounds = 2, max-rounds = 2}"]
    code, out, err = run(
        "--from-optix", "config.toml", "-e", "multihost_infer", "-b", "evalscopeperf", "--backup", "--output-dir", "s", *few
    )
    assert code == 0, err
    record = read_record(Path("s"))
    assert {one.outcome for one in record.results.values()} == {"ok"}, err
    assert len(record.searching()) == 3
    asked = [entry for line in log.read_text().splitlines() if (entry := json.loads(line))["method"] == "POST"]
    load = [entry for entry in asked if entry["prompt_head"].startswith("question")]
    assert len(load) == 400 * len(record.results)
    assert len(asked) - len(load) == len(record.results)
    assert "default" in out
