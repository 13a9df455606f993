"""From a specification to services that can be started: hosts opened, machines looked at, the plan made and checked, ports and devices claimed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from loadcell.clock import NS_PER_S, Clock
from loadcell.errors import EnvironmentFailure, UserError
from loadcell.fleet import images, preflight
from loadcell.fleet.cpus import cpus_of
from loadcell.fleet.engines import ENGINES
from loadcell.fleet.events import now_text
from loadcell.fleet.hosts import open_host as open_real_host
from loadcell.fleet.hosts.host import DeviceUse, Host, HostUnreachable
from loadcell.fleet.monitor import living
from loadcell.fleet.orphans import group_of
from loadcell.fleet.plan import HostFound, check_spec, hosts_of, plan_services, ports_wanted
from loadcell.fleet.registry import Claims, Entry, Registry, new_marker, this_process
from loadcell.fleet.service import Service
from loadcell.fleet.spec import FleetSpec, HostSpec, ServicePlan
from loadcell.fleet.terms import terms_of
from loadcell.fleet.together import together

REMOTE_FOLDER: Final = ".local/state/loadcell/services"
"""Below the home folder there."""
_RELEASE_NS: Final = 10 * NS_PER_S
_RELEASED_MIB: Final = 512.0
"""A device whose memory in use is at most this much above what it was before counts as released."""


class Seen(Struct, frozen=True):
    """One host as it was found. `devices` null: no vendor's tool tells. `ours`: pids of orphans, which the start stops first. `home`: our user's."""

    devices: tuple[DeviceUse, ...] | None
    claims: Claims
    ours: frozenset[int]
    home: str


class Staging:
    """Opens each host once. `open_host`: the seam for tests."""

    def __init__(
        self,
        spec: FleetSpec,
        folder: Path,
        registry: Registry,
        name: str,
        made_by: Literal["run", "up"],
        headers: tuple[tuple[str, str], ...],
        clock: Clock,
        open_host: Callable[[HostSpec], Host] | None,
        source: str = "",
    ) -> None:
        self.spec, self.folder = spec, folder.absolute()
        self._registry, self._name, self._made_by = registry, name, made_by
        self._headers, self._clock, self._source = headers, clock, source
        self._open = open_host or open_real_host
        self._specs = {host.name: host for host in hosts_of(spec)}
        self._hosts: dict[str, Host] = {}
        self._seen: dict[str, Seen] = {}
        self._scratch = new_marker(name)
        self.notes: tuple[str, ...] = ()
        """What the last check could not ask, and what may go wrong, for a person to know."""

    def hosts(self) -> dict[str, Host]:
        """By alias, in the specification's order. Nothing is connected before a host is asked something."""
        for name, spec in self._specs.items():
            if name not in self._hosts:
                self._hosts[name] = self._open(spec)
        return self._hosts

    def close(self) -> None:
        for host in self._hosts.values():
            host.close()
        self._hosts = {}

    def check(self) -> tuple[ServicePlan, ...]:
        """The plan, with everything refused that can be known to fail. Starts nothing. Raises UserError, EnvironmentFailure."""
        engine = ENGINES[self.spec.engine]
        check_spec(self.spec)
        engine.check(self.spec)
        hosts = self.hosts()
        contained = images.images_of(hosts_of(self.spec))
        notes = images.refuse_missing_images(contained, hosts)
        path = engine.model_path(self.spec)
        if path is not None:
            preflight.refuse_missing_model(path, {name: host for name, host in hosts.items() if name not in contained})
            notes += images.refuse_missing_mounts(path, contained, hosts)
        self._seen = dict(zip(hosts, together([self._looker(name) for name in hosts], "survey"), strict=True))
        found = {name: self._found(name, seen) for name, seen in self._seen.items()}
        if any(host.ssh is None and host.docker is None for host in hosts_of(self.spec)):
            cpus_of(self.spec, sorted(os.sched_getaffinity(0)))
        plans = plan_services(self.spec, found, _text_of(self.spec.config_file))
        preflight.refuse_missing_program([plan for plan in plans if plan.replica.host not in contained], hosts)
        notes += images.unasked_programs(plans, contained)
        claims = {name: seen.claims for name, seen in self._seen.items()}
        preflight.refuse_taken_ports(plans, hosts, claims, {name: seen.ours for name, seen in self._seen.items()})
        preflight.refuse_taken_devices(plans, {name: seen.devices for name, seen in self._seen.items()}, claims)
        if self.spec.port != "auto":
            notes += preflight.outgoing_port_notes(plans, hosts)
        self.notes = tuple(notes)
        return plans

    def allocate(self) -> list[Service]:
        """Check again, and enter every service in the registry before anybody else may choose. Raises what `check` raises."""
        with self._registry.allocating():
            services = [self._service(plan) for plan in self.check()]
            for service in services:
                self._registry.add(self._entry(service))
        return services

    def devices_left(self, services: list[Service]) -> list[str]:
        """Devices whose memory has not been given back, as far as the vendor's tool tells; waits a moment for it."""
        used = {(service.plan.replica.host, index) for service in services for index in service.plan.replica.devices}
        deadline_ns = self._clock.now_ns() + _RELEASE_NS
        left = self._still_full(used)
        while left and self._clock.now_ns() < deadline_ns:
            self._clock.sleep_until(self._clock.now_ns() + NS_PER_S // 2)
            left = self._still_full(used)
        return left

    def _still_full(self, used: set[tuple[str, int]]) -> list[str]:
        left = []
        for name in {host for host, _ in used}:
            before = {use.index: use for use in self._seen[name].devices or ()}
            try:
                now = self._hosts[name].devices(self.spec.vendor) if before else ()
            except EnvironmentFailure:
                continue
            for use in now or ():
                was = before.get(use.index)
                if (name, use.index) in used and was is not None and _grown_mib(was, use) > _RELEASED_MIB:
                    whose = ", ".join(f"process {pid} ({command})" for pid, command in use.holders)
                    left.append(f"device {use.index} on {name} still holds {use.memory_used_mib:.0f} MiB{f' by {whose}' if whose else ''}")
        return left

    def sweep(self) -> tuple[str, ...]:
        """Forget recorded services that are gone, so that they hold no port or device any more; texts of them."""

        def gone(entry: Entry) -> bool:
            host = self.hosts().get(entry.host.name)
            if host is None or self._specs[entry.host.name] != entry.host:
                return False
            try:
                group = group_of(entry, host)
                return group is None or not living(host.look(group))
            except EnvironmentFailure:
                return False

        return self._registry.sweep(gone)

    # --- the parts

    def _looker(self, name: str) -> Callable[[], Seen]:
        return lambda: self._look(name)

    def _look(self, name: str) -> Seen:
        host = self._hosts[name]
        try:
            ours = self._orphans(name, host)
            return Seen(_without(host.devices(self.spec.vendor), ours), self._registry.claims(name), ours, self._home(name, host))
        except HostUnreachable as cut:
            raise EnvironmentFailure(f"host {name} cannot be reached: {cut}") from cut

    def _home(self, name: str, host: Host) -> str:
        """As an absolute path: it becomes part of words and variables of engines, where nobody replaces a `~`."""
        if self._is_here(name):
            return str(Path.home())
        told = host.run(["/bin/sh", "-c", 'printf %s "$HOME"']).out
        return told if told.startswith("/") else "~"

    def _is_here(self, name: str) -> bool:
        """Whether the run's folder is seen there."""
        host = self._specs[name]
        return host.ssh is None and (host.docker is None or host.docker.container is None)

    def _found(self, name: str, seen: Seen) -> HostFound:
        host, spec = self._hosts[name], self._specs[name]
        wanted = ports_wanted(self.spec)
        several = self.spec.multi_host is not None and len(self._specs) > 1
        towards = next(other.address for other_name, other in self._hosts.items() if other_name != name) if several else None
        return HostFound(
            address=host.address,
            devices=seen.devices,
            taken=tuple(sorted(seen.claims.devices)),
            free_ports=host.free_ports("0.0.0.0", wanted, sorted(seen.claims.ports)) if wanted else (),  # noqa: S104 - free on every address
            interface=host.interface_address(spec.nic, towards) if several else None,
            folder=self._folder_on(name),
        )

    def _orphans(self, name: str, host: Host) -> frozenset[int]:
        groups = [group_of(entry, host) for entry in self._registry.orphans() if entry.host.name == name]
        return frozenset(member.pid for group in groups if group is not None for member in living(host.look(group)))

    def _service(self, plan: ServicePlan) -> Service:
        host = self._specs[plan.replica.host]
        cpus = cpus_of(self.spec, sorted(os.sched_getaffinity(0))) if host.ssh is None and host.docker is None else None
        terms = terms_of(self.spec, plan, self._headers, cpus)
        return Service(plan, self._hosts[host.name], terms, self.log_path(plan), new_marker(plan.name), self._clock)

    def log_path(self, plan: ServicePlan) -> str:
        """In the run's folder, where the service's machine sees it; else in a folder of that machine, fetched at the end."""
        name = plan.replica.host
        return str(self.folder / "logs" / f"{plan.name}.log") if self._is_here(name) else f"{self._folder_on(name)}/{plan.name}.log"

    def _folder_on(self, name: str) -> str:
        return str(self.folder / "services") if self._is_here(name) else f"{self._seen[name].home}/{REMOTE_FOLDER}/{self._scratch}"

    def _entry(self, service: Service) -> Entry:
        replica = service.plan.replica
        return Entry(
            marker=service.marker,
            service=service.name,
            host=self._specs[replica.host],
            owner=this_process(),
            made_by=self._made_by,
            spec_name=self._name,
            folder=str(self.folder),
            created=now_text(),
            log=service.log,
            port=replica.port if service.plan.serves else None,
            devices=replica.devices,
            address=replica.address,
            base_url=service.plan.base_url,
            source=self._source,
            stop_s=service.stop_s,
            health_path=service.question.health_path,
        )


def _without(found: tuple[DeviceUse, ...] | None, pids: frozenset[int]) -> tuple[DeviceUse, ...] | None:
    """Devices as they will be when our own orphans are stopped: what such a one alone uses counts as free."""
    if found is None or not pids:
        return found
    out = []
    for use in found:
        others = tuple(holder for holder in use.holders if holder[0] not in pids)
        freed = len(others) < len(use.holders) and not others
        out.append(replace(use, holders=others, memory_used_mib=None if freed else use.memory_used_mib))
    return tuple(out)


def _text_of(config_file: str | None) -> str | None:
    if config_file is None:
        return None
    try:
        return Path(config_file).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"fleet.config_file = {config_file!r} cannot be read: {error}") from None


def _grown_mib(before: DeviceUse, now: DeviceUse) -> float:
    if before.memory_used_mib is None or now.memory_used_mib is None:
        return 0.0
    return now.memory_used_mib - before.memory_used_mib
