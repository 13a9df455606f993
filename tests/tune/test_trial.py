"""Trials over simulated engines: every way in which one can end, with its phase and its evidence."""

import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from loadcell.errors import UserError
from loadcell.fleet.registry import Registry
from loadcell.load.runner import Watcher
from loadcell.load.snapshot import Snapshot
from loadcell.tune.events import TrialKind
from loadcell.tune.outcome import MEASURED, TEACHES_DEATH, TrialResult
from loadcell.tune.parameters import Parameter, Place
from loadcell.tune.spec import LoadTable, Objective, StudySpec, StudyTable, TrialTable
from loadcell.tune.trial import Trial

from .trials import Told, generations, study, trial

pytestmark = pytest.mark.timeout(120)

WITHIN = ("ttft p95 <= 2s", "success_rate >= 90%")


def measured(tmp_path: Path, spec: StudySpec, kind="search", told: Told | None = None) -> TrialResult:
    for _ in range(3):
        result = trial(tmp_path, spec, told).measure({"max_num_seqs": 16}, 1, kind)
        if result.outcome != "invalid_measurement":  # of a machine that has more to do than this
            break
    assert Registry(tmp_path / "state").entries() == (), "a service was left behind"
    assert (tmp_path / "study" / (result.folder or "")).is_dir()
    return result


def test_a_trial_from_start_to_stop_sends_nothing_but_its_load(tmp_path: Path) -> None:
    log, told = tmp_path / "access.jsonl", Told()
    spec = study({"access-log": str(log)}, slo=WITHIN, bench={"warmup_requests": 5})
    result = measured(tmp_path, spec, told=told)
    assert (result.outcome, result.phase, result.verdict, result.attempts) == ("ok", "measure", "valid", 1)
    assert told.phases == ["plan", "launch", "warmup", "measure", "stop"]
    assert result.objective is not None
    assert result.objective == result.figures["throughput"]
    assert result.violations["ttft p95 <= 2s"] is not None
    assert all((margin or 0) < 0 for margin in result.violations.values())
    assert result.n["ttft_p95"] == 60
    assert result.load == {"concurrency": 4.0}
    assert result.launch_s > 0
    assert result.measure_s > 0
    assert generations(log) == 1 + 5 + 60  # readiness asks once, before any clock starts
    folder = tmp_path / "study" / str(result.folder)
    assert {path.name for path in (folder / "load").iterdir()} >= {"records.jsonl", "run.json", "summary.json", "report.md"}
    assert (folder / "logs" / "replica-0.log").exists()


@pytest.mark.parametrize("kind", ["search", "confirm"])
def test_its_services_are_recorded_as_those_of_the_studys_file(tmp_path: Path, kind: TrialKind) -> None:
    registry, seen = Registry(tmp_path / "state"), []

    class Looking(Told):
        def phase(self, number: int, phase: str) -> None:
            seen.extend((phase, entry.service, entry.source) for entry in registry.entries())

    source = tmp_path / "study.toml"
    Trial(study(), tmp_path / "study", registry, {}, watcher=Looking(), source=source).measure({"max_num_seqs": 16}, 1, kind)
    assert ("measure", "replica-0", str(source)) in seen


@pytest.mark.slow
def test_the_same_prompts_and_arrivals_meet_every_configuration(tmp_path: Path) -> None:
    from loadcell.recordlog import read_log

    runs = trial(tmp_path, study(bench={"num_prompts": 12, "range_ratio": 0.5}))
    results = [runs.measure({"max_num_seqs": seqs}, number, "search") for number, seqs in enumerate((2, 16))]
    asked = [[(one.index, one.input_asked, one.output_asked) for one in read_log(tmp_path / "study" / str(result.folder) / "load" / "records.jsonl")] for result in results]  # fmt: skip
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    ("args", "fleet", "outcome", "words"),
    [
        ({"fault": "oom_start"}, {}, "oom_start", "out of memory"),
        ({"no-such-option": 1}, {}, "bad_arguments", "no-such-option"),
        ({"fault": "slow_start,delay=60"}, {"start_timeout": 2}, "start_timeout", "start_timeout = 2 s"),
    ],
)
def test_a_start_that_fails_is_told_by_its_cause(tmp_path: Path, args, fleet, outcome, words) -> None:
    result = measured(tmp_path, study(args, fleet=fleet))
    assert (result.outcome, result.phase, result.objective) == (outcome, "launch", None)
    assert words in (result.evidence or "")
    assert outcome in TEACHES_DEATH
    assert result.attempts == 1


