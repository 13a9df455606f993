"""One load from start to end: control. It prepares, starts the workers, watches the endpoints, says when to stop, and gathers what is left.

Control is never asked per request. It writes the board, the workers read it; they tell what control must decide (a failure, a refusal).
"""

import os
import platform
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from contextlib import closing as closing_at_end
from pathlib import Path
from typing import Any, Final

import msgspec

from loadcell import __version__
from loadcell.clock import NS_PER_S, Anchor, MonotonicClock, anchor
from loadcell.endpoint.board import Board, Flag, OfWorker
from loadcell.endpoint.pool import Pool
from loadcell.errors import EnvironmentFailure, LoadcellError
from loadcell.load import closing
from loadcell.load.crew import Crew
from loadcell.load.plan import (
    Fatal,
    FieldDropped,
    PhaseDone,
    Ready,
    StartPhase,
    StopCode,
    Traffic,
    Trouble,
    WorkerPlan,
    WorkerReport,
)
from loadcell.load.prepare import Load, Target, closed_count, cpus, find_target, make_request, prepare_load
from loadcell.load.producer import Producer
from loadcell.load.quiet import QuietScrapes
from loadcell.load.redact import redacted
from loadcell.load.snapshot import Snapshot
from loadcell.load.spool import Slots, SpoolWriter, write_offsets
from loadcell.load.watch import Progress
from loadcell.metrics.facts import LengthError as LengthErrorFacts
from loadcell.metrics.facts import ProbeFacts, RunFacts, RunIdentity, StopReason, TokenizerFacts, WorkerFacts
from loadcell.probe import get
from loadcell.recordlog import LogHeader, encode_events, encode_header
from loadcell.records import Event, Phase, Request
from loadcell.scenario import Scenario
from loadcell.schedule import mode, offered_rate, ramp_end_ns
from loadcell.workload.spec import WorkloadSpec

_LOOP_S: Final = 0.05
_LEAD_NS: Final = 5_000_000
_INTERRUPT_DRAIN_NS: Final = 5 * NS_PER_S
_PRIME_S: Final = 0.02
_MIN_UNSEEN: Final = 100


class Watcher:
    """What a run tells while it goes on. Override what is of interest."""

    def started(self) -> None:
        """The first request is on its way."""

    def show(self, snapshot: Snapshot) -> None:
        """How far it is; several times a second."""

    def note(self, text: str) -> None:
        """Something happened that a person wants to know."""


