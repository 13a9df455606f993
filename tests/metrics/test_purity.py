"""The server's counter against ours, and the text that it comes from."""

from typing import Any

import pytest

from loadcell.metrics.exposition import Scrape, parse_metrics, prefix_cache_facts, purity_facts
from loadcell.metrics.facts import PrefixCacheFacts, PurityFacts
from loadcell.metrics.purity import SentAttempts, judge_purity

KNOWN: dict[str, Any] = {"before": 10.0, "after": 110.0, "counter": "vllm:request_success_total", "settled": True}


@pytest.mark.parametrize(
    ("changes", "ours", "state", "foreign"),
    [
        ({}, SentAttempts(sent=100), "pure", 0),
        ({}, SentAttempts(sent=99), "foreign", 1),
        ({}, SentAttempts(sent=99, aborted=5), "foreign", 1),
        ({}, SentAttempts(sent=105, aborted=5), "pure", 0),
        ({}, SentAttempts(sent=102, aborted=5), "pure", 0),
        ({}, SentAttempts(sent=106, aborted=5), "unknown", None),
        ({"sent_attempts": 90, "aborted_attempts": 0}, SentAttempts(sent=100), "foreign", 10),
        ({"reset": True}, SentAttempts(sent=100), "unknown", None),
        ({"settled": False}, SentAttempts(sent=100), "unknown", None),
        ({"counter": None}, SentAttempts(sent=100), "unknown", None),
        ({"before": None}, SentAttempts(sent=100), "unknown", None),
        ({"after": 3.0}, SentAttempts(sent=100), "unknown", None),
    ],
)
def test_pure_foreign_or_unknown(changes: dict[str, Any], ours: SentAttempts, state: str, foreign: int | None) -> None:
    found = judge_purity("h:1", PurityFacts(**(KNOWN | changes)), ours)
    assert (found.state, found.foreign) == (state, foreign)
    assert (found.why is not None) == (state == "unknown")


def test_a_server_without_metrics_is_unknown_not_zero() -> None:
    found = judge_purity("h:1", None, SentAttempts(sent=5))
    assert (found.state, found.foreign, found.counted) == ("unknown", None, None)


VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 0.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
# HELP vllm:request_success_total Count of successfully processed requests.
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 7.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 5.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 1.0
# TYPE vllm:request_success_created gauge
vllm:request_success_created{engine="0",finished_reason="stop",model_name="m"} 1.7e+09
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 400.0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 100.0
"""


def test_vllm() -> None:
    found = parse_metrics(VLLM)
    assert found == Scrape(
        engine="vllm",
        counter="vllm:request_success_total",
        generation_requests=13,
        running=2,
        waiting=0,
        prefix_hits=100,
        prefix_queries=400,
        started_s=1.7e9,
    )
    assert found.quiet is False


def test_older_vllm_names_its_prefix_cache_by_device() -> None:
    found = parse_metrics(VLLM.replace("vllm:prefix_cache", "vllm:gpu_prefix_cache"))
    assert (found.prefix_hits, found.prefix_queries) == (100, 400)


def test_sglang() -> None:
    found = parse_metrics(
        '# TYPE sglang:num_requests_total counter\nsglang:num_requests_total{m="x"} 4.0\n'
        "sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\nsglang:cached_tokens_total 3\nsglang:prompt_tokens_total 30\n"
    )
    assert (found.engine, found.generation_requests, found.quiet) == ("sglang", 4, True)
    assert (found.prefix_hits, found.prefix_queries) == (3, 30)


def test_mindie_has_no_prefix() -> None:
    found = parse_metrics("# TYPE request_success_total counter\nrequest_success_total 9\nnum_requests_running 0\nnum_requests_waiting 1\n")
    assert (found.counter, found.generation_requests, found.quiet) == ("request_success_total", 9, False)


def test_a_labelled_counter_that_has_not_counted_is_zero() -> None:
    assert parse_metrics("# TYPE vllm:request_success_total counter\n").generation_requests == 0


@pytest.mark.parametrize("text", ["", "<html>no</html>", "vllm:request_success_total nonsense\n", "a{b=\n", "x NaN\n"])
def test_what_is_no_exposition_shows_nothing(text: str) -> None:
    assert parse_metrics(text) == Scrape()


def test_two_scrapes_make_the_facts() -> None:
    before, after = parse_metrics(VLLM), parse_metrics(VLLM.replace("} 7.0", "} 27.0").replace("100.0", "150.0").replace("400.0", "600.0"))
    assert purity_facts(before, after, settled=True) == PurityFacts(before=13, after=33, counter="vllm:request_success_total", settled=True)
    assert prefix_cache_facts(before, after) == PrefixCacheFacts(hits=50, queries=200)


def test_a_restart_is_a_reset() -> None:
    before, after = parse_metrics(VLLM), parse_metrics(VLLM.replace("1.7e+09", "1.8e+09"))
    assert purity_facts(before, after, settled=True).reset
    assert purity_facts(before, parse_metrics(VLLM.replace("} 7.0", "} 1.0")), settled=True).reset
    assert prefix_cache_facts(before, after) is None


def test_an_engine_that_shows_its_counter_only_after_its_first_request() -> None:
    before = parse_metrics("sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\n")
    after = parse_metrics("sglang:num_requests_total 4\nsglang:num_running_reqs 0\nsglang:num_queue_reqs 0\n")
    assert purity_facts(before, after, settled=True) == PurityFacts(before=0, after=4, counter="sglang:num_requests_total", settled=True)


def test_a_missing_scrape_is_unknown() -> None:
    assert purity_facts(None, parse_metrics(VLLM), settled=True).before is None
    assert prefix_cache_facts(None, parse_metrics(VLLM)) is None
    assert purity_facts(None, None, settled=False) == PurityFacts()


def test_the_rate_of_foreign_requests_is_over_the_time_between_the_scrapes() -> None:
    known = PurityFacts(**(KNOWN | {"seconds": 4.0}))
    assert judge_purity("h:1", known, SentAttempts(sent=90)).foreign_per_s == 2.5
    assert judge_purity("h:1", known, SentAttempts(sent=100)).foreign_per_s is None
    assert judge_purity("h:1", PurityFacts(**KNOWN), SentAttempts(sent=90)).foreign_per_s is None
