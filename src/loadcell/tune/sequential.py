"""May a trial end before its time? One second of a load after the other -> the evidence that it cannot succeed, or nothing yet. Pure.

Three kinds: a limit is missed, the backlog of an open loop grows past its limits, the best configuration so far is out of reach. Limits are tested by
betting against "the mean is at most what the limit allows" (Waudby-Smith & Ramdas 2024): the wealth is a supermartingale under that hypothesis, so
that by Ville's inequality it exceeds 1/α with probability α at most, however often one looks. A percentile p95 <= L allows 5 % of requests above L.
Seconds are the units, not requests: those of one second share their luck. It starts when the first wave of a closed loop has passed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from loadcell.metrics.slo import Slo, percentile_of
from loadcell.tune.objective import Metric, standard_error

Kind = Literal["slo", "backlog", "dominated"]

ALPHA: Final = 0.001
MIN_BLOCKS: Final = 5
MIN_REQUESTS: Final = 30
MIN_BLOCKS_RATE: Final = 10
Z: Final = 4.0
OUT_OF_REACH: Final = 0.7
"""Of the incumbent: what cannot reach so much of it, even at the upper end of its interval, is given up."""
_CAP: Final = 3.0  # a mean: values count up to so many limits, so that what is bet on is bounded
_STAKES: Final = (0.1, 0.3, 0.6)
_POOLED: Final = frozenset({"itl", "icl"})


class Second(Struct, frozen=True):
    """One second. `judged`: SLO text -> (requests judged, sum of their `scaled`). `overdue`: SLO text -> requests in flight past its limit now.

    `done`: requests that ended, `sent`: taken up; `in_flight`, `waiting` (nothing of the answer yet) at its end. `objective`: what it added.
    """

    judged: Mapping[str, tuple[int, float]] = {}
    overdue: Mapping[str, int] = {}
    sent: int = 0
    done: int = 0
    in_flight: int = 0
    waiting: int = 0
    objective: float = 0.0


class Stop(Struct, frozen=True):
    """`text`: the evidence, in numbers."""

    kind: Kind
    text: str


def allowed(slo: Slo) -> float | None:
    """What the mean of `scaled` may be under this limit; null: it is not judged request by request."""
    if slo.metric in _POOLED or slo.statistic == "min":
        return None
    if slo.metric == "success_rate":
        return 1 - slo.limit
    percent = percentile_of(slo.statistic)
    if percent is not None:
        return 1 - percent / 100
    return {"mean": 1 / _CAP, "max": 0.0}[slo.statistic]


def scaled(slo: Slo, value_ms: float) -> float:
    """A request's value in [0, 1]: 1 beyond the limit and 0 within it; for a mean, its size in limits."""
    if slo.statistic == "mean" and slo.metric != "success_rate":
        return min(value_ms / slo.limit, _CAP) / _CAP
    return float(value_ms > slo.limit)


def overdue_at_least(in_flight: int, sent_lately: int) -> int:
    """In flight for longer than a span, at least: all but those that were sent within it (pigeonhole; order does not matter)."""
    return max(0, in_flight - sent_lately)


class _Bet:
    """Wealth against one hypothesis: the mean of blocks in [0, 1] is at most `null`. Stakes are hedged: a third of the wealth on each."""

    def __init__(self, null: float) -> None:
        self.null = null
        self.blocks = self.requests = 0
        self.total = 0.0
        self._log = [0.0] * len(_STAKES)

    def add(self, n: int, total: float) -> None:
        value = min(1.0, total / n)
        self._log = [log + math.log1p(stake / self.null * (value - self.null)) for log, stake in zip(self._log, _STAKES, strict=True)]
        self.blocks, self.requests, self.total = self.blocks + 1, self.requests + n, self.total + total

    @property
    def log_wealth(self) -> float:
        most = max(self._log)
        return most + math.log(sum(math.exp(log - most) for log in self._log) / len(self._log))

    @property
    def decided(self) -> bool:
        enough = self.blocks >= MIN_BLOCKS and self.requests >= MIN_REQUESTS and self.total / self.requests > self.null
        return enough and self.log_wealth >= math.log(1 / ALPHA)


