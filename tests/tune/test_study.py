"""The loop over a response surface: what is tried and in which order, when it ends, what is announced."""

import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from studies import LIMIT, MEMORY, SEQS, Ready, dead, flat, hill

from loadcell.tune import drift
from loadcell.tune.outcome import TrialResult
from loadcell.tune.parameters import Constraint, Parameter, Place
from loadcell.tune.spec import Confirm
from loadcell.tune.standing import SECOND, front
from loadcell.tune.stopping import Budget

pytestmark = pytest.mark.slow


def kinds(ready):
    return [kind for _, kind, _ in ready.fake.calls]


def test_the_winner_is_confirmed_and_near_the_default(tmp_path):
    ready = Ready(tmp_path / "s", budget=Budget(trials=20))
    closed = ready.run()
    assert (closed.state, closed.announced) == ("complete", "winner")
    assert closed.best is not None
    assert 128 <= closed.best["seqs"] <= 512
    assert closed.best["caching"] is True, "what does not matter is put back"
    assert closed.best["memory"] == 0.9
    assert ready.record.judged is not None
    assert ready.record.judged.rounds >= 3


def test_trial_0_is_the_default_then_the_known_then_filling_then_the_search(tmp_path):
    ready = Ready(
        tmp_path / "s", known=({"seqs": 128, "memory": 0.8, "caching": False},), budget=Budget(trials=7), confirm=Confirm(max_rounds=0)
    )
    ready.run()
    assert ready.fake.calls[0] == (0, "default", {"seqs": 64, "memory": 0.9, "caching": True})
    assert ready.fake.calls[1] == (1, "known", {"seqs": 128, "memory": 0.8, "caching": False})
    rest = kinds(ready)[2:]
    assert rest == sorted(rest), "filling comes before the search"
    assert set(rest) == {"fill", "search"}


def test_no_configuration_is_measured_twice_in_the_search(tmp_path):
    ready = Ready(tmp_path / "s", budget=Budget(trials=16), confirm=Confirm(max_rounds=0))
    ready.run()
    searched = [ready.space.key(one) for _, kind, one in ready.fake.calls if kind not in ("drift", "confirm", "revert")]
    assert len(set(searched)) == len(searched)


def test_every_eighth_trial_is_the_baseline(tmp_path):
    ready = Ready(tmp_path / "s", budget=Budget(trials=24), confirm=Confirm(max_rounds=0))
    ready.run()
    assert [at for at, kind in enumerate(kinds(ready)) if kind == "drift"] == [7, 15, 23]
    assert all(one == {"seqs": 64, "memory": 0.9, "caching": True} for _, kind, one in ready.fake.calls if kind == "drift")


def test_a_drift_of_the_machine_is_said_and_taken_out(tmp_path):
    calls = []

    def warming(configuration, rng):
        calls.append(1)
        told = flat(configuration, rng)
        return told | {"objective": 1000 * 0.97 ** len(calls)}

    ready = Ready(tmp_path / "s", warming, budget=Budget(trials=17), confirm=Confirm(max_rounds=0))
    ready.run()
    assert any(one.significant for one in ready.record.drifts)
    assert any("drifted" in note for note in ready.told.notes)
    corrected = ready.study._measuring.corrected()
    assert corrected[-1].objective == pytest.approx(corrected[0].objective, rel=0.08), "0.97^17 = 0.6 without the correction"


def test_a_flat_surface_ends_in_no_reliable_improvement(tmp_path):
    ready = Ready(tmp_path / "s", flat, budget=Budget(trials=12))
    closed = ready.run()
    assert (closed.state, closed.announced) == ("complete", "no_reliable_improvement")
    assert closed.best == ready.space.default()


def test_nothing_that_starts_ends_after_five_trials_with_the_cause_first(tmp_path):
    ready = Ready(tmp_path / "s", dead, budget=Budget(trials=50))
    closed = ready.run()
    assert len(ready.fake.calls) == 5
    assert closed.state == "failed"
    assert closed.text.startswith("no trial succeeded: 5 of 5 ended as oom_start (No available memory for the cache blocks)")


def test_a_budget_that_is_smaller_than_the_breaker_is_kept(tmp_path):
    ready = Ready(tmp_path / "s", dead, budget=Budget(trials=3))
    closed = ready.run()
    assert (len(ready.fake.calls), closed.state) == (3, "failed")
    assert closed.text.startswith("no trial succeeded: 3 of 3")


