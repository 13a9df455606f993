"""The loads of one trial, on services that are up: one of a given size, or probes for the largest within the limits, each measured as `loadcell run`
measures a cell, and judged; or another tool's. Starts and stops no service.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from loadcell.clock import Clock
from loadcell.experiment.cell_run import CellEnd, run_cell, scenario_of
from loadcell.experiment.matrix import Cell
from loadcell.experiment.secrets import Hider
from loadcell.experiment.services import Now, OnEvent, OwnFleet
from loadcell.fleet.fleet import Fleet
from loadcell.fleet.monitor import FleetEvent
from loadcell.fleet.registry import Registry
from loadcell.fleet.spec import seconds
from loadcell.load.runner import Watcher
from loadcell.metrics.slo import Slo, parse_goodput
from loadcell.schedule import is_paced
from loadcell.tune import caches, objective
from loadcell.tune.blame import Blame, Ending, of_load
from loadcell.tune.capacity import Ask, Capacity, Probe, Range, advance
from loadcell.tune.external.load import ExternalLoad
from loadcell.tune.happenings import Happenings
from loadcell.tune.live import Judge, Live, Patience
from loadcell.tune.loaded import Loaded, Setting, cell_of, is_number
from loadcell.tune.objective import Score
from loadcell.tune.outcome import TrialPhase

_CELL: Final = "trial"
_MISSED: Final = 0.25
"""The margin of a load that was given up on evidence and whose figures do not show it yet."""
_SCRAPE_S: Final = 2.0
LOG: Final = "benchmark.log"
_OVERLOADED: Final = 0.97


class _Watched(OwnFleet):
    """The trial's fleet, already up, for `run_cell`; what happens to its services is told at once."""

    def __init__(self, fleet: Fleet, hider: Hider, tell: OnEvent) -> None:
        super().__init__(fleet, hider)
        self._tell = tell

    def serving(self, on_event: OnEvent) -> AbstractContextManager[None]:
        def both(event: FleetEvent) -> None:
            on_event(event)
            self._tell(event)

        return super().serving(both)


