"""Random prompts: what they derive from, what they share, and how lengths are drawn."""

import math
from itertools import takewhile

import pytest

from loadcell.workload import WordTokenizer, WorkloadSpec, open_workload
from loadcell.workload.vocabulary import WORDS


def words(chat: bool = True, **fields):
    return open_workload(WorkloadSpec(**fields), WordTokenizer(), chat=chat)


def texts(count: int = 20, purpose: str = "measure", **fields) -> list[str]:
    workload = words(**fields)
    return [workload.prompt(index, purpose).text for index in range(count)]


def shared_words(a: list[str], b: list[str]) -> int:
    return max(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(x.split(), y.split(), strict=False))) for x in a for y in b)


def test_a_prompt_follows_from_its_index_alone():
    one, other = words(input_len=30), words(input_len=30)
    in_order = [one.prompt(index, "measure") for index in range(10)]
    assert [other.prompt(index, "measure") for index in reversed(range(10))] == in_order[::-1]


@pytest.mark.parametrize("change", [{"seed": 1}, {"cell": "b"}, {"repeat": 1}])
def test_seeds_cells_and_repeats_draw_different_prompts(change):
    assert shared_words(texts(input_len=50), texts(input_len=50, **change)) < 4


@pytest.mark.parametrize("change", [{"cell": "b"}, {"repeat": 1}, {"cell": "c", "repeat": 2}])
def test_the_same_prompts_where_asked_for(change):
    assert texts(input_len=50, same_prompts=True) == texts(input_len=50, same_prompts=True, **change)


def test_no_measured_prompt_begins_as_a_warm_up_prompt_or_another_measured_one():
    measured, warming = texts(200, input_len=50), texts(50, "warmup", input_len=50)
    assert shared_words(measured, warming) < 4
    assert len({" ".join(text.split()[:4]) for text in measured}) == 200


def test_prefix_groups_share_only_their_prefix_in_warm_up_too():
    spec = {"input_len": 20, "prefix_len": 64, "prefix_groups": 2}
    measured, warming = texts(40, **spec), texts(40, "warmup", **spec)
    assert len({" ".join(text.split()[:64]) for text in measured + warming}) == 2
    assert 64 <= shared_words(measured, warming) < 68


def test_prefixes_differ_between_cells_so_that_each_begins_cold():
    assert shared_words(texts(prefix_len=64), texts(prefix_len=64, cell="b")) < 4
    assert texts(prefix_len=64, same_prompts=True) == texts(prefix_len=64, same_prompts=True, cell="b")


def test_the_session_is_the_prefix_group_and_groups_are_drawn_evenly():
    workload = words(input_len=1, prefix_len=2, prefix_groups=4)
    sessions = [workload.prompt(index, "measure").session for index in range(4000)]
    assert all(abs(sessions.count(f"group-{group}") - 1000) < 130 for group in range(4))
    assert words().prompt(0, "measure").session is None


def test_more_groups_than_are_kept_still_repeat():
    workload = words(input_len=1, prefix_len=8, prefix_groups=1000)
    first = [workload.prompt(index, "measure").text for index in range(600)]
    assert [workload.prompt(index, "measure").text for index in range(600)] == first


def test_words_are_an_estimate_and_marked_so():
    prompt = words(input_len=100).prompt(3, "measure")
    assert len(prompt.text.split()) == prompt.input_tokens == 100
    assert prompt.input_source == "estimated"
    assert set(prompt.text.split()) <= set(WORDS)
    assert not words().report().exact


def lengths(count: int = 4000, **fields) -> tuple[list[int], list[int]]:
    workload = words(**fields)
    made = [workload.prompt(index, "measure") for index in range(count)]
    return [p.input_tokens for p in made], [p.output_len for p in made]


def moments(values: list[int]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / len(values)) / mean


def test_the_range_ratio_is_vllms():
    inputs, outputs = lengths(input_len=10, output_len=100, range_ratio=0.25)
    assert (min(inputs), max(inputs)) == (7, 13)  # floor(7.5), ceil(12.5)
    assert (min(outputs), max(outputs)) == (75, 125)
    assert all(abs(inputs.count(n) - 4000 / 7) < 120 for n in range(7, 14))


def test_input_and_output_may_have_ratios_of_their_own():
    inputs, outputs = lengths(500, input_len=10, output_len=100, output_range_ratio=0.5)
    assert set(inputs) == {10}
    assert min(outputs) < 55 < 145 < max(outputs)


@pytest.mark.parametrize("spread", [0.2, 0.5])
@pytest.mark.parametrize("distribution", ["normal", "lognormal", "zipf"])
def test_distributions_have_the_mean_and_the_spread_asked_for(distribution, spread):
    _, outputs = lengths(20_000, input_len=1, output_len=500, output_dist=distribution, dist_spread=spread)
    mean, variation = moments(outputs)
    assert mean == pytest.approx(500, rel=0.03)
    assert variation == pytest.approx(spread, rel=0.25 if distribution == "zipf" else 0.06)


def test_exponential_lengths_have_variation_one():
    _, outputs = lengths(20_000, input_len=1, output_len=500, output_dist="exponential")
    mean, variation = moments(outputs)
    assert mean == pytest.approx(500, rel=0.03)
    assert variation == pytest.approx(1.0, rel=0.04)


@pytest.mark.parametrize("distribution", ["normal", "lognormal", "exponential", "zipf"])
def test_drawn_lengths_stay_within_one_and_thirty_two_means(distribution):
    inputs, _ = lengths(2000, input_len=3, input_dist=distribution, dist_spread=2.0)
    assert min(inputs) >= 1
    assert max(inputs) <= 96


def test_drawn_lengths_over_the_context_are_drawn_again_and_counted():
    workload = words(input_len=100, output_len=100, range_ratio=0.5, max_model_len=200)
    made = [workload.prompt(index, "measure") for index in range(500)]
    assert all(p.input_tokens + p.output_len <= 200 for p in made)
    assert max(p.input_tokens for p in made) > 130
    assert workload.report().skipped["longer than the model's context"] > 100


def test_capped_outputs_fit_the_context_and_are_counted():
    workload = words(input_len=100, output_len=100, range_ratio=0.5, max_model_len=200, oversize="cap")
    made = [workload.prompt(index, "measure") for index in range(500)]
    assert all(p.input_tokens + p.output_len <= 200 for p in made)
    assert 150 < workload.report().capped < 350


def test_the_report_tells_the_lengths_of_measured_prompts_only():
    workload = words(input_len=10, output_len=7)
    for index in range(5):
        workload.prompt(index, "measure")
        workload.prompt(index, "warmup")
    report = workload.report()
    assert (report.input.n, report.input.min, report.input.mean, report.input.max) == (5, 10, 10.0, 10)
    assert (report.output.n, report.output.mean) == (5, 7.0)
    assert (report.rows, report.reused, report.skipped, report.capped) == (None, 0, {}, 0)
    assert words().report().input.min is None


def test_no_output_length_leaves_it_to_the_server():
    assert words(output_len=None).prompt(0, "measure").output_len is None


def test_a_prompt_of_the_prefix_alone():
    workload = words(input_len=0, prefix_len=5)
    assert workload.prompt(0, "measure").text == workload.prompt(1, "measure").text
    assert workload.prompt(0, "measure").input_tokens == 5
