"""The results of an experiment: the shape of `results.json`. Pure; `experiment.results` and `raw_outputs` fill it, `experiment_markdown` renders it.

Units stand in the names. What was not measured is null, never 0; `n` stands in every statistic. Percentiles are of one cell's pooled samples: they
are never averaged over repeats or endpoints.
"""

from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from loadcell.metrics.summary import Purity, Reason, SloResult, Stats, VerdictWord

RESULTS_SCHEMA: Final = "loadcell.results/1"

CellState = Literal["done", "failed", "interrupted", "cut_off", "not_run"]
RunState = Literal["running", "complete", "interrupted", "stopped"]


class PartFigures(Struct, frozen=True):
    """One set of requests: a whole cell, or one endpoint's part of it. As `summary.json` defines them; latencies are of ok requests."""

    requests: int
    ok: int
    failed: int
    cancelled: int
    retried: int
    duration_s: float | None
    requests_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    ttft: Stats
    tpot: Stats
    itl: Stats
    icl: Stats
    e2e: Stats


class CellFigures(Struct, frozen=True):
    """`per_device` null: the number of devices is unknown. `goodput_per_s` null: no limits were given."""

    all: PartFigures
    success_rate: float | None
    goodput_requests: int | None = None
    goodput_per_s: float | None = None
    attainment: float | None = None
    devices: int | None = None
    output_tokens_per_s_per_device: float | None = None
    in_flight_mean: float | None = None
    in_flight_max: int | None = None
    warmup_requests: int | None = None


class EndpointPart(Struct, frozen=True):
    """`share`: its part of all attempts. `healthy_at_end` null: unknown."""

    name: str
    base_url: str | None
    share: float | None
    figures: PartFigures
    healthy_at_end: bool | None = None
    ejections: int = 0


class CellPurity(Struct, frozen=True):
    """What all services counted in this cell's window against what we sent. `foreign_per_s`: between the scrapes; null: unknown or none."""

    state: Literal["pure", "foreign", "unknown"]
    counted: int | None
    sent: int | None
    foreign: int | None
    foreign_per_s: float | None
    endpoints: list[Purity]


class FleetEventSeen(Struct, frozen=True):
    """Something that happened to a service. `at`: ISO 8601."""

    at: str
    service: str
    event: str
    cause: str | None = None


class CellResult(Struct, frozen=True):
    """One scenario in one repeat. `folder` and `raw_output` are relative to the experiment's folder.

    `state`: done (measured to its end), failed (its cause says why), interrupted (a signal; figures are of what there is), cut_off (loadcell itself
    was killed), not_run. `earlier`: folders of attempts that were cut short before this one; they are kept. `reused`: finished before a resume.
    `verdict` and all that follows are null where nothing was measured. `slos_met` null: no limits, or one that could not be judged.
    """

    name: str
    scenario: str
    repeat: int
    state: CellState
    hash: str
    cause: str | None = None
    folder: str | None = None
    raw_output: str | None = None
    began: str | None = None
    ended: str | None = None
    reused: bool = False
    earlier: list[str] = []
    verdict: VerdictWord | None = None
    reasons: list[Reason] = []
    notices: list[str] = []
    partial: bool = False
    figures: CellFigures | None = None
    endpoints: list[EndpointPart] = []
    slos: list[SloResult] = []
    slos_met: bool | None = None
    purity: CellPurity | None = None
    health: str | None = None


class Spread(Struct, frozen=True):
    """A figure over repeats: one value each, as they were measured."""

    values: list[float | None]
    min: float
    max: float


class ScenarioResult(Struct, frozen=True):
    """`flags`: what it asks for, as flags of `loadcell bench`. `spread`: over the repeats that were measured, where there are two or more."""

    name: str
    flags: dict[str, Any]
    cells: list[CellResult]
    spread: dict[str, Spread] = {}


class ServiceFacts(Struct, frozen=True):
    """One service as it was started. `command`: a line that a shell can run, secrets left out."""

    name: str
    host: str | None = None
    devices: list[int] = []
    port: int | None = None
    base_url: str | None = None
    command: str | None = None
    state: str | None = None
    cause: str | None = None
    restarts: int | None = None
    log: str | None = None


class FleetFacts(Struct, frozen=True):
    """`managed`: loadcell started and stopped it. `leftovers`: what could not be released at the end."""

    managed: bool
    engine: str | None = None
    model: str | None = None
    services: list[ServiceFacts] = []
    events: list[FleetEventSeen] = []
    leftovers: list[str] = []


class ExperimentResults(Struct, frozen=True):
    """`state`: stopped means that it ended before its matrix did (disk full, the fleet did not start): `cause` says why.

    `verdict`: the worst of the cells that came to their end (of those cut short, where none did); null when nothing was measured. `spec`: what was asked, secrets left out.
    """

    name: str
    run_id: str
    state: RunState
    cause: str | None
    began: str
    ended: str | None
    verdict: VerdictWord | None
    environment: dict[str, Any]
    fleet: FleetFacts
    scenarios: list[ScenarioResult]
    notices: list[str]
    spec: dict[str, Any]
    schema: str = RESULTS_SCHEMA

    @property
    def cells(self) -> list[CellResult]:
        return [cell for scenario in self.scenarios for cell in scenario.cells]


def results_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of `results.json`."""
    schema = msgspec.json.schema(ExperimentResults)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "loadcell experiment results", **schema}
