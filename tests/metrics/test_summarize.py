"""Whole runs -> summaries: what enters, what does not, and what always holds."""

import json
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadcell.metrics.columns import columns
from loadcell.metrics.exitcode import exit_code
from loadcell.metrics.facts import LengthError, PrefixCacheFacts, ProbeFacts, PurityFacts, RunFacts, TokenizerFacts, WorkerFacts
from loadcell.metrics.slo import parse_goodput, parse_slo
from loadcell.metrics.summarize import summarize
from loadcell.metrics.summary import Summary, summary_schema
from loadcell.records import Outcome, RequestRecord

from .build import MS, S, attempt, endpoint, failed, record

SCHEMA = jsonschema.Draft202012Validator(summary_schema())
ONE = (endpoint(0),)
TWO = (endpoint(0), endpoint(1))


def steady_streams(n: int, every_ms: float = 100, ttft_ms: float = 50, tokens: int = 5, **fields: Any) -> list[RequestRecord]:
    """A request every so often, each a stream of tokens 10 ms apart."""
    times = [(k * every_ms, [k * every_ms + ttft_ms + 10 * j for j in range(tokens)]) for k in range(n)]
    return [record(k, [attempt(sent, chunks, **fields)]) for k, (sent, chunks) in enumerate(times)]


def strict(summary: Summary) -> dict[str, Any]:
    """Through JSON, refusing NaN and infinities, against the published schema."""

    def refuse(word: str) -> float:
        raise AssertionError(word)

    found: dict[str, Any] = json.loads(msgspec.json.encode(summary), parse_constant=refuse)
    SCHEMA.validate(found)
    assert msgspec.json.decode(msgspec.json.encode(summary), type=Summary) == summary
    return found


def test_a_clean_run() -> None:
    records = steady_streams(200, input_tokens=100, input_source="usage", endpoint=0)
    facts = RunFacts(
        endpoints=ONE,
        offered_rate=10.0,
        stamps="kernel",
        healthy_at_end=("host:8000",),
        workers=(WorkerFacts(lag_p99_us=300.0, cpu_s=2.0, wall_s=10.0),),
        purity={"host:8000": PurityFacts(before=5, after=205, counter="vllm:request_success_total", settled=True)},
        prefix_cache={"host:8000": PrefixCacheFacts(hits=0, queries=20_000)},
        probes={"host:8000": ProbeFacts(sent=4, failed=0)},
        stop_reason="count",
        num_planned=200,
    )
    summary = summarize(facts, records)
    strict(summary)
    assert (summary.verdict, summary.reasons) == ("valid", [])
    assert summary.notes == ["short_outputs: asked or delivered lengths are unknown"]
    assert summary.whole.counts.ok == summary.whole.counts.planned == 200
    assert summary.whole.latency.ttft.percentiles_ms["p50"] == 50.0
    assert summary.whole.latency.itl.n == summary.whole.latency.icl.n == 800
    assert summary.whole.rates.input_tokens_in_window == 20_000
    assert summary.client.cpu_share_max == 0.2
    assert summary.purity[0].state == "pure"
    assert summary.endpoints[0].probes_sent == 4
    assert summary.steady.figures is not None
    assert exit_code(summary, strict=True) == 0


def test_failures_stay_out_of_latency_and_in_every_denominator() -> None:
    """Twenty good requests of 100 ms and five that are reset after 10 s."""
    good = [record(k, [attempt(k * 100, [k * 100 + 50, k * 100 + 100])]) for k in range(20)]
    bad = [record(20 + k, [failed(k, 10_000 + k, "connection_reset", error="reset by peer")]) for k in range(5)]
    summary = summarize(RunFacts(endpoints=ONE, goodput_slos=parse_goodput(["e2e:1000"])), good + bad)
    counts = summary.whole.counts
    assert (counts.offered, counts.ok, counts.failed, counts.success_rate, counts.failure_rate) == (25, 20, 5, 0.8, 0.2)
    assert (summary.whole.latency.e2e.n, summary.whole.latency.e2e.max_ms) == (20, 100.0)
    assert summary.whole.rates.output_tokens_in_window == 40
    assert summary.whole.rates.attainment == 0.8
    assert summary.errors == {"connection_reset": "reset by peer"}
    assert [reason.rule for reason in summary.reasons] == ["failures"]
    assert (exit_code(summary), exit_code(summary, strict=True)) == (0, 1)


