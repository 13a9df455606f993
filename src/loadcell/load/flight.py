"""One phase's requests in one worker: choose an endpoint, send, take the answer, retry or record. The policy is `endpoint`'s, the sockets
`client`'s; here what they decide and do is joined, request by request.
"""

import heapq
import time
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from loadcell.client.client import Client
from loadcell.client.exchange import Exchange, attempt_of
from loadcell.endpoint.board import Board, OfWorker
from loadcell.endpoint.picker import Picker
from loadcell.endpoint.policy import traffic_effect
from loadcell.endpoint.retry import after_failure, is_fatal
from loadcell.load.arrivals import SlotSet
from loadcell.load.plan import Fatal, FieldDropped, FromWorker, Traffic, WorkerPlan
from loadcell.load.redact import Secrets
from loadcell.metrics.latency import came_at_once, hides_reasoning
from loadcell.records import Attempt, Outcome, Phase, Request, RequestRecord
from loadcell.wire.apierror import refused_field
from loadcell.wire.bodies import drop_fields
from loadcell.wire.verdict import Answer

_MAX_UNSETTLED = 2_048
_LAG_SAMPLES = 100_000


class Work:
    """One request on its way to a record."""

    __slots__ = ("attempts", "holds_slot", "request", "scheduled_ns", "tried", "waited_ns")

    def __init__(self, request: Request, scheduled_ns: int) -> None:
        self.request = request
        self.scheduled_ns = scheduled_ns
        self.attempts: list[Attempt] = []
        self.tried: list[int] = []
        self.waited_ns = 0
        self.holds_slot = True


