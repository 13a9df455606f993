"""A load whose rate is measured within the trial, as optix calibrated it; failures that a configuration's owner knows to be the machine's."""

import pytest

from loadcell.fleet.registry import Registry
from loadcell.tune.read import read_study
from loadcell.tune.spec import space_of
from loadcell.tune.trial import Trial

pytestmark = pytest.mark.slow

STUDY = """
[study]
name = "calibrated"
[fleet]
engine = "simulated"
model = "m"
args = { ttft-ms = 20, itl-ms = 2, max-num-seqs = 4 }
[bench]
concurrency = 4
num-prompts = 60
input-len = 16
output-len = 16
ignore-eos = true
[load]
mode = "calibrated"
knob = "request_rate"
high = 60
[[parameter]]
name = "max_num_seqs"
kind = "int"
flag = "--max-num-seqs"
low = 2
high = 8
"""


def measured(tmp_path, text, **change):
    (tmp_path / "study.toml").write_text(text)
    spec = read_study(tmp_path / "study.toml")
    trial = Trial(spec, tmp_path, Registry(tmp_path / "state"), {})
    return trial.measure({**space_of(spec).default(), **change}, 1)


@pytest.mark.slow
def test_the_rate_is_a_little_above_what_was_reached(tmp_path):
    result = measured(tmp_path, STUDY)
    assert result.outcome == "ok", result
    # 4 in flight, each for 20 + 15 × 2 ms: at most 80 a second, so that the bound holds
    assert result.extra["calibrated"]["reached"] == pytest.approx(75, rel=0.15)
    assert result.extra["calibrated"]["rate"] == result.load["request_rate"] == 60
    below = measured(tmp_path, STUDY.replace("high = 60\n", "high = 600\n"), max_num_seqs=2)
    calibrated = below.extra["calibrated"]
    assert calibrated["rate"] == pytest.approx(1.05 * calibrated["reached"])
    assert calibrated["reached"] == pytest.approx(38, rel=0.15)
    assert {folder.name for folder in (tmp_path / below.folder).iterdir() if folder.is_dir()} >= {"load", "load-free"}


@pytest.mark.slow
def test_a_text_of_a_log_makes_a_failure_the_machines(tmp_path):
    broken = STUDY.replace("max-num-seqs = 4", 'max-num-seqs = 4, profile = "no:such"')
    assert measured(tmp_path, broken).outcome not in ("ok", "infrastructure")
    result = measured(tmp_path, broken + '[trial]\nretry-on = ["NO:SUCH"]\n')
    assert result.outcome == "infrastructure"
    assert result.attempts == 2
    assert "trial.retry_on" in (result.evidence or "")