def test_three_failures_of_the_machine_in_a_row_end_it(tmp_path):
    def broken(configuration, rng):
        return {"outcome": "infrastructure", "phase": "launch", "evidence": "port 8000 is taken", "attempts": 2}

    ready = Ready(tmp_path / "s", broken, budget=Budget(trials=50))
    closed = ready.run()
    assert (len(ready.fake.calls), closed.state) == (3, "failed")
    assert "port 8000 is taken" in closed.text


def test_a_default_that_fails_its_limits_is_beaten_by_who_meets_them(tmp_path):
    slow = msgspec.structs.replace(SEQS, default=1024)
    ready = Ready(tmp_path / "s", parameters=(slow, MEMORY), budget=Budget(trials=16))
    closed = ready.run()
    assert closed.announced == "default_fails"
    assert closed.best is not None
    assert closed.best["seqs"] < 512


def test_launches_and_wall_clock_hold_the_confirmation_too(tmp_path):
    ready = Ready(tmp_path / "s", budget=Budget(launches=30))
    ready.run()
    assert len(ready.fake.calls) <= 30
    assert kinds(ready).count("confirm") >= 12
    ready = Ready(tmp_path / "w", budget=Budget(wall_s=30 * 60))
    ready.run()
    assert len(ready.fake.calls) <= 31
    assert kinds(ready).count("confirm") >= 9


def test_a_space_that_is_tried_through_ends_the_search(tmp_path):
    few = Parameter("seqs", "int", Place(flag="--s"), ladder=(64, 128, 256), default=64)
    for sampler in ("model", "random", "grid", "tpe", "pso"):
        ready = Ready(tmp_path / sampler, parameters=(few,), sampler=sampler, budget=Budget(trials=200), confirm=Confirm(max_rounds=0))
        ready.run()
        assert ready.record.searched is not None
        assert ready.record.searched.reason == "exhausted", sampler
        assert sorted(one["seqs"] for _, kind, one in ready.fake.calls if kind != "drift") == [64, 128, 256], sampler


def test_a_duplicate_is_answered_from_the_record(tmp_path):
    few = Parameter("seqs", "int", Place(flag="--s"), ladder=(64, 128), default=64)
    ready = Ready(tmp_path / "s", parameters=(few,), sampler="random", budget=Budget(trials=30), confirm=Confirm(max_rounds=0))
    ready.run()
    assert len(ready.fake.calls) == 2
    assert len(ready.record.answered) == 50
    assert {one.same_as for one in ready.record.answered} <= {number for number, _, _ in ready.fake.calls}


def test_a_signal_during_a_trial_leaves_it_open(tmp_path):
    def asked(configuration, rng):
        if len(ready.fake.calls) == 3:
            return {"outcome": "cancelled", "phase": "measure", "extra": {"signal": 15}}
        return hill(configuration, rng)

    ready = Ready(tmp_path / "s", asked, budget=Budget(trials=10))
    closed = ready.run()
    assert (closed.state, ready.study.signal) == ("interrupted", 15)
    assert [one.number for one in ready.record.in_flight()] == [2]


def test_a_signal_between_trials_ends_it_before_the_next(tmp_path):
    ready = Ready(tmp_path / "s", at=lambda number: ready.study.on_signal(2) if number == 4 else None, budget=Budget(trials=10))
    assert ready.run().state == "interrupted"
    assert len(ready.fake.calls) == 5
    assert not ready.record.in_flight(), "a trial that came to its end is one"


def test_a_front_of_two_objectives(tmp_path):
    def second(result):
        latency = result.figures.get("ttft_p95")
        return 1 / latency if latency else None

    ready = Ready(tmp_path / "s", second=second, budget=Budget(trials=16))
    closed = ready.run()
    assert (closed.state, closed.announced) == ("complete", "front")
    assert "confirm" not in kinds(ready)
    assert ready.record.results["search/0"].figures["second"] is not None


def inverse_of_the_latency(result):
    return 1 / result.figures["ttft_p95"] if "ttft_p95" in result.figures else None


def contrary(configuration, rng):
    """More sequences: more throughput, and later first tokens."""
    seqs = float(configuration["seqs"])
    value = float(1000 * seqs / (seqs + 100) * np.exp(rng.normal(0, 0.01)))
    latency = float(0.05 * (1 + seqs / 64) * np.exp(rng.normal(0, 0.01)))
    figures = {"throughput": value, "ttft_p95": latency}
    return {"outcome": "ok", "phase": "report", "objective": value, "violations": {LIMIT: -1.0}, "figures": figures}


