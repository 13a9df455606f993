"""What a study found, as a report, a table of trials and files that start the best one: rendered from results that are made by hand."""

import csv
import io
import json
import shlex
import subprocess

import jsonschema
import msgspec
import pytest
import yaml
from msgspec.structs import replace

from loadcell.report import study_csv, study_launch, study_markdown, study_terminal
from loadcell.report.study import (
    CapacityCurve,
    CapacityPoint,
    Confirmation,
    Contender,
    Failure,
    FrontPoint,
    Gain,
    ServiceLaunch,
    StudyLimit,
    StudyObjective,
    StudyParameter,
    StudyResults,
    StudySpent,
    StudyTrial,
    study_schema,
)

DEFAULT, BEST = {"seqs": 64, "caching": True}, {"seqs": 256, "caching": True}
SLO = "ttft p95 <= 1s"
TRIALS = [
    StudyTrial(0, "default", "search/0", DEFAULT, "ok", "measure", True, 1000.0, 4.0, margins={SLO: -0.69}, folder="trials/0000"),
    StudyTrial(
        1,
        "search",
        "search/1",
        {"seqs": 900, "caching": False},
        "oom_start",
        "launch",
        False,
        evidence="=torch.OutOfMemoryError | CUDA out of memory\nsecond line",
        exit_code=1,
        folder="trials/0001",
    ),
    StudyTrial(2, "search", "search/2", BEST, "ok", "measure", True, 2000.0, 8.0, margins={SLO: -0.05}, load={"concurrency": 32.0}),
]
CONTENDERS = [
    Contender(0, DEFAULT, 3, 1000.0, limits={SLO: "meets"}),
    Contender(1, BEST, 3, 1950.0, 0.95, 0.91, 0.99, 0.0004, True, limits={SLO: "meets"}),
]
RESULTS = StudyResults(
    name="s|x",
    state="complete",
    announced="winner",
    answer="+95.0% against the default (at least +91.0% with 95 % confidence)",
    objective=StudyObjective("throughput", "tokens/s", per_device=False),
    fingerprint={"engine": "vllm", "version": "0.32.0", "workload": "0123456789ab"},
    sampler="model",
    search_ended="all 3 trials were made",
    spent=StudySpent(600.0, 3, 9, 100.0, 400.0, 20.0),
    parameters=[
        StudyParameter("seqs", "--max-num-seqs", True, 64, 256, changed=True, importance=0.9),
        StudyParameter("caching", "--enable-prefix-caching", True, True, True, importance=0.1, put_back=False),
    ],
    limits=[StudyLimit(SLO, 0.95, 0.97, 0.5, binding=True)],
    trials=TRIALS,
    default=DEFAULT,
    best=BEST,
    best_value=1950.0,
    default_value=1000.0,
    gain=Gain(0.95, 0.91, 0.99),
    incumbent=2,
    confirmation=Confirmation(3, "the answer is known", CONTENDERS),
    failures=[Failure("oom_start", "launch", "CUDA out of memory", [1], [1], "trials/0001", 20.0, {"seqs": (900, 900)})],
)
LAUNCH = ServiceLaunch(
    name="replica-0",
    host="local",
    words=["/opt/venv/bin/vllm", "serve", "/models/a b", "--override", '{"x": "$1 50%"}'],
    inside=["vllm", "serve", "/models/a b", "--override", '{"x": "$1 50%"}', "--host", "0.0.0.0"],
    env={"CUDA_VISIBLE_DEVICES": "0,1", "MODE": "it's", "HF_TOKEN": None},
    port=8000,
    image="vllm/vllm-openai:v0.32.0",
    files={"/study/launch/replica-0/c.json": '{"a": 1}\n'},
    devices=[0, 1],
    vendor="nvidia",
    model_path="/models/a b",
)


