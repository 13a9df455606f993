"""How long the client waits for what. Defaults are minutes, not hours; each is a flag."""

from msgspec import Struct


class Timeouts(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds. `first_output_s` runs from `sent` to the first output event (headers do not end it: servers may send them before
    prefill; an answer that is not streamed is output when it is whole); `idle_s` between output events (comments do not reset it);
    `total_s` from `dispatched` to the end.
    """

    connect_s: float = 10.0
    first_output_s: float = 300.0
    idle_s: float = 120.0
    total_s: float = 1800.0
