"""What the fleet needs of an engine: how it is started, what its log says when it cannot go on, and what may be tuned."""

from typing import Protocol

from loadcell.fleet.spec import FleetSpec, Launch, LogPattern, Replica, Tunable


class Engine(Protocol):
    """An adapter: pure functions from a spec to words. The contract suite is `loadcell.testing.engine_contract`."""

    name: str
    health_path: str
    patterns: tuple[LogPattern, ...]

    def check(self, spec: FleetSpec) -> None:
        """Raise UserError, naming the key, for what this engine cannot do. Looks at nothing outside the spec."""

    def launch(self, spec: FleetSpec, replica: Replica) -> Launch:
        """How to start this replica, its device variable excluded (the plan adds it by vendor)."""

    def devices_needed(self, spec: FleetSpec) -> int | None:
        """Devices of one replica as the engine's own options tell (tensor × pipeline × data parallel); null: they don't say."""

    def tunables(self) -> tuple[Tunable, ...]:
        """The parameters that a study may search by default."""
