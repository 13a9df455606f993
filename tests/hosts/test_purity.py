"""Nothing but our load reaches a service while it is measured: told by the engine's own log, from the first to the last request of the window.

A benchmark once waited for its service with a "Hello" a second, and went on saying it under load: the head of a service over several machines then
computed for two masters. Here it is played again, without that visitor and with one.
"""

import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from loadcell.sim.accesslog import AccessLine

from .conftest import Machines
from .running import Experiment, until
from .test_multi_host import FLEET

LOAD = "[[scenario]]\nname = 'load'\nconcurrency = 16\nnum-prompts = 400\noutput-len = 32\nheader = ['X-Request-Id=ours']\n"
ARGS = "ttft-ms = 40\nitl-ms = 10"


def window(lines: Sequence[AccessLine]) -> tuple[list[AccessLine], list[AccessLine]]:
    """(our load, all else that was there between its first request's arrival and its last one's end)."""
    ours = [line for line in lines if line.is_generation and line.request_id == "ours" and line.prompt_head != "Hello"]
    first, last = min(line.arrival_ns for line in ours), max(line.end_ns for line in ours)
    return ours, [line for line in lines if line not in ours and line.end_ns >= first and line.arrival_ns <= last]


@pytest.mark.parametrize("fleet", [FLEET, "replicas = 3"], ids=["one service over three hosts", "three replicas"])
def test_nothing_foreign_while_measured(experiment: Experiment, machines: Machines, fleet: str) -> None:
    experiment.specify(fleet, LOAD, args=ARGS)
    experiment.run()
    heads = [one.name for one in experiment.results().fleet.services if one.base_url is not None]
    ours, others = window([line for name in heads for line in experiment.access(name)])
    assert len(ours) == 400, experiment.err
    assert {line.outcome for line in ours} == {"finished"}
    assert not [line for line in others if line.is_generation]
    assert {(line.method, line.path) for line in others} <= {("GET", "/health"), ("GET", "/metrics")}
    purity = experiment.cell("load").purity
    assert purity is not None
    assert (purity.state, purity.counted, purity.sent, purity.foreign) == ("pure", 400, 400, 0)
    assert not experiment.wrong("load")
    # The one inference of readiness stands before the clock.
    hellos = [line for name in heads for line in experiment.access(name) if line.prompt_head == "Hello"]
    assert len(hellos) == len(heads)
    assert max(line.end_ns for line in hellos) < min(line.arrival_ns for line in ours)


def test_a_hello_a_second_is_counted_and_its_rate_is_told(experiment: Experiment, machines: Machines) -> None:
    experiment.specify(FLEET, LOAD, args=ARGS)
    run = experiment.begin_run()
    until(experiment.loading)
    url = json.loads((experiment.folder / "results.json").read_text())["fleet"]["services"][0]["base_url"]
    with hello_a_second(url) as said:
        until(lambda: len(experiment.access("replica-0")) >= 380, "the end of the load")
    experiment.finish(run)

    ours, others = window(experiment.access("replica-0"))
    foreign = [line for line in others if line.is_generation]
    assert len(ours) == 400
    assert len(foreign) == len(said) > 4
    cell = experiment.cell("load")
    purity = cell.purity
    assert purity is not None
    assert (purity.state, purity.counted, purity.sent, purity.foreign) == ("foreign", 400 + len(said), 400, len(said))
    lasted_s = (max(line.end_ns for line in ours) - min(line.arrival_ns for line in ours)) / 1e9
    assert purity.foreign_per_s == pytest.approx(len(said) / lasted_s, rel=0.35)
    assert cell.verdict in ("suspect", "invalid")
    assert "foreign_requests" in experiment.wrong("load"), cell.reasons
    report = (experiment.folder / "report.md").read_text()
    assert f"{len(said)} generation requests that are not ours, about {purity.foreign_per_s:.3g} a second" in report
    assert "SUSPECT" in report or cell.verdict == "invalid"


@contextmanager
def hello_a_second(url: str) -> Iterator[list[int]]:
    """Somebody else's client; the statuses that it was given."""
    said: list[int] = []
    over = threading.Event()
    where = urlsplit(url)

    def speak() -> None:
        while not over.is_set():
            connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
            connection.request(
                "POST",
                "/v1/completions",
                json.dumps({"model": "m", "prompt": "Hello", "max_tokens": 4}),
                {"Content-Type": "application/json"},
            )
            said.append(connection.getresponse().status)
            connection.close()
            over.wait(1.0)

    speaker = threading.Thread(target=speak)
    speaker.start()
    try:
        yield said
    finally:
        over.set()
        speaker.join()
