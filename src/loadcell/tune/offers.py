"""What an engine's adapter offers to a study -> parameters with places, and which of them are legal together. Pure.

A constraint is in force where all that it speaks of is a parameter or a constant of the study: `max_model_len` counts where `[fleet.args]` gives it.
"""

from collections.abc import Collection, Mapping
from typing import Final

from msgspec.structs import replace

from loadcell.experiment.spec import SpecError
from loadcell.fleet.command_line import option
from loadcell.fleet.engines import ENGINES
from loadcell.fleet.spec import EngineName, FleetSpec, Tunable
from loadcell.tune.expressions import parse
from loadcell.tune.parameters import Constraint, Parameter, Place, Value

# vllm/config/scheduler.py refuses the first two at its start; the third is what `tensor_parallel_size` means.
_OF_VLLM: Final = (
    Constraint("max_num_batched_tokens >= max_num_seqs", repair="max_num_batched_tokens"),
    Constraint("enable_chunked_prefill or max_num_batched_tokens >= max_model_len", repair="max_num_batched_tokens"),
    Constraint("max_num_partial_prefills == 1 or enable_chunked_prefill", repair="max_num_partial_prefills"),
    Constraint("tensor_parallel_size <= devices and devices % tensor_parallel_size == 0", repair="tensor_parallel_size"),
)
_LEGAL: Final[dict[EngineName, tuple[Constraint, ...]]] = {
    "vllm": _OF_VLLM,
    "simulated": _OF_VLLM,
    "mindie": (Constraint("max_prefill_batch_size <= max_batch_size", repair="max_prefill_batch_size"),),
    "sglang": (Constraint("tp_size <= devices and devices % tp_size == 0", repair="tp_size"),),
    "command": (),
}
_BY_DEVICES: Final = ("tensor_parallel_size", "tp_size", "pipeline_parallel_size", "data_parallel_size")
"""Offered only where the devices of a replica are known: how many there are decides what is legal."""


def offered_parameters(engine: EngineName, constants: Collection[str]) -> tuple[Parameter, ...]:
    """Those of `parameters = "ENGINE-default"`; of a size that devices limit, the choices that fit."""
    found = ENGINES[engine].tunables()
    devices = constants.get("devices") if isinstance(constants, Mapping) else None
    return tuple(_parameter(engine, _fitting(one, devices)) for one in found if one.name not in _BY_DEVICES or "devices" in constants)


def _fitting(one: Tunable, devices: Value | None) -> Tunable:
    if one.name not in _BY_DEVICES or not isinstance(devices, int):
        return one
    return replace(one, choices=tuple(size for size in one.choices if isinstance(size, int) and devices % size == 0))


def offered_constraints(
    engine: EngineName, names: Collection[str], movable: Collection[str], constants: Mapping[str, Value]
) -> tuple[Constraint, ...]:
    """Those that hold among parameters of these names, whether they were offered or written; a repair moves one that is searched."""
    known = {*names, *constants}
    return tuple(
        rule if set(rule.movable) <= set(movable) else Constraint(rule.expression)
        for rule in _LEGAL[engine]
        if parse(rule.expression).names <= known and not parse(rule.expression).names <= constants.keys()
    )


def place_of_flag(engine: EngineName, flag: str) -> Place:
    """The place of an engine's own option; of MindIE, a dotted path in its configuration."""
    return Place(path=flag) if engine == "mindie" else Place(flag=flag)


def given_constants(fleet: FleetSpec) -> dict[str, Value]:
    """Numbers that `[fleet.args]` fixes, by the names that constraints use."""
    given = option(fleet.args, "max-model-len")
    try:
        return {"max_model_len": int(given)} if given not in (None, True) else {}
    except (TypeError, ValueError):
        return {}


def check_engine_of(name: str, engine: EngineName) -> None:
    """`parameters = "vllm-default"` has to name the fleet's engine. SpecError."""
    if name != f"{engine}-default":
        raise SpecError(("study", "parameters"), f'{name!r}: engine {engine!r} offers "{engine}-default"')
    if not ENGINES[engine].tunables():
        raise SpecError(("study", "parameters"), f"engine {engine!r} offers none: write each as a [[parameter]]")


def _parameter(engine: EngineName, one: Tunable) -> Parameter:
    return Parameter(
        one.name,
        one.kind,
        place_of_flag(engine, one.flag),
        low=one.low,
        high=one.high,
        log=one.log,
        choices=tuple(one.choices),
        default=one.default,
    )