@pytest.mark.parametrize("outcome", ["http_4xx", "empty_output", "connect_error"])
def test_when_everything_fails_nothing_is_claimed(outcome: Outcome) -> None:
    records = [record(k, [failed(k, k + 1, outcome, error="refused")]) for k in range(200)]
    summary = summarize(RunFacts(endpoints=ONE), records)
    found = strict(summary)
    assert summary.verdict == "invalid"
    assert (summary.whole.rates.requests_per_s, summary.whole.counts.success_rate) == (0.0, 0.0)
    assert summary.whole.rates.attempts_per_s == pytest.approx(200 / 0.2, rel=0.01)
    assert found["whole"]["latency"]["ttft"]["mean_ms"] is None
    assert summary.errors == {outcome: "refused"}
    assert exit_code(summary) == 1


def test_nothing_recorded_is_a_summary_all_the_same() -> None:
    summary = summarize(RunFacts(endpoints=ONE, slos=(parse_slo("ttft p95 <= 1s"), parse_slo("success_rate >= 99%"))), [])
    strict(summary)
    assert summary.verdict == "invalid"
    assert [slo.met for slo in summary.slos] == [None, None]
    assert summary.whole.rates.requests_per_s is None


def test_tokens_count_where_they_arrive_and_cancelled_is_no_failure() -> None:
    """Ten seconds, four at a time, 50 tokens/s each: 200 tokens/s, though the last ones are cut off."""
    records = []
    for slot in range(4):
        for turn in range(3):
            start = turn * 4000
            chunks = [start + 20 * (k + 1) for k in range(200) if start + 20 * (k + 1) <= 10_000]
            cut = turn == 2
            fields: dict[str, Any] = {"outcome": "cancelled", "output_source": "chunks", "done_ns": 10 * S} if cut else {}
            records.append(record(slot * 3 + turn, [attempt(start, chunks, **fields)]))
    facts = RunFacts(endpoints=ONE, window_start_ns=0, window_end_ns=10 * S, duration_s=10, stop_reason="duration", concurrency_cap=4)
    summary = summarize(facts, records)
    assert summary.whole.rates.output_tokens_per_s == 200.0
    assert (summary.whole.counts.ok, summary.whole.counts.cancelled, summary.whole.counts.failed) == (8, 4, 0)
    assert summary.whole.rates.wasted_output_tokens == 0
    assert summary.whole.latency.ttft.n == 8
    assert (summary.whole.concurrency.max, summary.whole.concurrency.cap) == (4, 4)
    assert summary.timeline.output_tokens[1:9] == [200.0] * 8
    assert summary.whole.rates.peak_output_tokens_per_s == 200.0


def test_what_arrives_in_the_drain_is_outside_the_window() -> None:
    one = record(0, [attempt(0, [500, 900, 1100, 1200])])
    facts = RunFacts(
        endpoints=ONE,
        window_start_ns=0,
        window_end_ns=1 * S,
        duration_s=1,
        stop_reason="duration",
        goodput_slos=parse_goodput(["ttft:600"]),
    )
    summary = summarize(facts, [one])
    rates = summary.whole.rates
    assert (rates.output_tokens_in_window, rates.completed_in_window, rates.requests_per_s) == (2, 0, 0.0)
    assert (summary.whole.counts.ok, rates.goodput_requests, rates.goodput_per_s, rates.attainment) == (1, 1, 0.0, 1.0)


def test_a_failed_requests_tokens_are_wasted() -> None:
    broken = attempt(0, [100, 200], outcome="truncated")
    again = attempt(300, [400, 500, 600], endpoint=1)
    summary = summarize(
        RunFacts(endpoints=TWO), [record(0, [broken, again]), record(1, [attempt(0, [50], outcome="stream_error", output_tokens=None)])]
    )
    rates = summary.whole.rates
    assert (rates.output_tokens_in_window, rates.wasted_output_tokens) == (3, 3)
    assert [one.figures.rates.wasted_output_tokens for one in summary.endpoints] == [3, 0]


