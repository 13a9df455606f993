"""Starts of the real server that cannot succeed: the cause in one line, soon after its own end. What can be known before is refused before."""

import time

import pytest

from .experiment import Experiment, Place

pytestmark = [pytest.mark.real, pytest.mark.timeout(300, func_only=True)]

SOON_S = 10
BENCH = "[bench]\nnum-prompts = 1\ninput-len = 8\noutput-len = 8\n"
TOO_LONG = 4_000_000
"""Tokens: 8 GB of the tiny model's cache, and 1 GiB is what the server gets."""
LONG = (f"fleet.args.hf-overrides={{max_position_embeddings = {TOO_LONG}}}", f"fleet.args.max-model-len={TOO_LONG}")


@pytest.mark.parametrize(
    ("name", "sets", "told", "code"),
    [
        ("argument", ("fleet.args.no-such-option=1",), "bad arguments (vllm: error: unrecognized arguments: --no-such-option 1)", 2),
        ("cache", LONG, "GiB KV cache is needed, which is larger than the available KV cache memory (1.0 GiB)", 1),
    ],
    ids=["an argument that it does not have", "a cache that does not fit"],
)
def test_the_cause_is_one_line(place: Place, name: str, sets: tuple[str, ...], told: str, code: int) -> None:
    experiment, lived_on_s = _failed(place, name, sets)
    assert experiment.exit_code == 1, experiment
    (line,) = [line for line in experiment.err.splitlines() if line.startswith("loadcell: error: ")]
    assert line.startswith(f"loadcell: error: replica-0 on local did not start: {'bad arguments' if code == 2 else 'out of memory'} (")
    assert told in line
    assert lived_on_s < SOON_S
    assert experiment.results.state == "stopped"
    assert experiment.results.cause is not None
    assert told in experiment.results.cause
    (event,) = [one for one in experiment.events() if one["event"] == "start failed"]
    assert told in event["cause"]
    assert told.partition("(")[2].rstrip(")") in experiment.log("replica-0")
    assert experiment.recorded() == []


def test_a_model_that_is_not_there_is_refused_before_any_start(place: Place) -> None:
    with place.experiment("model", BENCH, replicas=2, model=place.folder / "no-such-model") as experiment:
        for verb, words in (("check", ()), ("run", ("--output-dir", "run"))):
            experiment.begin(verb, *words)
            experiment.finish()
            assert experiment.exit_code == 2, experiment
            (line,) = experiment.err.splitlines()
            assert f"fleet.model = '{place.folder / 'no-such-model'}': there is no such path on host local" in line
        assert [process.cmdline() for process in experiment.left()] == []
        assert sorted(path.name for path in experiment.folder.iterdir() if path.name != "state") == ["experiment.toml"]
        assert experiment.recorded() == []


def _failed(place: Place, name: str, sets: tuple[str, ...]) -> tuple[Experiment, float]:
    """An experiment whose server has ended by itself, and for how long `loadcell` lived on after that (s)."""
    with place.experiment(name, BENCH, replicas=1) as experiment:
        experiment.begin("run", "--output-dir", "run", *(word for item in sets for word in ("--set", item)))
        experiment.finish()
        ended_at = time.time()
        assert [process.cmdline() for process in experiment.left()] == []
    return experiment, ended_at - (experiment.run / "logs" / "replica-0.log.exit").stat().st_mtime
