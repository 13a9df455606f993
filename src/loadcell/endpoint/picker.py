"""A worker's side of the endpoints: which one gets the next request, from what control wrote on the board and what this worker sees.

No call leaves the process. What is available is kept between changes of the board's version, so that a pick costs a few microseconds
at most; `penalty` remembers this worker's own failures at once, long before control has heard of them and ejected the endpoint.
"""

from collections.abc import Sequence
from operator import add
from typing import Final

from loadcell.endpoint.board import Board, Flag, OfEndpoint, PerEndpoint, Standing
from loadcell.endpoint.choice import choose, penalty_after
from loadcell.endpoint.policy import FAILURES
from loadcell.endpoint.spec import EndpointSpec
from loadcell.records import Outcome

_REFRESH_NS: Final = 1_000_000  # how old the other workers' in-flight counts and the penalties may be
_NEVER_NS: Final = 1 << 62


class Picker:
    """One worker's choices. Call `pick`, then `began`; `landed` and then `ended` once for each `began`. Times are CLOCK_MONOTONIC ns."""

    def __init__(self, board: Board, worker: int, spec: EndpointSpec, seed: int) -> None:
        self._board = board
        self._block = board.workers[worker]
        self._worker = worker
        self._strategy = spec.strategy
        self._seed = seed
        self._n = board.n_endpoints
        self._version = -1
        self._until_ns = 0
        self._available: tuple[int, ...] = ()
        self._trials: tuple[int, ...] = ()
        self._penalty = [0.0] * self._n
        self._penalised_ns = 0
        self._others = [0] * self._n
        self._refreshed_ns = 0
        self._rest_until_ns = [0] * self._n
        self._weighs = spec.strategy in ("least_conn", "power_of_two")

    def pick(self, arrival_index: int, now_ns: int, session: str | None = None, tried: Sequence[int] = ()) -> int | None:
        """The endpoint for this request, or None when nobody can be asked now. `tried`: those that it has failed at.

        A trial request that control offers to this worker goes first: its answer is what the endpoint waits for.
        """
        self._look(now_ns)
        if self._trials and (trial := self._take_trial(now_ns, tried)) is not None:
            return trial
        if self._n == 1:
            return 0 if self._available else None
        in_flight = self._in_flight(now_ns) if self._weighs else self._others
        chosen = choose(
            self._strategy,
            arrival_index,
            self._available,
            in_flight,
            self._penalty,
            n_total=self._n,
            seed=self._seed,
            key=session,
            tried=tried,
        )
        if chosen is None and self._trials and tried:
            return self._take_trial(now_ns, ())  # else requests that have failed everywhere, and hold all slots, would wait for ever
        return chosen

    def _take_trial(self, now_ns: int, tried: Sequence[int]) -> int | None:
        for index in self._trials:
            if index not in tried and self._board.trial_offered(index, self._worker, now_ns):
                self._board.take_trial(index, self._worker)
                return index
        return None

    def began(self, endpoint: int) -> None:
        """An attempt starts there."""
        self._block.add_at(PerEndpoint.IN_FLIGHT, endpoint)
        self._block.add_at(PerEndpoint.ATTEMPTS, endpoint)

    def landed(self, endpoint: int) -> None:
        """The attempt is no longer in flight; how it went is not known yet."""
        self._block.add_at(PerEndpoint.IN_FLIGHT, endpoint, -1)

    def ended(self, endpoint: int, outcome: Outcome, now_ns: int) -> bool:
        """How a landed attempt went. A failure of the endpoint's weighs against it at once. Returns whether control has to hear of it
        (`Pool.on_traffic`): always, except for a success at a healthy endpoint, which the board counts.
        """
        if outcome == "ok":
            self._block.add_at(PerEndpoint.SUCCESSES, endpoint)
            return self._board.standing(endpoint) != Standing.HEALTHY
        if outcome in FAILURES:
            self._block.add_at(PerEndpoint.FAILURES, endpoint)
            if self._weighs:
                busiest = max(self._in_flight(now_ns))
                self._decay(now_ns)
                self._penalty[endpoint] = penalty_after(self._penalty[endpoint], 0, failures=1, busiest=busiest)
        return True

    def rest(self, endpoint: int, until_ns: int) -> None:
        """The endpoint has asked to be left alone; control will hear of it, but not before the next request."""
        self._rest_until_ns[endpoint] = max(self._rest_until_ns[endpoint], until_ns)
        self._until_ns = 0

    def others(self, endpoint: int, now_ns: int) -> int:
        """How many endpoints besides this one are available."""
        self._look(now_ns)
        return len(self._available) - (endpoint in self._available)

    def untried(self, tried: Sequence[int], now_ns: int) -> int:
        """How many of the available endpoints are not in `tried`."""
        self._look(now_ns)
        return sum(index not in tried for index in self._available)

    def none_available(self, now_ns: int) -> bool:
        """Whether an arrival could go nowhere now (an offered trial counts as somewhere)."""
        self._look(now_ns)
        return not self._available and not any(self._board.trial_offered(index, self._worker, now_ns) for index in self._trials)

    def resting(self) -> bool:
        """Whether some endpoint is only resting: it is healthy, and its Retry-After will pass (see `retry.when_none_available`)."""
        return self._n == 1 or any(self._board.standing(index) == Standing.HEALTHY for index in range(self._n))

    def _look(self, now_ns: int) -> None:
        """Read the standings again if control changed one, or a rest is over."""
        board = self._board
        version = board.flag(Flag.VERSION)
        if version == self._version and now_ns < self._until_ns:
            return
        self._version = version
        self._until_ns = _NEVER_NS
        available, trials = [], []
        for index in range(self._n):
            rest_until_ns = max(board.endpoint(OfEndpoint.REST_UNTIL_NS, index), self._rest_until_ns[index])
            if now_ns < rest_until_ns:
                self._until_ns = min(self._until_ns, rest_until_ns)
                continue
            standing = board.standing(index)
            if standing == Standing.HEALTHY or self._n == 1:
                available.append(index)
            elif standing == Standing.TRIAL and board.endpoint(OfEndpoint.TRIAL_WORKER, index) == self._worker:
                trials.append(index)
        self._available, self._trials = tuple(available), tuple(trials)

    def _in_flight(self, now_ns: int) -> list[int]:
        """In flight per endpoint: our own exactly, the other workers' at most a millisecond old."""
        own = self._block.row(PerEndpoint.IN_FLIGHT)
        if now_ns >= self._refreshed_ns + _REFRESH_NS:
            self._refreshed_ns = now_ns
            self._others = [total - mine for total, mine in zip(self._board.in_flight(), own, strict=True)]
            self._decay(now_ns)
        return own if self._board.n_workers == 1 else list(map(add, own, self._others))

    def _decay(self, now_ns: int) -> None:
        elapsed_ns, self._penalised_ns = now_ns - self._penalised_ns, now_ns
        if any(self._penalty):
            self._penalty = [penalty_after(value, elapsed_ns) for value in self._penalty]
