"""Each rule at, above and beside its threshold."""

from typing import Any

import pytest

from loadcell.metrics.verdict import RULES, Evidence, TrendSeen, judge

CLEAN: dict[str, Any] = {
    "requests": 1000,
    "ok": 1000,
    "open_loop": True,
    "offered_per_s": 100.0,
    "achieved_per_s": 99.9,
    "lag_p99_ms": 1.0,
    "ttft_p50_ms": 50.0,
    "endpoints_known": True,
    "foreign": 0,
    "stamps": "kernel",
    "cpu_share": 0.5,
    "delivered_share": 1.0,
    "cache_hit_rate": 0.0,
    "trends": (TrendSeen(metric="ttft", stationary=True, change=0.01, p_value=0.5),),
}
MOVING = TrendSeen(metric="ttft", stationary=False, change=0.8, p_value=1e-5)


def test_a_clean_run_is_valid_with_every_rule_judged() -> None:
    found = judge(Evidence(**CLEAN))
    assert (found.verdict, found.reasons, found.notes) == ("valid", [], [])
    assert [rule.rule for rule in found.rules] == [rule.__name__ for rule in RULES]
    assert all(rule.threshold and rule.observed for rule in found.rules)


@pytest.mark.parametrize(
    ("changes", "rule", "verdict"),
    [
        ({"ok": 0, "failed": 1000}, "nothing_ok", "invalid"),
        ({"achieved_per_s": 94.9}, "rate_not_achieved", "invalid"),
        ({"achieved_per_s": 95.0}, None, "valid"),
        ({"achieved_per_s": 50.0, "open_loop": False}, None, "valid"),
        ({"achieved_per_s": 50.0, "capped_by_user": True}, "capped", "suspect"),
        ({"achieved_per_s": 96.0, "capped_by_user": True}, None, "valid"),
        ({"lag_p99_ms": 5.1}, "client_lag", "invalid"),
        ({"lag_p99_ms": 5.0}, None, "valid"),
        ({"lag_p99_ms": 9.9, "ttft_p50_ms": 100.0}, None, "valid"),
        ({"lag_p99_ms": 10.1, "ttft_p50_ms": 100.0}, "client_lag", "invalid"),
        ({"lag_p99_ms": 5.1, "ttft_p50_ms": None}, "client_lag", "invalid"),
        ({"imposed_limits": ("pool of 100 connections",)}, "imposed_limit", "invalid"),
        ({"ok": 990, "failed": 10}, None, "valid"),
        ({"ok": 989, "failed": 11}, "failures", "suspect"),
        ({"lost_endpoints": ("h:1 ejected 1×",)}, "endpoint_lost", "suspect"),
        ({"foreign": 1}, "foreign_requests", "suspect"),
        ({"foreign": 1, "purity_unknown": ("h:2: no counter",)}, "foreign_requests", "suspect"),
        ({"stamps": "clock", "cpu_share": 0.91}, "busy_client", "suspect"),
        ({"stamps": "clock", "cpu_share": 0.9}, None, "valid"),
        ({"stamps": "kernel", "cpu_share": 1.0}, None, "valid"),
        ({"delivered_share": 0.899}, "short_outputs", "suspect"),
        ({"delivered_share": 0.9}, None, "valid"),
        ({"cache_hit_rate": 0.051}, "unasked_cache_hits", "suspect"),
        ({"cache_hit_rate": 0.9, "prefix_asked": True}, None, "valid"),
        ({"trends": (MOVING,)}, "not_stationary", "suspect"),
    ],
)
def test_each_threshold(changes: dict[str, Any], rule: str | None, verdict: str) -> None:
    found = judge(Evidence(**(CLEAN | changes)))
    assert found.verdict == verdict
    if rule is None:
        assert found.reasons == []
    else:
        assert rule in [reason.rule for reason in found.reasons]
        assert all(reason.threshold and reason.observed and reason.text for reason in found.reasons)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"offered_per_s": None}, "rate_not_achieved"),
        ({"offered_per_s": None, "capped_by_user": True}, "capped"),
        ({"lag_p99_ms": None}, "client_lag"),
        ({"endpoints_known": False}, "endpoint_lost"),
        ({"foreign": None}, "foreign_requests"),
        ({"purity_unknown": ("h:2: no counter",)}, "foreign_requests"),
        ({"stamps": None}, "busy_client"),
        ({"stamps": "clock", "cpu_share": None}, "busy_client"),
        ({"delivered_share": None}, "short_outputs"),
        ({"cache_hit_rate": None}, "unasked_cache_hits"),
        ({"trends": ()}, "not_stationary"),
    ],
)
def test_what_cannot_be_judged_is_said_and_weighs_nothing(changes: dict[str, Any], rule: str) -> None:
    found = judge(Evidence(**(CLEAN | changes)))
    assert found.verdict == "valid"
    assert rule in [note.partition(":")[0] for note in found.notes]


def test_the_gravest_reason_stands_first() -> None:
    found = judge(Evidence(**(CLEAN | {"foreign": 3, "ok": 0, "failed": 1000, "lag_p99_ms": 80.0})))
    assert found.verdict == "invalid"
    assert [reason.severity for reason in found.reasons] == ["invalid", "invalid", "suspect", "suspect"]


def test_no_request_at_all_is_invalid() -> None:
    assert judge(Evidence()).verdict == "invalid"
