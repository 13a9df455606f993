"""The life of a service: state × event -> state, as a table. Pure."""

from typing import Final, Literal

State = Literal["defined", "starting", "loading", "ready", "serving", "draining", "stopped", "failed"]
Event = Literal[
    "launch", "process_up", "inference_ok", "load_began", "load_ended", "stop", "gone", "died", "timed_out", "refused", "restart"
]

TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    ("defined", "launch"): "starting",
    ("defined", "stop"): "stopped",
    ("defined", "refused"): "failed",
    ("starting", "process_up"): "loading",
    ("starting", "died"): "failed",
    ("starting", "refused"): "failed",
    ("starting", "timed_out"): "failed",
    ("starting", "stop"): "draining",
    ("loading", "inference_ok"): "ready",
    ("loading", "died"): "failed",
    ("loading", "refused"): "failed",
    ("loading", "timed_out"): "failed",
    ("loading", "stop"): "draining",
    ("ready", "load_began"): "serving",
    ("ready", "died"): "failed",
    ("ready", "stop"): "draining",
    ("serving", "load_ended"): "ready",
    ("serving", "died"): "failed",
    ("serving", "stop"): "draining",
    ("draining", "gone"): "stopped",
    ("draining", "timed_out"): "failed",
    ("failed", "restart"): "defined",
    ("failed", "stop"): "draining",
    ("failed", "gone"): "failed",
    ("stopped", "restart"): "defined",
    ("stopped", "stop"): "stopped",
}


class IllegalMoveError(Exception):
    """A bug of ours: the table has no such move."""


def after(state: State, event: Event) -> State:
    """The next state. Raises IllegalMoveError."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalMoveError(f"a service that is {state} cannot take {event}") from None
