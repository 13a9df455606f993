import json

import msgspec
import pytest

from loadcell.cli.diagnosis import Finding
from loadcell.cli.doctor import conclusion, table
from loadcell.cli.main import main

OK = Finding("clock", "ok", "tsc")
WARN = Finding("local ports", "warn", "1,000", "widen it")
FAIL = Finding("dispatch lag", "fail", "p99 9 ms", "stop other work")


def test_advice_stands_below_its_finding() -> None:
    lines = [line.replace("\x1b[0m", "").split("m", 1)[-1] for line in table([OK, WARN])]
    assert lines[0].endswith("clock        tsc")
    assert lines[1].endswith("local ports  1,000")
    assert lines[2].strip() == "→ widen it"


@pytest.mark.parametrize(
    ("findings", "said"),
    [
        ([OK], "This machine is fit to measure."),
        ([OK, WARN], "Usable, with limits: local ports."),
        ([OK, WARN, FAIL], "Measurements made here are not to be trusted: dispatch lag."),
    ],
)
def test_conclusion(findings: list[Finding], said: str) -> None:
    assert conclusion(findings) == said


def test_quick_json_is_whole_and_agrees_with_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--quick", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["capability"] is None
    assert told["machine"]["cpus"] >= 1
    assert {msgspec.convert(f, Finding).state for f in told["findings"]} <= {"ok", "warn", "fail"}
    assert told["trustworthy"] is (code == 0)
    assert told["trustworthy"] is all(f["state"] != "fail" for f in told["findings"])