class Run:
    """`execute` once. `folder` exists and is empty. Raises LoadcellError for what ends a run before its first request."""

    def __init__(self, scenario: Scenario, folder: Path, run_id: str, watcher: Watcher) -> None:
        self._scenario, self._folder, self._run_id, self._watcher = scenario, folder, run_id, watcher
        self._clock = MonotonicClock()
        self._notices: list[str] = []
        self._dropped: dict[str, list[str]] = {}
        self._stop: tuple[StopCode, str | None] | None = None
        self._signal: int | None = None
        self._ejections: dict[str, int] = {}
        self._reports: list[WorkerReport] = []
        self._lost: list[int] = []
        self._start_ns = 0
        self._end_ns = 0
        self._done: set[int] = set()
        self._origin = anchor()
        self._making = threading.Lock()

    def execute(self) -> RunFacts:
        """Run the load; the facts of how it went. The records are in the folder when this returns."""
        with ExitStack() as cleanup:
            return self._execute(cleanup)

    def _execute(self, cleanup: ExitStack) -> RunFacts:
        target = find_target(self._scenario)
        self._notices += target.notices
        workers = max(1, self._scenario.workers)
        if workers > cpus():
            self._note(f"--workers {workers} is more than the {cpus()} cores that this process may use")
        board = Board.create(len(target.endpoints), workers)
        warmup, measure = SpoolWriter(self._folder), SpoolWriter(self._folder)
        slots = self._shared_slots(workers)
        offsets_fd = os.memfd_create("loadcell-arrivals", os.MFD_CLOEXEC)
        fds = [board.fd, offsets_fd, *msgspec.structs.astuple(warmup.fds), *msgspec.structs.astuple(measure.fds), *(slots or ())]
        crew = Crew(workers, fds)
        scrapes = QuietScrapes(target.endpoints, target.headers, target.tls)
        try:
            with self._signals(board):
                scrapes.begin()
                load = cleanup.enter_context(closing_at_end(prepare_load(self._scenario, target)))
                write_offsets(load.offsets, offsets_fd)
                header = self._header(target)
                self._give_plans(crew, target, load, header, board, warmup, measure, offsets_fd, slots)
                with (self._folder / "events.jsonl").open("ab", buffering=0) as events:
                    pool = self._pool(target, board, events.write)
                    self._phases(crew, board, pool, load, scrapes, warmup, measure)
        finally:
            crew.dismiss()
            for spool in (warmup, measure):
                spool.close()
            for fd in (offsets_fd, *(slots or ())):
                os.close(fd)
        purity, caches = scrapes.end(self._clock)
        parts = [self._part(worker) for worker in range(workers)]
        self._close_log(parts, load)
        facts = self._facts(target, load, pool)
        board.close()
        return msgspec.structs.replace(facts, purity=purity, prefix_cache=caches)

    def _phases(
        self, crew: Crew, board: Board, pool: Pool, load: Load, scrapes: QuietScrapes, warmup: SpoolWriter, measure: SpoolWriter
    ) -> None:
        scenario, schedule = self._scenario, load.schedule
        producers = []
        try:
            if scenario.warmup_requests or scenario.warmup_duration_s:
                count = scenario.warmup_requests or None
                producers.append(self._producer(warmup, load, "warmup", count, load.warmup_concurrency, board))
            count = len(load.offsets) if load.offsets is not None else closed_count(scenario, load)
            first = self._first(load)
            producers.append(self._producer(measure, load, "measure", count, first, board))
            self._await_ready(crew, pool)
            scrapes.wait_begun()
            progress = Progress(board, pool, load.schedule, scenario.warmup_requests)
            if len(producers) == 2:
                self._prime(producers[0], pool)
                stop_ns = round(scenario.warmup_duration_s * NS_PER_S)
                self._phase("warmup", crew, board, pool, progress, producers[0], stop_ns or None, fresh=True)
            if self._stop is None:
                self._prime(producers[-1], pool)
                self._leave_the_tokenizer(load, producers[-1], pool, count)
                stop_ns = round(schedule.duration_s * NS_PER_S) if schedule.duration_s is not None else 0
                self._phase("measure", crew, board, pool, progress, producers[-1], stop_ns or None, fresh=len(producers) == 1)
        finally:
            for producer in producers:
                producer.stop()

    def _phase(
        self,
        phase: Phase,
        crew: Crew,
        board: Board,
        pool: Pool,
        progress: Progress,
        producer: Producer,
        length_ns: int | None,
        *,
        fresh: bool,
    ) -> None:
        """Run one phase in all workers until each has nothing left."""
        start = self._clock.now_ns() + _LEAD_NS
        drain_ns = round(self._scenario.drain_s * NS_PER_S)
        stop_at = start + length_ns if length_ns is not None else 0
        if self._stop is None:  # a signal may have come in the meantime: its flags stand
            board.set_flag(Flag.KILL_AT_NS, stop_at + drain_ns if stop_at else 0)
            board.set_flag(Flag.STOP_AT_NS, stop_at)
        if phase == "measure":
            self._start_ns = start
        self._done = set()
        crew.tell_all(StartPhase(phase=phase, start_ns=start))
        progress.begin(phase, start)
        self._event(f"{phase}_started", start)
        if fresh:
            self._watcher.started()
        shown = 0
        while len(self._done) + len(crew.lost) < len(crew):
            self._listen(crew, board, pool, _LOOP_S)
            now = self._clock.now_ns()
            pool.tick(now)
            self._decide(phase, board, pool, producer, now)
            if now - shown >= NS_PER_S // 4:
                shown = now
                self._watcher.show(
                    progress.snapshot(now, draining=bool(board.flag(Flag.STOP_AT_NS) and now >= board.flag(Flag.STOP_AT_NS)))
                )
        now = self._clock.now_ns()
        if phase == "measure":
            self._end_ns = now
            self._watcher.show(progress.snapshot(now, draining=True))
            if self._stop is None:
                reached = bool(stop_at) and now >= stop_at
                self._stop = ("duration", None) if reached else ("count", None)
        self._event(f"{phase}_ended", now)

    def _decide(self, phase: Phase, board: Board, pool: Pool, producer: Producer, now: int) -> None:
        """Whether the run has to end before its time."""
        if producer.error is not None and self._stop is None:
            self._halt(board, "fatal", f"a prompt could not be made: {producer.error}", now)
        limit = self._scenario.max_failures
        failed = board.total(OfWorker.FAILED)
        if limit is not None and phase == "measure" and failed > limit:
            self._halt(board, "max_failures", f"{failed} requests failed, more than --max-failures {limit}", now)
        open_loop = mode(self._scenario.schedule) != "closed"
        if pool.verdict_without_endpoint(now, open_loop=open_loop) == "end":
            patience = self._scenario.endpoint.patience_s
            self._halt(board, "patience", f"no endpoint was available for {patience:g} s (--patience)", now)

    def _halt(self, board: Board, code: StopCode, detail: str | None, now: int, drain_ns: int = 0) -> None:
        """Stop dispatching now. What is in flight may run on for `drain_ns`. The first reason stands."""
        if self._stop is not None:
            return
        self._stop = (code, detail)
        board.set_flag(Flag.KILL_AT_NS, now + drain_ns)
        board.set_flag(Flag.STOP_AT_NS, now)
        self._event("stopping", now, detail or code)
        if detail is not None:
            self._note(detail)

    def _listen(self, crew: Crew, board: Board, pool: Pool, timeout_s: float) -> None:
        for worker, message in crew.messages(timeout_s):
            now = self._clock.now_ns()
            if message is None:
                how = crew.exit_text(worker)
                self._lost.append(worker)
                pool.worker_lost(worker)
                self._event("worker_lost", now, how)
                self._halt(board, "worker_lost", f"worker {worker} was lost ({how}): the results are partial", now, _INTERRUPT_DRAIN_NS)
            elif isinstance(message, Traffic):
                pool.on_traffic(
                    message.endpoint,
                    message.outcome,
                    message.status,
                    message.retry_after_s,
                    message.at_ns,
                    dispatched_ns=message.dispatched_ns,
                    error_code=message.error_code,
                )
            elif isinstance(message, Fatal):
                self._halt(board, "fatal", message.text, now)
            elif isinstance(message, FieldDropped):
                self._field_dropped(message, now)
            elif isinstance(message, PhaseDone):
                self._done.add(worker)
                if message.phase == "measure":
                    self._reports.append(message.report)
            elif isinstance(message, Trouble):
                self._halt(board, "fatal", message.text, now)

    def _field_dropped(self, message: FieldDropped, now: int) -> None:
        name = self._names[message.endpoint]
        fields = self._dropped.setdefault(name, [])
        if message.field not in fields:
            fields.append(message.field)
            self._event("field_dropped", now, f"{message.field}: {message.said}", name)
            self._note(f"{name} refuses {message.field}: it is left out there from now on")

    def _await_ready(self, crew: Crew, pool: Pool) -> None:
        ready: set[int] = set()
        while len(ready) + len(crew.lost) < len(crew) and self._stop is None:
            for worker, message in crew.messages(_LOOP_S):
                if isinstance(message, Ready):
                    ready.add(worker)
                elif isinstance(message, Trouble):
                    raise EnvironmentFailure(message.text)
                elif message is None:
                    raise EnvironmentFailure(f"worker {worker} did not start ({crew.exit_text(worker)})")
            pool.tick(self._clock.now_ns())

    def _prime(self, producer: Producer, pool: Pool) -> None:
        """Wait until the first requests are ready to be sent."""
        while not producer.wait_primed(_PRIME_S) and self._stop is None:
            pool.tick(self._clock.now_ns())
        if producer.error is not None:
            error = producer.error
            raise error if isinstance(error, LoadcellError) else EnvironmentFailure(f"a prompt could not be made: {error}") from error

    def _leave_the_tokenizer(self, load: Load, producer: Producer, pool: Pool, count: int | None) -> None:
        """A server's tokenizer is asked no more once the measurement begins. Where its counts do not add up word by word, all prompts of a
        run of known length are made first.
        """
        if load.tokenizer.name != "server":
            return
        if load.workload.repaired and count is not None:
            producer.make_all_first()
            self._prime(producer, pool)
        load.workload.trust()

    def _first(self, load: Load) -> int:
        """How many requests must be ready before the start: a closed loop's slots, or what is due in its first second."""
        if load.offsets is None:
            return load.schedule.concurrency or 1
        return max(1, sum(1 for _ in _until(load.offsets, NS_PER_S)))

    def _producer(self, spool: SpoolWriter, load: Load, phase: Phase, count: int | None, first: int, board: Board) -> Producer:
        scenario, measured = self._scenario, phase == "measure"

        def published(made: int) -> None:
            if measured:
                board.set_flag(Flag.PRODUCED, made)

        def elapsed_ns() -> int:
            return self._clock.now_ns() - self._start_ns if measured and self._start_ns else 0

        def make(index: int) -> Request:
            with self._making:  # the warm-up's producer and the measurement's share one tokenizer
                return make_request(scenario, load, phase, index)

        producer = Producer(
            spool,
            make,
            count,
            load.offsets if measured else None,
            published,
            elapsed_ns,
            first,
        )
        producer.start()
        return producer

    def _shared_slots(self, workers: int) -> tuple[int, int] | None:
        schedule = self._scenario.schedule
        if workers > 1 and schedule.concurrency is not None and mode(schedule) != "closed":
            return Slots.create(schedule.concurrency)
        return None

    def _give_plans(
        self,
        crew: Crew,
        target: Target,
        load: Load,
        header: LogHeader,
        board: Board,
        warmup: SpoolWriter,
        measure: SpoolWriter,
        offsets_fd: int,
        slots: tuple[int, int] | None,
    ) -> None:
        scenario = self._scenario
        self._names = [endpoint.name for endpoint in target.endpoints]
        for worker in range(len(crew)):
            plan = WorkerPlan(
                worker=worker,
                workers=len(crew),
                endpoints=target.endpoints,
                spec=scenario.endpoint,
                timeouts=scenario.timeouts,
                schedule=load.schedule
                if load.offsets is None
                else msgspec.structs.replace(load.schedule, trace_s=load.schedule.trace_s[:1]),
                seed=scenario.seed,
                headers=target.headers,
                ca_file=scenario.target.ca_file,
                insecure=scenario.target.insecure,
                kernel_stamps=target.kernel_stamps,
                keep_text=load.tokenizer.exact,
                save_text=scenario.save_text,
                origin_ns=self._origin.monotonic_ns,
                header=encode_header(header).decode().rstrip("\n"),
                part=str(self._part(worker)),
                board_fd=board.fd,
                warmup=warmup.fds,
                measure=measure.fds,
                offsets_fd=None if load.offsets is None else offsets_fd,
                slots=slots,
                warmup_concurrency=load.warmup_concurrency,
            )
            crew.give_plan(worker, plan)

    def _part(self, worker: int) -> Path:
        return self._folder / f"records.part-{worker}.jsonl"

    def _pool(self, target: Target, board: Board, write: Callable[[bytes], Any]) -> Pool:
        spec = self._scenario.endpoint
        self._write_event = write

        def on_event(event: Event) -> None:
            write(encode_events([event]))
            if event.kind == "endpoint_unhealthy" and event.endpoint is not None:
                self._ejections[event.endpoint] = self._ejections.get(event.endpoint, 0) + 1
            if event.kind != "endpoint_trial":
                self._note(f"{event.endpoint or ''} {event.kind.replace('_', ' ')}: {event.cause or ''}".strip(), report=False)

        return Pool(
            target.endpoints,
            spec,
            board,
            self._clock,
            lambda endpoint: get(endpoint, endpoint.root + spec.health_path, spec.health_timeout_s, target.headers, target.tls),
            on_event,
            origin_ns=self._origin.monotonic_ns,
        )

    def _event(self, kind: str, now: int, cause: str | None = None, endpoint: str | None = None) -> None:
        event = Event(at_ns=now - self._origin.monotonic_ns, kind=kind, cause=cause, endpoint=endpoint)
        self._write_event(encode_events([event]))

    def _note(self, text: str, *, report: bool = True) -> None:
        if report:
            self._notices.append(text)
        self._watcher.note(text)

    @contextmanager
    def _signals(self, board: Board) -> Any:
        """The first interrupt drains for 5 s, the second leaves at once. SIGTERM likewise."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(number: int, _frame: object) -> None:
            now = self._clock.now_ns()
            if self._signal is not None:
                board.set_flag(Flag.KILL_AT_NS, now)
                return
            self._signal = number
            if not self._start_ns and not board.flag(Flag.STOP_AT_NS) and not board.total(OfWorker.DISPATCHED):
                raise KeyboardInterrupt  # nothing has been sent: nothing to drain
            code: StopCode = "interrupt" if number == signal.SIGINT else "terminated"
            self._halt(
                board, code, f"{signal.Signals(number).name}: draining for 5 s; once more to leave at once", now, _INTERRUPT_DRAIN_NS
            )

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _close_log(self, parts: list[Path], load: Load) -> None:
        if any(report.uncounted for report in self._reports):
            said: dict[str, None] = {}
            closing.count_tokens(parts, load.tokenizer, self._scenario.save_text, said.setdefault)
            self._notices += list(said)[:3]
        self._notices += closing.join(parts, self._folder / "records.jsonl")

    def _header(self, target: Target) -> LogHeader:
        return LogHeader(
            run_id=self._run_id,
            name=self._scenario.name,
            created=created(self._origin),
            origin=self._origin,
            host=_host(),
            versions=_versions(),
            spec=redacted(self._scenario),
            endpoints=target.endpoints,
            client={"workers": self._scenario.workers, "cpus": cpus(), "stamps": "kernel" if target.kernel_stamps else "clock"},
        )

    def _facts(self, target: Target, load: Load, pool: Pool) -> RunFacts:
        scenario, schedule, origin = self._scenario, load.schedule, self._origin.monotonic_ns
        report = load.workload.report()
        reason, detail = self._stop or ("worker_lost", None)
        stopped_early = reason not in ("count", "duration")
        duration_end = (
            self._start_ns + round(schedule.duration_s * NS_PER_S) if schedule.duration_s is not None and reason == "duration" else None
        )
        miss = report.input
        ramp = ramp_end_ns(schedule, load.offsets)
        return RunFacts(
            run=RunIdentity(
                run_id=self._run_id,
                name=scenario.name,
                created=created(self._origin),
                label=scenario.label,
                metadata=scenario.metadata,
                model=load.model,
                host=_host(),
                versions=_versions(),
                spec=redacted(scenario),
                client={"workers": scenario.workers, "cpus": cpus()},
            ),
            endpoints=tuple(target.endpoints),
            window_start_ns=self._start_ns - origin if self._start_ns else None,
            window_end_ns=duration_end - origin if duration_end is not None else None,
            load_end_ns=duration_end - origin if duration_end is not None else None,
            open_loop=mode(schedule) != "closed",
            offered_rate=offered_rate(schedule),
            unlimited=schedule.concurrency is None,
            concurrency_cap=schedule.concurrency,
            ramp_end_ns=self._start_ns + ramp - origin if ramp is not None else None,
            num_planned=len(load.offsets) if load.offsets is not None else schedule.num_prompts,
            duration_s=schedule.duration_s,
            stop_reason=_reason(reason),
            stop_detail=detail,
            stop_signal=self._signal,
            slos=scenario.slos,
            goodput_slos=scenario.goodput,
            devices=scenario.devices,
            strategy=scenario.endpoint.strategy,
            healthy_at_end=tuple(pool.healthy_names()),
            ejections=self._ejections,
            workers=tuple(_worker_facts(told, open_loop=mode(schedule) != "closed") for told in self._reports),
            probes={name: ProbeFacts(sent=count.sent, failed=count.failed) for name, count in pool.probe_counts().items()},
            prefix_asked=_asks_for_prefixes(scenario.workload),
            stamps="kernel" if target.kernel_stamps else "clock",
            tokenizer=TokenizerFacts(
                kind=load.tokenizer.name,
                exact=load.tokenizer.exact,
                off_target=LengthErrorFacts(
                    n=miss.off_target, min=miss.least_miss or 0, mean=miss.mean_miss or 0.0, max=miss.most_miss or 0
                )
                if miss.off_target
                else None,
            ),
            notices=tuple(self._notices),
            dropped_fields=self._dropped,
            partial=stopped_early,
            lost_workers=tuple(self._lost),
            reused_prompts=report.reused,
            skipped_rows=sum(report.skipped.values()),
            skipped_why=report.skipped,
            blank_lines=report.blank_lines,
            capped_rows=report.capped,
        )


def created(origin: Anchor) -> str:
    """ISO 8601, UTC, to the second."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(origin.wall_ns / NS_PER_S, UTC).isoformat(timespec="seconds")