class Loads:
    """`run` once."""

    def __init__(
        self,
        setting: Setting,
        fleet: Fleet,
        hider: Hider,
        registry: Registry,
        clock: Clock,
        *,
        watcher: Callable[[], Watcher],
        phase: Callable[[TrialPhase], None],
    ) -> None:
        self._setting, self._fleet, self._hider, self._registry, self._clock = setting, fleet, hider, registry, clock
        self._watcher, self._phase = watcher, phase
        self._notes: list[str] = []
        self._happened = Happenings(clock)

    def run(self) -> Loaded:
        spec = self._setting.spec
        if spec.load.mode == "calibrated":
            loaded = self._calibrated()
        elif spec.load.mode == "capacity":
            loaded = self._capacity()
        else:
            loaded = self._at(self._setting, None, "load")
        return replace(loaded, notes=(*loaded.notes, *self._notes, *self._happened.texts))

    def _at(self, setting: Setting, rate: float | None, name: str) -> Loaded:
        """One load, by whichever client; `rate`: what [load] says of it. Another tool's is found in `NAME/load`."""
        if setting.spec.benchmark.kind == "loadcell":
            asked, self._setting = self._setting, setting
            try:
                return self._one(rate, 0 if rate is None else 1, setting.folder / name)
            finally:
                self._setting = asked
        if rate is not None:
            setting = replace(setting, placed=replace(setting.placed, load={**setting.placed.load, setting.spec.load.knob: rate}))
        elif name != "load":
            setting = replace(setting, folder=setting.folder / name)
        return ExternalLoad(setting, self._fleet, self._hider, self._registry, self._clock, self._happened, self._phase).run()

    def _calibrated(self) -> Loaded:
        """Without a rate first, unjudged; what counts is the load a little above the rate that was reached."""
        load = self._setting.spec.load
        free = self._at(replace(self._setting, full=True), None, "load-free")
        reached = free.score.figures.get("request_rate") if free.score is not None else None
        if reached is None or free.blame.outcome not in ("ok", "slo_violated"):
            return free
        rate = min(load.factor * reached, load.high or math.inf)
        found = self._at(self._setting, rate, "load")
        return replace(found, extra={**found.extra, "calibrated": {"reached": reached, "rate": rate}})

    # --- one load of ours

    def _one(self, load: float | None, probe: int, folder: Path) -> Loaded:
        """One load; once more where the measurement itself was no good: that costs less than a launch."""
        one = self._once(load, probe, folder)
        if one.blame.outcome != "invalid_measurement":
            return one
        again = self._once(load, probe, folder.with_name(f"{folder.name}-again"))
        return replace(again, notes=(f"measured twice: the first time {one.blame.evidence}", *again.notes))

    def _once(self, load: float | None, probe: int, folder: Path) -> Loaded:
        setting, spec = self._setting, self._setting.spec
        cell = cell_of(spec, setting.placed, load, probe)
        self._empty_caches(cell)
        folder.mkdir(parents=True)
        live = self._live(cell, folder, fixed=load is None)
        services = _Watched(self._fleet, self._hider, lambda event: self._on_event(event, live))
        self._phase("warmup")
        percentiles = objective.percentiles((*setting.slos, *setting.wanted))
        apart = spec.fleet.cpus == "apart"
        end = run_cell(cell, services, folder, folder.name, setting.environment, live, apart=apart, percentiles=percentiles)
        return self._judged(end, live, services.now(), cell, load)

    def _judged(self, end: CellEnd, live: Live, now: Now, cell: Cell, load: float | None) -> Loaded:
        setting, measured = self._setting, end.measured
        signal = end.signal or (_signal_of(end.left) if end.left is not None else None)
        score: Score | None = None
        notes: list[str] = []
        extra: dict[str, Any] = {}
        if measured is not None:
            score, extra = self._score(end, now, cell)
            if live.cut is not None:
                notes.append(live.cut)
            if score.stationary is False:
                notes.append(f"its latencies had not settled: {score.cut_share:.0%} of the requests would have to be left out (MSER-5)")
            if measured.summary.verdict == "suspect":
                notes += [f"suspect: {reason.text} ({reason.observed})" for reason in measured.summary.reasons]
        ending = Ending(
            phase=live.phase,
            signal=signal,
            death=self._happened.death(),
            hung=self._hung(live),
            slow=live.slow,
            failure=end.cause if measured is None else None,
            early=live.early,
            summary=None if measured is None else measured.summary,
            score=score,
        )
        loads = {name: float(cell.flags[name]) for name in ("concurrency", "request_rate") if is_number(cell.flags.get(name))}
        if load is not None:
            loads[setting.spec.load.knob] = load
        verdict = None if measured is None else measured.summary.verdict
        return Loaded(of_load(ending), score, ending, loads, verdict, tuple(notes), extra, signal)

    def _score(self, end: CellEnd, now: Now, cell: Cell) -> tuple[Score, dict[str, Any]]:
        setting, measured = self._setting, end.measured
        assert measured is not None
        summary = measured.summary
        name, figures = objective.window_of(summary)
        limits = (*setting.slos, *_goodput(cell))
        blocks, sent = objective.blocks_of(measured.log, figures.window, limits, summary.open_loop)
        devices = now.devices
        share = objective.cut_share(sent)
        per = setting.spec.objective.per
        score = objective.score(summary, blocks, setting.slos, setting.metric, per, devices, share, wanted=setting.wanted)
        extra: dict[str, Any] = {"window": name, "blocks": msgspec.to_builtins(blocks), "devices": devices, "cut_share": share}
        foreign = sum(one.foreign or 0 for one in summary.purity)
        if foreign:
            extra["foreign"] = foreign
        if summary.slos and all(one.met is not None for one in summary.slos):
            extra["whole_run_within"] = all(one.met for one in summary.slos)
        return score, extra

    def _live(self, cell: Cell, folder: Path, *, fixed: bool) -> Live:
        setting, spec = self._setting, self._setting.spec
        patience = Patience(
            hang_s=seconds(spec.trial.hang, "trial.hang"),
            warmup_s=seconds(spec.warmup.timeout, "warmup.timeout"),
            load_s=seconds(spec.trial.timeout, "trial.timeout"),
        )
        if setting.full:
            return Live(self._watcher(), folder, patience, None, self._phase)
        schedule = scenario_of(cell, self._now(), self._fleet.model, setting.environment).schedule
        best = setting.incumbent.figures.get(setting.metric) if fixed and setting.incumbent is not None else None
        judge = Judge(
            slos=setting.slos,
            metric=setting.metric,
            limits=(*setting.slos, *_goodput(cell)),
            incumbent=best if spec.objective.pareto is None else None,
            open_loop=is_paced(schedule),
            first_wave=0 if is_paced(schedule) else schedule.concurrency or 0,
        )
        return Live(self._watcher(), folder, patience, judge, self._phase)

    def _now(self) -> Now:
        return OwnFleet(self._fleet, self._hider).now()

    def _empty_caches(self, cell: Cell) -> None:
        spec = self._setting.spec
        if spec.trial.caches != "reset":
            return
        headers = scenario_of(cell, self._now(), self._fleet.model, self._setting.environment).target.headers
        why = caches.reset(spec.fleet.engine, self._fleet.base_urls, headers)
        if why is not None and why not in self._notes:
            self._notes.append(why)

    def _on_event(self, event: FleetEvent, live: Live) -> None:
        if self._happened.add(event):
            live.service_gone(f"{event.service} {event.cause or event.event}")

    def _hung(self, live: Live) -> str | None:
        stopped = self._happened.stopped()
        return live.hung if live.hung is None or stopped is None else f"{live.hung}; {stopped}"

    # --- the largest load within the limits

    def _capacity(self) -> Loaded:
        load, setting = self._setting.spec.load, self._setting
        known = setting.incumbent.load.get(load.knob) if setting.incumbent is not None else None
        limits = Range(
            low=load.low or 1.0, high=load.high or 1.0, integer=load.knob == "concurrency", start=known, probes=load.probes
        )  # fmt: skip
        probes: list[Probe] = []
        made: list[Loaded] = []
        while isinstance(said := advance(limits, probes), Ask):
            one = self._one(said.load, len(probes), setting.folder / f"probe-{len(probes) + 1}")
            made.append(one)
            if one.blame.outcome not in ("ok", "slo_violated", "early_stopped"):
                at = f"at a {load.knob} of {said.load:g}: {one.blame.evidence or one.blame.outcome}"
                broken = replace(one, blame=replace(one.blame, evidence=at))
                return replace(broken, extra={**one.extra, "capacity": _curve(None, probes, made)})
            probes.append(_probe(said, one, load.knob))
        return self._at_capacity(said, probes, made)

    def _at_capacity(self, found: Capacity, probes: Sequence[Probe], made: Sequence[Loaded]) -> Loaded:
        """The result at the load that was found: of the last measurement there that was within the limits."""
        at = [one for probe, one in zip(probes, made, strict=True) if probe.load == found.load and one.blame.outcome == "ok"]
        chosen = at[-1] if at else min(zip(probes, made, strict=True), key=lambda pair: pair[0].load)[1]
        extra = {**chosen.extra, "capacity": _curve(found, probes, made)}
        notes = tuple(dict.fromkeys(note for one in made for note in one.notes))
        if found.load is None or not at:
            outcome = Blame("slo_violated", "measure", found.text)
            return replace(chosen, blame=outcome, extra=extra, notes=(*notes, found.text))
        return replace(chosen, extra=extra, notes=(*notes, found.text))


