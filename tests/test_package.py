"""What a Python user meets first."""

from pathlib import Path

import loadcell
from loadcell.api import BenchResult
from loadcell.metrics.facts import RunFacts
from loadcell.metrics.summarize import summarize


def test_the_package_lists_what_it_offers() -> None:
    assert {"bench", "BenchResult"} <= set(dir(loadcell))
    assert loadcell.BenchResult is BenchResult


def test_a_result_is_one_line_in_a_repl() -> None:
    facts = RunFacts()
    result = BenchResult(folder=Path("runs/x"), summary=summarize(facts, []), facts=facts, exit_code=1)
    assert repr(result) == "<BenchResult invalid: 0 ok, 0 failed, in runs/x>"
