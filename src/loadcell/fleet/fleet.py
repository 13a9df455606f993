"""The services under test, as their user sees them: check, start, watch while a load runs, revive between loads, stop.

FleetSpec -> process groups of ours on one or more hosts. Readiness asks for tokens before any load; while one runs only process states are
looked at (`serving`). Every way out of the `with` block stops what was started, and says what is left.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

from loadcell.clock import Clock, MonotonicClock
from loadcell.errors import EnvironmentFailure
from loadcell.fleet.events import EVENTS_FILE, EventLog
from loadcell.fleet.health import Health, health_of
from loadcell.fleet.hosts.host import Group, Host
from loadcell.fleet.interrupts import Flag, deferring, leaving
from loadcell.fleet.logs import collect_logs
from loadcell.fleet.monitor import Finding, FleetEvent
from loadcell.fleet.orphans import stop_orphans
from loadcell.fleet.plan import inherited_notes
from loadcell.fleet.readiness import NotReadyError
from loadcell.fleet.registry import Registry
from loadcell.fleet.service import Service, ServiceStatus
from loadcell.fleet.spec import FleetSpec, HostSpec, ServicePlan
from loadcell.fleet.staging import Staging
from loadcell.fleet.starting import start_replica
from loadcell.fleet.terms import served_name
from loadcell.fleet.together import Calls, together
from loadcell.fleet.watching import Watching

_PORT_ATTEMPTS: Final = 3
Result = TypeVar("Result")


class FleetFailure(EnvironmentFailure):
    """A service did not start; nothing of the fleet runs any more. `cause`: a word; `lines`: the last of the service's log.

    `code`: its process's exit code, null where it did not exit by itself.
    """

    def __init__(self, text: str, service: str, cause: str, code: int | None, lines: tuple[str, ...]) -> None:
        super().__init__(text)
        self.service, self.cause, self.code, self.lines = service, cause, code, lines


class Fleet:
    """One fleet from check to stop. `folder`: of the run; logs and events go there. `note` is told what a person should know.

    `headers` are sent with readiness's questions. `source`: the specification's file, by which `loadcell fleet` finds the services. Use it in a
    `with` block: leaving stops the services, unless they were made by `up`.
    """

    def __init__(
        self,
        spec: FleetSpec,
        folder: Path,
        registry: Registry,
        *,
        name: str,
        made_by: Literal["run", "up"] = "run",
        note: Callable[[str], None] = lambda _: None,
        clock: Clock | None = None,
        headers: Sequence[tuple[str, str]] = (),
        open_host: Callable[[HostSpec], Host] | None = None,
        source: Path | None = None,
    ) -> None:
        self.spec, self.folder, self.name = spec, folder, name
        self._registry, self._made_by, self._note = registry, made_by, note
        self._clock = clock or MonotonicClock()
        self._staging = Staging(
            spec, folder, registry, name, made_by, tuple(headers), self._clock, open_host, str(source.resolve()) if source else ""
        )
        self._services: list[Service] = []
        self._loaded: tuple[Service, ...] = ()
        self._events = EventLog(folder / EVENTS_FILE)
        self._hurry = Flag()
        self._told: set[str] = set()

    # --- before

    def check(self) -> tuple[ServicePlan, ...]:
        """Refuse what cannot work, and start nothing; the plan. Raises UserError, EnvironmentFailure."""
        plans = self._staging.check()
        self._tell_notes()
        return plans

    def _tell_notes(self) -> None:
        """Each once, though start checks again what was checked."""
        for text in self._staging.notes:
            if text not in self._told:
                self._told.add(text)
                self._note(text)

    def start(self) -> None:
        """Start all services at once and return when every one is ready; else stop all. Raises FleetFailure, and what `check` raises."""
        with leaving():
            for text in (*stop_orphans(self._registry, self._staging.hosts(), self._clock), *self._staging.sweep()):
                self._note(text)
            for text in inherited_notes(self.spec, os.environ):
                self._note(text)
            asked = Flag()
            with deferring(asked.set, self._hurry.set):
                for attempt in range(_PORT_ATTEMPTS):
                    failure = self._attempt(Flag(asked))
                    if failure is None:
                        return
                    stolen = failure.cause == "port_taken" and self.spec.port == "auto" and not asked.is_set()
                    if not stolen or attempt + 1 == _PORT_ATTEMPTS:
                        raise failure
                    self._note(f"{failure.service}: somebody took its port meanwhile; all are started again on other ports")

    def _attempt(self, abort: Flag) -> FleetFailure | None:
        """One start of all; null: all are ready. Else nothing runs any more, whatever is returned or raised."""
        try:
            self._services = self._staging.allocate()
            self._tell_notes()
            self._all([self._starter(ranks, abort) for ranks in self._replicas()], "start", abort)
        except NotReadyError as reason:
            failure = self._failure()
            failure.__cause__ = reason
            self._stop()
            return failure
        except BaseException:
            self._stop()
            raise
        return None

    def _all(self, calls: Sequence[Callable[[], Result]], name: str, abort: Flag) -> list[Result]:
        """All at once, to their ends; the first failure asks the others to give up, and is raised."""
        running = Calls(calls, name)
        running.wait()
        if running.first_failure is not None:
            abort.set()
        running.join()
        if running.first_failure is not None:
            raise running.first_failure
        return running.all_results()

    def _starter(self, ranks: Sequence[Service], abort: Flag) -> Callable[[], None]:
        def start() -> None:
            try:
                start_replica(ranks, self._record, abort, self._clock)
            except NotReadyError:
                for service in ranks:
                    self._events.add(service, "start failed" if service.failure else "stopped", service.cause)
                raise
            for service in ranks:
                self._events.add(service, "ready")

        return start

    def _record(self, service: Service, group: Group) -> None:
        self._registry.complete(service.marker, group)
        self._events.add(service, "started")

    def _failure(self) -> FleetFailure:
        """The first service that failed for a reason of its own, as an error with the end of its log."""
        failed = [service for service in self._services if service.failure is not None]
        service = min(failed, key=lambda one: one.failure.cause == "aborted" if one.failure else True)
        failure = service.failure
        assert failure is not None
        shown = "".join(f"\n  | {line}" for line in failure.lines[-20:])
        where = f"\n  the last lines of {service.log}:{shown}" if shown else ""
        text = f"{service.name} on {service.plan.replica.host} did not start: {failure}{where}"
        return FleetFailure(text, service.name, failure.cause, failure.code, failure.lines)

    # --- while it runs

    @property
    def base_urls(self) -> tuple[str, ...]:
        """Of the services that are ready, in the order of the replicas."""
        return tuple(service.plan.base_url for service in self._serving() if service.plan.base_url)

    @property
    def model(self) -> str:
        """The name under which the services answer."""
        return next((service.model for service in self._services if service.model), None) or served_name(self.spec) or ""

    @property
    def plans(self) -> tuple[ServicePlan, ...]:
        """What was started, with the ports and devices that were taken."""
        return tuple(service.plan for service in self._services)

    def status(self) -> tuple[ServiceStatus, ...]:
        return tuple(service.status() for service in self._services)

    @contextmanager
    def serving(self, on_event: Callable[[FleetEvent], None] = lambda _: None) -> Iterator[None]:
        """Around a load: process states are looked at once a second, and nothing else is. `on_event` is called from other threads, by one at a time."""
        watched = [service for service in self._services if service.state == "ready"]
        self._loaded = tuple(service for service in self._serving() if service in watched)
        for service in watched:
            service.move("load_began")

        def tell(service: Service, finding: Finding) -> None:
            on_event(self._events.add(service, finding.kind, service.cause if service.state == "failed" else finding.text))

        watching = Watching(watched, tell, self._clock)
        watching.start()
        try:
            yield
        finally:
            watching.stop()
            for service in watched:
                if service.state == "serving":
                    service.move("load_ended")

    @property
    def gone(self) -> bool:
        """Whether of those that the last load was given no process is left. Not so where one hangs, or only its host is cut off."""
        return bool(self._loaded) and all(service.empty for service in self._loaded)

    # --- between loads

    def health(self) -> Health:
        """One light GET to each service that should be there."""
        return health_of(self._services)

    def health_line(self) -> str:
        return self.health().line

    def revive(self) -> tuple[str, ...]:
        """Start again what has died, each replica at most `restarts` times; texts of what was done. A replica beyond that stays failed."""
        for service in self._services:
            for finding in service.watch():
                self._events.add(service, finding.kind, finding.text)
            if service.hung:
                service.count_failed("hung: stopped by a signal")
        dead = [ranks for ranks in self._replicas() if any(service.state == "failed" for service in ranks)]
        abort = Flag()
        with deferring(abort.set, self._hurry.set):
            told = self._all([self._reviver(ranks, abort) for ranks in dead], "revive", abort)
        return tuple(text for texts in told for text in texts)

    def _reviver(self, ranks: Sequence[Service], abort: Flag) -> Callable[[], list[str]]:
        return lambda: self._revive(ranks, abort)

    def _revive(self, ranks: Sequence[Service], abort: Flag) -> list[str]:
        head = ranks[0]
        why = next((service.cause for service in ranks if service.state == "failed"), None)
        limit = self.spec.restarts
        if head.restarts >= limit:
            if not head.given_up:
                head.given_up = True
                self._clear(ranks)
                return [f"{head.name} stays failed after {limit} restart{'' if limit == 1 else 's'} ({why})"]
            return []
        try:
            self._clear(ranks)
        except EnvironmentFailure as cut:
            return [f"{head.name} stays failed: {cut}"]
        for service in ranks:
            service.again()
            self._events.add(service, "restart", why)
        try:
            start_replica(ranks, self._record, abort, self._clock)
        except NotReadyError as failure:
            for service in ranks:
                service.fail(failure)
            return [f"{head.name} was started again ({why}) and did not become ready: {failure}"]
        for service in ranks:
            self._events.add(service, "ready")
        return [f"{head.name} was started again, {head.restarts} of at most {limit} times ({why})"]

    def _clear(self, ranks: Sequence[Service]) -> None:
        """End what is left of a replica before it is started again: a rank that lives is of no use without the others."""
        for service in ranks:
            if service.state == "failed":
                service.clear(self._hurry)
            else:
                service.stop(self._hurry)

    # --- the end

    def stop(self) -> tuple[str, ...]:
        """Stop all, at once; texts of what is left. Stops everything whatever signals come, and leaves as they ask for afterwards."""
        with deferring(self._hurry.set, self._hurry.set):
            return self._stop()

    def _stop(self) -> tuple[str, ...]:
        mine = [service for service in self._services if service.state != "stopped"]
        began = [service for service in mine if service.state != "defined"]
        left = [text for texts in together([self._stopper(service) for service in mine], "stop") for text in texts]
        left += self._staging.devices_left(began)
        for service in began:
            self._events.add(service, "stopped" if service.state == "stopped" else "not stopped", service.cause)
        for service in mine:
            if service.state == "stopped":
                self._registry.remove(service.marker)
        for text in (*collect_logs(began, self.folder / "logs"), *left):
            self._note(text)
        return tuple(left)

    def _stopper(self, service: Service) -> Callable[[], tuple[str, ...]]:
        return lambda: service.stop(self._hurry)

    def release(self) -> None:
        """Let go of the hosts' connections; services go on."""
        self._staging.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self._made_by == "run":
                self.stop()
        finally:
            self.release()

    def _replicas(self) -> list[list[Service]]:
        """The ranks of each replica, the head first."""
        ordered = sorted(self._services, key=lambda service: (service.plan.replica.index, service.plan.replica.rank))
        return [list(ranks) for _, ranks in groupby(ordered, key=lambda service: service.plan.replica.index)]

    def _serving(self) -> list[Service]:
        """Heads of replicas all of whose ranks are ready or serving."""
        return [ranks[0] for ranks in self._replicas() if all(service.state in ("ready", "serving") for service in ranks)]
