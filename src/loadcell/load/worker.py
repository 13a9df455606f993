"""A worker process: draws arrivals, sends, drains, parses, appends records. One thread, one epoll; control is not asked per request.

Started by control as `python -m loadcell.load.worker FD`, with its plan on stdin and a socket to control on FD. It leaves when control does.
"""

import ctypes
import gc
import mmap
import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Final

import msgspec

from loadcell.client.client import Client
from loadcell.client.exchange import Exchange
from loadcell.endpoint.board import Board, Flag, OfWorker, PerEndpoint
from loadcell.errors import EnvironmentFailure, LoadcellError
from loadcell.load.arrivals import Arrivals, ClosedArrivals, LocalSlots, NoCap, ScheduledArrivals, SharedSlots, SlotSet
from loadcell.load.flight import Flights, Samples
from loadcell.load.plan import (
    MESSAGE_SIZE,
    FromWorker,
    Leave,
    PhaseDone,
    Ready,
    StartPhase,
    Trouble,
    WorkerPlan,
    WorkerReport,
    decode_to_worker,
    encode,
)
from loadcell.load.signals import ignored
from loadcell.load.spool import Slots, SpoolReader
from loadcell.recordlog import Appender, encode_record
from loadcell.records import RequestRecord
from loadcell.schedule import ScheduleSpec, mode

if TYPE_CHECKING:
    import ssl

_SCAN_NS: Final = 100_000_000
_SETTLE_NS: Final = 1_000_000
_PR_SET_TIMERSLACK: Final = 29
_BURST_NS: Final = 1_000_000  # how long to go on sending before the sockets are looked at again


