"""What a run of cells needs of the services under load, whoever started them: our own fleet, or services that run already.

While a load runs nothing here asks a service anything; `health` is for the time between loads.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final, Protocol, Self

from msgspec import Struct

from loadcell.client.resolve import resolve
from loadcell.experiment.secrets import Hider
from loadcell.fleet.docker_command import start_line
from loadcell.fleet.health import Health
from loadcell.fleet.monitor import FleetEvent
from loadcell.fleet.together import together
from loadcell.probe import ProbeResult, get
from loadcell.report.experiment import ServiceFacts
from loadcell.wire.url import parse_endpoint

if TYPE_CHECKING:
    import ssl

    from loadcell.fleet.fleet import Fleet

OnEvent = Callable[[FleetEvent], None]

_HEALTH_S: Final = 10.0
_NO_SUCH_PATH: Final = (404, 405, 501)


class Now(Struct, frozen=True):
    """The services at one moment. `devices`: of those that serve, all together; null: not known. `missing`: why the others do not."""

    base_urls: tuple[str, ...]
    devices: int | None
    missing: tuple[str, ...] = ()


class Services(Protocol):
    """In a `with` block: entering starts what is to be started, leaving stops it, however the block ends."""

    managed: bool
    engine: str | None
    model: str | None
    leftovers: tuple[str, ...]

    def __enter__(self) -> Self: ...

    def __exit__(self, *why: object) -> None: ...

    def now(self) -> Now: ...

    def facts(self) -> list[ServiceFacts]: ...

    def serving(self, on_event: OnEvent) -> AbstractContextManager[None]:
        """Around a load."""

    def gone(self) -> bool:
        """Whether it is known, without asking any, that none is left to answer this load."""

    def health(self) -> Health:
        """One light GET each."""

    def revive(self) -> tuple[str, ...]:
        """Start again what died; what was done."""


class OwnFleet:
    """Services that this run starts and stops."""

    managed = True

    def __init__(self, fleet: "Fleet", hider: Hider) -> None:
        from loadcell.fleet.plan import devices_by_config  # loaded with the fleet

        self._fleet, self._hider = fleet, hider
        self._devices_each = devices_by_config(fleet.spec)
        self.engine: str | None = fleet.spec.engine
        self.model: str | None = fleet.model or None
        self.leftovers: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        self._fleet.__enter__()
        try:
            self._fleet.start()
        except BaseException:
            self._fleet.release()
            raise
        self.model = self._fleet.model or None  # where the specification names none, they have told by now
        return self

    def __exit__(self, *why: object) -> None:
        try:
            self.leftovers = self._fleet.stop()
        finally:
            self._fleet.release()

    def now(self) -> Now:
        urls = self._fleet.base_urls
        status = self._fleet.status()
        serving = [one for one in status if one.state in ("ready", "serving")]
        devices = sum(len(one.devices) for one in serving) or (self._devices_each or 0) * len(serving)
        missing = tuple(f"{one.name} does not run ({one.cause or one.state})" for one in status if one not in serving)
        return Now(urls, devices or None, missing)

    def facts(self) -> list[ServiceFacts]:
        hosts = {host.name: host for host in self._fleet.spec.host}
        commands = {plan.name: self._hider.text(start_line(plan, hosts.get(plan.replica.host))) for plan in self._fleet.plans}
        return [
            ServiceFacts(
                name=one.name,
                host=one.host,
                devices=list(one.devices),
                port=one.port,
                base_url=one.base_url,
                command=commands.get(one.name),
                state=one.state,
                cause=one.cause,
                restarts=one.restarts,
                log=one.log,
            )
            for one in self._fleet.status()
        ]

    def serving(self, on_event: OnEvent) -> AbstractContextManager[None]:
        return self._fleet.serving(on_event)

    def gone(self) -> bool:
        return self._fleet.gone

    def health(self) -> Health:
        return self._fleet.health()

    def revive(self) -> tuple[str, ...]:
        return self._fleet.revive()


class RunningServices:
    """Services that somebody else started. `health_path` null: they have none, and any answer will do."""

    managed = False
    leftovers: tuple[str, ...] = ()

    def __init__(
        self,
        base_urls: Sequence[str],
        *,
        engine: str | None = None,
        model: str | None = None,
        health_path: str | None = "/health",
        headers: Sequence[tuple[str, str]] = (),
        devices: int | None = None,
        proxy: str | None = None,
        tls: "ssl.SSLContext | None" = None,
    ) -> None:
        self.engine, self.model = engine, model
        self._urls, self._health_path, self._headers, self._devices = tuple(base_urls), health_path, tuple(headers), devices
        self._proxy, self._tls = proxy, tls

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *why: object) -> None:
        pass

    def now(self) -> Now:
        return Now(self._urls, self._devices)

    def facts(self) -> list[ServiceFacts]:
        return [ServiceFacts(name=url, base_url=url) for url in self._urls]

    def serving(self, on_event: OnEvent) -> AbstractContextManager[None]:  # noqa: ARG002 - their processes are not ours to look at
        return nullcontext()

    def gone(self) -> bool:
        return False

    def health(self) -> Health:
        names = _names(self._urls)
        wrong = [_ill(found) for found in self._asked()]
        return Health(
            tuple(name for name, reason in zip(names, wrong, strict=True) if reason is None),
            tuple(name for name, reason in zip(names, wrong, strict=True) if reason is not None),
            tuple(reason for reason in wrong if reason is not None),
        )

    def silent(self) -> tuple[str, ...]:
        """Addresses that give no answer at all, each with why, by one light GET each. One that answers that it loads is there."""
        return tuple(f"{url} ({found.error})" for url, found in zip(self._urls, self._asked(), strict=True) if found.status is None)

    def _asked(self) -> list[ProbeResult]:
        return together([self._asker(url) for url in self._urls], "health")

    def _asker(self, url: str) -> Callable[[], ProbeResult]:
        def ask() -> ProbeResult:
            endpoint = resolve(parse_endpoint(url, "chat", None, 0, self._proxy))
            return get(endpoint, endpoint.root + (self._health_path or "/health"), _HEALTH_S, self._headers, self._tls)

        return ask

    def revive(self) -> tuple[str, ...]:
        return ()


def _ill(found: ProbeResult) -> str | None:
    if found.status is None:
        return found.error or "no answer"
    return None if 200 <= found.status < 300 or found.status in _NO_SUCH_PATH else f"HTTP {found.status}"


def _names(urls: Sequence[str]) -> list[str]:
    """Ports, as the bench scripts print them, where they tell the services apart."""
    endpoints = [parse_endpoint(url, "chat", None, 0) for url in urls]
    ports = [str(endpoint.port) for endpoint in endpoints]
    return ports if len(set(ports)) == len(ports) else [endpoint.name for endpoint in endpoints]


@contextmanager
def on_last_cpu() -> Iterator[None]:
    """Leave all CPUs but the last one of this process's mask to the services; processes made inside the block inherit that."""
    mask = os.sched_getaffinity(0)
    if len(mask) < 2:
        yield
        return
    os.sched_setaffinity(0, {max(mask)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, mask)
