"""Where what outlives a command is kept for this user: $XDG_STATE_HOME/loadcell, else ~/.local/state/loadcell. The environment is the caller's to read."""

from collections.abc import Callable, Mapping
from pathlib import Path

from loadcell.fleet.registry import Registry


def fleet_registry(environment: Mapping[str, str], note: Callable[[str], None] = lambda _: None) -> Registry:
    """The record of every service that this user's commands have started on any host."""
    state = Path(environment.get("XDG_STATE_HOME") or "")
    if not state.is_absolute():  # as the XDG base directory specification says of a relative path: it is ignored
        state = Path.home() / ".local" / "state"
    return Registry(state / "loadcell" / "fleet", note)
