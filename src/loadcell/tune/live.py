"""While a load runs: what its watcher is told and its records say, second by second -> the reason to end it before its time, if there is one.

Judged are requests of the measurement after the first wave of a closed loop. Records are read as the workers append them; who still waits is known by
counting: more in flight than were sent within the limit are beyond it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from loadcell.load.runner import Relay, Watcher
from loadcell.load.snapshot import Snapshot
from loadcell.metrics.goodput import meets, per_request_limits
from loadcell.metrics.latency import request_latency
from loadcell.metrics.slo import Slo
from loadcell.recordlog import decode_records
from loadcell.records import RequestRecord
from loadcell.tune.objective import Metric
from loadcell.tune.outcome import TrialPhase
from loadcell.tune.sequential import Second, Sequential, Stop, allowed, overdue_at_least, scaled

_NS_PER_MS: Final = 1e6
_SLACK_S: Final = 0.4  # snapshots come four times a second, and workers count who waits ten times
_WAITS: Final = {"ttft": "waiting", "scheduled_ttft": "waiting", "e2e": "in_flight", "scheduled_e2e": "in_flight"}
_PHASES: Final[dict[str, TrialPhase]] = {"ready": "warmup", "warmup": "warmup"}


class Patience(Struct, frozen=True):
    """Seconds; 0: without end. `hang`: no token of any request; `warmup`, `load`: how long either may take."""

    hang_s: float
    warmup_s: float
    load_s: float


class Judge(Struct, frozen=True):
    """What the sequential test is about. `first_wave`: requests of the measurement that are not judged."""

    slos: Sequence[Slo]
    metric: Metric
    limits: Sequence[Slo] = ()
    incumbent: float | None = None
    open_loop: bool = False
    first_wave: int = 0


class Live(Relay):
    """One load. `inner` is told everything, `on_phase` when the measurement begins. `judge` null: it is never ended on evidence (a default, a
    confirmation).
    """

    def __init__(
        self, inner: Watcher, folder: Path, patience: Patience, judge: Judge | None, on_phase: Callable[[TrialPhase], None] = lambda _: None
    ) -> None:
        super().__init__(inner)
        self._folder, self._patience, self._judge, self._on_phase = folder, patience, judge, on_phase
        self._test = (
            Sequential(judge.slos, judge.metric, incumbent=judge.incumbent, open_loop=judge.open_loop) if judge is not None else None
        )
        self._offsets: dict[Path, int] = {}
        self._sent: deque[tuple[float, int]] = deque()
        self._looked_s = 0.0
        self._before: Snapshot | None = None
        self.phase: TrialPhase = "warmup"
        self.hung: str | None = None
        self.slow: str | None = None
        self.cut: str | None = None
        self.early: Stop | None = None

    def service_gone(self, text: str) -> None:
        """A service that was loaded is gone: there is nothing left to measure. From any thread."""
        self._call_off(f"the service is gone: {text}")

    def show(self, snapshot: Snapshot) -> None:
        super().show(snapshot)
        phase = _PHASES.get(snapshot.phase, "measure")
        if phase != self.phase:
            self.phase = phase
            self._on_phase(phase)
        if not self._patient(snapshot) or snapshot.phase != "measure":
            return
        self._sent.append((snapshot.elapsed_s, snapshot.dispatched))
        if self._test is not None and snapshot.elapsed_s - self._looked_s >= 1.0:
            self._judged(snapshot)

    def _patient(self, snapshot: Snapshot) -> bool:
        patience = self._patience
        if patience.hang_s and snapshot.silent_s >= patience.hang_s:
            self.hung = f"no token of any of {snapshot.in_flight} requests in flight for {snapshot.silent_s:.0f} s"
            self._call_off(self.hung)
        elif snapshot.phase == "warmup" and patience.warmup_s and snapshot.elapsed_s >= patience.warmup_s:
            self.slow = f"the warm-up had not ended after {snapshot.elapsed_s:.0f} s (warmup.timeout)"
            self._call_off(self.slow)
        elif snapshot.phase != "warmup" and patience.load_s and snapshot.elapsed_s >= patience.load_s:
            self.cut = f"the load was cut off after {snapshot.elapsed_s:.0f} s (trial.timeout)"
            self._call_off(self.cut)
        else:
            return True
        return False

    # --- evidence

    def _judged(self, snapshot: Snapshot) -> None:
        assert self._judge is not None
        assert self._test is not None
        before, self._before = self._before, snapshot
        self._looked_s = snapshot.elapsed_s
        records = [one for one in self._new_records() if one.phase == "measure" and one.index >= self._judge.first_wave]
        if before is None or before.done < self._judge.first_wave:
            return
        stop = self._test.add(self._second(before, snapshot, records))
        if stop is not None and self.early is None:
            self.early = stop
            self._call_off(stop.text)

    def _second(self, before: Snapshot, now: Snapshot, records: Sequence[RequestRecord]) -> Second:
        judge = self._judge
        assert judge is not None
        return Second(
            judged={slo.text: _judged_by(slo, records, judge.open_loop) for slo in judge.slos if allowed(slo) is not None},
            overdue={slo.text: late for slo in judge.slos if (late := self._overdue(slo, now))},
            sent=now.dispatched - before.dispatched,
            done=now.done - before.done,
            in_flight=now.in_flight,
            waiting=now.waiting,
            objective=_added(judge, records) / max(1e-9, now.elapsed_s - before.elapsed_s),
        )

    def _overdue(self, slo: Slo, now: Snapshot) -> int:
        """In flight for longer than a limit allows, at least. Of a mean it says nothing."""
        if slo.metric not in _WAITS or slo.statistic in ("mean", "min"):
            return 0
        since_s = now.elapsed_s - slo.limit / 1000 - _SLACK_S
        earlier = [dispatched for at_s, dispatched in self._sent if at_s <= since_s]
        lately = now.dispatched - (earlier[-1] if earlier else 0)
        return overdue_at_least(getattr(now, _WAITS[slo.metric]), lately)

    def _new_records(self) -> list[RequestRecord]:
        """Whole lines that the workers have appended since the last look."""
        lines: list[bytes] = []
        for part in sorted(self._folder.glob("records.part-*.jsonl")):
            offset = self._offsets.get(part, 0)
            try:
                with part.open("rb") as file:
                    file.seek(offset)
                    new = file.read()
            except OSError:
                continue
            whole = new[: new.rfind(b"\n") + 1]
            self._offsets[part] = offset + len(whole)
            lines += whole.splitlines()
        return decode_records(lines)


def _judged_by(slo: Slo, records: Sequence[RequestRecord], open_loop: bool) -> tuple[int, float]:
    """How many requests this limit judges, and the sum of their values in [0, 1]."""
    if slo.metric == "success_rate":
        ended = [record for record in records if record.outcome != "cancelled"]
        return len(ended), float(sum(record.outcome != "ok" for record in ended))
    values = []
    for record in records:
        latency = request_latency(record, open_loop) if record.outcome == "ok" else None
        value = getattr(latency, slo.metric, None)
        if value is not None:
            values.append(scaled(slo, value / _NS_PER_MS))
    return len(values), float(sum(values))


def _added(judge: Judge, records: Sequence[RequestRecord]) -> float:
    """To the objective, by requests that have ended."""
    ok = [record for record in records if record.outcome == "ok" and record.attempts]
    if judge.metric == "throughput":
        return float(sum(record.attempts[-1].output_tokens or 0 for record in ok))
    if judge.metric == "request_rate":
        return float(len(ok))
    limits = per_request_limits(judge.limits)
    good = 0
    for record in ok:
        latency = request_latency(record, judge.open_loop)
        good += latency is not None and meets(record, record.attempts[-1], latency, limits, judge.open_loop)
    return float(good)