def test_retries_are_counted_and_both_latencies_reported() -> None:
    """Two 503s before each success: three attempts, no first-try success."""
    records = [
        record(k, [failed(s := k * 1000, s + 10, "http_5xx"), failed(s + 20, s + 30, "http_5xx"), attempt(s + 500, [s + 600, s + 700])])
        for k in range(20)
    ]
    summary = summarize(RunFacts(endpoints=ONE), records)
    counts = summary.whole.counts
    assert (counts.attempts, counts.failed_attempts, counts.retried, counts.first_try_ok, counts.first_try_rate) == (60, 40, 20, 0, 0.0)
    assert (counts.ok, counts.success_rate) == (20, 1.0)
    assert (summary.whole.latency.e2e.mean_ms, summary.whole.latency.user_latency.mean_ms) == (200.0, 700.0)
    assert summary.endpoints[0].failed_attempts == 40


def test_a_cap_shows_in_the_scheduled_latency() -> None:
    """Ten a second, one at a time, half a second each: eight requests."""
    records = [record(k, [attempt(k * 500, [k * 500 + 250, k * 500 + 499.9])], due_ms=k * 100) for k in range(8)]
    summary = summarize(RunFacts(endpoints=ONE, offered_rate=10, concurrency_cap=1, cap_by_user=True), records)
    latency = summary.whole.latency
    assert latency.e2e.mean_ms == pytest.approx(499.9)
    assert latency.scheduled_e2e.mean_ms == pytest.approx(1900, rel=0.01)
    assert latency.queue_delay.mean_ms == 1400.0
    assert "capped" in [reason.rule for reason in summary.reasons]
    assert summary.verdict == "suspect"
    assert summary.whole.concurrency.max == 1


def test_a_cap_that_nobody_asked_for_is_invalid() -> None:
    records = [record(k, [attempt(k * 500, [k * 500 + 250, k * 500 + 499.9])], due_ms=k * 100) for k in range(8)]
    summary = summarize(RunFacts(endpoints=ONE, offered_rate=10, concurrency_cap=1, cap_by_user=False), records)
    assert summary.verdict == "invalid"
    assert {"rate_not_achieved", "imposed_limit"} <= {reason.rule for reason in summary.reasons}


def test_dropped_arrivals_make_the_run_invalid() -> None:
    """Two hundred a second are due; the client takes up fifty."""
    records = [record(k, [attempt(k * 5, [k * 5 + 50, k * 5 + 100])] if k % 4 == 0 else [], due_ms=k * 5) for k in range(400)]
    summary = summarize(RunFacts(endpoints=ONE, offered_rate=200), records)
    assert (summary.whole.counts.dropped, summary.whole.counts.cancelled) == (300, 300)
    assert summary.reasons[0].rule == "rate_not_achieved"
    assert exit_code(summary) == 1


def test_whole_answers_do_not_pollute_stream_metrics() -> None:
    streams = steady_streams(8)
    whole = [record(8 + k, [attempt(0, [], last_token_ns=2500 * MS, done_ns=2500 * MS, output_tokens=8)]) for k in range(2)]
    latency = summarize(RunFacts(endpoints=ONE), streams + whole).whole.latency
    assert (latency.ttft.n, latency.ttft.mean_ms, latency.tpot.n, latency.e2e.n) == (8, 50.0, 8, 10)


def test_an_endpoint_that_answers_in_one_event_is_named() -> None:
    summary = summarize(RunFacts(endpoints=ONE), [record(k, [attempt(k, [k + 800], output_tokens=64)]) for k in range(5)])
    assert any("host:8000 does not stream token by token: 5 of 5" in notice for notice in summary.notices)
    assert (summary.whole.latency.tpot.n, summary.whole.latency.tpot.mean_ms) == (0, None)


def test_hidden_reasoning_is_named_and_its_share_shown() -> None:
    summary = summarize(RunFacts(endpoints=ONE), [record(0, [attempt(0, [5000, 5100], output_tokens=1000, reasoning_tokens=950)])])
    assert summary.whole.tokens.reasoning_share == 0.95
    assert any("hides its reasoning" in notice for notice in summary.notices)


