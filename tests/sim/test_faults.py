import pytest

from loadcell.errors import UserError
from loadcell.sim.faults import Fault, FaultPlan, parse_fault


def plan(*texts: str, seed: int = 0) -> FaultPlan:
    return FaultPlan(tuple(map(parse_fault, texts)), seed)


def struck(faults: FaultPlan, numbers: range, elapsed_s: float = 0.0) -> list[int]:
    return [n for n in numbers if faults.for_request(n, elapsed_s, 1)]


def test_a_fault_is_read_from_its_words() -> None:
    assert parse_fault("reject,status=429,retry-after=1.5,every=10") == Fault("reject", status=429, retry_after=1.5, every=10)
    assert parse_fault("crash") == Fault("crash")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("crsh", "did you mean 'crash'"),
        ("hang,aftr=3", "did you mean 'after'"),
        ("hang,status=3", "hang takes no 'status'"),
        ("hang,after", "after=VALUE"),
        ("hang,after=soon", "after"),
        ("hang,every=0", "every must be at least 1"),
        ("hang,probability=2", "between 0 and 1"),
        ("truncate,how=rudely", "how"),
    ],
)
def test_a_wrong_word_is_named(text: str, named: str) -> None:
    with pytest.raises(UserError, match=named) as error:
        parse_fault(text)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("reject", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ("reject,every=3", [3, 6, 9]),
        ("reject,after_requests=7", [8, 9, 10]),
        ("reject,after_requests=2,every=4", [6, 10]),
        ("reject,probability=0", []),
        ("reject,after=5", []),
    ],
)
def test_when_by_request(text: str, expected: list[int]) -> None:
    assert struck(plan(text), range(1, 11)) == expected


def test_when_by_time() -> None:
    faults = plan("reject,after=5,until=8")
    assert [bool(faults.for_request(1, s, 1)) for s in (4.9, 5.0, 7.9, 8.0)] == [False, True, True, False]


def test_probability_is_drawn_from_the_seed_and_by_request() -> None:
    first, again, other = (struck(plan("reject,probability=0.3", seed=seed), range(1, 2001)) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == pytest.approx(600, rel=0.1)


def test_the_first_given_wins_and_the_others_have_their_turn() -> None:
    faults = plan("hang,every=4", "reject,every=2")
    found = {n: fault.kind for n in range(1, 5) if (fault := faults.for_request(n, 0, 1))}
    assert found == {2: "reject", 4: "hang"}


def test_a_crash_at_a_moment_is_no_requests_business() -> None:
    faults = plan("crash,after=3", "exit,after=9", "oom_load,running=8")
    assert [(fault.kind, fault.after, fault.exit_code) for fault in faults.ends()] == [("crash", 3, 1), ("exit", 9, 0)]
    assert faults.for_request(1, 100, 7) is None
    assert faults.for_request(1, 0, 8) == Fault("oom_load", running=8)


def test_a_crash_with_a_request_waits_for_it() -> None:
    faults = plan("crash,after_requests=2,tokens=5,code=-9")
    assert not faults.ends()
    assert struck(faults, range(1, 4)) == [3]
    assert parse_fault("crash,code=-9").exit_code == -9


def test_health_faults_combine() -> None:
    faults = plan("slow_health,delay=2", "fail_health,after=10,status=500")
    assert faults.for_health(1, 0) == (2, 200)
    assert faults.for_health(2, 10) == (2, 500)
    assert plan("fail_health,every=2").for_health(1, 0) == (0, 200)
    assert plan("reject").for_health(1, 0) == (0, 200)


def test_closing_of_idle_connections() -> None:
    assert plan("close,delay=0.5").closing(1, 0) == 0.5
    assert plan("close,after=5").closing(1, 0) is None
    assert not plan("reject").idle_close