def _probe(said: Ask, one: Loaded, knob: str) -> Probe:
    """What a measured load says to the search. One that was given up on evidence is beyond the limits, whatever its figures say so far."""
    margins = {text: margin for text, margin in (one.score.violations if one.score else {}).items() if margin is not None}
    if one.blame.outcome == "early_stopped" and max(margins.values(), default=0.0) <= 0:
        margins["evidence"] = _MISSED
    served = None
    if knob == "request_rate" and one.score is not None:
        rate = one.score.figures.get("request_rate")
        served = rate if rate is not None and 0 < rate < _OVERLOADED * said.load and max(margins.values(), default=0.0) > 0 else None
    return Probe(said.load, margins, why=said.why, served=served)


def _curve(found: Capacity | None, probes: Sequence[Probe], made: Sequence[Loaded]) -> dict[str, Any]:
    """For the report: every load that was probed, and the answer."""
    points = [
        {
            "load": probe.load,
            "why": probe.why,
            "margins": dict(probe.margins),
            "objective": one.score.objective if one.score is not None else None,
            "throughput": one.score.figures.get("throughput") if one.score is not None else None,
            "outcome": one.blame.outcome,
            "verdict": one.verdict,
        }
        for probe, one in zip(probes, made, strict=False)
    ]
    return {"probes": points} | ({} if found is None else msgspec.to_builtins(found))


def _goodput(cell: Cell) -> tuple[Slo, ...]:
    given = cell.flags.get("goodput") or ()
    return tuple(parse_goodput([given] if isinstance(given, str) else [str(item) for item in given]))


def _signal_of(left: BaseException) -> int:
    return left.code - 128 if isinstance(left, SystemExit) and isinstance(left.code, int) and left.code > 128 else 2
