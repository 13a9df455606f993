"""Two real vLLM servers for the whole session, and other tools. `make test-real` installs them and says where; without them these tests fail."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .engine import Engine, free_ports, start_all
from .experiment import Place

_FLEET = pytest.StashKey[list[Engine]]()


@pytest.fixture(scope="session")
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    """Not started yet; ended at the end of the session."""
    vllm, model = (_path_in(variable) for variable in ("LOADCELL_VLLM", "LOADCELL_VLLM_MODEL"))
    logs = tmp_path_factory.mktemp("vllm")
    engines = [Engine(vllm, model, port, logs / f"{port}.log") for port in free_ports(2)]
    request.config.stash[_FLEET] = engines
    try:
        yield engines
    finally:
        for engine in engines:
            engine.stop()


@pytest.fixture(scope="module")
def engines(fleet: list[Engine]) -> list[Engine]:
    """Both, ready. One that a test before has killed is started anew."""
    start_all(fleet)
    return fleet


@pytest.fixture(scope="module")
def place(fleet: list[Engine], tmp_path_factory: pytest.TempPathFactory) -> Place:
    """For experiments that start servers of their own. Those of the session are stopped: four are too many for two cores."""
    for engine in fleet:
        engine.stop()
    return Place(fleet[0].vllm, fleet[0].model, tmp_path_factory.mktemp("experiments"))


@pytest.fixture(scope="session")
def evalscope() -> Path:
    return _path_in("LOADCELL_EVALSCOPE")


def _path_in(variable: str) -> Path:
    path = Path(os.environ.get(variable, ""))
    if not os.environ.get(variable) or not path.exists():
        pytest.fail(f"{variable} names nothing that is there: run `make test-real`, which installs it", pytrace=False)
    return path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """A failure shows the end of the servers' logs, and where all of them is."""
    report = yield
    if report.failed:
        for engine in item.config.stash.get(_FLEET, []):
            report.sections.append((f"vLLM on port {engine.port}", engine.tail()))
    return report
