"""What the fleet needs of an engine: how it is started, what its log says when it cannot go on, and what may be tuned."""

from typing import Literal, Protocol

from loadcell.fleet.spec import FleetSpec, Launch, LogPattern, Replica, Tunable


class Engine(Protocol):
    """An adapter: pure functions from a spec to words. The contract suite is `loadcell.testing.engine_contract`."""

    name: str
    health_path: str
    patterns: tuple[LogPattern, ...]
    devices_by: Literal["variable", "config", "none"]
    """How it learns its devices: by the vendor's variable, by its own configuration, or it has none of its own (given ones are passed on)."""
    reads: tuple[str, ...]
    """Beginnings of the environment variables that change what this engine does."""

    def model_path(self, spec: FleetSpec) -> str | None:
        """The path on its host at which the model has to be; null: the model is no path (a repository's name, a name only)."""

    def check(self, spec: FleetSpec) -> None:
        """Raise UserError, naming the key, for what this engine cannot do. Looks at nothing outside the spec."""

    def launch(self, spec: FleetSpec, replica: Replica) -> Launch:
        """How to start this replica, its device variable excluded (the plan adds it by vendor)."""

    def devices_needed(self, spec: FleetSpec) -> int | None:
        """Devices of one replica as the engine's own options tell (tensor × pipeline × data parallel); null: they don't say."""

    def tunables(self) -> tuple[Tunable, ...]:
        """The parameters that a study may search by default."""
