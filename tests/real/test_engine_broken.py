"""A real server that answers its probes and cannot generate: one of two, and the client finds out by its first request.

vLLM's CPU attention refuses a head size of 16 when it meets it. `/health` says 200 until then; the first request is answered with
200 and an error event, the next ones with 500, and a few seconds later the process ends.
"""

import json
import shutil
from collections.abc import Iterator

import pytest

from .engine import Engine, free_ports, ready_by
from .product import Run, bench

pytestmark = [pytest.mark.real, pytest.mark.timeout(300, func_only=True)]

REQUESTS = 40


@pytest.fixture(scope="module")
def broken(engines: list[Engine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A third server: the same model with another head size."""
    place = tmp_path_factory.mktemp("broken")
    model = shutil.copytree(engines[0].model, place / "model")
    config = json.loads((model / "config.json").read_text())
    config |= {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 16}
    (model / "config.json").write_text(json.dumps(config))
    engine = Engine(engines[0].vllm, model, free_ports(1)[0], place / "vllm.log")
    try:
        engine.start()
        engine.wait_healthy(ready_by())
        yield engine
    finally:
        engine.stop()


@pytest.fixture(scope="module")
def run(engines: list[Engine], broken: Engine, tmp_path_factory: pytest.TempPathFactory) -> Run:
    load = ("--num-prompts", str(REQUESTS), "--concurrency", "4", "--input-len", "64", "--output-len", "16")
    return bench([engines[0], broken], tmp_path_factory.mktemp("run"), *load)


def test_an_error_inside_a_200_is_a_failure(run: Run) -> None:
    first = min((one for record in run.records for one in record.attempts if one.endpoint == 1), key=lambda one: one.sent_ns or 0)
    assert (first.outcome, first.status) == ("stream_error", 200)
    assert "EngineCore" in (first.error or "")


def test_every_request_is_answered_by_the_other(run: Run) -> None:
    assert [record.outcome for record in run.records] == ["ok"] * REQUESTS, run
    assert {record.attempts[-1].endpoint for record in run.records} == {0}
    failed = {one.outcome for record in run.records for one in record.attempts if one.endpoint == 1}
    assert failed <= {"stream_error", "http_5xx", "connection_reset", "connect_error"}


def test_it_is_taken_out_by_what_it_brings(run: Run, broken: Engine) -> None:
    ejected = [event for event in run.events if event.kind == "endpoint_unhealthy"]
    assert ejected[0].endpoint == broken.name
    assert "requests in a row failed" in (ejected[0].cause or "")
    assert run.endpoint(broken)["attempts"] < REQUESTS / 4
    assert broken.name not in run.summary["healthy_at_end"]
    assert run.faults == ["endpoint_lost"]
