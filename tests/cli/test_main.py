"""Command lines -> exit codes and one line of what is wrong."""

import subprocess
import sys
import time

import pytest

from loadcell import __version__
from loadcell.cli import main as cli
from loadcell.cli.main import VERBS, main


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("benhc", ("unknown command benhc", "did you mean bench?")),
        ("zzz", ("unknown command zzz", "bench, run, tune, study, report")),
        ("bench --concurency 4", ("unknown flag --concurency", "did you mean --concurrency?")),
        ("bench --zzzzzzzz", ("unknown flag --zzzzzzzz", "bench --help")),
        ("bench --lora-modules a b", ("--lora-modules has no meaning here", "--model")),
        ("bench --sonnet_input_len 3", ("--sonnet-input-len has no meaning here", "custom")),
        ("bench --port", ("--port",)),
        ("bench --goodput", ("--goodput",)),
        ("bench --port abc", ("--port abc", "whole number")),
        ("bench --concurrency 0", ("--concurrency 0",)),
        ("bench --base-url http://a --host b", ("--base-url with --host",)),
        ("bench stray", ("stray",)),
        ("fleet upp SPEC", ("'upp' is not one of 'up', 'status', 'logs', 'down'",)),
        ("fleet logs SPEC --lines x", ("--lines", "expected a whole number")),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(words: str, parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("loadcell: error: ")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"loadcell {__version__}\n"


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_the_overview_names_every_verb(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    out = capsys.readouterr().out
    assert all(f"  {verb}" in out for verb in VERBS)


def test_help_of_bench_states_defaults_and_other_names(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERMINAL_WIDTH", "300")
    assert main(["bench", "--help"]) == 0
    out = capsys.readouterr().out
    assert "[default: 127.0.0.1]" in out
    assert "(Also --max-concurrency.)" in out
    assert "[len*(1-r), len*(1+r)]" in out
    for panel in ("Services", "Load", "Workload", "Sampling", "Balancing and health", "Timeouts", "Limits", "Output"):
        assert f" {panel} " in out


def test_another_platform_gets_one_clear_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli.sys, "platform", "darwin")
    assert main(["bench"]) == 1
    assert capsys.readouterr().err == "loadcell: error: loadcell runs on Linux; this is darwin\n"


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["bench", "--help"]])
def test_help_is_quick_and_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys; from loadcell.cli.main import main; code = main(sys.argv[1:]); "
        "heavy = {'numpy', 'scipy', 'tokenizers', 'uvloop', 'asyncio'} & set(sys.modules); sys.exit(f'{heavy}' if heavy else code)"
    )
    took = []
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code, *words], check=True, stdout=subprocess.DEVNULL)
        took.append(time.perf_counter() - started)
    # 0.05 s and 0.4 s on a quiet machine; the bound leaves room for a busy one.
    assert min(took) < (1.2 if words[0] == "bench" else 0.3)


def test_a_reader_that_leaves_is_no_bug() -> None:
    """`loadcell bench --help | head -1`"""
    reading = f"{sys.executable} -m loadcell bench --help | head -1"
    done = subprocess.run(["bash", "-c", reading], check=True, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
