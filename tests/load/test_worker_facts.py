"""Which of a worker's own measures tells how late it was."""

from loadcell.load.facts import worker_facts
from loadcell.load.plan import WorkerReport


def _report(lag_us: list[int], loop_us: list[int], unseen_us: list[int]) -> WorkerReport:
    return WorkerReport(
        worker=0, cpu_s=1.0, wall_s=2.0, polls=9, lag_us=lag_us, loop_us=loop_us, unseen_us=unseen_us,
        kernel_reads=0, clock_reads=0, starved_ns=0, tick_ns=0, uncounted=0,
    )  # fmt: skip


def test_an_open_loop_is_late_when_its_requests_leave_late() -> None:
    facts = worker_facts(_report([100] * 99 + [7000] * 2, [1] * 500, [50_000] * 200), open_loop=True)
    assert (facts.lag_p50_us, facts.lag_p99_us, facts.lag_max_us) == (100.0, 7000.0, 7000.0)


def test_a_closed_loop_is_late_when_its_loop_is_or_when_answers_lie_unseen() -> None:
    assert worker_facts(_report([9], [30] * 500, [20] * 200), open_loop=False).lag_p99_us == 30.0
    assert worker_facts(_report([9], [30] * 500, [20] * 150 + [80_000] * 50), open_loop=False).lag_p99_us == 80_000.0


def test_a_few_answers_prove_nothing() -> None:
    assert worker_facts(_report([], [30] * 500, [80_000] * 99), open_loop=False).lag_p99_us == 30.0


def test_one_hiccup_of_a_short_run_is_its_maximum_and_no_tail() -> None:
    facts = worker_facts(_report([100] * 19 + [7000], [], []), open_loop=True)
    assert (facts.lag_p99_us, facts.lag_max_us) == (100.0, 7000.0)
    assert worker_facts(_report([6000] * 20, [], []), open_loop=True).lag_p99_us == 6000.0
    assert worker_facts(_report([7000], [], []), open_loop=True).lag_p99_us == 7000.0


def test_what_was_not_measured_is_null() -> None:
    facts = worker_facts(_report([], [], []), open_loop=True)
    assert (facts.lag_p50_us, facts.lag_p99_us, facts.lag_max_us) == (None, None, None)
