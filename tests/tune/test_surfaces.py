"""The response surfaces of the benchmark: what they claim of themselves, and that they are the engine's own model."""

import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import surfaces
from loadcell.sim.sequence import Sequence
from loadcell.sim.startup import start_engine

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", sorted(surfaces.SURFACES))
def test_a_quarter_to_two_fifths_die_of_memory(name: str) -> None:
    shares = surfaces.shares(surfaces.SURFACES[name])
    assert 0.245 <= shares["oom_start"] + shares["oom_load"] <= 0.4
    assert shares["ok"] > 0.1
    assert len([one for one in surfaces.SURFACES[name].parameters if one.derived is None]) == 12


def test_the_gain_is_fifteen_percent() -> None:
    best, _ = surfaces.optimum(surfaces.GAIN.name)
    assert best / surfaces.GAIN.value(surfaces.default(surfaces.GAIN)) == pytest.approx(1.15, abs=0.002)


@pytest.mark.parametrize("concurrency", [16, 48])
def test_throughput_is_that_of_the_engine_step_by_step(concurrency: int) -> None:
    workload = surfaces.CHAT
    chosen = {**surfaces.default(surfaces.SURFACES["chat"]), "concurrency": concurrency, "max_num_batched_tokens": 2048}
    claimed = surfaces.steady(workload, chosen).figures[surfaces.THROUGHPUT]
    spec = msgspec.structs.replace(
        surfaces._spec(workload, chosen), max_num_batched_tokens=2048, max_model_len=workload.max_model_len, data_parallel_size=1
    )
    timeline, total, ended, tokens, now = start_engine(spec).timelines[0], 5 * concurrency, 0, [], 0
    rng = np.random.default_rng(0)

    def add(number: int) -> None:
        shared = int(workload.prompt * workload.shared)
        own = rng.integers(1 << 30, size=workload.prompt - shared).tolist()
        timeline.add(Sequence(number, [*range(shared), *own], workload.output, now), now)

    for number in range(concurrency):
        add(number)
    started = concurrency
    while ended < total and timeline.due_ns is not None:
        now = timeline.due_ns
        for seq, new in timeline.advance(now):
            tokens.append((now, new))
            if seq.finished:
                ended += 1
                add(started)
                started += 1
    rate = sum(new for at, new in tokens if at > now / 3) / (now * 2 / 3 / 1e9)
    assert claimed == pytest.approx(rate, rel=0.12)


def test_equal_seeds_observe_equally() -> None:
    surface = surfaces.SURFACES["reasoning"]
    chosen = surfaces.default(surface)
    first, second = (surface.observe(chosen, 0, np.random.default_rng(5)) for _ in range(2))
    assert first == second
    assert first.objective != surface.truth(chosen).figures[surfaces.THROUGHPUT]
