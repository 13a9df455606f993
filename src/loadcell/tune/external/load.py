"""Another tool's load of one trial's service: run, read, judged by the same limits, and compared with what the server counted."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from loadcell.client.resolve import resolve
from loadcell.clock import Clock
from loadcell.experiment.secrets import Hider
from loadcell.experiment.services import OwnFleet
from loadcell.fleet.fleet import Fleet
from loadcell.fleet.monitor import FleetEvent
from loadcell.fleet.registry import Registry
from loadcell.fleet.spec import seconds
from loadcell.metrics.exposition import Scrape, parse_metrics
from loadcell.metrics.slo import Slo
from loadcell.probe import scrape
from loadcell.tune import objective
from loadcell.tune.blame import Blame, Ending, of_load, of_score
from loadcell.tune.external import ADAPTERS
from loadcell.tune.external.run import Ended, Limits, run
from loadcell.tune.external.told import Asked, BenchFailedError, Given, Told, command
from loadcell.tune.happenings import Happenings
from loadcell.tune.loaded import Loaded, Setting
from loadcell.tune.objective import Score
from loadcell.tune.outcome import TrialPhase
from loadcell.wire.url import parse_endpoint

LOG: Final = "benchmark.log"
_SCRAPE_S: Final = 2.0


class ExternalLoad:
    """`run` once."""

    def __init__(
        self,
        setting: Setting,
        fleet: Fleet,
        hider: Hider,
        registry: Registry,
        clock: Clock,
        happened: Happenings,
        phase: Callable[[TrialPhase], None],
    ) -> None:
        self._setting, self._fleet, self._hider, self._registry, self._clock = setting, fleet, hider, registry, clock
        self._happened, self._phase = happened, phase

    def run(self) -> Loaded:
        setting, spec = self._setting, self._setting.spec
        adapter, table = ADAPTERS[spec.benchmark.kind], setting.placed.benchmark
        folder = setting.folder / "load"
        folder.mkdir(parents=True)
        asked = self._asked(folder)
        endpoint = resolve(parse_endpoint(asked.base_url, "chat", None, 0))

        def look() -> tuple[Scrape | None]:
            text = scrape(endpoint, _SCRAPE_S)
            return (None if text is None else parse_metrics(text),)

        limits = Limits(seconds(table.timeout, "benchmark.timeout"), seconds(spec.trial.hang, "trial.hang") or float("inf"))
        self._phase("measure")
        try:
            words = command(adapter, table, asked)
        except BenchFailedError as failure:
            return Loaded(Blame("bench_failed", "warmup", str(failure)))
        (folder / "command.json").write_bytes(msgspec.json.format(msgspec.json.encode([self._hider.text(word) for word in words.argv])))
        before = look()[0]
        with self._fleet.serving(self._tell):
            ended = run(
                words, folder / LOG, limits, self._registry, look, self._trouble, self._clock, name=spec.study.name
            )  # fmt: skip
        return self._told(ended, before, look()[0], asked, words.argv)

    def _told(self, ended: Ended, before: Scrape | None, after: Scrape | None, asked: Asked, argv: Sequence[str]) -> Loaded:
        kind = self._setting.spec.benchmark.kind
        loads = {**asked.load, **_as_given(Given(argv))}
        death = self._happened.death()
        if death is not None:
            ending = Ending(death=death)
            return Loaded(of_load(ending), ending=ending, load=loads)
        if ended.signal is not None:
            return Loaded(Blame("cancelled", "measure", f"signal {ended.signal}"), load=loads, signal=ended.signal)
        if ended.how in ("hung", "service"):
            return Loaded(Blame("hung", "measure", ended.text), load=loads)
        ending = Ending(failure=ended.text)
        try:
            if ended.how != "done":
                raise BenchFailedError(ended.text)
            _refuse_words(asked.folder / LOG, self._setting.placed.benchmark.fail_on)
            told = ADAPTERS[kind].read(ended.files, Given(argv))
        except BenchFailedError as failure:
            return Loaded(Blame("bench_failed", "measure", str(failure), ended.code), ending=ending, load=loads)
        score = self._score_of(told)
        purity = _purity(told, before, after)
        notes = () if not purity.get("foreign") else (f"{purity['foreign']} generation requests were not the benchmark's",)
        return Loaded(of_score(score), score, None, loads, "suspect" if notes else "valid", notes, {"window": "whole", "purity": purity})

    def _score_of(self, told: Told) -> Score:
        setting, now = self._setting, OwnFleet(self._fleet, self._hider).now()
        figures, n = dict(told.figures), dict(told.n)
        for name in ("throughput", "request_rate"):
            value = figures.get(name)
            figures[f"{name}_per_device"] = None if value is None or not now.devices else value / now.devices
            n[f"{name}_per_device"] = n.get(name, 0) if now.devices else 0
        per_device = setting.spec.objective.per == "device"
        value = objective.finite(figures.get(f"{setting.metric}_per_device" if per_device else setting.metric))
        violations = {slo.text: objective.margin(slo, *_observed(slo, told)) for slo in setting.slos}
        why = None if value is not None else f"the benchmark did not tell {setting.metric}"
        return Score(value, None, figures, n, violations, "whole", why)

    def _asked(self, folder: Path) -> Asked:
        setting = self._setting
        url = self._fleet.base_urls[0]
        endpoint = parse_endpoint(url, "chat", None, 0)
        return Asked(
            base_url=url,
            host=endpoint.host,
            port=endpoint.port,
            model=self._fleet.model,
            path=setting.spec.fleet.model,
            api=setting.spec.fleet.api,
            folder=folder,
            load=setting.placed.load,
            slos=setting.slos,
            seed=setting.spec.study.seed,
        )

    def _tell(self, event: FleetEvent) -> None:
        self._happened.add(event)

    def _trouble(self) -> str | None:
        """A service that is gone, or that has been stopped by a signal for as long as a hang lasts."""
        death = self._happened.death()
        if death is not None:
            return death.text
        stopped_s, hang_s = self._happened.stopped_s(), seconds(self._setting.spec.trial.hang, "trial.hang")
        return f"stopped by a signal for {stopped_s:.0f} s" if hang_s and stopped_s >= hang_s else None


def _observed(slo: Slo, told: Told) -> tuple[float | None, int]:
    """In the limit's unit: ms, or a share."""
    if slo.metric == "success_rate":
        return told.figures.get("success_rate"), told.requests
    name = f"{slo.metric}_{slo.statistic}"
    value = told.figures.get(name)
    return (None if value is None else value * 1000), told.n.get(name, 0)


def _as_given(given: Given) -> dict[str, float]:
    """The load that the tool's own options say, where they do."""
    found = {}
    for name, flags in (("concurrency", ("max-concurrency", "parallel")), ("request_rate", ("request-rate", "rate"))):
        try:
            found[name] = float(given.text(*flags) or "")
        except ValueError:
            continue
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _refuse_words(log: Path, words: Sequence[str]) -> None:
    """What the study says is a failure whatever the exit code. Raises BenchFailedError with the line."""
    if not words or not log.exists():
        return
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        found = next((word for word in words if word in line), None)
        if found is not None:
            raise BenchFailedError(f"its output says {found!r} (benchmark.fail_on): {line.strip()[:300]}")


def _purity(told: Told, before: Scrape | None, after: Scrape | None) -> dict[str, Any]:
    """The server's count less the benchmark's own requests; a tool's check before its load is not foreign."""
    if before is None or after is None or before.generation_requests is None or after.generation_requests is None:
        return {"foreign": None}
    counted = round(after.generation_requests - before.generation_requests)
    return {"counted": counted, "sent": told.requests, "foreign": max(0, counted - told.requests - told.extra)}
