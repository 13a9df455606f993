"""What a specification means for one service: how long it may take, what its log and its answers must say. FleetSpec + plan -> Terms. Pure."""

import re
from collections.abc import Callable, Sequence

from loadcell.errors import UserError
from loadcell.fleet.causes import CauseFinder
from loadcell.fleet.engines import ENGINES
from loadcell.fleet.inquiry import Question
from loadcell.fleet.readiness import Limits
from loadcell.fleet.service import Terms
from loadcell.fleet.spec import FleetSpec, ServicePlan, seconds, size_bytes

_KEY_VARIABLES = ("VLLM_API_KEY", "SGLANG_API_KEY")


def terms_of(spec: FleetSpec, plan: ServicePlan, headers: tuple[tuple[str, str], ...], cpus: tuple[int, ...] | None) -> Terms:
    """Raises UserError for a time, size or pattern that cannot be read."""
    engine = ENGINES[spec.engine]
    return Terms(
        limits=Limits(seconds(spec.start_timeout, "fleet.start_timeout"), seconds(spec.stall_timeout, "fleet.stall_timeout")),
        stop_s=seconds(spec.stop_timeout, "fleet.stop_timeout"),
        log_cap=size_bytes(spec.log_cap, "fleet.log_cap"),
        cpus=cpus,
        question=Question(
            base_url=plan.base_url or "",
            api=spec.api,
            health_path=(engine.health_path if spec.health_path is None else spec.health_path) or None,
            model=served_name(spec),
            request_timeout_s=seconds(spec.ready_request_timeout, "fleet.ready_request_timeout"),
            headers=_with_key(headers, spec),
        ),
        new_causes=lambda: CauseFinder((*spec.pattern, *engine.patterns)),
        ready_line=_ready_line(spec.ready_pattern),
    )


def served_name(spec: FleetSpec) -> str | None:
    """The name that requests use: of `served_model_name`, of the engine's own option for it, else the model. Null: what the engine lists."""
    return spec.served_model_name or _option(spec, "served-model-name") or spec.model


def _with_key(headers: tuple[tuple[str, str], ...], spec: FleetSpec) -> tuple[tuple[str, str], ...]:
    """The engine's own key, where the specification gives it one and the caller no other."""
    key = _option(spec, "api-key") or next((spec.env[name] for name in _KEY_VARIABLES if name in spec.env), None)
    if key is None or any(name.lower() == "authorization" for name, _ in headers):
        return headers
    return (*headers, ("Authorization", f"Bearer {key}"))


def _option(spec: FleetSpec, flag: str) -> str | None:
    """The value of one of the engine's options, as a table or as words give it; of a list the first."""
    if isinstance(spec.args, dict):
        value = next((value for key, value in spec.args.items() if key.replace("_", "-").lstrip("-") == flag), None)
        first = value[0] if isinstance(value, list | tuple) and value else value
        return str(first) if first not in (None, False, True, [], ()) else None
    return _word_after(spec.args, f"--{flag}")


def _word_after(words: Sequence[str], flag: str) -> str | None:
    for at, word in enumerate(words):
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
        if word == flag and at + 1 < len(words):
            return words[at + 1]
    return None


def _ready_line(pattern: str | None) -> Callable[[str], bool] | None:
    if pattern is None:
        return None
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"fleet.ready_pattern = {pattern!r} is no regular expression: {error}") from None
    return lambda line: compiled.search(line) is not None
