"""Tables of options -> words, and back from a printed line through a real shell."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadcell.errors import UserError
from loadcell.fleet.command_line import fill, fill_args, number, option, shell_line, without, words
from loadcell.fleet.spec import Launch


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"enable-x": True}, ["--enable-x"]),
        ({"enable-x": False}, []),
        ({"enable_x": False}, []),
        ({"enable-x/no-enable-x": False}, ["--no-enable-x"]),
        ({"enable_x/no_enable_x": True}, ["--enable-x"]),
        ({"enable-y": False}, ["--no-enable-y"]),
        ({"enable_y": True}, ["--enable-y"]),
        ({"tensor_parallel_size": 2, "gpu-memory-utilization": 0.9}, ["--tensor-parallel-size", "2", "--gpu-memory-utilization", "0.9"]),
        ({"-tp": 4}, ["-tp", "4"]),
        ({"speculative-config.num_speculative_tokens": 3}, ["--speculative-config.num_speculative_tokens", "3"]),
        ({"name": "-x"}, ["--name=-x"]),
        ({"n": -1}, ["--n", "-1"]),
        ({"served-model-name": ["a", "b"]}, ["--served-model-name", "a", "b"]),
        ({"fault": [["a"], ["b", "c"]]}, ["--fault", "a", "--fault", "b", "c"]),
        ({"fault": []}, []),
        ({"text": ""}, ["--text", ""]),
        ({"path": "/tmp/my models/a b"}, ["--path", "/tmp/my models/a b"]),
        (("--a", "b c", "$HOME"), ["--a", "b c", "$HOME"]),
    ],
)
def test_words(args: Any, expected: list[str]) -> None:
    assert list(words(args, negatable={"--enable-y"})) == expected


def test_a_table_becomes_json_in_one_word() -> None:
    flag, value = words({"speculative-config": {"method": "mtp", "n": 3, "deep": [{"it's": True}]}})
    assert flag == "--speculative-config"
    assert json.loads(value) == {"method": "mtp", "n": 3, "deep": [{"it's": True}]}
    assert [json.loads(one) for one in words({"lora-modules": [{"name": "a"}, {"name": "b"}]})[1:]] == [{"name": "a"}, {"name": "b"}]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"max-num-seqs": 1, "max_num_seqs": 2}, "max_num_seqs"),
        ({"x": float("nan")}, "fleet.args.x"),
        ({"x": "a\0b"}, "fleet.args.x"),
        ({"x": [["a"], "b"]}, "fleet.args.x"),
        (("a\0",), r"fleet.args\[0\]"),
    ],
)
def test_what_cannot_be_said_is_refused(args: Any, named: str) -> None:
    with pytest.raises(UserError, match=named):
        words(args)


@pytest.mark.parametrize(
    "args", [{"tensor_parallel_size": 4}, ("--tensor-parallel-size", "4"), ("--tensor_parallel_size=4",), ("-tp", "4"), {"-tp": 4}]
)
def test_an_option_is_found_however_it_is_written(args: Any) -> None:
    assert number(args, "tensor-parallel-size", "-tp") == 4
    assert option(args, "data-parallel-size") is None
    assert not without(args, "tensor-parallel-size", "-tp")


def test_the_last_of_several_words_counts_and_all_are_taken_out() -> None:
    given = ("--n", "1", "--x", "--n=2", "y")
    assert option(given, "n") == "2"
    assert without(given, "n") == ("--x", "y")
    assert option(given, "x") is True


@pytest.mark.parametrize("value", ["x", 0, -2, True, None.__class__])
def test_a_count_is_a_count(value: Any) -> None:
    with pytest.raises(UserError, match=r"fleet\.args\.tp"):
        number({"tp": value}, "tp")


def test_placeholders() -> None:
    values = {"port": "8000", "name": "replica-0"}
    assert fill("{name}:{port} {{port}} {other} {{other}} {}", values) == "replica-0:8000 {port} {other} {{other}} {}"
    assert fill_args({"a": "{port}", "b": [{"c": "{name}"}], "d": 1}, values) == {"a": "8000", "b": [{"c": "replica-0"}], "d": 1}
    assert fill("{{port}} {{other}} {name}", values, "fleet.command[2]") == "{port} {other} replica-0"
    with pytest.raises(UserError, match=r"fleet\.command\[2\].*\{prot\}.*\{port\}"):
        fill("--x={prot}", values, "fleet.command[2]")


@pytest.mark.parametrize("word", ["/tmp/my models/a b", "it's", '{"a": "b c"}', "$HOME `id` ; & | > \\ *", "two\nlines", "", "ünï"])
def test_the_printed_line_round_trips_through_a_shell(word: str, tmp_path: Path) -> None:
    folder = tmp_path / "a folder's"
    folder.mkdir()
    program = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['SAID'], os.getcwd()]))"
    launch = Launch((sys.executable, "-c", program, "--x", word), {"SAID": word})
    ended = subprocess.run(["/bin/sh", "-c", shell_line(launch, str(folder))], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == [["--x", word], word, str(folder)]
