"""Figures that hold whatever came back: few samples, one token, nothing at all, whole seconds, text that looks like markup."""

import json
import math
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadcell.api import BenchResult
from loadcell.metrics.summary import Stats
from loadcell.testing.replies import (
    CLOSE,
    DONE,
    RESET,
    Script,
    chat_event,
    chat_reply,
    chat_stream,
    error_event,
    error_reply,
    sse,
    usage_event,
)
from loadcell.testing.scripted_server import Received, ScriptedServer

Serve = Callable[..., ScriptedServer]
Bench = Callable[..., BenchResult]
Command = Callable[..., "subprocess.CompletedProcess[str]"]
StrictJson = Callable[[str | bytes], Any]


def _all_stats(value: Any) -> Iterator[Stats]:
    if isinstance(value, Stats):
        yield value
    elif hasattr(value, "__struct_fields__"):
        for name in value.__struct_fields__:
            yield from _all_stats(getattr(value, name))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _all_stats(one)
    elif isinstance(value, dict):
        yield from _all_stats(list(value.values()))


def _assert_ordered(result: BenchResult) -> None:
    for stats in _all_stats(result.summary):
        if not stats.n:
            assert (stats.min_ms, stats.mean_ms, stats.max_ms) == (None, None, None)
            assert set(stats.percentiles_ms.values()) <= {None}
            continue
        ladder = [stats.min_ms, *(stats.percentiles_ms[f"p{q}"] for q in ("50", "75", "90", "95", "99", "99.9")), stats.max_ms]
        known = [value for value in ladder if value is not None]
        assert known == sorted(known)
        assert stats.min_ms is not None
        assert stats.max_ms is not None
        assert stats.mean_ms is not None
        assert stats.min_ms - 1e-9 <= stats.mean_ms <= stats.max_ms + 1e-9
        for low, high in stats.intervals_ms.values():
            assert stats.min_ms <= low <= high <= stats.max_ms


@pytest.mark.parametrize(
    "delays",
    [[60.0], [*range(1, 54)], [60.0, *([5.0] * 49)], [5.0] * 40, [1.0, 80.0], [0.0] * 30],
    ids=["one", "rising", "one-above-many", "equal", "two", "at-once"],
)
def test_no_percentile_lies_outside_the_samples(serve: Serve, bench: Bench, delays: list[float]) -> None:
    def reply(request: Received) -> Script:
        nth = sum(one.method == "POST" for one in server.requests[: request.number])
        return chat_stream("a", "b", first_ms=delays[nth % len(delays)])

    server = serve(reply)
    result = bench(server, concurrency=8, num_prompts=len(delays))
    _assert_ordered(result)
    ttft = result.summary.whole.latency.ttft
    assert ttft.n == len(delays)
    assert ("p99" in ttft.too_few) == (ttft.n < 100)
    assert max(result.columns()["ttft_ms"]) == pytest.approx(ttft.max_ms)


@pytest.mark.parametrize(("count", "tokens"), [(1, 1), (3, 1), (3, 2), (2, 5)])
def test_a_tail_of_a_few_samples_is_flagged_with_their_number(serve: Serve, bench: Bench, count: int, tokens: int) -> None:
    server = serve(chat_stream(*["t "] * tokens, first_ms=10, every_ms=10))
    result = bench(server, concurrency=1, num_prompts=count, output_len=tokens, slo=["ttft p99 <= 1s"])
    _assert_ordered(result)
    latency = result.summary.whole.latency
    assert latency.ttft.n == count
    assert {"p90", "p95", "p99"} <= set(latency.ttft.too_few)
    assert latency.tpot.n == (count if tokens > 1 else 0)
    assert result.summary.slos[0].too_few
    assert result.summary.slos[0].n == count
    assert "†" in result.report.read_text()
    assert result.summary.steady.figures is None


_ONE = sse(chat_event("", role="assistant"), chat_event("a"), chat_event(finish_reason="length"), usage_event(4, 1), DONE)
_AT_ONCE = [(0.0, b"".join(what for _, what in chat_stream(*["t "] * 8) if isinstance(what, bytes)))]


@pytest.mark.parametrize(
    ("answer", "flags", "tpot", "ttft"),
    [
        (_ONE, {"output_len": 1}, 0, 10),
        (
            sse(chat_event("a", finish_reason="length", usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2})),
            {"output_len": 1},
            0,
            10,
        ),
        (_AT_ONCE, {"output_len": 8}, 0, 10),
        ([(0.0, chat_reply("one", completion=1))], {"output_len": 1, "stream": False}, 0, 0),
        (sse(chat_event(""), chat_event(finish_reason="stop"), usage_event(4, 1), DONE), {"output_len": 1}, 0, 0),
    ],
    ids=["one-token", "all-in-one-event", "faster-than-a-clock", "not-streamed", "an-invisible-token"],
)
def test_what_cannot_be_divided_is_null_and_the_rest_is_kept(
    serve: Serve, bench: Bench, answer: Script, flags: dict[str, Any], tpot: int, ttft: int
) -> None:
    result = bench(serve(answer), concurrency=2, num_prompts=10, **flags)
    latency = result.summary.whole.latency
    _assert_ordered(result)
    assert result.summary.whole.counts.ok == 10
    assert (latency.tpot.n, latency.ttft.n) == (tpot, ttft)
    if not tpot:
        assert latency.tpot.mean_ms is None
        assert latency.itl.mean_ms is None
        assert latency.icl.n == 0
    assert latency.stream_end.n == 10
    assert all(math.isnan(value) for value in result.columns()["tpot_ms"]) == (tpot == 0)


