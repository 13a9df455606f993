"""How a trial ended: one outcome with its phase and evidence, and what it teaches. Pure."""

from typing import Any, Final, Literal

from msgspec import Struct

from loadcell.tune.parameters import Configuration

OutcomeName = Literal[
    "ok",
    "slo_violated",
    "oom_start",
    "oom_load",
    "bad_arguments",
    "start_timeout",
    "crashed",
    "hung",
    "bench_failed",
    "invalid_measurement",
    "early_stopped",
    "infrastructure",
    "cancelled",
]
TrialPhase = Literal["plan", "launch", "warmup", "measure", "stop", "report"]

MEASURED: Final[frozenset[OutcomeName]] = frozenset({"ok", "slo_violated", "early_stopped"})
TEACHES_DEATH: Final[frozenset[OutcomeName]] = frozenset({"oom_start", "oom_load", "bad_arguments", "start_timeout", "crashed", "hung"})
"""Failures that the configuration caused. Others (infrastructure, bench_failed, invalid_measurement, cancelled) teach the survival model nothing."""


class TrialResult(Struct, frozen=True):
    """One trial, as it is stored. `figures`: metric -> value in base units (s, tokens/s, requests/s), null where it does not exist;
    `n`: metric -> samples behind it. `violations`: SLO text -> log(measured/limit), positive where violated, null where unknown.
    `objective` null unless measured. `blocks`: per-second blocks of the measured window, for intervals.
    """

    number: int
    configuration: Configuration
    outcome: OutcomeName
    phase: TrialPhase
    kind: Literal["default", "known", "fill", "search", "drift", "confirm", "revert"] = "search"
    objective: float | None = None
    objective_se: float | None = None
    figures: dict[str, float | None] = {}
    n: dict[str, int] = {}
    violations: dict[str, float | None] = {}
    evidence: str | None = None
    exit_code: int | None = None
    folder: str | None = None
    load: dict[str, float] = {}
    launch_s: float = 0.0
    measure_s: float = 0.0
    stop_s: float = 0.0
    started: str = ""
    ended: str = ""
    attempts: int = 1
    verdict: str | None = None
    extra: dict[str, Any] = {}

    @property
    def feasible(self) -> bool:
        """Measured, and within every limit."""
        return self.outcome == "ok"