def test_a_cold_first_wave_is_pointed_out() -> None:
    records = [record(k, [attempt(k * 6000, [k * 6000 + (5000 if k < 10 else 100), k * 6000 + 5500])]) for k in range(60)]
    summary = summarize(RunFacts(endpoints=ONE), records)
    assert summary.first_wave is not None
    assert (summary.first_wave.outlier, summary.first_wave.median_ms, summary.first_wave.later_median_ms) == (True, 5000.0, 100.0)
    assert any("--warmup-requests" in notice for notice in summary.notices)
    assert not any("first 10" in notice for notice in summarize(RunFacts(endpoints=ONE), steady_streams(60)).notices)


def test_warm_up_is_counted_apart_and_nowhere_else() -> None:
    warm = [record(k, [attempt(k, [k + 5000, k + 6000])], phase="warmup") for k in range(5)]
    bad = [record(5, [failed(0, 1, "http_5xx")], phase="warmup")]
    without = summarize(RunFacts(endpoints=ONE), steady_streams(40))
    found = summarize(RunFacts(endpoints=ONE), [*warm, *bad, *steady_streams(40)])
    assert found.whole == without.whole
    assert (found.warmup.requests, found.warmup.ok, found.warmup.failed) == (6, 5, 1)


def test_warm_up_requests_are_ours_when_purity_is_judged() -> None:
    warm = [record(k, [attempt(k, [k + 5])], phase="warmup") for k in range(5)]
    facts = RunFacts(endpoints=ONE, purity={"host:8000": PurityFacts(before=0, after=46, counter="c", settled=True)})
    summary = summarize(facts, [*warm, *steady_streams(40)])
    assert (summary.purity[0].state, summary.purity[0].foreign, summary.purity[0].sent) == ("foreign", 1, 45)
    assert "foreign_requests" in [reason.rule for reason in summary.reasons]


def test_lengths_asked_and_delivered() -> None:
    records = [
        record(
            k,
            [attempt(k, [k + 10, k + 20], output_tokens=60, input_tokens=120, input_source="usage", cached_tokens=30)],
            input_asked=100,
            output_asked=200,
        )
        for k in range(4)
    ]
    tokens = summarize(RunFacts(endpoints=ONE), records).whole.tokens
    assert (tokens.input_asked.mean, tokens.input_delivered.mean, tokens.input_sources) == (100, 120, {"usage": 4})
    assert (tokens.output_asked.total, tokens.output_delivered.total, tokens.delivered_share) == (800, 240, 0.3)
    assert tokens.cached_share == 0.25
    assert "short_outputs" in [reason.rule for reason in summarize(RunFacts(endpoints=ONE), records).reasons]


def test_what_was_not_told_is_null() -> None:
    tokens = summarize(RunFacts(endpoints=ONE), steady_streams(3)).whole.tokens
    assert (tokens.reasoning_tokens, tokens.cached_tokens, tokens.delivered_share, tokens.input_delivered.mean) == (None, None, None, None)


def test_two_endpoints_add_up_to_the_whole() -> None:
    records = [record(k, [attempt(k * 10, [k * 10 + 30 + j for j in range(4)], endpoint=k % 3 % 2)]) for k in range(60)]
    facts = RunFacts(endpoints=TWO, ejections={"host:8001": 2}, healthy_at_end=("host:8000",))
    summary = summarize(facts, records)
    parts = [one.figures for one in summary.endpoints]
    assert sum(one.counts.ok for one in parts) == summary.whole.counts.ok
    assert sum(one.rates.output_tokens_in_window for one in parts) == summary.whole.rates.output_tokens_in_window
    assert sum(one.latency.icl.n for one in parts) == summary.whole.latency.icl.n
    assert sum(one.share or 0 for one in summary.endpoints) == pytest.approx(1)
    assert [one.healthy_at_end for one in summary.endpoints] == [True, False]
    assert summary.reasons[0].observed == "host:8001 ejected 2×"


@pytest.mark.parametrize(("devices", "expected"), [(8, 1000.0), (None, None)])
def test_per_device_figures(devices: int | None, expected: float | None) -> None:
    """8,000 tokens in one second, on eight devices or on nobody knows how many."""
    one = record(0, [attempt(0, [k / 8 for k in range(1, 8001)])])
    found = summarize(RunFacts(endpoints=ONE, devices=devices), [one]).per_device
    assert (found.devices, found.output_tokens_per_s) == (devices, expected)


