"""Where the commands of this user keep what outlives one of them: as `fleet.state` says, of the environment that only commands read."""

from loadcell.fleet.state import fleet_registry

__all__ = ["fleet_registry"]
