"""The loads of one trial, on services that are up: one of a given size, or probes for the largest within the limits, or another tool's; each measured as
`loadcell run` measures a cell, and judged. Starts and stops nothing but an external benchmark.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from loadcell.client.resolve import resolve
from loadcell.clock import NS_PER_S, Clock
from loadcell.experiment.cell_run import CellEnd, run_cell, scenario_of
from loadcell.experiment.matrix import Cell, flag_of, matrix
from loadcell.experiment.secrets import Hider
from loadcell.experiment.services import Now, OnEvent, OwnFleet
from loadcell.experiment.spec import ExperimentSpec
from loadcell.fleet.fleet import Fleet
from loadcell.fleet.monitor import FATAL, FleetEvent
from loadcell.fleet.registry import Registry
from loadcell.fleet.spec import seconds
from loadcell.load.runner import Watcher
from loadcell.metrics.exposition import Scrape, parse_metrics
from loadcell.metrics.slo import Slo, parse_goodput
from loadcell.probe import scrape
from loadcell.schedule import is_paced
from loadcell.tune import caches, objective
from loadcell.tune.blame import Blame, Death, Ending, of_load, of_score
from loadcell.tune.capacity import Ask, Capacity, Probe, Range, advance
from loadcell.tune.external import ADAPTERS
from loadcell.tune.external.run import Ended, Limits, run
from loadcell.tune.external.told import Asked, BenchFailedError, Given, Told, command
from loadcell.tune.live import Judge, Live, Patience
from loadcell.tune.objective import Metric, Score
from loadcell.tune.outcome import TrialPhase, TrialResult
from loadcell.tune.placing import Placed
from loadcell.tune.spec import StudySpec
from loadcell.wire.url import parse_endpoint

_CELL: Final = "trial"
_MISSED: Final = 0.25
"""The margin of a load that was given up on evidence and whose figures do not show it yet."""
_SCRAPE_S: Final = 2.0
LOG: Final = "benchmark.log"
_OVERLOADED: Final = 0.97


class Setting(Struct, frozen=True):
    """What the loads of one trial are given. `wanted`: latencies that are an objective. `full`: nothing is ended on evidence."""

    spec: StudySpec
    placed: Placed
    slos: tuple[Slo, ...]
    wanted: tuple[Slo, ...]
    metric: Metric
    folder: Path
    environment: Mapping[str, str]
    full: bool
    incumbent: TrialResult | None


class Loaded(Struct, frozen=True):
    """What a trial's loads gave. `ending`: of the load that decided. `load`: concurrency or request rate. `extra`: for the record."""

    blame: Blame
    score: Score | None = None
    ending: Ending | None = None
    load: dict[str, float] = {}
    verdict: str | None = None
    notes: tuple[str, ...] = ()
    extra: dict[str, Any] = {}
    signal: int | None = None