def test_limits_and_the_gate() -> None:
    facts = RunFacts(endpoints=ONE, slos=(parse_slo("ttft p95 <= 60ms"), parse_slo("tpot max < 9ms"), parse_slo("success_rate >= 99%")))
    summary = summarize(facts, steady_streams(50))
    assert [(slo.met, slo.n, slo.unit) for slo in summary.slos] == [(True, 50, "ms"), (False, 50, "ms"), (True, 50, "share")]
    assert (exit_code(summary), exit_code(summary, gate=True)) == (0, 3)
    assert summary.whole.rates.attainment == 0.0


@pytest.mark.parametrize(
    ("fields", "signal", "code"),
    [
        ({"stop_reason": "interrupt", "partial": True}, None, 130),
        ({"stop_reason": "terminated", "partial": True}, None, 143),
        ({"stop_signal": 15}, None, 143),
        ({}, 2, 130),
        ({"stop_reason": "fatal"}, None, 1),
        ({"stop_reason": "patience"}, None, 1),
        ({"stop_reason": "max_failures"}, None, 1),
        ({"lost_workers": (1,)}, None, 1),
        ({"stop_reason": "duration"}, None, 0),
    ],
)
def test_exit_codes(fields: dict[str, Any], signal: int | None, code: int) -> None:
    summary = summarize(RunFacts(endpoints=ONE, **fields), steady_streams(30))
    assert exit_code(summary, interrupted_signal=signal, gate=True) == code


def test_an_interrupt_outranks_an_invalid_run() -> None:
    assert exit_code(summarize(RunFacts(stop_reason="interrupt"), [])) == 130


def test_units_are_kept() -> None:
    """First token at 2168 ms, the end at 61,500 ms."""
    latency = summarize(RunFacts(endpoints=ONE), [record(0, [attempt(0, [2168, 61_500])])]).whole.latency
    assert (latency.ttft.mean_ms, latency.e2e.mean_ms) == (2168.0, 61_500.0)


def test_every_time_and_rate_names_its_unit() -> None:
    """Whatever is a float in the summary says in its name what it is."""
    units = ("_ms", "_s", "_per_s", "_share", "share", "_rate", "_us")
    unitless = {"cpu_share_max", "mean", "ratio", "attainment", "limit", "observed", "output_tokens", "in_flight_mean"}
    for name, definition in summary_schema()["$defs"].items():
        for key, value in definition.get("properties", {}).items():
            kinds = json.dumps(value)
            if '"number"' in kinds and name != "RunIdentity":
                assert key.endswith(units) or key in unitless, f"{name}.{key}"


def test_the_client_says_when_it_was_late() -> None:
    facts = RunFacts(endpoints=ONE, workers=(WorkerFacts(lag_p99_us=200), WorkerFacts(worker=1, lag_p99_us=80_000.0)))
    summary = summarize(facts, steady_streams(50))
    assert summary.client.lag_p99_ms == 80.0
    assert summary.reasons[0].rule == "client_lag"
    assert summary.verdict == "invalid"


def test_the_clients_own_limits_are_imposed_ones() -> None:
    records = [
        *steady_streams(50),
        record(50, [failed(0, 1, "no_local_port", sent_ns=None)]),
        record(51, [failed(0, 1, "connect_error", sent_ns=None, error_code="EMFILE")]),
    ]
    (reason,) = [one for one in summarize(RunFacts(endpoints=ONE), records).reasons if one.rule == "imposed_limit"]
    assert reason.observed == "no local port was left for 1 requests; EMFILE in 1 attempts"


def test_requests_that_were_prepared_too_slowly_are_a_limit_of_ours() -> None:
    for starved_ns, found in ((200 * MS, []), (300 * MS, ["imposed_limit"])):  # of a window of 5 s
        facts = RunFacts(endpoints=ONE, workers=(WorkerFacts(starved_ns=starved_ns),))
        assert [reason.rule for reason in summarize(facts, steady_streams(50)).reasons] == found


def closed_loop(ttft_ms: list[float], e2e_ms: list[float]) -> list[RequestRecord]:
    """Four at a time; request k has the k-th TTFT and E2E."""
    free, records = [0.0, 0.1, 0.2, 0.3], []
    for k, (first, whole) in enumerate(zip(ttft_ms, e2e_ms, strict=True)):
        slot = min(range(4), key=free.__getitem__)
        start = free[slot]
        records.append(record(k, [attempt(start, [start + first, start + whole])]))
        free[slot] = start + whole + 0.01
    return records


