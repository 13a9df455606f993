"""Which requests count as good."""

from typing import Any

import pytest

from loadcell.metrics.goodput import meets, per_request_limits
from loadcell.metrics.latency import request_latency
from loadcell.metrics.slo import parse_goodput, parse_slo
from loadcell.records import RequestRecord

from .build import MS, attempt, failed, record


def good(one: RequestRecord, *items: str, open_loop: bool = False) -> bool:
    latency = request_latency(one, open_loop)
    assert latency is not None
    return meets(one, one.attempts[-1], latency, parse_goodput(items), open_loop)


STREAM = record(0, [attempt(100, [300, 320, 340])], due_ms=50)
ONE_TOKEN = record(0, [attempt(0, [100], output_tokens=1)])
UNKNOWN_TOKENS = record(0, [attempt(0, [100, 120], output_tokens=None)])
WHOLE = record(0, [attempt(0, [], last_token_ns=900 * MS, done_ns=900 * MS, output_tokens=8)])
RETRIED = record(0, [failed(0, 500, "http_5xx"), attempt(500, [600, 620])])
REASONING_ONLY = record(0, [attempt(0, [100, 120], first_answer_ns=None)])
UNEVEN = record(0, [attempt(0, [100, 130, 150], output_tokens=6, chunk_tokens=[1, 3, 2])])


@pytest.mark.parametrize(
    ("one", "item", "expected"),
    [
        (STREAM, "ttft:200", True),
        (STREAM, "ttft:199.9", False),
        (STREAM, "tpot:20", True),
        (STREAM, "tpot:19", False),
        (STREAM, "e2el:240", True),
        (STREAM, "e2e:239", False),
        (STREAM, "icl:20", True),
        (STREAM, "itl:19", False),
        (STREAM, "max_stall:20", True),
        (STREAM, "queue_delay:50", True),
        (STREAM, "queue_delay:49", False),
        (STREAM, "scheduled_ttft:250", True),
        (STREAM, "scheduled_e2e:289", False),
        (ONE_TOKEN, "tpot:1", True),
        (ONE_TOKEN, "itl:1", True),
        (ONE_TOKEN, "icl:1", True),
        (ONE_TOKEN, "max_stall:1", True),
        (UNKNOWN_TOKENS, "tpot:1000", False),
        (UNKNOWN_TOKENS, "itl:1000", False),
        (UNKNOWN_TOKENS, "icl:1000", True),
        (WHOLE, "ttft:1000", False),
        (WHOLE, "tpot:1000", False),
        (WHOLE, "max_stall:1000", False),
        (WHOLE, "e2e:900", True),
        (RETRIED, "ttft:600", True),
        (RETRIED, "ttft:599", False),
        (RETRIED, "e2e:619", False),
        (REASONING_ONLY, "ttfa:1000", False),
        (UNEVEN, "itl:10", True),
        (UNEVEN, "icl:25", True),
        (UNEVEN, "icl:24", False),
    ],
)
def test_each_limit(one: RequestRecord, item: str, expected: bool) -> None:
    assert good(one, item) is expected


def test_an_open_loop_counts_from_the_schedule() -> None:
    assert good(STREAM, "ttft:200")
    assert not good(STREAM, "ttft:200", open_loop=True)
    assert good(STREAM, "ttft:250", open_loop=True)


def test_every_limit_must_be_met() -> None:
    assert good(STREAM, "ttft:200 tpot:20")
    assert not good(STREAM, "ttft:200", "tpot:19")


def test_a_success_rate_is_no_limit_of_one_request() -> None:
    limits: list[Any] = [parse_slo("success_rate >= 99%"), parse_slo("ttft p95 <= 200ms")]
    assert per_request_limits(limits) == limits[1:]
