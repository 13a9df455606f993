"""Runs against simulated engines whose access logs tell, on the same clock, what was sent and when."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

import loadcell
from loadcell.api import BenchResult
from loadcell.records import Attempt
from loadcell.sim.accesslog import AccessLine
from loadcell.sim.inprocess import RunningEngine, running_engine


class Pair(Struct):
    """One request as the client has it and as the engine has it. `origin_ns` + a stamp of the client's is on the engine's clock."""

    attempt: Attempt
    line: AccessLine
    origin_ns: int

    def client_ns(self) -> list[int]:
        """When the chunks came, true to 1 µs."""
        times, at = [], self.origin_ns
        for us in self.attempt.chunk_us:
            at += us * 1000
            times.append(at)
        return times


@pytest.fixture
def engines() -> Iterator[Callable[..., RunningEngine]]:
    """`engines(**fields of SimSpec)`: an engine that answers after 2 ms unless told otherwise, and never queues."""
    with ExitStack() as running:

        def start(**fields: Any) -> RunningEngine:
            usual = {"ttft_ms": 2.0, "itl_ms": 1.0, "max_num_seqs": 4096}
            return running.enter_context(running_engine(**{**usual, **fields}))

        yield start


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., BenchResult]:
    """`load(engine, …, prompts=N, tokens=N, **flags)`: N prompts that begin with their number, so that both sides can be joined."""
    made = 0

    def run(*targets: RunningEngine, prompts: int, tokens: int = 2, **flags: Any) -> BenchResult:
        nonlocal made
        made += 1
        data = tmp_path / f"data-{made}.jsonl"
        data.write_text("".join(json.dumps({"prompt": f"{n:06d} tell me", "output_len": tokens}) + "\n" for n in range(prompts)))
        usual: dict[str, Any] = {"tokenizer": "words", "ignore_eos": True, "num_prompts": prompts, "dataset_name": "custom"}
        where = {
            "base_url": [engine.base_url for engine in targets],
            "dataset_path": str(data),
            "output_dir": str(tmp_path / f"run-{made}"),
        }
        return loadcell.bench(**{**usual, **where, **flags})

    return run


@pytest.fixture
def number_of() -> Callable[[AccessLine], int]:
    return lambda line: int((line.prompt_head or "")[:6])


@pytest.fixture
def pairs(number_of: Callable[[AccessLine], int]) -> Callable[[BenchResult, RunningEngine], list[Pair]]:
    """Every request of a run beside its line in the engine's log."""

    def joined(result: BenchResult, engine: RunningEngine) -> list[Pair]:
        records = list(result.records)
        lines = {number_of(line): line for line in engine.generations(at_least=len(records))}
        assert len(lines) == len(records)
        origin = result.records.header.origin.monotonic_ns
        return [Pair(record.attempts[-1], lines[record.index], origin) for record in records]

    return joined
