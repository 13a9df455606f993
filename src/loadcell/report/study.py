"""What a study found: the shape of its `trials.json`. Pure; `tune.results` fills it, `study_markdown`, `study_csv` and `study_terminal` render it.

Units stand in the names, or are those of `objective.unit`. What was not measured is null, never 0.
"""

from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

STUDY_SCHEMA: Final = "loadcell.study/1"

Value = int | float | str | bool
StudyState = Literal["running", "complete", "failed", "stopped", "interrupted", "cut_off"]
Announced = Literal["winner", "default_fails", "no_reliable_improvement", "not_confirmed", "front", "none"]


class StudyObjective(Struct, frozen=True):
    """What is maximised. `second`: the other objective of a front, as it was asked for; larger is better."""

    metric: str
    unit: str
    per_device: bool
    second: str | None = None


class StudyTrial(Struct, frozen=True):
    """One trial. `tag`: what it was made for (`search/7`, `drift/16`, `confirm/0/2`: round, candidate; `revert/NAME/0`).

    `objective` as it was measured, `corrected` without the machine's drift (null: the same). `margins`: limit -> log(measured / limit), above 0 where
    missed. `figures` in s, tokens/s, requests/s, shares; `n`: samples behind each. `fitness`: optix's, where the study came from there.
    """

    number: int
    kind: str
    tag: str
    configuration: dict[str, Value]
    outcome: str
    phase: str
    feasible: bool
    objective: float | None = None
    objective_se: float | None = None
    corrected: float | None = None
    second: float | None = None
    fitness: float | None = None
    figures: dict[str, float | None] = {}
    n: dict[str, int] = {}
    margins: dict[str, float | None] = {}
    load: dict[str, float] = {}
    evidence: str | None = None
    exit_code: int | None = None
    folder: str | None = None
    verdict: str | None = None
    attempts: int = 1
    launch_s: float = 0.0
    measure_s: float = 0.0
    stop_s: float = 0.0
    started: str = ""
    ended: str = ""
    notes: list[str] = []


class StudyParameter(Struct, frozen=True):
    """`default`, `best` null: left to the engine, or not active. `importance`: share of what the parameters do to the objective; null: unknown.

    `put_back`: the search's winner had `put_back` here; it made no difference, so the default stands again.
    """

    name: str
    place: str
    searched: bool
    default: Value | None = None
    best: Value | None = None
    changed: bool = False
    importance: float | None = None
    put_back: Value | None = None


class StudyLimit(Struct, frozen=True):
    """One limit. `share`: of the limit that the best configuration uses, 1 = just met (geometric mean of its measurements); `highest`: of any
    single one. `default_share`: the default's. `binding`: the one that comes first.
    """

    text: str
    share: float | None = None
    highest: float | None = None
    default_share: float | None = None
    binding: bool = False


class Contender(Struct, frozen=True):
    """One that was measured in the rounds of confirmation; 0 is the default. `gain_low`, `gain_high`: one-sided 95 % bounds of the gain over the
    default, paired by round. `limits`: meets, fails or unclear, with 95 % confidence.
    """

    candidate: int
    configuration: dict[str, Value]
    rounds: int
    value: float | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    p: float | None = None
    significant: bool = False
    died: bool = False
    limits: dict[str, str] = {}


class Confirmation(Struct, frozen=True):
    """`ended`: why there was no further round."""

    rounds: int
    ended: str | None
    contenders: list[Contender]


class Gain(Struct, frozen=True):
    """Of the winner over the default. `before_reverting`: it was measured of the winner before changes that do not matter were taken back."""

    value: float
    low: float | None
    high: float | None
    before_reverting: bool = False


class CapacityPoint(Struct, frozen=True):
    """`margin`: the worst limit's log(measured / limit); `binding`: that limit."""

    load: float
    outcome: str
    margin: float | None = None
    binding: str | None = None
    objective: float | None = None
    why: str | None = None


class CapacityCurve(Struct, frozen=True):
    """Loads that were probed within one trial. `low`, `high`: largest load within the limits, smallest beyond them."""

    label: str
    trial: int
    knob: str
    points: list[CapacityPoint]
    status: str | None = None
    load: float | None = None
    low: float | None = None
    high: float | None = None
    confirmed: bool | None = None
    text: str | None = None


class Failure(Struct, frozen=True):
    """Trials that ended alike. `lost_s`: what they took. `ranges`: of each numeric parameter that was searched, the lowest and highest value in them."""

    outcome: str
    phase: str
    evidence: str
    trials: list[int]
    exit_codes: list[int]
    folder: str | None
    lost_s: float
    ranges: dict[str, tuple[float, float]] = {}


class FrontPoint(Struct, frozen=True):
    trial: int
    objective: float
    second: float
    configuration: dict[str, Value]


class StudySpent(Struct, frozen=True):
    """`proposals_answered`: duplicates, answered from the record; `proposals_rejected`: not legal, and not repairable."""

    elapsed_s: float
    trials: int
    launches: int
    launch_s: float
    measure_s: float
    lost_s: float
    proposals_answered: int = 0
    proposals_rejected: int = 0


class ServiceLaunch(Struct, frozen=True):
    """How one service of the best configuration is started. `env`: a null value was a secret. `words` as they run on the machine, `inside`: in a
    container, listening on all addresses. `files`: path -> content. `devices`: numbers on its machine. `serves`: others are ranks of the first.
    """

    name: str
    host: str
    words: list[str]
    inside: list[str]
    env: dict[str, str | None]
    port: int | None
    image: str | None
    serves: bool = True
    cwd: str | None = None
    files: dict[str, str] = {}
    devices: list[int] = []
    vendor: str | None = None
    model_path: str | None = None
    health_path: str = "/health"


class StudyResults(Struct, frozen=True):
    """`cause` and `answer`: how the study ended, in words. `best` null: there is none to use. `incumbent`: number of the best trial of the search.

    `state` cut_off: its process was killed; `in_flight`: trials that had begun. `spec`: what was asked, secrets left out.
    """

    name: str
    state: StudyState
    announced: Announced
    answer: str
    objective: StudyObjective
    fingerprint: dict[str, str | None]
    sampler: str
    search_ended: str | None
    spent: StudySpent
    parameters: list[StudyParameter]
    limits: list[StudyLimit]
    trials: list[StudyTrial]
    default: dict[str, Value]
    best: dict[str, Value] | None = None
    best_value: float | None = None
    default_value: float | None = None
    gain: Gain | None = None
    incumbent: int | None = None
    confirmation: Confirmation | None = None
    capacity: list[CapacityCurve] = []
    front: list[FrontPoint] = []
    failures: list[Failure] = []
    drifts: list[str] = []
    in_flight: list[int] = []
    launch: list[ServiceLaunch] = []
    notices: list[str] = []
    spec: dict[str, Any] = {}
    schema: str = STUDY_SCHEMA


def study_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of `trials.json`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "loadcell study",
        **msgspec.json.schema(StudyResults),
    }