@pytest.mark.slow
def test_the_search_for_a_front_has_the_whole_budget_and_does_not_end_before_both_its_ends_are_known(tmp_path):
    ready = Ready(tmp_path / "s", contrary, second=inverse_of_the_latency, budget=Budget(launches=40))
    closed = ready.run()
    found = front(ready.record.searching(), lambda one: one.figures[SECOND])
    assert closed.text == f"a front of {len(found)} configurations within the limits; none of them is confirmed"
    assert ready.record.searched.reason in ("no_gain_expected", "launches")
    assert len(ready.record.results) > 16, "as long as any weighting of the two promises more"
    seqs = sorted(one.configuration["seqs"] for one in found)
    assert seqs[0] < 8
    assert seqs[-1] > 500
    assert {one.kind for one in found} <= {"default", "fill", "search"}, "a control of drift is none"


def test_where_nothing_is_within_the_limits_there_is_no_front_and_no_improvement(tmp_path):
    def slow(configuration, rng):
        return contrary(configuration, rng) | {"outcome": "slo_violated", "violations": {LIMIT: 0.5}}

    closed = Ready(tmp_path / "f", slow, second=inverse_of_the_latency, budget=Budget(trials=4)).run()
    assert (closed.state, closed.announced, closed.best) == ("failed", "none", None)
    assert closed.text.startswith("nothing was measured within the limits, so that there is no front")
    closed = Ready(tmp_path / "s", slow, budget=Budget(trials=4)).run()
    assert (closed.state, closed.announced) == ("complete", "no_reliable_improvement")
    assert closed.text == "no reliable improvement: nothing was measured to be within the limits"


def test_a_default_that_is_not_legal_is_not_measured_and_not_said_to_fail(tmp_path):
    made = Ready(tmp_path / "s", constraints=(Constraint("seqs > 100"),), budget=Budget(trials=6), confirm=Confirm(1, 2, 2))
    closed = made.run()
    assert "default" not in kinds(made)
    assert closed.announced == "default_fails"
    assert closed.text == "the default is not legal (seqs > 100 is false with seqs = 64), this one is within every limit"
    assert any("the default is not legal" in stage for stage in made.told.stages)


def test_a_baseline_that_the_client_could_not_measure_is_no_drift():
    first = TrialResult(0, {"seqs": 64}, "ok", "report", kind="default", objective=1000.0)
    for outcome, drifted in (("invalid_measurement", False), ("infrastructure", False), ("crashed", True)):
        assert drift.change([first, TrialResult(7, {"seqs": 64}, outcome, "measure", kind="drift")]).significant is drifted


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "cmaes", "qmc", "random", "pso"])
def test_every_sampler_gets_through_a_study(tmp_path, sampler):
    if sampler == "cmaes":
        pytest.importorskip("cmaes")
    ready = Ready(tmp_path / "s", sampler=sampler, budget=Budget(trials=12), confirm=Confirm(max_rounds=3))
    assert ready.run().state == "complete"
    assert LIMIT in ready.record.results["search/0"].violations


def test_two_machines_share_a_storage_and_one_confirms(tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    one = Ready(tmp_path / "a", storage=url, budget=Budget(trials=6))
    other = Ready(tmp_path / "b", storage=url, budget=Budget(trials=9))
    one.run()
    closed = other.run()
    numbers = [number for ready in (one, other) for number, kind, _ in ready.fake.calls if kind not in ("confirm", "revert")]
    assert len(set(numbers)) == len(numbers) == 9
    assert sum(kind == "default" for ready in (one, other) for _, kind, _ in ready.fake.calls) == 1
    assert "confirm" in kinds(one)
    assert "confirm" not in kinds(other)
    assert closed.announced == "not_confirmed"


def test_what_is_announced_was_measured_as_it_is(tmp_path):
    ready = Ready(tmp_path / "s", budget=Budget(trials=20))
    closed = ready.run()
    settled = ready.record.settled
    assert any(one.accepted for one in ready.record.reverted)
    assert settled is not None
    assert settled.configuration == closed.best
    assert settled.decision.text == closed.text
    assert settled.rounds >= 3


def test_an_expected_improvement_is_believed_when_trials_are_enough(tmp_path):
    ready = Ready(tmp_path / "s", flat, budget=Budget(trials=60), confirm=Confirm(max_rounds=0))
    ready.run()
    assert ready.record.searched is not None
    assert ready.record.searched.reason == "no_gain_expected"
    assert 2 * len(ready.space.searched) <= len(ready.record.searching()) < 60
