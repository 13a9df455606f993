"""What is wrong with a TOML text is said with its line, its key and what to do."""

from pathlib import Path

import pytest

from loadcell.errors import UserError
from loadcell.experiment.places import refusals_placed
from loadcell.experiment.toml import parsed

FILE = Path("e.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'slo = ["ttft p95 <= 1s"]\n[bench]\nnum-prompts = 1\n[[slo]]\nmetric = "ttft"\n',
            "e.toml:4: [[slo]]: slo = … in line 1 gives the same in another form: write all of it in one of the two",
        ),
        ("[[scenario]]\nslo = []\n[[scenario.slo]]\n", "e.toml:3: [[scenario.slo]]: [[scenario]] 1, slo = … in line 2 gives"),
        ("[scenario]\nname = 'a'\n[[scenario]]\n", "e.toml:3: [[scenario]]: [scenario] in line 1 gives the same in another form"),
        ("[[scenario]]\nname = 'a'\n[scenario]\n", "e.toml:3: [scenario]: [[scenario]] in line 1 gives the same in another form"),
        ("fleet = { engine = 'x' }\n[fleet.args]\n", "e.toml:2: [fleet.args]: fleet = … in line 1 gives"),
        ("[fleet]\nargs.a = 1\n[fleet.args]\n", "e.toml:3: [fleet.args]: [fleet] args.a = … in line 2 gives"),
        ("[fleet]\nargs = 3\nargs.a = 1\n", "e.toml:3: [fleet] args.a: [fleet] args = … in line 2 gives"),
        ("[bench]\nnum-prompts = 1\n\nnum-prompts = [2,\n3]\n", "e.toml:4: [bench] num_prompts: given twice, first in line 2: keep one"),
        (
            "[[scenario]]\nname = 'a'\n[[scenario]]\nname = 'b'\r\nname = 'c'\r\n",
            "e.toml:5: [[scenario]] 2, name: given twice, first in line 4",
        ),
        ("[bench]\na = 1\n[fleet]\n[bench]\n", "e.toml:4: [bench]: given twice, first in line 1: put its keys together"),
        ("[fleet]\nargs = { a = 1, a = 2 }\n", "e.toml:2: a: given twice in one { }: keep one"),
        ("[bench]\nname = abc\n", 'e.toml:2: name: not TOML: Invalid value: a text stands in "quotes"'),
        (
            "stop-timeout = 30s\n",
            'e.toml:1: stop-timeout: not TOML: Expected newline or end of document after a statement: a text stands in "',
        ),
        ("num prompts = 1\n", "e.toml:1: not TOML: Expected '=' after a key in a key/value pair: a line is KEY = VALUE"),
        ('name = "abc\n', "e.toml:1: name: not TOML: Illegal character '\\n': a text ends in its line: a \" is missing"),
        ("a = [1,", "e.toml:1: a: not TOML: "),
    ],
)
def test_one_line_with_place_key_and_remedy(text: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        parsed(text, FILE)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


ORIGINS = {"fleet.engine": "e.toml:2", "fleet.cpus": "--set fleet.cpus", "fleet.args.ttft_ms": "e.toml:7", "fleet.host[0].ssh": "e.toml:9"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fleet.cpus = [7]: choose", "--set fleet.cpus: fleet.cpus = [7]: choose"),
        ("fleet.args: ttft-ms and", "e.toml:7: fleet.args: ttft-ms and"),
        ("fleet.args.ttft-ms.x is", "e.toml:7: fleet.args.ttft-ms.x is"),
        ("fleet.host: the name", "e.toml:9: fleet.host: the name"),
        ("fleet.port = 0: no", "fleet.port = 0: no"),
        ("port 8000 is taken", "port 8000 is taken"),
    ],
)
def test_a_refusal_of_the_fleet_gets_the_place_of_its_key(text: str, said: str) -> None:
    with pytest.raises(UserError) as refused, refusals_placed(ORIGINS):
        raise UserError(text)
    assert str(refused.value) == said