@pytest.mark.slow
def test_a_memory_that_does_not_suffice_under_load_is_told_from_one_at_start(tmp_path: Path) -> None:
    """The service starts, answers, and ends with the fifth request in flight."""
    result = measured(tmp_path, study({"fault": "oom_load,running=5"}, bench={"concurrency": 8}, slo=WITHIN))
    assert (result.outcome, result.objective) == ("oom_load", None)
    assert result.phase in ("warmup", "measure")
    assert "memory" in (result.evidence or "").lower()
    assert result.exit_code not in (None, 0)
    fine = measured(tmp_path, study({"fault": "oom_load,running=5"}, bench={"concurrency": 3}, slo=WITHIN))
    assert fine.outcome == "ok"


def test_a_service_that_dies_under_load_ends_its_trial_at_once(tmp_path: Path) -> None:
    began = time.monotonic()
    result = measured(tmp_path, study({"fault": "crash,after_requests=30,code=7"}, bench={"num_prompts": 100_000}, slo=WITHIN))
    assert (result.outcome, result.phase, result.exit_code) == ("crashed", "measure", 7)
    assert "exit code 7" in (result.evidence or "")
    assert time.monotonic() - began < 30


def test_no_token_of_any_request_for_the_time_that_was_stated_is_a_hang(tmp_path: Path) -> None:
    result = measured(tmp_path, study({"fault": "hang,after_requests=20"}, slo=WITHIN))
    assert (result.outcome, result.phase) == ("hung", "measure")
    assert "no token of any of 4 requests in flight for 3 s" in (result.evidence or "")


class Stops(Told):
    """SIGSTOPs the service when the measurement has begun."""

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        self._registry = registry

    def phase(self, number: int, phase: str) -> None:
        super().phase(number, phase)
        if phase == "measure":
            for entry in self._registry.entries():
                assert entry.group is not None
                os.kill(entry.group.pid, signal.SIGSTOP)


def test_a_service_that_was_stopped_by_a_signal_hangs_and_that_is_told(tmp_path: Path) -> None:
    result = measured(tmp_path, study(bench={"num_prompts": 5000}, slo=WITHIN), told=Stops(Registry(tmp_path / "state")))
    assert result.outcome == "hung"
    assert "stopped by a signal" in (result.evidence or "")


