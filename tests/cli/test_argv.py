"""Words as users of other tools write them -> words that typer reads."""

import pytest

from loadcell.cli.argv import normal
from loadcell.cli.bench import LISTS


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--num_prompts 3", "--num-prompts 3"),
        ("--num_prompts=3", "--num-prompts=3"),
        ("--goodput ttft:200 tpot:50 --seed 1", "--goodput ttft:200 --goodput tpot:50 --seed 1"),
        ("--goodput=ttft:200", "--goodput=ttft:200"),
        ("--metadata a_b=1 c=--x", "--metadata a_b=1 --metadata c=--x"),
        ("--header --seed 1", "--header --seed 1"),
        ("--header", "--header"),
        ("--base-url http://a http://b", "--base-url http://a --base-url http://b"),
        ("--model my_model --output_file a_b.jsonl", "--model my_model --output-file a_b.jsonl"),
        ("--slo a --slo b", "--slo a --slo b"),
        ("--seed -1", "--seed -1"),
        ("-- --num_prompts", "-- --num_prompts"),
    ],
)
def test_normal(words: str, expected: str) -> None:
    assert normal(words.split(), LISTS) == expected.split()


def test_only_the_name_of_a_flag_is_rewritten() -> None:
    assert normal(['--extra-body={"a_b": 1}'], LISTS) == ['--extra-body={"a_b": 1}']