def test_the_answer_stands_first_and_everything_from_outside_is_escaped():
    text = study_markdown.render(RESULTS)
    assert text.startswith("# BETTER THAN THE DEFAULT: s\\|x\n")
    assert "Gain over the default: +95.0 %, with 95 % confidence at least +91.0 % (and at most +99.0 %, likewise)." in text
    assert "The limit that comes first: ttft p95 &lt;= 1s, of which 95.0 % is used." in text
    assert "| seqs | --max-num-seqs | 64 | 256 | 90.0 % | changed |" in text
    assert "false made no difference: put back" in text
    assert "| out of memory at the start | launch | 1 | 1 | CUDA out of memory | 1 | 20 s | seqs 900 | trials/0001 |" in text
    assert "candidate 1 | 3 | 1,950 tokens/s | +95.0 % | +91.0 % | +99.0 % | 0.0004 |" in text
    rows = [line for line in text.splitlines() if line.startswith(("| 0 |", "| 1 |", "| 2 |"))]
    assert len({row.count("|") - row.count("\\|") for row in rows}) == 1, "every row has as many cells"


def test_a_study_without_an_improvement_says_that_the_default_stays():
    stays = replace(RESULTS, announced="no_reliable_improvement", answer="no reliable improvement", best=DEFAULT, gain=None, parameters=[])
    text = study_markdown.render(stays)
    assert text.startswith("# NO RELIABLE IMPROVEMENT")
    assert "- best.toml is the default." in text
    assert "Gain" not in text.partition("## ")[0]


@pytest.mark.parametrize(
    ("state", "head"), [("running", "RUNNING"), ("interrupted", "INTERRUPTED"), ("cut_off", "CUT OFF"), ("failed", "FAILED")]
)
def test_what_did_not_end_claims_nothing(state, head):
    cut = replace(RESULTS, state=state, announced="none", answer="x", best=None, best_value=None, gain=None, confirmation=None)
    lines = study_terminal.lines(cut)
    assert lines[0] == f"{head}: s|x"
    assert "BETTER" not in "\n".join(lines)
    assert "--resume" in study_markdown.render(cut)
    if state != "failed":
        assert any("Best of the search, not confirmed: trial 2 with 2,000 tokens/s" in line for line in lines)


def test_a_default_that_fails_is_told_as_such():
    fails = replace(RESULTS, announced="default_fails", answer="the default fails its limits, this one meets them; +95.0% and so on")
    assert "  the default fails its limits, this one meets them" in study_terminal.lines(fails)


def test_a_cliff_is_an_interval():
    points = [CapacityPoint(8, "ok", -0.5, SLO, 800.0), CapacityPoint(16, "slo_violated", 2.0, SLO, 900.0)]
    curve = CapacityCurve("best", 2, "concurrency", points, "cliff", 8, 8, 16, True, "8 is within the limits")
    text = study_markdown.render(replace(RESULTS, capacity=[curve]))
    assert "## Capacity: concurrency of the best (trial 2)" in text
    assert "The answer is an interval, 8 to 16, not a point." in text
    assert "| 8 | within the limits | 60.7 % |" in text


def test_a_front_shows_latencies_as_times():
    objective = StudyObjective("throughput", "tokens/s", per_device=False, second="ttft p95")
    front = replace(RESULTS, announced="front", best=None, gain=None, objective=objective, front=[FrontPoint(2, 2000.0, 4.0, BEST)])
    assert "| 2 | 2,000 tokens/s | 250.0 ms | seqs=256 caching=true |" in study_markdown.render(front)


def test_trials_as_csv_have_a_row_each_and_no_formula():
    rows = list(csv.DictReader(io.StringIO(study_csv.render(RESULTS))))
    assert [row["number"] for row in rows] == ["0", "1", "2"]
    assert rows[2]["objective"] == "2000"
    assert rows[2]["parameter.seqs"] == "256"
    assert rows[2]["load.concurrency"] == "32"
    assert rows[0]["load.concurrency"] == ""
    assert rows[1]["objective"] == "", "what was not measured is empty, never 0"
    assert rows[1]["evidence"] == "'=torch.OutOfMemoryError | CUDA out of memory second line"
    assert float(rows[2][f"margin.{SLO}"]) == -0.05