def test_no_token_at_all_is_a_failure_and_divides_nothing(serve: Serve, bench: Bench) -> None:
    answer = sse(chat_event("", role="assistant"), chat_event(finish_reason="stop"), usage_event(4, 0), DONE)
    result = bench(serve(answer), concurrency=2, num_prompts=10)
    assert result.summary.whole.counts.by_outcome == {"empty_output": 10}
    assert result.summary.whole.latency.tpot.n == 0
    assert result.exit_code == 1


def _closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "outcome", "load"),
    [
        (None, "connect_error", {"request_rate": 1000}),
        ([(0.0, error_reply(503, "no capacity"))], "http_5xx", {"request_rate": 1000}),
        (None, "connect_error", {"concurrency": 20}),
        ([(0.0, error_reply(500, "engine is dead"))], "http_5xx", {"concurrency": 20}),
        ([(0.0, error_reply(400, "too long"))], "http_4xx", {"concurrency": 20}),
        ([(0.0, error_reply(429, "slow down"))], "http_429", {"concurrency": 20}),
        ([(0.0, RESET)], "connection_reset", {"concurrency": 20}),
        ([(0.0, b"no http at all\r\n\r\n"), (0.0, CLOSE)], "invalid_response", {"concurrency": 20}),
        (sse(chat_event("a"), error_event("engine died")), "stream_error", {"concurrency": 20}),
        (sse(chat_event("a"), CLOSE), "truncated", {"concurrency": 20}),
    ],
)
def test_a_run_in_which_nothing_went_well_has_no_figures_and_valid_files(
    serve: Serve, bench: Bench, strict_json: StrictJson, tmp_path: Path, answer: Script | None, outcome: str, load: dict[str, Any]
) -> None:
    target = _closed_port() if answer is None else serve(answer)
    seed, vllm = tmp_path / "seed.jsonl", tmp_path / "vllm.json"
    result = bench(
        target, num_prompts=100, output_file=str(seed), save_result=True, save_detailed=True,
        result_dir=str(tmp_path), result_filename=vllm.name, goodput=["ttft:200"], **load,
    )  # fmt: skip
    summary, whole = result.summary, result.summary.whole
    assert result.exit_code == 1
    assert summary.verdict == "invalid"
    assert summary.reasons[0].rule == "nothing_ok"
    assert whole.counts.by_outcome == {outcome: 100}
    assert whole.counts.success_rate == 0
    assert (whole.rates.requests_per_s, whole.rates.output_tokens_per_s, whole.rates.goodput_per_s) == (0, 0, 0)
    assert all(stats.n == 0 for stats in (whole.latency.ttft, whole.latency.e2e, whole.latency.tpot, whole.latency.itl))
    _assert_ordered(result)
    for path in [*result.folder.iterdir(), seed, vllm]:
        if path.suffix == ".json":
            strict_json(path.read_bytes())
        if path.suffix == ".jsonl":
            assert all(strict_json(line) for line in path.read_bytes().splitlines())
    assert list(summary.errors) == [outcome]
    report = result.report.read_text().split("## Again")[0]
    assert not re.search(r"\b(nan|NaN|inf|None)\b", report)
    assert len(re.findall(rf"^\| {outcome} \|", report, re.MULTILINE)) == 1


def test_the_command_names_the_cause_once_and_fails(command: Command, tmp_path: Path) -> None:
    done = command("bench", "--base-url", _closed_port(), "--model", "m", "--num-prompts", "50", "--concurrency", "5", "--input-len", "8")
    assert done.returncode == 1
    assert (done.stdout + done.stderr).count("connection refused") <= 3
    assert "connection refused" in done.stdout
    assert "INVALID" in done.stdout


_UNITS = re.compile(r"_(ms|s|us|ns|per_s|share|rate)(_|$)|percent")
_TIMES = re.compile(r"latency|ttft|tpot|itl|icl|e2e|stall|delay|duration|elapsed|lag", re.IGNORECASE)


def _numbers(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, (*path, key))
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner, path)
    elif isinstance(value, float):
        yield path, value


