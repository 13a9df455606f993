"""One load from start to end: prepare, start the workers, run the phases, and gather what is left."""

import os
from contextlib import ExitStack
from contextlib import closing as closing_at_end
from pathlib import Path
from threading import Lock

import msgspec

from loadcell.client.stamps import KernelStamps
from loadcell.clock import NS_PER_S, MonotonicClock, anchor
from loadcell.endpoint.board import Board, Flag, OfWorker
from loadcell.endpoint.pool import Pool
from loadcell.load import closing
from loadcell.load.control import Control
from loadcell.load.crew import Crew
from loadcell.load.facts import facts_of, header_of
from loadcell.load.journal import Journal
from loadcell.load.plan import WorkerPlan
from loadcell.load.prepare import Load, Target, closed_count, cpus, find_target, make_request, prepare_load
from loadcell.load.producer import Producer
from loadcell.load.quiet import QuietScrapes
from loadcell.load.signals import catching
from loadcell.load.snapshot import Snapshot
from loadcell.load.spool import Slots, SpoolWriter, write_offsets
from loadcell.load.watch import Progress
from loadcell.metrics.facts import RunFacts
from loadcell.probe import get
from loadcell.recordlog import LogHeader, encode_header
from loadcell.records import Phase, Request
from loadcell.scenario import Scenario
from loadcell.schedule import lasts_its_duration, mode
from loadcell.signals import leave


class Watcher:
    """What a run tells while it goes on. Override what is of interest."""

    def started(self) -> None:
        """The first request is on its way."""

    def show(self, snapshot: Snapshot) -> None:
        """How far it is; several times a second."""

    def note(self, text: str) -> None:
        """Something happened that a person wants to know."""

    def run(self, run: "Run") -> None:
        """The run that is about to begin; `call_off` ends it."""


class Relay(Watcher):
    """Tells `inner` everything, and can call the load off."""

    def __init__(self, inner: Watcher) -> None:
        self._inner = inner
        self._run: Run | None = None

    def run(self, run: "Run") -> None:
        self._run = run
        self._inner.run(run)

    def started(self) -> None:
        self._inner.started()

    def note(self, text: str) -> None:
        self._inner.note(text)

    def show(self, snapshot: Snapshot) -> None:
        self._inner.show(snapshot)

    def _call_off(self, why: str) -> None:
        if self._run is not None:
            self._run.call_off(why)


