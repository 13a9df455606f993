"""One of two real servers dies in the middle of a run."""

import time

import pytest

from loadcell.records import RETRYABLE

from .engine import Engine
from .product import Bench, Run

pytestmark = [pytest.mark.real, pytest.mark.timeout(300, func_only=True)]

REQUESTS = 60
LOAD = ("--num-prompts", str(REQUESTS), "--concurrency", "8", "--input-len", "64", "--health-check-interval", "1")
# Of different lengths, so that some answers are in the middle whenever it dies.
LENGTHS = ("--output-len", "48", "--range-ratio", '{"input": 0, "output": 0.7}')


class Story:
    """The run, and when the server was killed (ns since the run's origin)."""

    def __init__(self, run: Run, killed_ns: int) -> None:
        self.run, self.killed_ns = run, killed_ns


@pytest.fixture(scope="module")
def story(engines: list[Engine], tmp_path_factory: pytest.TempPathFactory) -> Story:
    with Bench(engines, tmp_path_factory.mktemp("killed"), (*LOAD, *LENGTHS)) as running:
        while running.records_so_far() < REQUESTS // 5:
            assert not running.ended
            time.sleep(0.02)
        killed_ns = time.monotonic_ns()
        engines[1].kill()
        run = running.finish()
    return Story(run, killed_ns - run.header.origin.monotonic_ns)


def test_the_run_ends_with_the_other(story: Story) -> None:
    run = story.run
    assert [record.outcome for record in run.records] == ["ok"] * REQUESTS, run
    assert all(record.attempts[-1].output_tokens == record.output_asked for record in run.records)
    assert {record.attempts[-1].endpoint for record in run.records if (record.attempts[-1].dispatched_ns or 0) > story.killed_ns} == {0}
    assert run.summary["stop_reason"] == "count"


def test_failed_requests_are_recorded_attempt_by_attempt(story: Story) -> None:
    retried = [record for record in story.run.records if len(record.attempts) > 1]
    counts = story.run.summary["whole"]["counts"]
    assert retried
    for record in retried:
        *failed, last = record.attempts
        assert (last.endpoint, last.outcome) == (0, "ok")
        assert {attempt.endpoint for attempt in failed} == {1}
        assert all(attempt.outcome in RETRYABLE and attempt.error for attempt in failed)
        assert all((attempt.done_ns or attempt.dispatched_ns or 0) >= story.killed_ns for attempt in failed)
    assert counts["retried"] == len(retried)
    assert counts["failed_attempts"] == sum(len(record.attempts) - 1 for record in retried)
    assert counts["attempts"] == REQUESTS + counts["failed_attempts"]


def test_tokens_of_cut_answers_are_wasted_not_delivered(story: Story) -> None:
    cut = [attempt for record in story.run.records for attempt in record.attempts[:-1] if attempt.chunk_us]
    rates = story.run.summary["whole"]["rates"]
    assert cut  # it died while answers were streaming
    assert rates["wasted_output_tokens"] >= sum(len(attempt.chunk_us) for attempt in cut)
    assert rates["output_tokens_in_window"] == sum(record.output_asked or 0 for record in story.run.records)


def test_the_log_names_the_moment_and_the_cause(story: Story, engines: list[Engine]) -> None:
    ejected = [event for event in story.run.events if event.kind == "endpoint_unhealthy"]
    assert [event.endpoint for event in ejected][:1] == [engines[1].name]
    assert 0 <= ejected[0].at_ns - story.killed_ns < 3_000_000_000
    assert "failed" in (ejected[0].cause or "")
    assert engines[1].name in story.run.err  # and the terminal says it while it happens


def test_one_is_healthy_at_the_end(story: Story, engines: list[Engine]) -> None:
    run = story.run
    assert run.summary["healthy_at_end"] == [engines[0].name]
    lost, kept = run.endpoint(engines[1]), run.endpoint(engines[0])
    assert (lost["healthy_at_end"], kept["healthy_at_end"], kept["ejections"], kept["failed_attempts"]) == (False, True, 0, 0)
    assert lost["ejections"] >= 1
    assert lost["failed_attempts"] == run.summary["whole"]["counts"]["failed_attempts"]


def test_the_verdict_says_so_and_the_exit_code_is_that_of_a_suspect_run(story: Story, engines: list[Engine]) -> None:
    run = story.run
    lost = [reason for reason in run.summary["reasons"] if reason["rule"] == "endpoint_lost"]
    assert len(lost) == 1
    assert engines[1].name in lost[0]["observed"]
    assert run.faults == ["endpoint_lost"], run
    assert run.late or run.judged == ("suspect", 0)
    states = {one["endpoint"]: one["state"] for one in run.summary["purity"]}
    assert states == {engines[0].name: "pure", engines[1].name: "unknown"}