def test_every_time_carries_its_unit_and_all_files_agree(serve: Serve, bench: Bench, tmp_path: Path, strict_json: StrictJson) -> None:
    """First token after 1.2 s, the last after 1.5 s: seconds must not get lost, nor stand among milliseconds."""
    seed, vllm = tmp_path / "seed.jsonl", tmp_path / "vllm.json"
    server = serve(chat_stream("a", "b", first_ms=1200, every_ms=300))
    result = bench(
        server, num_prompts=3, concurrency=3, output_file=str(seed), save_result=True, percentile_metrics="ttft,tpot,itl,e2el",
        result_dir=str(tmp_path), result_filename=vllm.name,
    )  # fmt: skip
    latency = result.summary.whole.latency
    assert latency.ttft.mean_ms == pytest.approx(1200, abs=30)
    assert latency.e2e.mean_ms == pytest.approx(1500, abs=30)
    assert latency.tpot.mean_ms == pytest.approx(300, abs=20)
    summary = strict_json((result.folder / "summary.json").read_bytes())
    for path, _ in _numbers({key: summary[key] for key in ("whole", "steady", "endpoints", "client", "timeline", "per_device")}):
        assert any(_UNITS.search(part) for part in path) or not any(_TIMES.search(part) for part in path), path
    theirs = strict_json(vllm.read_bytes())
    assert theirs["mean_ttft_ms"] == pytest.approx(latency.ttft.mean_ms, rel=1e-3)
    assert theirs["mean_e2el_ms"] == pytest.approx(1500, abs=30)
    lines = [strict_json(line) for line in seed.read_bytes().splitlines()]
    assert all(line["first_token_time_ms"] == pytest.approx(1200, abs=30) for line in lines[:-1])
    assert all(line["e2e_latency_ms"] == pytest.approx(1500, abs=30) for line in lines[:-1])
    report = result.report.read_text()
    row = next(line for line in report.splitlines() if line.startswith("| TTFT |"))
    assert re.search(r"1[.,]2\d* s|1,?2\d\d(\.\d+)? ms", row), row


_MARKUP = "</script><script>document.title='X'</script><!-- | ` \n # [bold]x[/bold] \x1b[31m \\| **b** ![i](http://h) &amp;"


@pytest.mark.parametrize("where", ["text", "error", "stream_error", "model"])
def test_text_from_outside_stays_text(serve: Serve, command: Command, tmp_path: Path, where: str) -> None:
    answers: dict[str, Script] = {
        "text": sse(chat_event(_MARKUP), chat_event(finish_reason="stop"), usage_event(4, 2), DONE),
        "error": [(0.0, error_reply(400, _MARKUP))],
        "stream_error": sse(chat_event("a"), error_event(_MARKUP)),
        "model": chat_stream("a", "b"),
    }
    server = serve(answers[where])
    model = "<b>m</b> | `x` [red]" if where == "model" else "m"
    words = [
        "--base-url",
        server.base_url,
        "--model",
        model,
        "--num-prompts",
        "4",
        "--concurrency",
        "2",
        "--input-len",
        "8",
        "--output-len",
        "2",
    ]
    done = command("bench", *words, "--save-text", "--output-dir", "run", "--label", _MARKUP.replace("\n", " "))
    assert "Traceback" not in done.stderr
    assert "\x1b[31m" not in done.stdout
    report = (tmp_path / "run" / "report.md").read_text()
    head, _, spec = report.partition("## Again")
    assert "<script" not in head
    assert "<!--" not in head
    assert "<b>" not in head
    assert spec.count("```") == 2
    widths: list[int] = []
    for line in head.splitlines():
        if line.startswith("|"):
            widths.append(len(re.findall(r"(?<!\\)\|", line)))
        else:
            assert len(set(widths)) <= 1, widths
            widths = []
    if "error" in where:
        assert "document.title" in head
        assert "document.title" in done.stdout


@pytest.mark.parametrize(("services", "devices"), [(1, 8), (1, 1), (2, 8), (3, None)])
def test_per_device_figures_divide_by_the_devices_that_were_named(serve: Serve, bench: Bench, services: int, devices: int | None) -> None:
    """Of all services together; how a service spreads its work over them is not guessed."""
    servers = [serve(chat_stream(*["t "] * 10, first_ms=5)) for _ in range(services)]
    result = bench(*servers, concurrency=4, num_prompts=40, output_len=10, devices=devices)
    per, rates = result.summary.per_device, result.summary.whole.rates
    assert per.devices == devices
    assert rates.output_tokens_per_s is not None
    assert rates.output_tokens_per_s > 0
    if devices is None:
        assert (per.output_tokens_per_s, per.requests_per_s, per.total_tokens_per_s) == (None, None, None)
        assert "per device (–)" in result.report.read_text()
    else:
        assert per.output_tokens_per_s == pytest.approx(rates.output_tokens_per_s / devices)
        assert f"per device ({devices}" in result.report.read_text()


def test_the_method_of_percentiles_is_named(serve: Serve, bench: Bench) -> None:
    result = bench(serve(chat_stream("a", "b", first_ms=5)), concurrency=4, num_prompts=20)
    assert "interpol" in result.report.read_text()


def test_a_report_made_again_is_the_same(serve: Serve, bench: Bench, command: Command) -> None:
    result = bench(serve(chat_stream("a", "b", first_ms=5)), concurrency=4, num_prompts=20)
    before = (json.loads((result.folder / "summary.json").read_text()), result.report.read_text())
    result.report.unlink()
    done = command("report", str(result.folder))
    assert done.returncode == 0, done.stderr
    assert (json.loads((result.folder / "summary.json").read_text()), result.report.read_text()) == before
