"""One trial: a configuration -> services started, warmed, loaded, judged, stopped -> a TrialResult. What goes wrong is a result, too.

States: plan, launch, warm-up, measure, stop. While a load runs nobody asks the services for tokens but the load itself, and no probe ends a trial:
only processes that die, tokens that cease, evidence, and the user do.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from loadcell.clock import NS_PER_S, Clock, MonotonicClock
from loadcell.errors import EnvironmentFailure, LoadcellError, UserError
from loadcell.experiment.cell_run import scenario_of
from loadcell.experiment.secrets import Hider
from loadcell.experiment.services import Now
from loadcell.fleet.events import now_text
from loadcell.fleet.fleet import Fleet, FleetFailure
from loadcell.fleet.hosts.host import Host
from loadcell.fleet.plan import devices_by_config
from loadcell.fleet.registry import Registry
from loadcell.fleet.spec import FleetSpec, HostSpec, ServicePlan
from loadcell.load.runner import Watcher
from loadcell.metrics.slo import Slo, parse_slo
from loadcell.tune import blame, objective
from loadcell.tune.blame import Blame
from loadcell.tune.events import TrialKind
from loadcell.tune.external import ADAPTERS, offered
from loadcell.tune.loaded import Loaded, Setting, cell_of
from loadcell.tune.loads import Loads
from loadcell.tune.outcome import TrialPhase, TrialResult
from loadcell.tune.parameters import Configuration
from loadcell.tune.placing import Placed, placed
from loadcell.tune.read import sources_of
from loadcell.tune.spec import BenchmarkTable, StudySpec, objectives, space_of
from loadcell.tune.trial_logs import explained, of_the_world
from loadcell.tune.trial_result import Attempt, result_of

_SOMEWHERE: Final = "http://127.0.0.1:1"
_FULL: Final = ("default", "drift", "confirm", "revert")
"""Trials that are measured to their end: something is compared with them."""


class TrialWatcher:
    """What a trial tells while it goes on. Override what is of interest."""

    def phase(self, number: int, phase: TrialPhase) -> None:
        """It goes on to this."""

    def load(self, number: int) -> Watcher:  # noqa: ARG002 - for who overrides it
        """A load begins: who is told of its run."""
        return Watcher()

    def note(self, text: str) -> None:
        """Something that a person wants to know."""


class Trial:
    """`folder`: of the study; each trial has one of its own below it. `environment`: variables that may hold keys. `source`: the study's file.

    `incumbent`: the best result so far; `measure` keeps it by itself, `remember` tells it of earlier ones.
    """

    def __init__(
        self,
        spec: StudySpec,
        folder: Path,
        registry: Registry,
        environment: Mapping[str, str],
        *,
        watcher: TrialWatcher | None = None,
        clock: Clock | None = None,
        open_host: Callable[[HostSpec], Host] | None = None,
        source: Path | None = None,
    ) -> None:
        self._spec, self._folder, self._registry, self._environment = spec, folder, registry, environment
        self._watcher = watcher or TrialWatcher()
        self._clock = clock or MonotonicClock()
        self._open_host, self._source = open_host, source
        self._hider = Hider.of(msgspec.to_builtins(spec))
        self._sources = sources_of(spec)
        self._slos = tuple(parse_slo(text, "[[slo]]") for text in spec.slo)
        self.incumbent: TrialResult | None = None

    def check(self) -> tuple[ServicePlan, ...]:
        """Refuse, before anything starts, what could never be measured, and services that could not be; the default's. Raises UserError, EnvironmentFailure."""
        spec = self._spec
        external = spec.benchmark.kind != "loadcell"
        streamed = spec.bench.get("stream", True) not in (False, "false", "no", "off") and not spec.bench.get("no_stream")
        limits = (*self._slos, *self._wanted())
        told = offered(spec.benchmark, limits) if external else None
        objective.refuse_unmeasurable(
            limits,
            objectives(self._spec.objective)[0],
            streamed=streamed,
            offered=told,
            who=f"benchmark {spec.benchmark.kind}",
            limited="goodput" in spec.bench,
        )
        if external and spec.fleet.replicas > 1:
            raise UserError(
                f"[fleet] replicas = {spec.fleet.replicas}: benchmark {spec.benchmark.kind} loads one service; use 'loadcell' for several"
            )
        if external and shutil.which(program := _program(spec.benchmark), path=spec.benchmark.env.get("PATH")) is None:
            raise UserError(f"[benchmark] {spec.benchmark.kind}: there is no program {program}: install it, or say where with executable")
        where = placed(spec, space_of(spec).default(), self._sources)
        if not external:
            cell = cell_of(spec, where, self._any_load(), 0)
            scenario_of(cell, Now((_SOMEWHERE,), None), None, self._environment)
        fleet = self._fleet(where.fleet, self._folder / "check")
        try:
            plans = fleet.check()
        finally:
            fleet.release()
        if spec.objective.per == "device" and not any(plan.replica.devices for plan in plans) and not devices_by_config(where.fleet):
            raise UserError(
                "[objective] per = 'device': no service has devices of its own to divide by: give [fleet] devices, or per = 'all'"
            )
        return plans

    def remember(self, result: TrialResult) -> None:
        """Learn of a result: the best one within the limits is what later trials have to reach."""
        best = self.incumbent
        if result.feasible and result.objective is not None and (best is None or result.objective > (best.objective or 0.0)):
            self.incumbent = result

    def measure(self, configuration: Configuration, number: int, kind: TrialKind = "search") -> TrialResult:
        """Once, and once more where the machine was to blame. Raises UserError only for a default that cannot be placed or planned."""
        result = self._seen(self._once(configuration, number, kind))
        if result.outcome == "infrastructure":
            self._watcher.note(f"trial {number}: {result.evidence}; tried once more")
            again = self._seen(self._once(configuration, number, kind))
            spent = {name: getattr(result, name) + getattr(again, name) for name in ("launch_s", "measure_s", "stop_s")}
            result = replace(again, started=result.started, attempts=2, **spent)
        self.remember(result)
        return result

    run = measure

    def _seen(self, result: TrialResult) -> TrialResult:
        return of_the_world(result, self._folder, self._spec.trial.retry_on, self._hider)

    # --- one attempt

    def _once(self, configuration: Configuration, number: int, kind: TrialKind) -> TrialResult:
        own = Attempt(configuration, number, kind, self._new_folder(number), now_text())
        loaded = Loaded(Blame("infrastructure", "plan"))
        try:
            self._watcher.phase(number, "plan")
            where = placed(self._spec, configuration, self._sources)
            fleet = self._fleet(where.fleet, own.folder, own.notes.append)
            loaded = self._with_fleet(fleet, where, own)
        except UserError as wrong:
            if kind == "default":
                raise
            loaded = Loaded(Blame("bad_arguments", "plan", _first_line(wrong)))
        except LoadcellError as failure:
            loaded = Loaded(Blame("infrastructure", "launch", _first_line(failure)))
        except KeyboardInterrupt:
            loaded = Loaded(Blame("cancelled", "launch", "signal 2"), signal=2)
        except SystemExit as left:
            number_of = left.code - 128 if isinstance(left.code, int) and left.code > 128 else 15
            loaded = Loaded(Blame("cancelled", "launch", f"signal {number_of}"), signal=number_of)
        except Exception as bug:  # noqa: BLE001 - the supervisor's edge: whatever breaks a trial does not end the study
            loaded = Loaded(self._bug(bug, own.folder))
        return result_of(own, loaded, self._folder, self._hider)

    def _with_fleet(self, fleet: Fleet, where: Placed, own: Attempt) -> Loaded:
        loaded = Loaded(Blame("infrastructure", "launch"))
        with fleet:
            self._watcher.phase(own.number, "launch")
            began_ns = self._clock.now_ns()
            try:
                fleet.start()
            except FleetFailure as failure:
                return Loaded(blame.of_start(failure.cause, str(failure), failure.code, failure.lines))
            finally:
                own.launch_s = self._since_s(began_ns)
            began_ns = self._clock.now_ns()
            try:
                loaded = self._loads(fleet, where, own).run()
            finally:
                own.measure_s = self._since_s(began_ns)
                began_ns = self._clock.now_ns()
                self._watcher.phase(own.number, "stop")
                left = fleet.stop()
                own.stop_s = self._since_s(began_ns)
        told = explained(loaded, where.fleet, own.folder)
        return replace(told, notes=(*told.notes, *left))

    def _loads(self, fleet: Fleet, where: Placed, own: Attempt) -> Loads:
        setting = Setting(
            spec=self._spec,
            placed=where,
            slos=self._slos,
            wanted=self._wanted(),
            metric=objectives(self._spec.objective)[0],
            folder=own.folder,
            environment=self._environment,
            full=own.kind in _FULL or not self._spec.trial.early_stop,
            incumbent=self.incumbent,
        )
        return Loads(
            setting,
            fleet,
            self._hider,
            self._registry,
            self._clock,
            watcher=lambda: self._watcher.load(own.number),
            phase=lambda phase: self._watcher.phase(own.number, phase),
        )

    # --- parts

    def _fleet(self, spec: FleetSpec, folder: Path, note: Callable[[str], None] = lambda _: None) -> Fleet:
        headers: Sequence[tuple[str, str]] = ()
        if self._spec.benchmark.kind == "loadcell":
            where = Placed(spec, dict(self._spec.bench), self._spec.benchmark, {})
            cell = cell_of(self._spec, where, self._any_load(), 0)
            headers = scenario_of(cell, Now((_SOMEWHERE,), None), None, self._environment).target.headers

        def told(text: str) -> None:
            note(text)
            self._watcher.note(text)

        return Fleet(
            spec,
            folder,
            self._registry,
            name=self._spec.study.name,
            note=told,
            clock=self._clock,
            headers=headers,
            open_host=self._open_host,
            source=self._source,
        )

    def _wanted(self) -> tuple[Slo, ...]:
        """Latencies that a front is made of: measured as limits are, without one."""
        return tuple(parse_slo(f"{text} <= 1s", "[objective]") for text in self._spec.objective.pareto or () if text not in objective.UNITS)

    def _any_load(self) -> float | None:
        """Of a search for the largest load, the lowest: for what is checked and asked before any."""
        load = self._spec.load
        return None if load.mode == "fixed" else load.low or 1.0

    def _new_folder(self, number: int) -> Path:
        """`trials/0007`; what was there before, of a trial that was killed, stays beside it."""
        for attempt in range(1, 1000):
            folder = self._folder / "trials" / (f"{number:04d}" if attempt == 1 else f"{number:04d}-{attempt}")
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise EnvironmentFailure(f"cannot make {folder}: {error.strerror}") from error
            return folder
        raise EnvironmentFailure(f"{self._folder / 'trials'}: no name is left for trial {number}")

    def _bug(self, bug: Exception, folder: Path) -> Blame:
        import traceback

        path = folder / "error.txt"
        path.write_text("".join(traceback.format_exception(bug)), encoding="utf-8")
        # The disk, or a file: the machine's. Anything else is a fault of ours, which says nothing of the configuration.
        outcome: Literal["infrastructure", "bench_failed"] = "infrastructure" if isinstance(bug, OSError) else "bench_failed"
        return Blame(outcome, "measure", f"{type(bug).__name__}: {bug} (see {path.name})")

    def _since_s(self, began_ns: int) -> float:
        return (self._clock.now_ns() - began_ns) / NS_PER_S


def _program(table: BenchmarkTable) -> str:
    if isinstance(table.executable, str):
        return table.executable
    return (table.executable or ADAPTERS[table.kind].program)[0]


def _first_line(failure: Exception) -> str:
    return str(failure).splitlines()[0] if str(failure) else type(failure).__name__