class Samples:
    """At most 100,000 of any number of values, evenly spread: when full, every second one is dropped and half as many are taken."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self._stride = 1
        self._skipped = 0

    def add(self, value: int) -> None:
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        self.values.append(value)
        if len(self.values) >= _LAG_SAMPLES:
            del self.values[::2]
            self._stride *= 2


class Flights:
    """`tell` sends a message to control; `write` takes the lines of finished records. Times: monotonic ns."""

    def __init__(
        self,
        plan: WorkerPlan,
        board: Board,
        client: Client,
        phase: Phase,
        start_ns: int,
        slots: SlotSet,
        open_loop: bool,
        tell: Callable[[FromWorker], None],
        record: Callable[[RequestRecord], None],
    ) -> None:
        self._plan, self._client, self._phase = plan, client, phase
        self._start_ns = start_ns
        self._secrets = Secrets(plan.headers)
        self._slots, self._open_loop, self._tell, self._record = slots, open_loop, tell, record
        self._block = board.workers[plan.worker]
        count = len(plan.endpoints)
        self._n = count
        self._unsettled: deque[Exchange] = deque()
        self._retries: list[tuple[int, int, Work]] = []
        self._slotless: deque[Work] = deque()
        self._parked: deque[tuple[int, Work]] = deque()
        self._order = 0
        self._picker = Picker(board, plan.worker, plan.spec, plan.seed)
        self._dropped: list[set[str]] = [set() for _ in range(count)]
        self.lag_us = Samples()
        self.halted = False
        self.uncounted = 0
        self.newest_output_ns = [0] * count  # of streams that have ended: short ones come and go between two scans
        self._dispatched = self._done = self._ok = self._tokens = self._published = 0
        self._last_ok: Attempt | None = None

    @property
    def idle(self) -> bool:
        """Nothing in flight, to be parsed, retried or waiting for an endpoint."""
        return not (self._client.active or self._unsettled or self._retries or self._slotless or self._parked)

    @property
    def behind(self) -> bool:
        return bool(self._unsettled)

    def next_ns(self, now_ns: int) -> int | None:
        """When something here wants to be looked at again; null: when an answer comes."""
        moments = []
        if self._retries:
            moments.append(self._retries[0][0])
        if self._slotless:
            moments.append(now_ns + 1_000_000)
        if self._parked:
            moments.append(now_ns + 2_000_000)
        return min(moments, default=None)

    def begin(self, request: Request, scheduled_ns: int, free_since_ns: int, now_ns: int) -> None:
        """A new arrival, with the slot that it has taken."""
        due_ns = max(scheduled_ns, free_since_ns)
        if due_ns > self._start_ns:
            # What is due at the very start comes all at once; that one is sent after the other is the load's shape, not our lag.
            self.lag_us.add((now_ns - due_ns) // 1000)
        self._place(Work(request, scheduled_ns), now_ns)

    def go_on(self, now_ns: int) -> None:
        """Retries whose wait is over, and requests that no endpoint would take before."""
        while self._retries and self._retries[0][0] <= now_ns:
            work = heapq.heappop(self._retries)[2]
            if work.holds_slot:
                self._place(work, now_ns)
            else:
                # Those behind it may hold the very slots that it waits for: they must not wait for it.
                self._slotless.append(work)
        while self._slotless and self._slots.take(now_ns) is not None:
            work = self._slotless.popleft()
            work.holds_slot = True
            self._place(work, now_ns)
        for _ in range(len(self._parked)):
            since_ns, work = self._parked.popleft()
            before = len(self._parked)
            self._place(work, now_ns, since_ns)
            if len(self._parked) > before:
                self._parked.rotate(1)
                break  # still nobody there: the others need not ask

    def landed(self, exchange: Exchange) -> None:
        """The response has ended on the wire. Where it surely went well its slot is free at once, and parsing can wait."""
        endpoint = exchange.endpoint.index
        self._picker.landed(endpoint)
        work: Work = exchange.work
        head = exchange.reader.head
        if exchange.datas and exchange.ended is None and head is not None and head.status == 200:
            if work.holds_slot:
                work.holds_slot = False
                self._slots.give(exchange.stamps[-1])
            self._unsettled.append(exchange)
        else:
            self._settle(exchange)

    def settle(self, until_ns: int) -> None:
        """Parse what has landed, at least one of them, and on until `until_ns`."""
        unsettled = self._unsettled
        while unsettled:
            self._settle(unsettled.popleft())
            if time.monotonic_ns() >= until_ns and len(unsettled) < _MAX_UNSETTLED:
                break

    def abandon(self, now_ns: int) -> None:
        """The load has ended: what waits for another try or for an endpoint is recorded as it stands."""
        while self._retries:
            self._finish(heapq.heappop(self._retries)[2], now_ns, None)
        while self._slotless:
            self._finish(self._slotless.popleft(), now_ns, None)
        while self._parked:
            self._finish(self._parked.popleft()[1], now_ns, "no_endpoint")

    def never_sent(self, request: Request, scheduled_ns: int, outcome: Outcome, error: str) -> None:
        """A due arrival that could not be sent any more."""
        work = Work(request, scheduled_ns)
        work.holds_slot = False
        self._finish(work, 0, outcome, error)

    def _place(self, work: Work, now_ns: int, parked_ns: int | None = None) -> None:
        endpoint = self._picker.pick(work.request.index, now_ns, work.request.session, work.tried)
        if endpoint is None:
            if self._open_loop and not work.attempts and not self._picker.resting():
                self._finish(work, now_ns, "no_endpoint")
            else:
                self._parked.append((parked_ns if parked_ns is not None else now_ns, work))
            return
        if parked_ns is not None and work.attempts:
            work.waited_ns += now_ns - parked_ns
        self._send(work, endpoint, now_ns)

    def _send(self, work: Work, endpoint: int, now_ns: int) -> None:
        body = work.request.body
        dropped = self._dropped[endpoint]
        if dropped:
            body = drop_fields(body, dropped)
        self._picker.began(endpoint)
        if not work.attempts:
            self._dispatched += 1
        exchange = self._client.start(work.request, endpoint, body, now_ns, work)
        exchange.dropped = tuple(sorted(dropped)) if dropped else ()

    def _settle(self, exchange: Exchange) -> None:
        now_ns = time.monotonic_ns()
        work: Work = exchange.work
        endpoint = exchange.endpoint.index
        answer = exchange.answer()
        if answer.error or answer.text:
            answer = replace(answer, error=self._secrets.hidden_in(answer.error), text=self._secrets.hidden_in(answer.text))
        attempt = attempt_of(exchange, answer, self._plan.origin_ns, keep_text=self._keeps_text(answer), waited_ns=work.waited_ns)
        work.attempts.append(attempt)
        work.waited_ns = 0
        if answer.last_token_ns is not None:
            self.newest_output_ns[endpoint] = answer.last_token_ns
        if self._picker.ended(endpoint, answer.outcome, now_ns):
            self._report(exchange, answer, now_ns)
        if answer.outcome == "ok":
            self._finish(work, now_ns, None)
            return
        if self._resend_without_field(exchange, answer, work, now_ns):
            return
        self._note_failure(exchange, answer, now_ns)
        self._retry_or_finish(work, endpoint, attempt, now_ns)

    def _keeps_text(self, answer: Answer) -> bool:
        uncounted = self._plan.keep_text and answer.output_source is None and answer.outcome == "ok"
        self.uncounted += uncounted
        return self._plan.save_text or uncounted

    def _resend_without_field(self, exchange: Exchange, answer: Answer, work: Work, now_ns: int) -> bool:
        if answer.status is None or answer.outcome != "http_4xx":
            return False
        field = refused_field(answer.status, answer.error or "", answer.error_param)
        if field is None or field in exchange.dropped:
            return False
        endpoint = exchange.endpoint.index
        if field == "max_tokens":
            self._halt(
                endpoint, f"{exchange.endpoint.name} refuses max_tokens ({answer.error}): use --max-tokens-field max_completion_tokens"
            )
            return False
        if field not in self._dropped[endpoint]:
            self._dropped[endpoint].add(field)
            self._tell(FieldDropped(endpoint=endpoint, field=field, said=answer.error or ""))
        if not work.holds_slot and self._slots.take(now_ns) is None:
            self._push_retry(now_ns, work)
            return True
        work.holds_slot = True
        self._send(work, endpoint, now_ns)
        return True

    def _note_failure(self, exchange: Exchange, answer: Answer, now_ns: int) -> None:
        endpoint = exchange.endpoint.index
        rest_s = traffic_effect(answer.outcome, answer.status, answer.retry_after_s, answer.error_code).rest_s
        if rest_s > 0:
            self._picker.rest(endpoint, now_ns + round(rest_s * 1e9))
        fatal = is_fatal(answer.outcome, answer.status, answer.error, answer.error_code)
        if fatal is not None:
            self._halt(endpoint, f"{exchange.endpoint.name}: {fatal}")

    def _report(self, exchange: Exchange, answer: Answer, now_ns: int) -> None:
        self._tell(
            Traffic(
                endpoint=exchange.endpoint.index,
                outcome=answer.outcome,
                status=answer.status,
                retry_after_s=answer.retry_after_s,
                error_code=answer.error_code,
                dispatched_ns=exchange.dispatched_ns,
                at_ns=now_ns,
            )
        )

    def _halt(self, endpoint: int, text: str) -> None:
        if not self.halted:
            self.halted = True
            self._tell(Fatal(endpoint=endpoint, text=text))

    def _retry_or_finish(self, work: Work, endpoint: int, attempt: Attempt, now_ns: int) -> None:
        if endpoint not in work.tried:
            work.tried.append(endpoint)
        if attempt.outcome == "cancelled" or self.halted:
            self._finish(work, now_ns, None)
            return
        retry = after_failure(
            attempt.outcome,
            sum(made.outcome != "http_4xx" for made in work.attempts),
            self._plan.spec,
            self._n,
            untried=self._picker.untried(work.tried, now_ns),
            others=self._picker.others(endpoint, now_ns),
            retry_after_s=attempt.retry_after_s,
        )
        if retry is None:
            self._finish(work, now_ns, None)
            return
        work.waited_ns = retry.wait_ns
        self._push_retry(now_ns + retry.wait_ns, work)

    def _push_retry(self, at_ns: int, work: Work) -> None:
        self._order += 1
        heapq.heappush(self._retries, (at_ns, self._order, work))

    def _finish(self, work: Work, at_ns: int, unsent: Outcome | None, error: str | None = None) -> None:
        """`unsent`: the outcome of a request that no endpoint ever saw."""
        if work.holds_slot:
            work.holds_slot = False
            self._slots.give(at_ns)
        request, last = work.request, work.attempts[-1] if work.attempts else None
        outcome: Outcome = last.outcome if last is not None else unsent or "cancelled"
        if last is None and error is None and outcome == "no_endpoint":
            error = "no endpoint was available"
        self._count(outcome, last)
        self._record(
            RequestRecord(
                index=request.index,
                scheduled_ns=work.scheduled_ns - self._plan.origin_ns,
                outcome=outcome,
                phase=self._phase,
                worker=self._plan.worker,
                session=request.session,
                input_asked=request.input_tokens,
                output_asked=request.output_asked,
                error=last.error if last is not None else error,
                attempts=work.attempts,
            )
        )

    def publish(self) -> None:
        """Write to the board how far this worker is, and a sample of what it sees. Once a turn of the loop, not once a request."""
        if self._published == self._done + self._dispatched:
            return
        self._published = self._done + self._dispatched
        block = self._block
        block.put(OfWorker.DISPATCHED, self._dispatched)
        block.put(OfWorker.DONE, self._done)
        block.put(OfWorker.OK, self._ok)
        block.put(OfWorker.FAILED, self._done - self._ok)
        block.put(OfWorker.TOKENS, self._tokens)
        last, self._last_ok = self._last_ok, None
        if last is None or last.first_token_ns is None or last.sent_ns is None:
            return
        block.add_ttft((last.first_token_ns - last.sent_ns) // 1000)
        tokens = last.output_tokens or 0
        if tokens > 1 and last.last_token_ns is not None and not came_at_once(last) and not hides_reasoning(last):
            block.add_tpot((last.last_token_ns - last.first_token_ns) // (1000 * (tokens - 1)))

    def _count(self, outcome: Outcome, last: Attempt | None) -> None:
        self._done += 1
        if outcome == "ok" and last is not None:
            self._ok += 1
            self._tokens += last.output_tokens or 0
            self._last_ok = last
