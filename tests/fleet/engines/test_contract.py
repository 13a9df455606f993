"""Every adapter against the suite that a plug-in can run too."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from loadcell.fleet.engines import ENGINES
from loadcell.fleet.engines.engine import Engine
from loadcell.fleet.engines.vllm import Vllm
from loadcell.fleet.spec import FleetSpec, Launch, LogPattern, Replica, Tunable
from loadcell.testing.engine_contract import CHECKS, gives_each_replica_its_port, offers_tunables_that_hold, recognises_only_what_it_must

SPECS: dict[str, FleetSpec] = {
    "vllm": FleetSpec("vllm", model="/models/m", replicas=2, args={"tensor-parallel-size": 2}),
    "sglang": FleetSpec("sglang", model="/models/m", replicas=2, args={"tp-size": 2}),
    "mindie": FleetSpec("mindie", model="/models/m", replicas=2, config_file="conf/config.json"),
    "simulated": FleetSpec("simulated", model="m", replicas=2, args={"ttft-ms": 5, "itl-ms": 1}),
    "command": FleetSpec("command", model="/models/m", replicas=2, command=("serve", "{model}", "--port={port}", "--devices", "{devices}")),
}


def test_every_engine_is_asked() -> None:
    assert SPECS.keys() == ENGINES.keys()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
def test_contract(engine: Engine, check: Callable[[Engine, FleetSpec], None]) -> None:
    check(engine, SPECS[engine.name])


class _OnePort(Vllm):
    def launch(self, spec: FleetSpec, replica: Replica) -> Launch:
        return super().launch(spec, replace(replica, port=8000))


class _Jumpy(Vllm):
    patterns = (LogPattern("fatal", "ERROR"),)


class _Inverted(Vllm):
    def tunables(self) -> tuple[Tunable, ...]:
        return (Tunable("x", "--x", "int", 8, 1),)


@pytest.mark.parametrize(
    ("check", "engine"),
    [(gives_each_replica_its_port, _OnePort()), (recognises_only_what_it_must, _Jumpy()), (offers_tunables_that_hold, _Inverted())],
    ids=lambda one: getattr(one, "__name__", type(one).__name__),
)
def test_the_suite_finds_what_is_wrong(check: Callable[[Engine, FleetSpec], None], engine: Engine) -> None:
    with pytest.raises(AssertionError):
        check(engine, SPECS["vllm"])
