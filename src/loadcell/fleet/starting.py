"""The ranks of one replica, from defined to ready: started head first, stepped together until all are."""

from collections.abc import Callable, Sequence
from typing import Final

from loadcell.clock import NS_PER_S, Clock
from loadcell.errors import EnvironmentFailure
from loadcell.fleet.hosts.host import Group, HostUnreachable
from loadcell.fleet.interrupts import Flag
from loadcell.fleet.readiness import NotReadyError
from loadcell.fleet.service import Service

_STEP_NS: Final = NS_PER_S // 5


def start_replica(ranks: Sequence[Service], on_group: Callable[[Service, Group], None], abort: Flag, clock: Clock) -> None:
    """Start the ranks of one replica, the head first, and wait until all are ready. Raises NotReadyError; the rank that it is of is failed."""
    head = ranks[0]
    service = head
    try:
        for service in ranks:
            service.launch(lambda group, service=service: on_group(service, group), lambda: head.state == "ready")  # type: ignore[misc]
        waiting = list(ranks)
        while waiting:
            began_ns = clock.now_ns()
            if abort.is_set():
                raise NotReadyError("the start was given up", "aborted")
            for service in tuple(waiting):
                if service.step():
                    waiting.remove(service)
            if waiting:
                clock.sleep_until(began_ns + _STEP_NS)
    except NotReadyError as reason:
        service.fail(reason)
        raise
    except EnvironmentFailure as cut:
        told = isinstance(cut, HostUnreachable)
        failure = NotReadyError(f"its host cannot be reached: {cut}" if told else str(cut), "host_unreachable" if told else "not_ready")
        service.fail(failure)
        raise failure from cut
