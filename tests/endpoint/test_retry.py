"""The retry decision, the patience and the fatal answers, as tables of values."""

from typing import get_args

import pytest

from loadcell.endpoint.retry import Retry, after_failure, is_fatal, max_retries, when_none_available
from loadcell.endpoint.spec import EndpointSpec
from loadcell.records import RETRYABLE, Outcome

SPEC = EndpointSpec()
MS = 1_000_000


def test_retries_by_default_only_where_there_is_another_endpoint() -> None:
    assert [max_retries(SPEC, n) for n in (1, 2, 8)] == [0, 2, 2]
    assert [max_retries(EndpointSpec(max_retries=5), n) for n in (1, 2)] == [5, 5]
    assert max_retries(EndpointSpec(max_retries=0), 4) == 0


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_only_the_decided_outcomes_are_retried(outcome: Outcome) -> None:
    retried = after_failure(outcome, 1, SPEC, 2, untried=1, others=1)
    assert retried == (Retry() if outcome in RETRYABLE else None)


@pytest.mark.parametrize(
    ("attempts_made", "n", "max_", "untried", "others", "retry_after_s", "wait_ms"),
    [
        (1, 1, None, 0, 0, None, None),  # one endpoint: none by default
        (1, 1, None, 0, 0, 3.0, None),
        (1, 1, 3, 0, 0, None, 100),
        (2, 1, 3, 0, 0, None, 200),
        (3, 1, 3, 0, 0, None, 400),
        (4, 1, 3, 0, 0, None, None),
        (7, 1, 99, 0, 0, None, 5000),  # capped
        (80, 1, 99, 0, 0, None, 5000),
        (1, 1, 3, 0, 0, 3.0, 3000),  # waits as long as it was told
        (1, 1, 3, 0, 0, 0.0, 100),
        (1, 1, 3, 0, 0, float("nan"), 100),
        (1, 2, None, 1, 1, None, 0),  # another one at once
        (1, 2, None, 1, 1, 3.0, 0),  # also while the first one rests
        (2, 2, None, 0, 1, None, 200),  # both were asked
        (2, 2, None, 0, 1, 3.0, 200),  # this one rests, the other one is there
        (2, 2, None, 0, 0, 3.0, 3000),
        (3, 2, None, 0, 1, None, None),  # two retries are made
    ],
)
def test_where_and_when(
    attempts_made: int, n: int, max_: int | None, untried: int, others: int, retry_after_s: float | None, wait_ms: int | None
) -> None:
    spec = EndpointSpec(max_retries=max_)
    decided = after_failure("http_429", attempts_made, spec, n, untried=untried, others=others, retry_after_s=retry_after_s)
    assert decided == (None if wait_ms is None else Retry(wait_ms * MS))


@pytest.mark.parametrize(
    ("waited_s", "open_loop", "resting", "verdict"),
    [
        (0, False, False, "wait"),
        (59.9, False, False, "wait"),
        (60, False, False, "end"),
        (0, True, False, "no_endpoint"),
        (59.9, True, True, "wait"),
        (60, True, True, "end"),
    ],
)
def test_patience(waited_s: float, open_loop: bool, resting: bool, verdict: str) -> None:
    since_ns = 7_000
    now_ns = since_ns + round(waited_s * 1e9)
    assert when_none_available(since_ns, now_ns, SPEC, open_loop=open_loop, resting=resting) == verdict


@pytest.mark.parametrize(
    ("outcome", "status", "error", "code", "part"),
    [
        ("http_4xx", 401, "Unauthorized", None, "--api-key-env"),
        ("http_4xx", 403, None, None, "403;"),
        ("http_4xx", 404, "The model `m` does not exist.", None, "--model"),
        ("http_4xx", 404, "nope", "model_not_found", "--model"),
        ("http_4xx", 404, "Not Found", None, None),
        ("http_4xx", 400, "context_length_exceeded for this model", None, None),
        ("http_429", 429, "slow down, model is busy", None, None),
        ("http_5xx", 503, "model is loading", None, None),
        ("ok", 200, None, None, None),
    ],
)
def test_fatal_answers(outcome: Outcome, status: int, error: str | None, code: str | None, part: str | None) -> None:
    line = is_fatal(outcome, status, error, code)
    assert line is None if part is None else line is not None and part in line