class Sequential:
    """Fed with the seconds after the first wave. `incumbent`: the objective of the best so far, over all devices; null: there is none, or the load is not
    comparable. `open_loop`: arrivals come whatever is served.
    """

    def __init__(self, slos: Sequence[Slo], metric: Metric, *, incumbent: float | None = None, open_loop: bool = False) -> None:
        self._slos, self._metric, self._incumbent, self._open_loop = slos, metric, incumbent, open_loop
        self._bets = {slo.text: _Bet(null) for slo in slos if (null := allowed(slo)) is not None and null > 0}
        self._worst = [slo for slo in slos if allowed(slo) == 0.0]
        self._overdue: dict[str, int] = {}
        self._growth: list[float] = []
        self._served: list[float] = []
        self._objective: list[float] = []

    def add(self, second: Second) -> Stop | None:
        """The first evidence that it cannot succeed."""
        self._growth.append(second.sent - second.done)
        self._served.append(second.done)
        self._objective.append(second.objective)
        return self._missed(second) or self._backlog(second) or self._dominated()

    def _missed(self, second: Second) -> Stop | None:
        for slo in self._worst:
            n, total = second.judged.get(slo.text, (0, 0.0))
            late = second.overdue.get(slo.text, 0)
            if total or late:
                return Stop("slo", f"{slo.text}: {round(total) + late} requests missed it, and none may")
        for text, bet in self._bets.items():
            n, total = second.judged.get(text, (0, 0.0))
            # Those that are newly overdue are violations already; when they end, they are not counted again.
            late = second.overdue.get(text, 0) - self._overdue.get(text, 0)
            self._overdue[text] = second.overdue.get(text, 0)
            n, total = n + late, total + late
            if n > 0:
                bet.add(n, min(max(total, 0.0), float(n)))
            if bet.decided:
                share = bet.total / bet.requests
                told = (
                    f"{share:.0%} of {bet.requests} requests in {bet.blocks} s" if bet.null != 1 / _CAP else f"its mean over {bet.blocks} s"
                )
                return Stop("slo", f"{text} is missed: {told} (evidence {math.exp(min(bet.log_wealth, 50)):.2g} : 1)")
        return None

    def _backlog(self, second: Second) -> Stop | None:
        """Little's law: what is in flight takes in_flight / served seconds to be through."""
        error = standard_error(self._growth)
        if not self._open_loop or len(self._growth) < MIN_BLOCKS_RATE or error is None:
            return None
        blocks = len(self._growth)
        growth, served = sum(self._growth) / blocks, sum(self._served) / blocks
        error = max(error, math.sqrt(max(0.0, growth + 2 * served) / blocks))  # not less than that of two Poisson counts
        if growth <= max(Z * error, 0.05 * served):
            return None
        for slo in self._slos:
            queue = {"ttft": second.waiting, "scheduled_ttft": second.waiting, "e2e": second.in_flight, "scheduled_e2e": second.in_flight}
            if slo.metric not in queue or slo.statistic == "min":
                continue
            wait_s = queue[slo.metric] / served if served else math.inf
            if wait_s > 2 * slo.limit / 1000:
                return Stop(
                    "backlog",
                    f"{slo.text}: the backlog grows by {growth:.3g} requests/s at {served:.3g} served; whoever comes now waits {wait_s:.3g} s",
                )
        return None

    def _dominated(self) -> Stop | None:
        error = standard_error(self._objective)
        if self._incumbent is None or len(self._objective) < MIN_BLOCKS_RATE or error is None:
            return None
        mean = sum(self._objective) / len(self._objective)
        best = mean + Z * error
        if best >= OUT_OF_REACH * self._incumbent:
            return None
        return Stop(
            "dominated",
            f"{self._metric} {mean:.4g}/s, at most {best:.4g} by its interval, against {self._incumbent:.4g} of the best so far",
        )
