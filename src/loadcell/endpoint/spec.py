"""How endpoints are chosen, probed and retried: the spec. Seconds where the name says so."""

from typing import Literal

from msgspec import Struct

Strategy = Literal["round_robin", "random", "least_conn", "power_of_two", "session"]


class EndpointSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """`max_retries` null: 2 with several endpoints, 0 with one. `health_check_interval_s` 0: no probes at all."""

    strategy: Strategy = "round_robin"
    health_path: str = "/health"
    health_check_interval_s: float = 5.0
    health_timeout_s: float = 5.0
    health_max_failures: int = 2
    health_recovery_interval_s: float = 10.0
    max_retries: int | None = None
    patience_s: float = 60.0