def test_a_closed_loop_that_falls_out_of_step_is_stationary_and_one_that_slows_down_is_not() -> None:
    facts = RunFacts(endpoints=ONE, concurrency_cap=4)
    flat, down, up = [2000.0] * 200, [120 - 0.5 * k for k in range(200)], [400 + 4.0 * k for k in range(200)]
    assert summarize(facts, closed_loop(down, flat)).verdict == "valid"
    assert "not_stationary" in [reason.rule for reason in summarize(facts, closed_loop([50.0] * 200, up)).reasons]


def test_a_burst_has_no_trend() -> None:
    """Everything at once: the later a request was sent the longer it waits, by construction."""
    records = [record(k, [attempt(k * 0.05, [50 + 20 * k, 60 + 20 * k])], due_ms=0) for k in range(500)]
    summary = summarize(RunFacts(endpoints=ONE, open_loop=True), records)
    assert summary.verdict == "valid"
    assert any(note.startswith("not_stationary: no steady state") for note in summary.notes)


def test_unasked_cache_hits_are_suspect() -> None:
    facts = RunFacts(endpoints=ONE, prefix_cache={"host:8000": PrefixCacheFacts(hits=900, queries=1000)})
    summary = summarize(facts, steady_streams(50))
    assert summary.endpoints[0].prefix_cache_hit_rate == 0.9
    assert "unasked_cache_hits" in [reason.rule for reason in summary.reasons]


def test_an_overloaded_service_is_not_stationary() -> None:
    """TTFT grows with every request: the queue never drains."""
    records = [record(k, [attempt(k * 50, [k * 50 + 50 + 5 * k, k * 50 + 60 + 5 * k])]) for k in range(300)]
    assert "not_stationary" in [reason.rule for reason in summarize(RunFacts(endpoints=ONE, offered_rate=20), records).reasons]


def test_the_steady_window_says_what_it_cut() -> None:
    """Sixteen at a time, one straggler ten times as long."""
    free = [0.0] * 16
    records = []
    for k in range(64):
        slot = min(range(16), key=free.__getitem__)
        start, length = free[slot] + 0.001 * slot, 20_000.0 if k == 5 else 2000.0
        records.append(record(k, [attempt(start, [start + length / 2, start + length])]))
        free[slot] = start + length + 0.001
    summary = summarize(RunFacts(endpoints=ONE, concurrency_cap=16), records)
    steady = summary.steady
    assert steady.figures is not None
    assert steady.requests + steady.cut == 64
    assert steady.share == steady.requests / 64
    assert steady.window.end_s is not None
    assert summary.whole.window.end_s is not None
    assert steady.window.end_s < summary.whole.window.end_s
    assert (steady.figures.rates.output_tokens_per_s or 0) > (summary.whole.rates.output_tokens_per_s or 0)


def test_too_short_for_a_steady_state() -> None:
    steady = summarize(RunFacts(endpoints=ONE, concurrency_cap=1), steady_streams(10)).steady
    assert (steady.figures, steady.cut, steady.share) == (None, 10, 0.0)
    assert steady.why_null is not None


def test_a_long_run_has_a_bounded_timeline() -> None:
    records = [record(k, [attempt(k * 7000, [k * 7000 + 10, k * 7000 + 20])]) for k in range(1000)]
    line = summarize(RunFacts(endpoints=ONE), records).timeline
    assert line.bin_s == 12.0
    assert len(line.output_tokens) == len(line.ok) == len(line.failed) == len(line.in_flight_mean) <= 600
    assert (sum(line.output_tokens), sum(line.ok)) == (2000, 1000)


def test_an_iterator_gives_what_a_list_gives() -> None:
    records = steady_streams(40)
    assert summarize(RunFacts(endpoints=ONE), iter(records)) == summarize(RunFacts(endpoints=ONE), records)


