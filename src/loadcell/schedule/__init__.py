"""When requests are sent: spec + seed -> arrivals as absolute offsets, and the cap of a closed loop."""

from loadcell.schedule.arrivals import arrivals, offered_rate, ramp_end_ns, shard
from loadcell.schedule.checks import load_points, parse_limit, validate
from loadcell.schedule.spec import UNLIMITED, Arrival, Mode, ScheduleSpec, cap_at, describe, is_paced, lasts_its_duration, mode

__all__ = [
    "UNLIMITED",
    "Arrival",
    "Mode",
    "ScheduleSpec",
    "arrivals",
    "cap_at",
    "describe",
    "is_paced",
    "lasts_its_duration",
    "load_points",
    "mode",
    "offered_rate",
    "parse_limit",
    "ramp_end_ns",
    "shard",
    "validate",
]
