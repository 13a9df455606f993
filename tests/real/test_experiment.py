"""Two real servers through `loadcell run`: three scenarios, one server killed in the middle of the second, started again before the third."""

import time
from datetime import datetime

import pytest

from loadcell.report.experiment import ServiceFacts

from .experiment import Experiment, Place, kill

pytestmark = [pytest.mark.real, pytest.mark.timeout(300, func_only=True)]

REQUESTS = {"calm": 24, "killed": 60, "restarted": 24}
OUTPUT = 24
SCENARIOS = f"""
[bench]
input-len = 64
output-len = {OUTPUT}
health-check-interval = 1
request-max-retries = 2
[[scenario]]
name = "calm"
concurrency = 2
num-prompts = {REQUESTS["calm"]}
[[scenario]]
name = "killed"
concurrency = 6
num-prompts = {REQUESTS["killed"]}
[[scenario]]
name = "restarted"
concurrency = 4
num-prompts = {REQUESTS["restarted"]}
[[slo]]
metric = "success_rate"
limit = "99%"
"""


class Story:
    """The experiment when it has ended, and when a server was killed (s since the epoch)."""

    def __init__(self, experiment: Experiment, killed_at: float, pid: int) -> None:
        self.experiment, self.killed_at, self.pid = experiment, killed_at, pid

    def service(self, name: str) -> ServiceFacts:
        return next(one for one in self.experiment.results.fleet.services if one.name == name)

    def ports(self) -> list[str]:
        return [str(self.service(name).port) for name in ("replica-0", "replica-1")]


@pytest.fixture(scope="module")
def story(place: Place) -> Story:
    with place.experiment("fleet", SCENARIOS, replicas=2) as experiment:
        experiment.begin("run", "--output-dir", "run")
        experiment.until(lambda: experiment.answered("killed") >= REQUESTS["killed"] // 4, "the middle of the second scenario")
        victim = experiment.main_process("replica-1")
        killed_at = time.time()
        kill(victim)
        experiment.finish()
        assert experiment.exit_code == 0, experiment
        assert [process.cmdline() for process in experiment.left()] == []
        return Story(experiment, killed_at, victim.pid)


def test_all_three_scenarios_are_measured_to_their_end(story: Story) -> None:
    results = story.experiment.results
    assert (results.state, results.fleet.managed, results.fleet.engine) == ("complete", True, "vllm")
    assert [(cell.name, cell.state) for cell in results.cells] == [(name, "done") for name in REQUESTS]
    for cell in results.cells:
        assert cell.figures is not None
        whole = cell.figures.all
        assert (whole.requests, whole.ok, whole.failed) == (REQUESTS[cell.name], REQUESTS[cell.name], 0)
        assert whole.ttft.n == whole.e2e.n == REQUESTS[cell.name]
        assert cell.slos_met is True
        assert cell.raw_output is not None
        *requests, _summary = (story.experiment.run / cell.raw_output).read_text().splitlines()
        assert len(requests) == REQUESTS[cell.name]


def test_the_report_tells_of_every_scenario_and_endpoint(story: Story) -> None:
    report = (story.experiment.run / "report.md").read_text()
    assert all(word in report for word in (*REQUESTS, *story.ports(), "TTFT", "TPOT", "E2E", "replica-1", "SIGKILL"))


def test_services_count_what_was_sent_and_nothing_else(story: Story) -> None:
    for name in ("calm", "restarted"):
        cell = story.experiment.cell(name)
        assert cell.purity is not None
        assert (cell.purity.state, cell.purity.counted, cell.purity.sent, cell.purity.foreign) == (
            "pure",
            REQUESTS[name],
            REQUESTS[name],
            0,
        )
        assert [one.state for one in cell.purity.endpoints] == ["pure", "pure"]
        assert all(one.figures.ok > 0 for one in cell.endpoints)
        assert story.experiment.faults(name) == set(), cell.reasons


def test_the_death_is_an_event_at_once_with_its_cause(story: Story) -> None:
    (died,) = [one for one in story.experiment.events() if one["event"] == "died"]
    assert died["service"] == "replica-1"
    assert "killed by SIGKILL" in died["cause"]
    assert -0.1 < datetime.fromisoformat(died["time"]).timestamp() - story.killed_at < 4


def test_the_other_goes_on_and_the_scenario_says_what_happened(story: Story) -> None:
    cell = story.experiment.cell("killed")
    assert cell.figures is not None
    assert cell.figures.all.retried > 0
    assert cell.verdict == "suspect"
    assert {"endpoint_lost", "service_lost"} & story.experiment.faults("killed"), cell.reasons
    assert cell.purity is not None
    lost = story.ports()[1]
    assert {one.endpoint.rpartition(":")[2]: one.state for one in cell.purity.endpoints} == {story.ports()[0]: "pure", lost: "unknown"}


def test_it_is_started_again_between_scenarios(story: Story) -> None:
    told = [(one["service"], one["event"]) for one in story.experiment.events()]
    after = told[told.index(("replica-1", "died")) + 1 :]
    assert after[:3] == [("replica-1", "restart"), ("replica-1", "started"), ("replica-1", "ready")]
    assert [event for _, event in after[3:]] == ["stopped", "stopped"]
    assert (story.service("replica-0").restarts, story.service("replica-1").restarts) == (0, 1)
    assert any("replica-1 was started again, 1 of at most 2 times" in notice for notice in story.experiment.results.notices)


def test_after_every_scenario_a_line_of_their_health(story: Story) -> None:
    first, second = story.ports()
    lines = [line.partition("health check: ")[2] for line in story.experiment.err.splitlines() if "service health check:" in line]
    both = f"healthy=[{first} {second}] unhealthy=[]"
    assert lines == [both, f"healthy=[{first}] unhealthy=[{second}]", both]


def test_nothing_is_left_and_the_logs_are_kept(story: Story) -> None:
    experiment = story.experiment
    assert experiment.results.fleet.leftovers == []
    assert experiment.recorded() == []
    assert all("Application startup complete" in experiment.log(name) for name in ("replica-0", "replica-1"))
    assert experiment.log("replica-1").count("Application startup complete") == 2  # of both its starts