def cell_of(spec: StudySpec, placed: Placed, load: float | None, probe: int) -> Cell:
    """The load as an experiment's cell. Its name, and so its prompts and arrivals, are the same for all configurations; each probe of a launch has its
    own, so that it meets no other's in a cache. Raises SpecError.
    """
    bench = dict(placed.bench)
    if load is not None:
        bench[spec.load.knob] = round(load) if spec.load.knob == "concurrency" else load
    given = {flag_of(name) for name in bench}
    least_s = seconds(spec.warmup.least, "warmup.least")
    if least_s and "warmup_duration" not in given:
        bench["warmup_duration"] = least_s
    elif not given & {"warmup_requests", "warmup_duration"}:
        bench["warmup_requests"] = _first_wave(bench)
    experiment = ExperimentSpec(name=_CELL, seed=spec.study.seed, fleet=placed.fleet, bench=bench, slo=spec.slo)
    (cell,) = matrix(experiment)
    return replace(cell, flags={**cell.flags, "cell": _CELL, "repeat": probe, "name": _CELL})


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
        self._events: list[FleetEvent] = []
        self._stopped_ns: int | None = None

    def run(self) -> Loaded:
        spec = self._setting.spec
        if spec.benchmark.kind != "loadcell":
            loaded = self._external()
        elif spec.load.mode == "capacity":
            loaded = self._capacity()
        else:
            loaded = self._one(None, 0, self._setting.folder / "load")
        stopped = [f"{event.service} {event.event}: {event.cause or ''}".rstrip(": ") for event in self._events]
        return replace(loaded, notes=(*loaded.notes, *self._notes, *stopped))

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
                notes.append(f"not stationary: MSER-5 would cut {score.cut_share:.0%} of the requests")
            if measured.summary.verdict == "suspect":
                notes += [f"suspect: {reason.text} ({reason.observed})" for reason in measured.summary.reasons]
        ending = Ending(
            phase=live.phase,
            signal=signal,
            death=self._death(),
            hung=self._hung(live),
            slow=live.slow,
            failure=end.cause if measured is None else None,
            early=live.early,
            summary=None if measured is None else measured.summary,
            score=score,
        )
        loads = {name: float(cell.flags[name]) for name in ("concurrency", "request_rate") if _is_number(cell.flags.get(name))}
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
        devices = now.devices or len(now.base_urls) or 1
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

    # --- what happens to services

    def _on_event(self, event: FleetEvent, live: Live | None) -> None:
        self._events.append(event)
        if event.event in ("hung", "resumed"):
            self._stopped_ns = self._clock.now_ns() if event.event == "hung" else None
        if event.event in FATAL and live is not None:
            live.service_gone(f"{event.service} {event.cause or event.event}")

    def _death(self) -> Death | None:
        gone = next((event for event in self._events if event.event in FATAL), None)
        if gone is None:
            return None
        text = f"{gone.service} {gone.cause or gone.event}"
        return Death(text, gone.event, code=_code_in(text))

    def _hung(self, live: Live) -> str | None:
        if live.hung is None:
            return None
        stopped = next((event for event in self._events if event.event == "hung"), None)
        return live.hung + (f"; {stopped.service} {stopped.cause}" if stopped is not None else "")

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

    # --- another tool's load

    def _external(self) -> Loaded:
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
        with self._serving():
            ended = run(
                words, folder / LOG, limits, self._registry, look, self._trouble, self._clock, name=spec.study.name
            )  # fmt: skip
        return self._told(ended, before, look()[0], asked, words.argv)

    def _told(self, ended: Ended, before: Scrape | None, after: Scrape | None, asked: Asked, argv: Sequence[str]) -> Loaded:
        kind = self._setting.spec.benchmark.kind
        loads = dict(asked.load)
        death = self._death()
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
        return Loaded(
            of_score(score), score, None, loads, "suspect" if notes else "valid", notes, {"window": "whole", "purity": purity, **purity}
        )

    def _score_of(self, told: Told) -> Score:
        setting, now = self._setting, self._now()
        devices = now.devices or len(now.base_urls) or 1
        figures, n = dict(told.figures), dict(told.n)
        for name in ("throughput", "request_rate"):
            value = figures.get(name)
            figures[f"{name}_per_device"] = None if value is None else value / devices
            n[f"{name}_per_device"] = n.get(name, 0)
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

    @contextlib.contextmanager
    def _serving(self) -> Iterator[None]:
        with self._fleet.serving(lambda event: self._on_event(event, None)):
            yield

    def _trouble(self) -> str | None:
        """A service that is gone, or that has been stopped by a signal for as long as a hang lasts."""
        death = self._death()
        if death is not None or self._stopped_ns is None:
            return None if death is None else death.text
        stopped_s, hang_s = (self._clock.now_ns() - self._stopped_ns) / NS_PER_S, seconds(self._setting.spec.trial.hang, "trial.hang")
        return f"stopped by a signal for {stopped_s:.0f} s" if hang_s and stopped_s >= hang_s else None


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


def _first_wave(bench: Mapping[str, Any]) -> int:
    """Requests of the warm-up where nothing is said: as many as will be in flight."""
    value = next((value for name, value in bench.items() if flag_of(name) == "concurrency"), None)
    return max(1, int(value)) if isinstance(value, int | float) else 8


def _goodput(cell: Cell) -> tuple[Slo, ...]:
    given = cell.flags.get("goodput") or ()
    return tuple(parse_goodput([given] if isinstance(given, str) else [str(item) for item in given]))


def _observed(slo: Slo, told: Told) -> tuple[float | None, int]:
    """In the limit's unit: ms, or a share."""
    if slo.metric == "success_rate":
        return told.figures.get("success_rate"), told.requests
    name = f"{slo.metric}_{slo.statistic}"
    value = told.figures.get(name)
    return (None if value is None else value * 1000), told.n.get(name, 0)


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


def _signal_of(left: BaseException) -> int:
    return left.code - 128 if isinstance(left, SystemExit) and isinstance(left.code, int) and left.code > 128 else 2


def _code_in(text: str) -> int | None:
    _, found, rest = text.partition("exit code ")
    digits = rest.split(")")[0].split(";")[0].split()[0] if found and rest else ""
    try:
        return int(digits)
    except ValueError:
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