class Worker:
    def __init__(self, plan: WorkerPlan, control: socket.socket) -> None:
        self._plan = plan
        self._control = control
        self._board = Board.attach(plan.board_fd)
        self._block = self._board.workers[plan.worker]
        self._parent = os.getppid()
        self._orphaned = False
        self._lines: list[bytes] = []
        self._part = Appender(plan.part)
        self._part.write(plan.header.encode() + b"\n")
        context: ssl.SSLContext | None = None
        if any(endpoint.scheme == "https" for endpoint in plan.endpoints):
            from loadcell.client import tls  # OpenSSL takes a while to load

            context = tls.context(plan.ca_file, plan.insecure)
        self._client = Client(
            plan.endpoints,
            plan.timeouts,
            plan.headers,
            context,
            kernel_stamps=plan.kernel_stamps,
            keep_text=plan.save_text,
        )
        self._loop_us, self._unseen_us = Samples(), Samples()

    def serve(self) -> None:
        """Phases, as control starts them, until it says leave."""
        self.tell(Ready())
        while True:
            raw = self._control.recv(MESSAGE_SIZE)
            message = decode_to_worker(raw) if raw else Leave()
            if isinstance(message, Leave):
                break
            report = self._run(message)
            self.tell(PhaseDone(phase=message.phase, report=report))
        self._client.close()
        self._part.close()

    def tell(self, message: FromWorker) -> None:
        try:
            self._control.send(encode(message))
        except (BrokenPipeError, ConnectionError):
            self._orphaned = True

    def _record(self, record: RequestRecord) -> None:
        self._lines.append(encode_record(record))

    def _flush(self) -> None:
        if self._lines:
            lines, self._lines = self._lines, []
            self._part.write(b"".join(lines))

    def _run(self, start: StartPhase) -> WorkerReport:
        began_cpu, began_ns = time.process_time(), time.monotonic_ns()
        drain = self._client.drain
        polls, kernel, clock = drain.polls, drain.kernel_reads, drain.clock_reads
        for counter in (OfWorker.DONE, OfWorker.OK, OfWorker.FAILED, OfWorker.DISPATCHED, OfWorker.TOKENS):
            self._block.put(counter, 0)
        for counter in (OfWorker.TTFT_SUM_US, OfWorker.TTFT_N, OfWorker.TPOT_SUM_US, OfWorker.TPOT_N):
            self._block.put(counter, 0)
        self._loop_us, self._unseen_us = Samples(), Samples()
        arrivals, slots, reader = self._sources(start)
        flights = Flights(
            self._plan, self._board, self._client, start.phase, start.start_ns, slots, arrivals.open_loop, self.tell, self._record
        )
        try:
            self._loop(start, arrivals, slots, reader, flights)
        finally:
            self._flush()
        return WorkerReport(
            worker=self._plan.worker,
            cpu_s=time.process_time() - began_cpu,
            wall_s=(time.monotonic_ns() - began_ns) / 1e9,
            polls=drain.polls - polls,
            lag_us=_thinned(flights.lag_us.values),
            loop_us=_thinned(self._loop_us.values),
            unseen_us=_thinned(self._unseen_us.values),
            kernel_reads=drain.kernel_reads - kernel,
            clock_reads=drain.clock_reads - clock,
            starved_ns=arrivals.starved_ns,
            tick_ns=drain.tick_ns,
            uncounted=flights.uncounted,
        )

    def _sources(self, start: StartPhase) -> tuple[Arrivals, SlotSet, SpoolReader]:
        plan = self._plan
        if start.phase == "warmup":
            reader = SpoolReader(plan.warmup, alone=plan.workers == 1)
            spec = ScheduleSpec(concurrency=plan.warmup_concurrency)
            return ClosedArrivals(reader), LocalSlots(spec, plan.worker, plan.workers, start.start_ns), reader
        reader = SpoolReader(plan.measure, alone=plan.workers == 1)
        spec = plan.schedule
        slots: SlotSet = NoCap()
        if plan.slots is not None:
            slots = SharedSlots(Slots(*plan.slots), start.start_ns)
        elif spec.concurrency is not None:
            slots = LocalSlots(spec, plan.worker, plan.workers, start.start_ns)
        if mode(spec) == "closed":
            return ClosedArrivals(reader), slots, reader
        assert plan.offsets_fd is not None
        size = os.fstat(plan.offsets_fd).st_size
        offsets: memoryview[int] = (
            memoryview(mmap.mmap(plan.offsets_fd, size, prot=mmap.PROT_READ)).cast("q") if size else memoryview(b"").cast("q")
        )
        board = self._board
        scheduled = ScheduledArrivals(offsets, plan.worker, plan.workers, start.start_ns, lambda: board.flag(Flag.PRODUCED))
        return scheduled, slots, reader

    def _loop(self, start: StartPhase, arrivals: Arrivals, slots: SlotSet, reader: SpoolReader, flights: Flights) -> None:
        client, board, monotonic_ns = self._client, self._board, time.monotonic_ns
        next_scan, more = start.start_ns, True
        while True:
            now = monotonic_ns()
            stop_at, kill_at = board.flag(Flag.STOP_AT_NS), board.flag(Flag.KILL_AT_NS)
            stopping = (stop_at and now >= stop_at) or flights.halted or self._orphaned
            if stopping:
                flights.abandon(now)
                if more:
                    self._leave_unsent(arrivals, stop_at or now, reader, flights)
                    more = False
                if client.active and (self._orphaned or (kill_at and now >= kill_at)):
                    client.cancel_all("cancelled", "stopped by the end of the run", now)
            else:
                flights.go_on(now)
                more = more and self._dispatch(arrivals, slots, reader, flights, now)
            until = self._wake_ns(arrivals, slots, flights, now, next_scan, stopping, more, stop_at, kill_at)
            flights.settle(min(until, now + _SETTLE_NS))
            client.parse_some(min(until, now + _SETTLE_NS))
            # An answer that came just after the last look has waited for all that was done since, and for a late wake-up.
            busy_ns = monotonic_ns() - now
            finished = client.poll(0 if flights.behind else until)
            self._loop_us.add((busy_ns + client.drain.late_ns) // 1000)
            if finished:
                self._note_unseen(finished, monotonic_ns())
            for exchange in finished:
                flights.landed(exchange)
            if now >= next_scan:
                next_scan = now + _SCAN_NS
                self._scan(now, flights)
            flights.publish()
            self._flush()
            if not more and flights.idle:
                return

    def _note_unseen(self, finished: list[Exchange], now: int) -> None:
        """A loop that was kept from running while it waited for an event cannot tell by its own clock: the kernel's stamps can."""
        for exchange in finished:
            ended_ns = exchange.stamps[-1] if exchange.stamps else exchange.reader.done_ns
            if exchange.ended is None and ended_ns is not None:
                self._unseen_us.add((now - ended_ns) // 1000)

    def _dispatch(self, arrivals: Arrivals, slots: SlotSet, reader: SpoolReader, flights: Flights, now: int) -> bool:
        """Send what is due and has a slot. False: no arrival is left."""
        enough = now + _BURST_NS
        while now < enough:
            due = arrivals.due_ns(now)
            if due is None:
                return False
            if due > now:
                return True
            free_since = slots.take(now)
            if free_since is None:
                # With more workers than slots one may have none at all: then nothing here will ever be its to send.
                return slots.next_ns(now) is not None or not flights.idle
            taken = arrivals.take(now, free_since)
            if taken is None:
                slots.give(free_since)
                return True
            index, scheduled = taken
            flights.begin(reader.request(index), scheduled, free_since, time.monotonic_ns())
            now = time.monotonic_ns()
        return True

    def _leave_unsent(self, arrivals: Arrivals, stop_ns: int, reader: SpoolReader, flights: Flights) -> None:
        """Arrivals of an open loop that were due before the end, and for which the cap left no place: offered, never sent."""
        if not isinstance(arrivals, ScheduledArrivals):
            return
        while (due := arrivals.due_ns(stop_ns)) is not None and due <= stop_ns:
            skipped = arrivals.skip()
            if skipped is None or skipped[0] >= self._board.flag(Flag.PRODUCED):
                return
            flights.never_sent(reader.request(skipped[0]), skipped[1], "cancelled", "still waiting for a slot when the load ended")

    def _wake_ns(
        self,
        arrivals: Arrivals,
        slots: SlotSet,
        flights: Flights,
        now: int,
        next_scan: int,
        stopping: bool,
        more: bool,
        stop_at: int,
        kill_at: int,
    ) -> int:
        until = next_scan
        wanted = flights.next_ns(now)
        if wanted is not None:
            until = min(until, wanted)
        if stopping:
            return min(until, kill_at) if kill_at > now else until
        if stop_at:
            until = min(until, stop_at)
        due = arrivals.due_ns(now) if more else None
        if due is not None:
            if due > now:
                until = min(until, due)
            else:
                free = slots.next_ns(now)
                if free is not None:
                    until = min(until, free)
        return until

    def _scan(self, now: int, flights: Flights) -> None:
        """Ten times a second: timeouts, the board, and whether control still lives."""
        client, block = self._client, self._block
        client.scan(now)
        for endpoint, newest in enumerate(map(max, client.newest_output_ns(), flights.newest_output_ns)):
            if newest > block.get_at(PerEndpoint.LAST_TOKEN_NS, endpoint):
                block.put_at(PerEndpoint.LAST_TOKEN_NS, endpoint, newest)
        block.put(OfWorker.IN_FLIGHT, len(client.active))
        block.put(OfWorker.WAITING, sum(not (one.stamps or one.output_seen_ns) for one in client.active))
        block.put(OfWorker.HEARTBEAT_NS, now)
        if os.getppid() != self._parent:
            self._orphaned = True


def _thinned(values: list[int], most: int = 4_000) -> list[int]:
    """At most `most` of them, evenly spread, the largest among them."""
    step = len(values) // most + 1
    return sorted(values)[::-step]


def main() -> int:
    ignored()
    # 50 µs of slack in every sleep is most of the dispatch lag there would be.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    control = socket.socket(fileno=int(sys.argv[1]))
    told = sys.stdin.buffer.read()
    if not told:
        return 0  # control gave the run up before it began
    plan = msgspec.json.decode(told, type=WorkerPlan)
    # Nothing on the hot path makes reference cycles, and a collection over everything in flight stalls the loop for ms.
    gc.disable()
    try:
        worker = Worker(plan, control)
        worker.serve()
    except (EnvironmentFailure, OSError, MemoryError) as error:
        text = str(error) if isinstance(error, LoadcellError) else f"worker {plan.worker}: {error}"
        control.send(encode(Trouble(text=text)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
