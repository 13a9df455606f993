import statistics

import pytest

from loadcell.sim.answers import natural_length, planned_answer, prompt_key
from loadcell.sim.spec import SimSpec


def test_lengths_have_the_mean_that_was_asked_for() -> None:
    spec = SimSpec(mean_output_tokens=120.0)
    lengths = [natural_length(spec, prompt_key(0, [number], None)) for number in range(4000)]
    assert statistics.fmean(lengths) == pytest.approx(120, rel=0.05)
    assert statistics.pstdev(lengths) > 40
    assert natural_length(SimSpec(mean_output_tokens=120.0, output_spread=0.0), 5) == 120


def test_a_key_depends_on_seed_prompt_and_the_requests_seed_alone() -> None:
    keys = {prompt_key(0, [1, 2], None), prompt_key(1, [1, 2], None), prompt_key(0, [2, 1], None), prompt_key(0, [1, 2], 0)}
    assert len(keys) == 4
    assert prompt_key(0, [1, 2], None) == 4538430130616896503


@pytest.mark.parametrize(
    ("max_tokens", "min_tokens", "ignore_eos", "expected"),
    [
        (500, 0, False, (120, "stop")),
        (50, 0, False, (50, "length")),
        (500, 0, True, (500, "length")),
        (500, 300, False, (301, "stop")),
        (300, 300, False, (300, "length")),
    ],
)
def test_when_an_answer_ends(max_tokens: int, min_tokens: int, ignore_eos: bool, expected: tuple[int, str]) -> None:
    spec = SimSpec(mean_output_tokens=120.0, output_spread=0.0)
    assert planned_answer(spec, 7, max_tokens=max_tokens, min_tokens=min_tokens, ignore_eos=ignore_eos) == expected
