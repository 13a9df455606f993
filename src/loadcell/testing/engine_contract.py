"""What every engine adapter has to keep, ours and a plug-in's: `for check in CHECKS: check(engine, spec)`. Plain asserts; needs no engine.

`spec`: one that the engine accepts, for two replicas. What is asked: words that reach the program as they were said, a port per replica, devices
left to the plan, patterns that leave a healthy log alone, tunables that mean what they say.
"""

import re
import shlex
from collections.abc import Callable
from typing import Final, get_args

import msgspec

from loadcell.fleet.causes import CauseFinder
from loadcell.fleet.command_line import shell_line
from loadcell.fleet.devices import VARIABLES
from loadcell.fleet.engines.engine import Engine
from loadcell.fleet.spec import Cause, FleetSpec, Launch, Replica, Tunable

HEALTHY: Final = (
    "INFO 12-01 10:00:00 [__init__.py:241] Automatically detected platform cuda.",
    "(APIServer pid=1) INFO 12-01 10:00:00 [utils.py:326] non-default args: {'model_tag': '/m', 'gpu_memory_utilization': 0.9}",
    "(EngineCore_DP0 pid=2) INFO 12-01 10:00:01 [core.py:636] Waiting for init message from front-end.",
    "(EngineCore_DP0 pid=2) WARNING 12-01 10:00:01 [cpu.py:93] Environment variable VLLM_CPU_KVCACHE_SPACE (GiB) is not set.",
    "(EngineCore_DP0 pid=2) INFO 12-01 10:00:09 [gpu_worker.py:276] Available KV cache memory: 61.20 GiB",
    "(EngineCore_DP0 pid=2) INFO 12-01 10:00:09 [kv_cache_utils.py:864] GPU KV cache size: 534,816 tokens",
    "(EngineCore_DP0 pid=2) INFO 12-01 10:00:09 [kv_cache_utils.py:868] Maximum concurrency for 8,192 tokens per request: 65.28x",
    "W1201 10:00:02.000000 2 torch/_inductor/utils.py:1137] [0/0] Not enough SMs to use max_autotune_gemm mode",
    "INFO 12-01 10:00:02 [network_utils.py:39] Port 29500 is already in use, trying port 29501",
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|██████████| 67/67 [00:04<00:00, 15.02it/s]",
    "Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:02<00:00,  1.61it/s]",
    "(APIServer pid=1) INFO:     Application startup complete.",
    'INFO:     127.0.0.1:52114 - "GET /health HTTP/1.1" 200 OK',
    'INFO:     127.0.0.1:52114 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request',
    "(APIServer pid=1) ERROR 12-01 10:01:00 [serving_chat.py:257] Error in preprocessing prompt inputs",
    "[2026-12-01 10:00:00] server_args=ServerArgs(model_path='/m', mem_fraction_static=0.88, chunked_prefill_size=8192)",
    "[2026-12-01 10:00:09] max_total_num_tokens=421093, chunked_prefill_size=8192, max_prefill_tokens=16384, context_len=32768",
    "[2026-12-01 10:00:09] Capture cuda graph begin. This can take up to several minutes. avail mem=12.01 GB",
    "[2026-12-01 10:00:20] The server is fired up and ready to roll!",
    "Daemon start success!",
    "loadcell simulate: serving tiny on http://127.0.0.1:8000/v1",
)


def _replica(index: int, **more: object) -> Replica:
    devices = (2 * index, 2 * index + 1)
    replica = Replica(
        f"replica-{index}", index, "local", 31000 + index, devices=devices, folder=f"/run/a b/replica-{index}", config_text="{}"
    )
    return msgspec.structs.replace(replica, **more)


def _said(launch: Launch) -> str:
    return "\n".join((*launch.argv, *launch.env.values(), *(content for _, content in launch.files)))


def accepts_its_spec(engine: Engine, spec: FleetSpec) -> None:
    engine.check(spec)


def names_itself(engine: Engine, spec: FleetSpec) -> None:
    assert engine.name == spec.engine
    assert engine.devices_by in ("variable", "config", "none")
    assert engine.health_path.startswith("/"), "a path that a light GET can ask"
    assert "generate" not in engine.health_path, "a health path that makes the engine generate disturbs what is measured"


def says_words(engine: Engine, spec: FleetSpec) -> None:
    launch = engine.launch(spec, _replica(0))
    assert launch.argv
    assert all(launch.argv), "an empty word"
    assert not any("\0" in word for word in launch.argv)
    assert launch == engine.launch(spec, _replica(0)), "the same replica is started in the same way each time"


def gives_each_replica_its_port(engine: Engine, spec: FleetSpec) -> None:
    for index in (0, 1):
        said = _said(engine.launch(spec, _replica(index)))
        assert str(31000 + index) in said
        assert str(31000 + 1 - index) not in said


def keeps_a_model_path_with_spaces_whole(engine: Engine, spec: FleetSpec) -> None:
    path = "/tmp/my models/it's $HOME"  # noqa: S108 - nothing is there
    said = _said(engine.launch(msgspec.structs.replace(spec, model=path), _replica(0)))
    assert path in said


def leaves_devices_to_the_plan(engine: Engine, spec: FleetSpec) -> None:
    launch = engine.launch(spec, _replica(0))
    assert not set(VARIABLES.values()) & launch.env.keys()
    needed = engine.devices_needed(spec)
    assert needed is None or needed >= 1


def writes_only_below_its_folder(engine: Engine, spec: FleetSpec) -> None:
    for path, _ in engine.launch(spec, _replica(0)).files:
        assert not path.startswith("/")
        assert ".." not in path.split("/")


def can_be_pasted(engine: Engine, spec: FleetSpec) -> None:
    launch = engine.launch(spec, _replica(0))
    pasted = shlex.split(shell_line(launch))
    assert tuple(pasted[-len(launch.argv) :]) == launch.argv


def recognises_only_what_it_must(engine: Engine, spec: FleetSpec) -> None:  # noqa: ARG001 - all checks are called alike
    for one in engine.patterns:
        assert one.cause in get_args(Cause)
        re.compile(one.pattern)
    finder = CauseFinder(engine.patterns)
    for line in HEALTHY:
        finder.feed(line)
        assert finder.best is None, f"a healthy line taken for a cause: {finder.best}"


def offers_tunables_that_hold(engine: Engine, spec: FleetSpec) -> None:  # noqa: ARG001 - all checks are called alike
    tunables = engine.tunables()
    assert len({one.name for one in tunables}) == len(tunables)
    assert len({one.flag for one in tunables}) == len(tunables)
    for one in tunables:
        _holds(one)


def _holds(one: Tunable) -> None:
    if one.kind in ("int", "float"):
        assert one.low is not None
        assert one.high is not None
        assert one.low < one.high, one
        assert not one.log or one.low > 0, f"{one.name}: no logarithm of {one.low}"
        assert one.default is None or one.low <= one.default <= one.high, one
        assert not one.choices, one
    elif one.kind == "categorical":
        assert len(one.choices) > 1, one
        assert one.default is None or one.default in one.choices, one
    else:
        assert isinstance(one.default, bool), one


CHECKS: Final[tuple[Callable[[Engine, FleetSpec], None], ...]] = (
    accepts_its_spec,
    names_itself,
    says_words,
    gives_each_replica_its_port,
    keeps_a_model_path_with_spaces_whole,
    leaves_devices_to_the_plan,
    writes_only_below_its_folder,
    can_be_pasted,
    recognises_only_what_it_must,
    offers_tunables_that_hold,
)
