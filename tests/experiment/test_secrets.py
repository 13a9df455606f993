"""What may not stand in a file: found by its name, taken out of every text."""

import pytest

from loadcell.experiment.secrets import Hider
from loadcell.load.redact import HIDDEN

TREE = {
    "fleet": {
        "env": {"HF_TOKEN": "hf_abcdefgh", "OMP_NUM_THREADS": "8"},
        "args": {"api-key": "sk-12345678", "max-tokens": 512},
        "command": ["serve", "--auth-token", "tok-98765432", "--api-key=sk-abcdef", "--port", "{port}"],
    },
    "bench": {
        "header": ["Authorization: Bearer sk-header1", "X-Team=perf-team"],
        "proxy": "http://me:hunter2x@proxy:3128",
        "extra_body": {"password": "p"},
    },
}
VALUES = ("hf_abcdefgh", "sk-12345678", "tok-98765432", "sk-abcdef", "sk-header1", "perf-team", "me:hunter2x")


@pytest.mark.parametrize("value", VALUES)
def test_no_secret_stays_in_a_tree_or_in_a_command_line(value: str) -> None:
    hider = Hider.of(TREE)
    assert value not in str(hider.tree(TREE))
    assert value not in hider.text(f"HF_TOKEN={value} serve --api-key {value}; curl http://{value}@host")


def test_what_is_no_secret_stays() -> None:
    shown = Hider.of(TREE).tree(TREE)
    assert shown["fleet"]["env"] == {"HF_TOKEN": HIDDEN, "OMP_NUM_THREADS": "8"}
    assert shown["fleet"]["args"] == {"api-key": HIDDEN, "max-tokens": 512}
    assert shown["fleet"]["command"] == ["serve", "--auth-token", HIDDEN, f"--api-key={HIDDEN}", "--port", "{port}"]
    assert shown["bench"]["header"] == [f"Authorization:{HIDDEN}", f"X-Team={HIDDEN}"]
    assert shown["bench"]["proxy"] == f"http://{HIDDEN}@proxy:3128"
    assert shown["bench"]["extra_body"] == {"password": HIDDEN}


def test_a_file_is_copied_without_them_and_stays_a_file_of_its_kind() -> None:
    text = 'max-tokens = 5\npassword = "p"\n[env]\nHF_TOKEN = "hf_abcdefgh" # mine\nargs = ["--api-key", "sk-12345678"]\n'
    copied = Hider.of(TREE).toml(text)
    assert copied == f'max-tokens = 5\npassword = "{HIDDEN}"\n[env]\nHF_TOKEN = "{HIDDEN}"\nargs = ["--api-key", "{HIDDEN}"]\n'


def test_where_a_setting_comes_from_is_no_secret_whatever_it_is_called() -> None:
    spec = {
        "bench": {"tokenizer": "words", "api_key": "abcdefgh"},
        "origins": {"bench.tokenizer": "exp.toml:15", "bench.api_key": "exp.toml:16"},
    }
    hider = Hider.of(spec)
    assert hider.tree(spec)["origins"] == spec["origins"]
    assert hider.tree(spec)["bench"] == {"tokenizer": "words", "api_key": "[redacted]"}
    assert hider.text("exp.toml:15: exp.toml:16: abcdefgh") == "exp.toml:15: exp.toml:16: [redacted]"
