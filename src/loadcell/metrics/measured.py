"""Records -> tallies over the run's windows: all that the summary is worded from."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from loadcell.metrics.facts import RunFacts
from loadcell.metrics.goodput import per_request_limits
from loadcell.metrics.slo import Slo
from loadcell.metrics.tally import Collector, Tally
from loadcell.metrics.windows import Scan, Span, steady_state, whole_run
from loadcell.records import RequestRecord

_COUNTED_BY_SERVER: Final = frozenset({"ok", "empty_output"})


class Aside:
    """What is counted beside the figures: warm-up requests, and attempts that reached each endpoint in any phase."""

    def __init__(self) -> None:
        self.warmup = self.warmup_ok = self.warmup_failed = 0
        self.sent: Counter[int] = Counter()
        self.aborted: Counter[int] = Counter()

    def add(self, record: RequestRecord) -> None:
        if record.phase == "warmup":
            self.warmup += 1
            self.warmup_ok += record.outcome == "ok"
            self.warmup_failed += record.outcome not in ("ok", "cancelled")
        for attempt in record.attempts:
            if attempt.sent_ns is not None:
                self.sent[attempt.endpoint] += 1
                self.aborted[attempt.endpoint] += attempt.outcome not in _COUNTED_BY_SERVER


class Measured(Struct, frozen=True):
    """Everything that the records gave, before it is worded."""

    scan: Scan
    whole: Span | None
    steady: Span | str
    collector: Collector
    aside: Aside
    limits: list[Slo]

    @property
    def steady_span(self) -> Span | None:
        return self.steady if isinstance(self.steady, Span) else None

    def tallies(self, endpoint: int | None = None, steady: bool | None = None) -> list[Tally]:
        """Those of one endpoint, of one side of the steady window, or all."""
        return [
            tally
            for (index, inside), tally in sorted(self.collector.tallies.items())
            if endpoint in (None, index) and steady in (None, inside)
        ]

    def seconds(self, endpoint: int | None = None) -> npt.NDArray[np.float64]:
        """Tokens in each second of the whole run."""
        found = [bins.settle() for index, bins in self.collector.bins.items() if endpoint in (None, index)]
        return np.sum(found, axis=0) if found else np.zeros(1)


def measure(run: RunFacts, records: Iterable[RequestRecord]) -> Measured:
    """Read the records twice: for the windows, then for the figures."""
    scan = Scan(records)
    whole = whole_run(run, scan)
    steady = steady_state(run, scan, scan.in_flight())
    limits = per_request_limits([*run.goodput_slos, *run.slos])
    collector = Collector((whole, steady if isinstance(steady, Span) else None), limits, run.is_open_loop)
    aside = Aside()
    for record in records:
        aside.add(record)
        if record.phase == "measure":
            collector.add(record)
    return Measured(scan, whole, steady, collector, aside, limits)
