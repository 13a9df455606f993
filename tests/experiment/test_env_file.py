"""The env file: a shell's assignments, read by the same rules and executed by nobody."""

import shutil
import subprocess

import pytest

from loadcell.errors import UserError
from loadcell.experiment.offered import Value, read_env_file

GOOD = """\
# the seed's way
export MODEL_ROOT=/data/models   # a comment
MODEL="$MODEL_ROOT/DeepSeek V4"
QUOTED='$MODEL_ROOT `date` "x"'
PORT=${PORT:-30005}
HOST="${HOST:-127.0.0.1}:${PORT}"
EMPTY=
MIXED=a'b c'"d $PORT"\\ e
HASH=a#b
DOLLAR="5\\$ and $"
LONG="one
two"
"""


def read(text: str, **environment: str) -> dict[str, Value]:
    return read_env_file(text, environment, "config.env")


def test_it_reads_what_a_shell_reads() -> None:
    bash = shutil.which("bash")
    assert bash is not None
    names = ("MODEL_ROOT", "MODEL", "QUOTED", "PORT", "HOST", "EMPTY", "MIXED", "HASH", "DOLLAR", "LONG")
    show = "".join(f'printf "%s\\0" "${{{name}}}"\n' for name in names)
    told = subprocess.run([bash, "-c", GOOD + show], env={"HOST": "h"}, capture_output=True, check=True).stdout.decode().split("\0")
    found = read(GOOD, HOST="h")
    assert [found[name] for name in names] == told[:-1]


def test_lists_over_several_lines() -> None:
    assert read('SCENARIOS=(\n  "1 512 256"  # first\n  "4 512 256"\n)\nPORTS=(30005 30006)\n') == {
        "SCENARIOS": ("1 512 256", "4 512 256"),
        "PORTS": ("30005", "30006"),
    }


def test_the_environment_is_asked_only_where_the_file_asks() -> None:
    assert read("PORT=1\n", PORT="2") == {"PORT": "1"}
    assert read("PORT=${PORT:-1}\n", PORT="2") == {"PORT": "2"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("A=1\nB=$(date)\n", 2),
        ("A=`date`\n", 1),
        ('A="x `date`"\n', 1),
        ('A="x $(date)"\n', 1),
        ("A=$((1 + 1))\n", 1),
        ("set -e\n", 1),
        ("A=1\n\nsource other.env\n", 3),
        ("A=1 rm -rf /\n", 1),
        ("A=1; rm -rf /\n", 1),
        ("A=1 && date\n", 1),
        ("A=b|date\n", 1),
        ("A=$MISSING\n", 1),
        ("A='x\n", 1),
        ('A="x\n', 1),
        ("A=(1 2\n", 1),
        ("A=${B/x/y}\n", 1),
        ("if true; then A=1; fi\n", 1),
    ],
)
def test_what_would_run_is_refused_by_line(text: str, line: int) -> None:
    with pytest.raises(UserError, match=rf"^config\.env:{line}: "):
        read(text)