def _asks_for_prefixes(workload: WorkloadSpec) -> bool:
    """Whether hits in a server's prefix cache are part of what is measured."""
    return workload.prefix_len > 0 or workload.dataset == "mooncake" or workload.same_prompts


def _until(offsets: Any, limit_ns: int) -> Any:
    for offset in offsets:
        if offset > limit_ns:
            return
        yield offset


def _reason(code: StopCode) -> StopReason:
    return code


def _worker_facts(told: WorkerReport, *, open_loop: bool) -> WorkerFacts:
    """An open loop is late when a request leaves late; a closed one, whose next request waits for an answer, when its loop is, or when
    answers lie unseen (few of them prove nothing).
    """
    if open_loop and told.lag_us:
        lags = sorted(told.lag_us)
    else:
        lags = sorted(told.loop_us)
        unseen = sorted(told.unseen_us)
        if len(unseen) >= _MIN_UNSEEN and (_rank(unseen, 0.99) or 0.0) > (_rank(lags, 0.99) or 0.0):
            lags = unseen
    return WorkerFacts(
        worker=told.worker,
        cpu_s=told.cpu_s,
        wall_s=told.wall_s,
        cpu_share=told.cpu_s / told.wall_s if told.wall_s else None,
        polls=told.polls,
        lag_p50_us=_rank(lags, 0.5),
        lag_p99_us=_rank(lags, 0.99),
        lag_max_us=float(lags[-1]) if lags else None,
        kernel_stamps=told.kernel_reads,
        clock_stamps=told.clock_reads,
        starved_ns=told.starved_ns,
        tick_us=told.tick_ns / 1000,
    )


def _rank(ordered: list[int], share: float) -> float | None:
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) if ordered else None


def _host() -> dict[str, Any]:
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "hostname": platform.node(),
        "cpus": cpus(),
    }


def _versions() -> dict[str, str]:
    return {"loadcell": __version__, "python": sys.version.split()[0]}
