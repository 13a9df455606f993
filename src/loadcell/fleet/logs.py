"""Logs of services on other machines, brought into the run's folder once their services have ended. A copy: nothing there is removed."""

from collections.abc import Callable, Sequence
from pathlib import Path

from loadcell.errors import EnvironmentFailure
from loadcell.fleet.service import Service
from loadcell.fleet.together import together


def collect_logs(services: Sequence[Service], folder: Path) -> tuple[str, ...]:
    """Fetch those that are not in `folder` already; texts of those that could not be had."""
    elsewhere = [service for service in services if Path(service.log).parent != folder]
    return tuple(text for texts in together([_fetcher(service, folder) for service in elsewhere], "logs") for text in texts)


def _fetcher(service: Service, folder: Path) -> Callable[[], list[str]]:
    return lambda: _fetch(service, folder)


def _fetch(service: Service, folder: Path) -> list[str]:
    try:
        for suffix in (".1", ""):
            content = service.host.fetch(service.log + suffix)
            if content or not suffix:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{service.name}.log{suffix}").write_bytes(content)
    except (EnvironmentFailure, OSError) as failure:
        return [f"{service.name}: its log stays on {service.plan.replica.host} as {service.log}: {failure}"]
    return []
