"""Values read straight from a command line are those that typer would have handed over, or typer is asked."""

import shlex
from typing import Any

import pytest

from loadcell.cli import main as cli
from loadcell.cli.argv import normal
from loadcell.cli.bench import LISTS, TABLE
from loadcell.cli.options import with_options
from loadcell.cli.plain import values_of


def as_typer_reads(words: list[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}

    def taken(**values: Any) -> int:
        given.update({name: value for name, value in values.items() if value not in (None, [], ())})
        return 0

    cli._command("bench", with_options(taken, TABLE)).main(words, prog_name="bench", standalone_mode=False)
    return given


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--num_prompts 3 --model my_model",
        "--num-prompts=3 --base-url=http://a/v1?x=y",
        "--base-url http://a http://b --seed 1 --header 'A: b c' d=e",
        "--goodput ttft:200 tpot:50 --goodput=e2el:900 --slo a --slo b",
        "--seed 1 --seed 2",
        "--model= --label ''",
        "--no-progress --ignore-eos --no-stream",
        "--disable-tqdm --progress",
        "--progress --disable-tqdm",
        "--trust-remote-code --max-concurrency 4 --random-input-len 5",
        "--extra-body '{\"a\": [1, 2]}' --request-rate inf",
    ],
)
def test_as_typer_reads_it(line: str) -> None:
    words = normal(shlex.split(line), LISTS)
    assert values_of(words, TABLE) == as_typer_reads(words)


def test_every_flag_is_read_as_typer_reads_it() -> None:
    words = [word for flag in TABLE for word in ([flag.spelling] if flag.kind == "switch" else [flag.spelling, "1"])]
    words += [f"--{off}" for flag in TABLE for off in flag.off]
    assert values_of(words, TABLE) == as_typer_reads(words)


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "-h",
        "--seed 1 --help",
        "stray",
        "--seed",
        "--seed --model",
        "--custom-output-len -1",
        "--save-text=yes",
        "--nonsense 3",
        "--nonsense",
        "-- --seed 1",
        "--num-prompt 3",
    ],
)
def test_the_rest_is_left_to_typer(line: str) -> None:
    assert values_of(normal(line.split(), LISTS), TABLE) is None
