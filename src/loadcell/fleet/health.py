"""Which services answer, by one light GET each, between loads. Services -> the line that the bench scripts of old print."""

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct

from loadcell.fleet.inquiry import light_get
from loadcell.fleet.service import Service
from loadcell.fleet.together import together


class Health(Struct, frozen=True):
    """Ports of the services, `host:port` where two have the same. `reasons`: why the unhealthy ones are, in their order."""

    healthy: tuple[str, ...]
    unhealthy: tuple[str, ...]
    reasons: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        return f"service health check: healthy=[{' '.join(self.healthy)}] unhealthy=[{' '.join(self.unhealthy)}]"

    @property
    def warning(self) -> str | None:
        """Null when all are well."""
        return f"WARNING: {len(self.unhealthy)} service(s) unhealthy: {' '.join(self.unhealthy)}" if self.unhealthy else None


def health_of(services: Sequence[Service]) -> Health:
    asked = [service for service in services if service.plan.serves]
    shared = Counter(service.port for service in asked)
    names = [str(one.port) if shared[one.port] == 1 else f"{one.plan.replica.address}:{one.port}" for one in asked]
    wrong = together([_asker(service) for service in asked], "health")
    return Health(
        tuple(name for name, reason in zip(names, wrong, strict=True) if reason is None),
        tuple(name for name, reason in zip(names, wrong, strict=True) if reason is not None),
        tuple(reason for reason in wrong if reason is not None),
    )


def _asker(service: Service) -> Callable[[], str | None]:
    if service.state != "ready":
        return lambda: service.cause or service.state
    return lambda: light_get(service.question)