@pytest.mark.slow
def test_health_that_flaps_never_ends_a_trial(tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    args = {"access-log": str(log), "fault": ["fail_health,every=2", "slow_health,delay=3,every=3"]}
    spec = study(args, slo=WITHIN, bench={"health_check_interval": 0.2, "num_prompts": 200})
    result = measured(tmp_path, spec)
    assert result.outcome == "ok"
    assert generations(log) == 1 + 4 + 200


def test_a_port_that_somebody_has_is_the_machine_s_fault_and_tried_twice(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told = Told()
        result = measured(tmp_path, study(fleet={"port": taken.getsockname()[1]}), told=told)
    assert (result.outcome, result.attempts) == ("infrastructure", 2)
    assert "port" in (result.evidence or "")
    assert any("tried once more" in note for note in told.notes)
    assert result.outcome not in TEACHES_DEATH | MEASURED


def test_a_limit_that_is_missed_is_measured_to_its_end_where_something_is_compared_with_it(tmp_path: Path) -> None:
    spec = study(slo=("ttft p95 <= 5ms",))
    result = measured(tmp_path, spec, "default")
    assert (result.outcome, result.phase) == ("slo_violated", "measure")
    assert "times the limit" in (result.evidence or "")
    assert (result.violations["ttft p95 <= 5ms"] or 0) > 1
    assert result.n["ttft_p95"] == 60
    assert result.objective is not None
    assert not result.feasible


@pytest.mark.slow
def test_evidence_ends_a_search_trial_early(tmp_path: Path) -> None:
    spec = study(slo=("ttft p95 <= 5ms",), bench={"num_prompts": None, "duration": 60})
    result = measured(tmp_path, spec)
    assert result.outcome == "early_stopped"
    assert "ttft p95 <= 5ms is missed" in (result.evidence or "")
    assert result.measure_s < 25
    assert (result.violations["ttft p95 <= 5ms"] or 0) > 0
    kept = measured(tmp_path, study(slo=("ttft p95 <= 5ms",), trial=TrialTable(early_stop=False)))
    assert kept.outcome == "slo_violated"


@pytest.mark.slow
def test_requests_that_never_get_a_first_token_are_violations_before_they_end(tmp_path: Path) -> None:
    """From the second request on nothing is answered. What waits is counted; the trial is over long before anything ends."""
    bench = {"num_prompts": None, "duration": 60, "request_rate": 20, "concurrency": None, "warmup_requests": 0}
    spec = study({"fault": "hang,after_requests=2"}, slo=("ttft p95 <= 500ms",), trial=TrialTable(hang="60s"), bench=bench)
    result = measured(tmp_path, spec)
    assert result.outcome == "early_stopped"
    assert "ttft p95 <= 500ms is missed" in (result.evidence or "")
    assert result.measure_s < 30


@pytest.mark.slow
def test_what_cannot_reach_the_best_so_far_is_given_up(tmp_path: Path) -> None:
    bench = {"num_prompts": None, "duration": 40, "concurrency": 8}
    runs = trial(tmp_path, study(slo=WITHIN, bench=bench))
    best = TrialResult(0, {}, "ok", "measure", objective=1e6, figures={"throughput": 1e6})
    runs.remember(best)
    result = runs.measure({"max_num_seqs": 1}, 1, "search")
    assert result.outcome == "early_stopped"
    assert "of the best so far" in (result.evidence or "")
    assert runs.incumbent == best


def test_a_load_in_which_nothing_was_answered_is_no_measurement_of_zero(tmp_path: Path) -> None:
    result = measured(tmp_path, study({"fault": "reject,status=400,after_requests=1"}, bench={"request_max_retries": 0}))
    assert (result.outcome, result.objective) == ("bench_failed", None)
    assert "none of" in (result.evidence or "")
    assert "http_4xx" in (result.evidence or "")


def test_a_trial_that_may_only_take_so_long_ends_then(tmp_path: Path) -> None:
    spec = study(bench={"num_prompts": 100_000}, trial=TrialTable(timeout="3s"), slo=WITHIN)
    result = measured(tmp_path, spec)
    assert result.outcome == "ok"
    assert any("cut off after 3 s (trial.timeout)" in note for note in result.extra["notes"])


class Interrupts(Watcher):
    def show(self, snapshot: Snapshot) -> None:
        if snapshot.phase == "measure" and snapshot.done > 5:
            os.kill(os.getpid(), signal.SIGINT)


class Interrupting(Told):
    def load(self, number: int) -> Watcher:
        return Interrupts()


def test_the_user_s_signal_cancels_it_and_stops_its_services(tmp_path: Path) -> None:
    result = measured(tmp_path, study(bench={"num_prompts": 100_000}), told=Interrupting())
    assert (result.outcome, result.extra["signal"]) == ("cancelled", signal.SIGINT)


def test_a_signal_during_the_start_cancels_it_too(tmp_path: Path) -> None:
    threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    result = measured(tmp_path, study({"fault": "slow_start,delay=30"}))
    assert (result.outcome, result.phase, result.extra["signal"]) == ("cancelled", "launch", signal.SIGTERM)


def test_a_bug_of_ours_is_a_failed_trial_with_its_traceback(tmp_path: Path) -> None:
    class Broken(Told):
        def load(self, number: int) -> Watcher:
            raise ValueError("no such metric")

    result = measured(tmp_path, study(), told=Broken())
    assert (result.outcome, result.objective) == ("bench_failed", None)
    assert "ValueError: no such metric" in (result.evidence or "")
    assert "Traceback" in (tmp_path / "study" / str(result.folder) / "error.txt").read_text()


def test_an_illegal_placement_is_a_trial_s_failure_but_a_default_s_refusal(tmp_path: Path) -> None:
    port = Parameter("port", "int", Place(flag="--port"), low=1, high=9, default=None)
    spec = study(parameter=(port,))
    result = trial(tmp_path, spec).measure({"port": 5}, 3, "search")
    assert result.outcome == "bad_arguments"
    assert "fleet.port" in (result.evidence or "")
    with pytest.raises(UserError, match=r"fleet\.port"):
        trial(tmp_path, spec).measure({"port": 5}, 4, "default")


def test_caches_that_cannot_be_emptied_are_a_warning(tmp_path: Path) -> None:
    fine = measured(tmp_path, study())
    assert "notes" not in fine.extra
    from loadcell.tune.caches import reset

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        told = reset("vllm", [f"http://127.0.0.1:{nobody.getsockname()[1]}"])
    assert "prefix caches were not emptied" in (told or "")
    assert reset("mindie", ["http://127.0.0.1:1"]) is None


@pytest.mark.slow
def test_the_largest_load_within_the_limits_is_found_and_confirmed(tmp_path: Path) -> None:
    """Sixteen at a time are computed, whoever comes beyond waits for a slot: TTFT leaps there."""
    spec = study(
        {"ttft-ms": 300, "itl-ms": 20},
        slo=("ttft p95 <= 600ms",),
        load=LoadTable(mode="capacity", knob="concurrency", low=2, high=64, probes=6),
        bench={"concurrency": None, "num_prompts": "6x"},
    )
    result = trial(tmp_path, spec).measure({"max_num_seqs": 16}, 1, "search")
    found = result.extra["capacity"]
    assert result.outcome == "ok", result.evidence
    assert found["status"] in ("cliff", "found")
    assert 10 <= result.load["concurrency"] <= 17
    assert result.load["concurrency"] == found["load"]
    assert 3 <= len(found["probes"]) <= 6
    assert all(2 <= probe["load"] <= 64 for probe in found["probes"])
    assert result.objective is not None


@pytest.mark.slow
def test_a_bound_that_is_within_the_limits_is_told(tmp_path: Path) -> None:
    load = LoadTable(mode="capacity", knob="concurrency", low=2, high=8)
    spec = study(slo=("ttft p95 <= 2s",), load=load, bench={"concurrency": None, "num_prompts": 40})
    result = trial(tmp_path, spec).measure({"max_num_seqs": 16}, 1, "search")
    assert (result.outcome, result.load["concurrency"], result.extra["capacity"]["status"]) == ("ok", 8, "bound_reached")
    assert any("bound reached, limit not found" in note for note in result.extra["notes"])


@pytest.mark.slow
def test_no_load_within_the_limits_is_a_violation(tmp_path: Path) -> None:
    load = LoadTable(mode="capacity", knob="request_rate", low=2, high=40)
    spec = study(slo=("ttft p95 <= 5ms",), load=load, bench={"concurrency": None, "num_prompts": None, "duration": 3})
    result = trial(tmp_path, spec).measure({"max_num_seqs": 16}, 1, "search")
    assert result.outcome == "slo_violated"
    assert "a limit is missed at a load of 2 already" in (result.evidence or "")


def test_what_could_not_be_measured_is_refused_before_anything_starts(tmp_path: Path) -> None:
    trial(tmp_path, study(slo=WITHIN)).check()
    with pytest.raises(UserError, match="not streamed"):
        trial(tmp_path, study(slo=WITHIN, bench={"stream": False})).check()
    with pytest.raises(UserError, match="goodput"):
        trial(tmp_path, study(objective=Objective(metric="goodput"))).check()
    assert not list((tmp_path / "study").rglob("*.log"))


def test_a_front_has_its_latency_among_the_figures(tmp_path: Path) -> None:
    spec = study(objective=Objective(pareto=("throughput", "ttft p90")), study=StudyTable(name="front"))
    result = measured(tmp_path, spec)
    assert result.figures["ttft_p90"] is not None
    assert result.objective == result.figures["throughput"]
