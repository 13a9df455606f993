"""Scrapes of the servers' own counters before and after a load, outside it: what purity and prefix-cache figures are made of."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from loadcell.clock import NS_PER_S, Clock
from loadcell.metrics.exposition import Scrape, parse_metrics, prefix_cache_facts, purity_facts
from loadcell.metrics.facts import PrefixCacheFacts, PurityFacts
from loadcell.probe import ask_all, scrape
from loadcell.records import Endpoint

if TYPE_CHECKING:
    import ssl

_TIMEOUT_S: Final = 2.0
_SETTLE_NS: Final = 5_000_000_000
_PAUSE_NS: Final = 150_000_000


class QuietScrapes:
    """`begin` before the warm-up, `end` after the drain. An endpoint that shows no metrics costs one GET."""

    def __init__(self, endpoints: Sequence[Endpoint], headers: Sequence[tuple[str, str]], tls: "ssl.SSLContext | None") -> None:
        self._endpoints, self._headers, self._tls = list(endpoints), list(headers), tls
        self._texts: list[str | None] = [None] * len(self._endpoints)
        self._thread: threading.Thread | None = None
        self._began_ns = 0
        self._hurried = threading.Event()
        self.sent = 0

    def begin(self, clock: Clock) -> None:
        """Scrape all at once, while other preparations go on."""
        self._began_ns = clock.now_ns()
        self._thread = threading.Thread(target=self._first, name="scrape", daemon=True)
        self._thread.start()

    def wait_begun(self) -> None:
        """Return when the first scrapes are in: no generation request may be sent before."""
        if self._thread is not None:
            self._thread.join()

    def hurry(self) -> None:
        """The user wants to leave: `end` looks once and does not wait for the counters to settle."""
        self._hurried.set()

    def end(self, clock: Clock) -> tuple[dict[str, PurityFacts], dict[str, PrefixCacheFacts]]:
        """Scrape until the servers are quiet and their counters stand still, 5 s at most."""
        if self._thread is None:
            return {}, {}
        befores = [parse_metrics(text) if text is not None else None for text in self._texts]
        asked = [endpoint for endpoint, before in zip(self._endpoints, befores, strict=True) if before is not None]
        deadline = clock.now_ns() + _SETTLE_NS
        last: dict[str, Scrape | None] = {}
        settled: dict[str, bool] = {}
        while asked and not all(settled.get(endpoint.name) for endpoint in asked):
            found = self._scrape_all(asked)
            for endpoint, text in zip(asked, found, strict=True):
                now = parse_metrics(text) if text is not None else None
                settled[endpoint.name] = _quiet(last.get(endpoint.name), now)
                last[endpoint.name] = now
            if self._hurried.is_set() or clock.now_ns() >= deadline or all(scraped is None for scraped in last.values()):
                break
            if not all(settled.values()):
                clock.sleep_until(clock.now_ns() + _PAUSE_NS)
        seconds = (clock.now_ns() - self._began_ns) / NS_PER_S
        purity, caches = {}, {}
        for endpoint, before in zip(self._endpoints, befores, strict=True):
            after = last.get(endpoint.name)
            purity[endpoint.name] = replace(purity_facts(before, after, settled.get(endpoint.name, False)), seconds=seconds)
            cache = prefix_cache_facts(before, after)
            if cache is not None:
                caches[endpoint.name] = cache
        return purity, caches

    def _first(self) -> None:
        self._texts = self._scrape_all(self._endpoints)

    def _scrape_all(self, endpoints: Sequence[Endpoint]) -> list[str | None]:
        self.sent += len(endpoints)
        return ask_all(endpoints, lambda endpoint: scrape(endpoint, _TIMEOUT_S, self._headers, self._tls))


def _quiet(before: Scrape | None, now: Scrape | None) -> bool:
    """Nothing runs or waits, and the counter is what it was at the look before."""
    if before is None or now is None:
        return False
    idle = not (now.running or 0) and not (now.waiting or 0)
    return idle and now.generation_requests == before.generation_requests