class Run:
    """`execute` once. `folder` exists and is empty. Raises LoadcellError for what ends a run before its first request."""

    def __init__(self, scenario: Scenario, folder: Path, run_id: str, watcher: Watcher) -> None:
        self._scenario, self._folder, self._run_id, self._watcher = scenario, folder, run_id, watcher
        self._clock = MonotonicClock()
        self._journal = Journal(anchor(), folder / "events.jsonl", watcher.note)
        self._making = Lock()
        self._control: Control | None = None
        self._scrapes: QuietScrapes | None = None
        self._called_off: str | None = None
        watcher.run(self)

    def call_off(self, detail: str) -> None:
        """End it before its time; it is reported as far as it went. For who watches it, from any thread."""
        self._called_off = self._called_off or detail
        if self._control is not None:
            self._control.call_off(self._called_off)

    @property
    def stopped_by_signal(self) -> bool:
        return self._journal.signal is not None

    def execute(self) -> RunFacts:
        """Run the load; the facts of how it went. The records are in the folder when this returns."""
        with ExitStack() as cleanup:
            return self._execute(cleanup)

    def _execute(self, cleanup: ExitStack) -> RunFacts:
        scenario, journal = self._scenario, self._journal
        stamps = cleanup.enter_context(closing_at_end(KernelStamps()))
        target = find_target(scenario, kernel_stamps=stamps.work)
        journal.notices += target.notices
        workers = max(1, scenario.workers)
        if workers > cpus():
            journal.note(f"--workers {workers} is more than the {cpus()} cores that this process may use")
        board = Board.create(len(target.endpoints), workers)
        cleanup.callback(board.close)
        cleanup.enter_context(catching(lambda number: self._on_signal(number, board)))
        with ExitStack() as during:
            warmup, measure = (during.enter_context(closing_at_end(SpoolWriter(self._folder))) for _ in range(2))
            slots = self._shared_slots(workers)
            offsets_fd = os.memfd_create("loadcell-arrivals", os.MFD_CLOEXEC)
            for fd in (offsets_fd, *(slots or ())):
                during.callback(os.close, fd)
            fds = [board.fd, offsets_fd, *msgspec.structs.astuple(warmup.fds), *msgspec.structs.astuple(measure.fds), *(slots or ())]
            crew = Crew(workers, fds)
            during.callback(crew.dismiss)
            self._scrapes = scrapes = QuietScrapes(target.endpoints, target.headers, target.tls)
            scrapes.begin(self._clock)
            load = cleanup.enter_context(closing_at_end(prepare_load(scenario, target)))
            write_offsets(load.offsets, offsets_fd)
            header = header_of(scenario, self._run_id, journal.origin, target)
            self._give_plans(crew, target, load, header, board, warmup, measure, offsets_fd, slots)
            during.enter_context(closing_at_end(journal)).open()
            pool = self._pool(target, board)
            self._control = Control(scenario, target.endpoints, crew, board, pool, journal, self._clock, self._watcher.show)
            if self._called_off is not None:
                self._control.call_off(self._called_off)
            self._phases(self._control, board, pool, load, scrapes, warmup, measure)
        purity, caches = scrapes.end(self._clock)
        self._close_log([self._part(worker) for worker in range(workers)], load)
        facts = facts_of(scenario, self._run_id, journal, target, load, pool)
        return msgspec.structs.replace(facts, purity=purity, prefix_cache=caches)

    def _on_signal(self, number: int, board: Board) -> None:
        """The first one drains for 5 s, the second leaves at once."""
        again, self._journal.signal = self._journal.signal is not None, self._journal.signal or number
        started = self._journal.start_ns or board.flag(Flag.STOP_AT_NS) or board.total(OfWorker.DISPATCHED)
        if self._control is None or self._scrapes is None or not started:
            raise leave(number)  # nothing has been sent: nothing to drain
        if not again:
            self._control.interrupt(number)
        else:
            self._control.leave_at_once()
        if again or self._journal.reports:
            self._scrapes.hurry()

    def _phases(
        self, control: Control, board: Board, pool: Pool, load: Load, scrapes: QuietScrapes, warmup: SpoolWriter, measure: SpoolWriter
    ) -> None:
        scenario, schedule = self._scenario, load.schedule
        producers = []
        try:
            if scenario.warmup_requests or scenario.warmup_duration_s:
                count = scenario.warmup_requests or None
                producers.append(self._producer(warmup, load, "warmup", count, load.warmup_concurrency, board))
            count = len(load.offsets) if load.offsets is not None else closed_count(scenario, load)
            producers.append(self._producer(measure, load, "measure", count, load.first_wave(), board))
            control.await_ready()
            scrapes.wait_begun()
            progress = Progress(board, pool, load.schedule, scenario.warmup_requests)
            if len(producers) == 2:
                control.prime(producers[0])
                length_ns = round(scenario.warmup_duration_s * NS_PER_S)
                control.run_phase("warmup", producers[0], progress, length_ns or None, self._watcher.started)
            if self._journal.stop is None:
                control.prime(producers[-1])
                self._leave_the_tokenizer(control, load, producers[-1], count)
                length_ns = round(schedule.duration_s * NS_PER_S) if schedule.duration_s is not None else 0
                fresh = len(producers) == 1
                lasts = load.offsets is not None and lasts_its_duration(schedule, len(load.offsets))
                told = self._watcher.started if fresh else _nothing
                control.run_phase("measure", producers[-1], progress, length_ns or None, told, lasts=lasts)
        finally:
            for producer in producers:
                producer.stop()

    def _leave_the_tokenizer(self, control: Control, load: Load, producer: Producer, count: int | None) -> None:
        """A server's tokenizer is asked no more once the measurement begins. Where its counts do not add up word by word, all prompts of a
        run of known length are made first.
        """
        if load.tokenizer.name != "server":
            return
        if load.workload.repaired and count is not None:
            producer.make_all_first()
            control.prime(producer)
        load.workload.trust()

    def _producer(self, spool: SpoolWriter, load: Load, phase: Phase, count: int | None, first: int, board: Board) -> Producer:
        scenario, journal, measured = self._scenario, self._journal, phase == "measure"

        def published(made: int) -> None:
            if measured:
                board.set_flag(Flag.PRODUCED, made)

        def elapsed_ns() -> int:
            return self._clock.now_ns() - journal.start_ns if measured and journal.start_ns else 0

        def make(index: int) -> Request:
            with self._making:  # the warm-up's producer and the measurement's share one tokenizer
                return make_request(scenario, load, phase, index)

        producer = Producer(spool, make, count, load.offsets if measured else None, published, elapsed_ns, first)
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
                origin_ns=self._journal.origin.monotonic_ns,
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

    def _pool(self, target: Target, board: Board) -> Pool:
        spec, journal = self._scenario.endpoint, self._journal
        return Pool(
            target.endpoints,
            spec,
            board,
            self._clock,
            lambda endpoint: get(endpoint, endpoint.root + spec.health_path, spec.health_timeout_s, target.headers, target.tls),
            journal.of_endpoint,
            origin_ns=journal.origin.monotonic_ns,
        )

    def _close_log(self, parts: list[Path], load: Load) -> None:
        notices = self._journal.notices
        if any(report.uncounted for report in self._journal.reports):
            said: dict[str, None] = {}
            closing.count_tokens(parts, load.tokenizer, self._scenario.save_text, said.setdefault)
            notices += list(said)[:3]
        notices += closing.join(parts, self._folder / "records.jsonl")


def _nothing() -> None:
    """For a phase whose beginning is no news."""