def test_the_results_are_what_their_schema_says():
    body = msgspec.json.encode(replace(RESULTS, launch=[LAUNCH]))
    jsonschema.validate(json.loads(body), study_schema())
    assert msgspec.json.decode(body, type=StudyResults) == replace(RESULTS, launch=[LAUNCH])


# --- how the best is started


def test_the_command_line_is_what_a_shell_reads_as_the_same_words():
    line = study_launch.command_line(LAUNCH)
    assert line.startswith('CUDA_VISIBLE_DEVICES=0,1 HF_TOKEN="${HF_TOKEN:?}" MODE=')
    assert shlex.split(line)[3:] == LAUNCH.words


def test_the_script_writes_the_files_and_starts_the_words(tmp_path):
    path = tmp_path / "folder" / "c.json"
    seen = tmp_path / "seen"
    words = ["sh", "-c", f'printf \'%s|\' "$@" "$MODE" "$HF_TOKEN" > {seen}', "x", "a b", "$1", '{"x": "50%"}']
    launch = replace(LAUNCH, words=words, files={str(path): '{"a": 1}\n'})
    script = study_launch.script([launch], "made by\ntwo lines")
    subprocess.run(["sh", "-c", script], check=True, timeout=20, env={"HF_TOKEN": "secret", "PATH": "/usr/bin:/bin"})
    assert path.read_text() == '{"a": 1}\n'
    assert seen.read_text() == 'a b|$1|{"x": "50%"}|it\'s|secret|'


def test_a_secret_that_is_missing_stops_the_script():
    done = subprocess.run(
        ["sh", "-c", study_launch.script([replace(LAUNCH, words=["true"], files={})], "")],
        check=False,
        timeout=20,
        capture_output=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert b"HF_TOKEN" in done.stderr


def test_a_unit_doubles_what_systemd_would_read():
    ((name, text),) = study_launch.systemd([LAUNCH], "My study", "head").items()
    assert name == "my-study-replica-0.service"
    assert 'ExecStart=/opt/venv/bin/vllm serve "/models/a b" --override "{\\"x\\": \\"$$1 50%%\\"}"' in text
    assert "EnvironmentFile=/etc/my-study-replica-0.env" in text
    assert 'Environment="MODE=it\'s"' in text
    assert "secret" not in text


def test_compose_gives_the_devices_and_not_their_variable():
    tree = yaml.safe_load(study_launch.compose([LAUNCH], "head"))
    service = tree["services"]["replica-0"]
    assert service["image"] == "vllm/vllm-openai:v0.32.0"
    assert [*service["entrypoint"], *service["command"]] == [word.replace("$", "$$") for word in LAUNCH.inside]
    assert service["environment"] == {"HF_TOKEN": "${HF_TOKEN:?}", "MODE": "it's"}
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] == ["0", "1"]
    assert "/models/a b:/models/a b:ro" in service["volumes"]


def test_kubernetes_asks_for_as_many_devices_and_waits_for_the_start():
    config, deployment, service = yaml.safe_load_all(study_launch.kubernetes([LAUNCH, replace(LAUNCH, name="replica-1")], "study", "head"))
    assert config["data"] == {"file-0": '{"a": 1}\n'}
    assert deployment["spec"]["replicas"] == 2
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert [*container["command"], *container["args"]] == LAUNCH.inside
    assert {one["name"] for one in container["env"]} == {"HF_TOKEN", "MODE"}
    assert container["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "study-secrets", "key": "HF_TOKEN"}
    assert container["startupProbe"]["httpGet"] == {"path": "/health", "port": 8000}
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]


def test_ranks_of_several_hosts_are_started_by_hand():
    rank = replace(LAUNCH, name="replica-0.rank-1", host="other", serves=False, env={}, files={})
    assert study_launch.fits_containers([LAUNCH, rank]) is not None
    text = study_launch.script([replace(LAUNCH, env={}, files={}), rank], "head")
    assert "# on local:" in text
    assert "# on other:" in text
    assert not [line for line in text.splitlines() if line.endswith("&") and not line.startswith("#")], "no line runs on the wrong host"
