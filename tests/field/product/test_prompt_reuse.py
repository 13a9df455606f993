"""Prompts that a server has seen before measure its prefix cache: they differ unless it is asked otherwise, and it is said when they do not."""

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from loadcell.api import BenchResult
from loadcell.sim.inprocess import running_engine
from loadcell.testing.replies import Script, chat_stream
from loadcell.testing.scripted_server import Received, ScriptedServer

Serve = Callable[..., ScriptedServer]
Bench = Callable[..., BenchResult]

COLD_MS = 60.0


class PrefixCache:
    """A server that answers at once what begins like something it has seen."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, request: Received) -> Script:
        prompt = _prompt(request)
        hit = any(_shared(prompt, before) >= len(prompt) // 2 for before in self.seen)
        self.seen.append(prompt)
        return chat_stream("a", "b", first_ms=0.0 if hit else COLD_MS)


def _shared(one: str, other: str) -> int:
    """Characters of the prefix that both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _prompt(request: Received) -> str:
    return str(json.loads(request.body)["messages"][-1]["content"])


def _cold(result: BenchResult) -> int:
    return int((result.columns()["ttft_ms"] > 0.8 * COLD_MS).sum())


def _measured(result: BenchResult, cache: PrefixCache, since: int) -> list[str]:
    return cache.seen[since + result.summary.warmup.requests :]


@pytest.mark.parametrize("dataset", [{"input_len": 64}, {"input_len": 64, "range_ratio": "0.5"}])
def test_cells_and_repetitions_draw_other_prompts_and_can_be_made_again(serve: Serve, bench: Bench, dataset: dict[str, Any]) -> None:
    cache = PrefixCache()
    server = serve(cache)
    kept: dict[tuple[str, int], list[str]] = {}
    for cell, repeat in (("a", 0), ("a", 1), ("b", 0), ("a", 0)):
        since = len(cache.seen)
        if (cell, repeat) in kept:
            cache.seen.clear()
            since = 0
        result = bench(server, cell=cell, repeat=repeat, seed=7, concurrency=1, num_prompts=10, **dataset)
        assert _cold(result) == 10
        prompts = _measured(result, cache, since)
        assert kept.setdefault((cell, repeat), prompts) == prompts
    assert len({prompt for prompts in kept.values() for prompt in prompts}) == 30


def test_another_seed_gives_other_prompts(serve: Serve, bench: Bench) -> None:
    cache = PrefixCache()
    server = serve(cache)
    for seed in (1, 2):
        assert _cold(bench(server, seed=seed, concurrency=1, num_prompts=6, input_len=64)) == 6


def test_the_same_prompts_come_only_when_they_are_asked_for(serve: Serve, bench: Bench) -> None:
    cache = PrefixCache()
    server = serve(cache)
    first = bench(server, cell="a", same_prompts=True, concurrency=1, num_prompts=6, input_len=64)
    second = bench(server, cell="b", same_prompts=True, concurrency=1, num_prompts=6, input_len=64)
    assert (_cold(first), _cold(second)) == (6, 0)
    assert cache.seen[:6] == cache.seen[6:]


@pytest.mark.parametrize(("workers", "warmup"), [(1, {"warmup_requests": 5}), (2, {"warmup_requests": 5}), (1, {"warmup_duration": 0.4})])
def test_warm_up_and_measurement_share_no_prompt(serve: Serve, bench: Bench, warmup: dict[str, Any], workers: int) -> None:
    cache = PrefixCache()
    result = bench(serve(cache), concurrency=2, num_prompts=20, input_len=64, workers=workers, **warmup)
    assert result.summary.warmup.requests >= 5
    cold = [record for record in result.records if record.phase == "measure"]
    assert len(cold) == 20
    assert all((_ttft_ms(record) or 0) > 0.8 * COLD_MS for record in cold)
    assert all(_shared(one, other) < 40 for one, other in combinations(cache.seen, 2))


def _ttft_ms(record: Any) -> float:
    attempt = record.attempts[-1]
    return (attempt.first_token_ns - attempt.sent_ns) / 1e6


@pytest.mark.parametrize("kind", ["custom", "sharegpt"])
def test_warm_up_takes_rows_that_are_not_measured_where_there_are_enough(serve: Serve, bench: Bench, tmp_path: Path, kind: str) -> None:
    cache = PrefixCache()
    result = bench(
        serve(cache), dataset_name=kind, dataset_path=_rows(tmp_path, kind, 25), warmup_requests=5, num_prompts=20, concurrency=1
    )
    assert len(set(cache.seen)) == 25
    assert result.summary.prompts.reused == 0
    assert not any("again" in notice or "reuse" in notice for notice in result.summary.notices)


@pytest.mark.parametrize("kind", ["custom", "sharegpt"])
def test_warm_up_that_has_to_take_measured_rows_says_so(serve: Serve, bench: Bench, tmp_path: Path, kind: str) -> None:
    cache = PrefixCache()
    result = bench(
        serve(cache), dataset_name=kind, dataset_path=_rows(tmp_path, kind, 20), warmup_requests=5, num_prompts=20, concurrency=1
    )
    assert len(cache.seen) == 25
    shared = set(cache.seen[:5]) & set(cache.seen[5:])
    assert bool(shared) == any("cache" in notice for notice in result.summary.notices)


def _rows(folder: Path, kind: str, count: int) -> str:
    path = folder / f"{kind}.data"
    texts = [f"{at} is the number of this question, which is unlike any other one" for at in range(count)]
    if kind == "custom":
        path.write_text("".join(json.dumps({"prompt": text, "output_len": 2}) + "\n" for text in texts))
    else:
        talks = [{"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": "some words in return"}]} for text in texts]
        path.write_text(json.dumps(talks))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("endpoints", [1, 2])
def test_hits_that_nobody_asked_for_make_a_run_suspect(bench: Bench, endpoints: int) -> None:
    """Two runs by hand with one seed: the second one finds its prompts in the cache, and the server's own counters tell."""
    with running_engine() as one, running_engine() as other:
        urls = [one.base_url, other.base_url][:endpoints]
        flags: dict[str, Any] = {
            "seed": 7,
            "input_len": 128,
            "output_len": 4,
            "num_prompts": 20,
            "concurrency": 2,
            "model": None,
            "tokenizer": "auto",
        }
        first, second = (bench(*urls, **flags) for _ in range(2))
        asked = bench(*urls, **flags, same_prompts=True)
    rates = [endpoint.prefix_cache_hit_rate for endpoint in first.summary.endpoints]
    assert all(rate is not None and rate < 0.05 for rate in rates)
    assert "unasked_cache_hits" not in {reason.rule for reason in first.summary.reasons}
    rates = [endpoint.prefix_cache_hit_rate for endpoint in second.summary.endpoints]
    assert all(rate is not None and rate > 0.5 for rate in rates)
    assert "unasked_cache_hits" in {reason.rule for reason in second.summary.reasons}
    assert "prefix cache" in second.report.read_text()
    assert "unasked_cache_hits" not in {reason.rule for reason in asked.summary.reasons}


def test_shared_prefixes_that_are_asked_for_are_no_fault(bench: Bench) -> None:
    with running_engine() as engine:
        result = bench(
            engine.base_url,
            model=None,
            tokenizer="auto",
            input_len=64,
            prefix_len=256,
            prefix_groups=2,
            output_len=4,
            num_prompts=20,
            concurrency=2,
        )
    rate = result.summary.endpoints[0].prefix_cache_hit_rate
    assert rate is not None
    assert rate > 0.4
    assert "unasked_cache_hits" not in {reason.rule for reason in result.summary.reasons}
