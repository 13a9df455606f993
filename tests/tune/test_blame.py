"""Who is to blame: tables of causes, and what weighs more than what."""

from typing import get_args

import pytest
from msgspec.structs import replace
from tests.metrics.build import attempt, endpoint, failed, record

from loadcell.clock import NS_PER_S
from loadcell.fleet.monitor import FleetEvent
from loadcell.fleet.readiness import FailureCause
from loadcell.fleet.spec import Cause
from loadcell.metrics.facts import RunFacts, WorkerFacts
from loadcell.metrics.summarize import summarize
from loadcell.metrics.summary import Summary
from loadcell.testing.fake_clock import FakeClock
from loadcell.tune.blame import AT_START, UNDER_LOAD, Death, Ending, of_load, of_start
from loadcell.tune.happenings import Happenings, code_in
from loadcell.tune.objective import Score
from loadcell.tune.outcome import MEASURED, TEACHES_DEATH
from loadcell.tune.sequential import Stop

GOOD = Score(100.0, 1.0, {}, {}, {"ttft p95 <= 1s": -0.5}, "steady")
BAD = Score(100.0, 1.0, {}, {}, {"ttft p95 <= 1s": 0.7, "e2e p95 <= 9s": 0.1}, "steady")


def summary(ok: int = 60, broken: int = 0, late_us: float = 100.0, **facts: object) -> Summary:
    records = [record(k, [attempt(k * 100, [k * 100 + 50, k * 100 + 60])]) for k in range(ok)]
    records += [record(ok + k, [failed(k, k + 1, "http_5xx", error="out of memory")]) for k in range(broken)]
    found = RunFacts(
        endpoints=(endpoint(0),), offered_rate=10.0, workers=(WorkerFacts(lag_p99_us=late_us, wall_s=6.0, cpu_s=1.0),), **facts
    )
    return summarize(found, records)


def ending(**how: object) -> Ending:
    return Ending(**({"summary": summary(), "score": GOOD} | how))  # type: ignore[arg-type]


@pytest.mark.parametrize("cause", [*get_args(get_args(FailureCause)[0]), *get_args(get_args(FailureCause)[1])])
def test_every_cause_of_a_start_that_failed_has_an_outcome(cause: str) -> None:
    assert AT_START[cause] not in MEASURED


def test_every_cause_in_a_log_under_load_has_one() -> None:
    assert set(UNDER_LOAD) == set(get_args(Cause))


@pytest.mark.parametrize(
    ("cause", "outcome", "teaches"),
    [
        ("out_of_memory", "oom_start", True),
        ("bad_arguments", "bad_arguments", True),
        ("missing_model", "bad_arguments", True),
        ("timed_out", "start_timeout", True),
        ("exited", "crashed", True),
        ("port_taken", "infrastructure", False),
        ("driver_fault", "infrastructure", False),
        ("host_unreachable", "infrastructure", False),
        ("aborted", "cancelled", False),
        ("something new", "crashed", True),
    ],
)
def test_only_what_the_configuration_caused_teaches(cause: str, outcome: str, teaches: bool) -> None:
    found = of_start(cause, f"replica-0 did not start: {cause}\n  the last lines", 1, ("a", "RuntimeError: no"))
    assert (found.outcome, found.phase, found.code) == (outcome, "launch", 1)
    assert (found.outcome in TEACHES_DEATH) is teaches
    assert "\n" not in (found.evidence or "")


def test_a_crash_without_a_cause_quotes_the_last_line_of_its_log() -> None:
    assert (of_start("exited", "it ended: exit code 1", 1, ("RuntimeError: shape mismatch",)).evidence or "").endswith(
        "RuntimeError: shape mismatch"
    )


@pytest.mark.parametrize(
    ("how", "outcome", "words"),
    [
        ({"signal": 2, "death": Death("died")}, "cancelled", "signal 2"),
        ({"death": Death("replica-0 died: exit code 1", log=("out_of_memory", "torch.OutOfMemoryError"))}, "oom_load", "torch.OutOfMemory"),
        ({"death": Death("died", log=("driver_fault", "Xid 79"))}, "infrastructure", "Xid 79"),
        ({"death": Death("cut off", "host unreachable", log=("out_of_memory", "x"))}, "infrastructure", "cut off"),
        ({"death": Death("replica-0 died: exit code 1")}, "crashed", "exit code 1"),
        ({"hung": "no token", "early": Stop("slo", "x")}, "hung", "no token"),
        ({"slow": "the warm-up"}, "start_timeout", "warm-up"),
        ({"early": Stop("backlog", "the backlog grows")}, "early_stopped", "backlog"),
        ({"failure": "no tokenizer", "summary": None, "score": None}, "bench_failed", "no tokenizer"),
        ({"summary": None, "score": None}, "bench_failed", "nothing was measured"),
        ({"summary": summary(ok=0, broken=5)}, "bench_failed", "none of 5 requests was ok"),
        ({"summary": summary(broken=5), "log": ("out_of_memory", "NPU out of memory")}, "oom_load", "NPU out"),
        ({"summary": summary(), "log": ("out_of_memory", "NPU out of memory")}, "ok", None),
        ({"summary": summary(stop_reason="worker_lost", lost_workers=(0,))}, "bench_failed", "worker_lost"),
        ({"summary": summary(stop_reason="patience", stop_detail="no endpoint was available")}, "crashed", "no endpoint"),
        ({"summary": summary(late_us=400_000)}, "invalid_measurement", "client"),
        ({"score": BAD}, "slo_violated", "ttft p95 <= 1s: 2.01 times the limit; e2e"),
        ({"score": replace(GOOD, violations={"a": None})}, "bench_failed", "cannot be judged: a"),
        ({"score": replace(GOOD, objective=None, why_null="throughput could not be measured")}, "bench_failed", "throughput could not"),
        ({}, "ok", None),
    ],
)
def test_the_heaviest_reason_counts(how: dict[str, object], outcome: str, words: str | None) -> None:
    found = of_load(ending(**how))
    assert found.outcome == outcome
    assert found.phase == "measure"
    assert found.evidence is None if words is None else words in (found.evidence or "")


def test_what_happened_to_a_service() -> None:
    clock = FakeClock()
    seen = Happenings(clock)
    assert not seen.add(FleetEvent("t", "replica-0", "serving", "hung", "stopped by a signal: process 7"))
    clock.sleep_until(clock.now_ns() + 4 * NS_PER_S)
    assert seen.stopped_s() == 4
    assert seen.stopped() == "replica-0 stopped by a signal: process 7"
    assert not seen.add(FleetEvent("t", "replica-0", "serving", "resumed", "runs again"))
    assert seen.stopped_s() == 0
    assert seen.death() is None
    assert seen.add(FleetEvent("t", "replica-0", "failed", "died", "died: killed by SIGKILL (exit code -9); last line: x"))
    death = seen.death()
    assert death is not None
    assert (death.kind, death.code) == ("died", -9)
    assert len(seen.texts) == 3


@pytest.mark.parametrize(("text", "code"), [("died: exit code 3; x", 3), ("killed by SIGKILL (exit code -9)", -9), ("it is gone without an exit code", None), ("", None)])  # fmt: skip
def test_the_exit_code_in_a_text(text: str, code: int | None) -> None:
    assert code_in(text) == code
