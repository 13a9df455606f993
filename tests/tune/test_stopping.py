import pytest

from loadcell.tune.stopping import Budget, Progress, reserve, stop

OK = ("ok", "report")
START = ("oom_start", "launch")
LOAD = ("oom_load", "measure")
MACHINE = ("infrastructure", "launch")


@pytest.mark.parametrize(
    ("progress", "budget", "reason"),
    [
        (Progress(), Budget(), None),
        (Progress(elapsed_s=99), Budget(wall_s=100), None),
        (Progress(elapsed_s=100), Budget(wall_s=100), "wall_clock"),
        (Progress(trials=29), Budget(trials=30), None),
        (Progress(trials=30), Budget(trials=30), "trials"),
        (Progress(launches=7), Budget(launches=7), "launches"),
        (Progress(exhausted=True), Budget(), "exhausted"),
        (Progress(gains=[0.2, *[0.009] * 5]), Budget(), "no_gain_expected"),
        (Progress(gains=[0.009] * 4), Budget(), None),
        (Progress(gains=[0.009] * 4 + [0.01]), Budget(), None),
        (Progress(gains=[0.009] * 4 + [None]), Budget(), None),
        (Progress(ended=[OK, MACHINE, MACHINE, MACHINE]), Budget(), "infrastructure"),
        (Progress(ended=[MACHINE, MACHINE, OK, MACHINE]), Budget(), None),
        (Progress(ended=[START] * 5), Budget(), "nothing_starts"),
        (Progress(ended=[START] * 4), Budget(), None),
        (Progress(ended=[START, START, MACHINE, START, START, START]), Budget(), "nothing_starts"),
        (Progress(ended=[OK, *[START] * 9]), Budget(), None),
        (Progress(ended=[START, START, LOAD, START, START]), Budget(), None),
        (Progress(ended=[START] * 5, trials=30), Budget(trials=30), "nothing_starts"),
    ],
)
def test_table_of_reasons(progress: Progress, budget: Budget, reason: str | None) -> None:
    found = stop(progress, budget)
    assert (found.reason if found else None) == reason


def test_breakers_fail_the_study_and_budgets_do_not() -> None:
    broken, ended = stop(Progress(ended=[MACHINE] * 3), Budget()), stop(Progress(trials=3), Budget(trials=3))
    assert broken is not None
    assert broken.failed
    assert ended is not None
    assert not ended.failed


def test_confirmation_is_reserved_but_never_more_than_half() -> None:
    assert reserve(Budget(3600, 30, 40), 16, 60) == Budget(2640, 30, 24)
    assert reserve(Budget(600, None, 10), 24, 60) == Budget(300, None, 5)
    assert reserve(Budget(), 24, 60) == Budget()