def test_notices_of_the_runner_come_first() -> None:
    facts = RunFacts(
        endpoints=ONE,
        notices=("probing is off",),
        partial=True,
        lost_workers=(2,),
        dropped_fields={"host:8000": ["ignore_eos"]},
        tokenizer=TokenizerFacts(kind="words", off_target=LengthError(n=7, min=-2, max=3, mean=0.5)),
        reused_prompts=3,
        skipped_rows=1,
    )
    records = [
        record(k, [attempt(k, [k + 10, k + 11], output_source="chunks", input_source="estimated", stale_replays=1)]) for k in range(3)
    ]
    found = summarize(facts, records).notices
    assert found[:2] == ["probing is off", "the run is partial: worker 2 died"]
    for part in (
        "refused ignore_eos",
        "counted as chunks",
        "estimated from words",
        "sent again on a fresh connection",
        "more than once",
        "skipped",
    ):
        assert any(part in notice for notice in found), part


OUTCOMES = st.sampled_from(["ok", "ok", "ok", "http_5xx", "truncated", "cancelled", "no_endpoint"])


@st.composite
def runs(draw: st.DrawFn) -> tuple[RunFacts, list[RequestRecord]]:
    """Any mixture of outcomes, retries, endpoints, window and limits."""
    records = []
    for index in range(draw(st.integers(0, 25))):
        outcome: Outcome = draw(OUTCOMES)
        sent = draw(st.integers(0, 2000))
        attempts = [failed(sent, sent + 1, "http_5xx", endpoint=draw(st.integers(0, 1)))] if draw(st.booleans()) else []
        if outcome != "no_endpoint":
            gaps = draw(st.lists(st.integers(0, 300), max_size=6))
            times = [float(sent + 2 + sum(gaps[: k + 1])) for k in range(len(gaps))]
            tokens = draw(st.none() | st.integers(0, 20))
            attempts.append(attempt(sent + 2, times, outcome=outcome, endpoint=draw(st.integers(0, 1)), output_tokens=tokens))
        records.append(record(index, attempts, due_ms=draw(st.integers(0, sent)), outcome=outcome))
    end = draw(st.none() | st.integers(1, 4000))
    facts = RunFacts(
        endpoints=TWO,
        window_start_ns=0 if end else None,
        window_end_ns=end * MS if end else None,
        offered_rate=draw(st.none() | st.just(10.0)),
        goodput_slos=parse_goodput([f"ttft:{draw(st.integers(1, 300))}"]),
        concurrency_cap=draw(st.none() | st.integers(1, 30)),
    )
    return facts, records


@settings(max_examples=60, deadline=None)
@given(runs())
def test_what_always_holds(run: tuple[RunFacts, list[RequestRecord]]) -> None:
    facts, records = run
    summary = summarize(facts, records)
    strict(summary)
    counts, rates = summary.whole.counts, summary.whole.rates
    assert counts.ok + counts.failed + counts.cancelled == counts.offered == len(records) == sum(counts.by_outcome.values())
    if rates.requests_per_s is not None:
        assert rates.goodput_per_s is not None
        assert rates.offered_per_s is not None
        assert rates.goodput_per_s <= rates.requests_per_s <= rates.offered_per_s
    for name in summary.whole.latency.__struct_fields__:
        stats = getattr(summary.whole.latency, name)
        if stats.n:
            ladder = [stats.min_ms, *stats.percentiles_ms.values(), stats.max_ms]
            assert ladder == sorted(ladder)
    attempts_tokens = sum(
        len(one.chunk_us) if one.output_tokens is None else one.output_tokens for each in records for one in each.attempts
    )
    assert rates.output_tokens_in_window + rates.wasted_output_tokens <= attempts_tokens + 1
    assert sum(one.attempts for one in summary.endpoints) == counts.attempts


def test_columns_for_notebooks() -> None:
    found = columns([record(3, [attempt(0, [100, 110])]), record(4, [failed(0, 5, "http_5xx", endpoint=1)], output_asked=9), record(5, [])])
    assert found["index"].tolist() == [3, 4, 5]
    assert found["endpoint"].tolist() == [0, 1, -1]
    assert found["outcome"].tolist() == ["ok", "http_5xx", "cancelled"]
    assert found["ok"].tolist() == [True, False, False]
    assert found["ttft_ms"][0] == 100.0
    assert str(found["ttft_ms"].tolist()[1:]) == "[nan, nan]"
    assert {len(values) for values in found.values()} == {3}
