"""What shall go wrong, and when: `KIND[,key=value...]` -> frozen faults -> decisions. Pure: takes seconds and request numbers.

Conditions of every fault (all must hold): `after`/`until` seconds since the engine was ready, `after_requests` generation requests
before it, `every` k-th request, `probability` drawn from the seed. Faults combine; of several for one request the first given wins.
"""

from difflib import get_close_matches
from typing import Final, Literal, get_args

import msgspec
from msgspec import Struct

from loadcell.errors import UserError
from loadcell.seeds import stream

Kind = Literal[
    "crash",
    "exit",
    "oom_start",
    "oom_load",
    "slow_start",
    "slow_health",
    "fail_health",
    "hang",
    "stall",
    "reject",
    "stream_error",
    "truncate",
    "reset",
    "close",
]
WHEN: Final = frozenset({"after", "until", "after_requests", "every", "probability"})
PARAMETERS: Final[dict[str, frozenset[str]]] = {
    "crash": frozenset({"code", "tokens"}),
    "exit": frozenset({"code", "tokens"}),
    "oom_start": frozenset(),
    "oom_load": frozenset({"running", "tokens"}),
    "slow_start": frozenset({"delay", "how"}),
    "slow_health": frozenset({"delay"}),
    "fail_health": frozenset({"status"}),
    "hang": frozenset(),
    "stall": frozenset({"tokens"}),
    "reject": frozenset({"status", "retry_after"}),
    "stream_error": frozenset({"tokens"}),
    "truncate": frozenset({"tokens", "how"}),
    "reset": frozenset({"tokens"}),
    "close": frozenset({"delay"}),
}
_OF_REQUESTS: Final = ("hang", "stall", "reject", "stream_error", "truncate", "reset", "crash", "exit", "oom_load")
_ENDS_PROCESS: Final = ("crash", "exit", "oom_load")


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    """One fault. Times in s. `tokens`: sent before it strikes. `code`: exit code, negative for a signal, as subprocess tells it."""

    kind: Kind
    after: float | None = None
    until: float | None = None
    after_requests: int | None = None
    every: int | None = None
    probability: float | None = None
    status: int | None = None
    retry_after: float | None = None
    tokens: int | None = None
    code: int | None = None
    delay: float | None = None
    running: int | None = None
    how: Literal["fin", "clean", "busy", "refused"] | None = None

    @property
    def on_requests(self) -> bool:
        """Does it strike with a request, not at a moment?"""
        return self.after_requests is not None or self.every is not None or self.probability is not None or self.tokens is not None

    @property
    def exit_code(self) -> int:
        if self.code is not None:
            return self.code
        return 0 if self.kind == "exit" else 1


def parse_fault(text: str) -> Fault:
    """`KIND[,key=value...]` -> Fault; raises UserError naming the nearest right word."""
    kind, *pairs = text.split(",")
    if kind not in PARAMETERS:
        raise UserError(f"--fault {text!r}: no fault {kind!r}; {_nearest(kind, list(get_args(Kind)))}")
    fields: dict[str, str] = {"kind": kind}
    allowed = PARAMETERS[kind] | WHEN
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.replace("-", "_")
        if key not in allowed:
            raise UserError(f"--fault {text!r}: {kind} takes no {key!r}; {_nearest(key, sorted(allowed))}")
        if not equals:
            raise UserError(f"--fault {text!r}: write {key}=VALUE")
        fields[key] = value
    try:
        fault = msgspec.convert(fields, Fault, strict=False)
    except msgspec.ValidationError as error:
        raise UserError(f"--fault {text!r}: {error}") from error
    if fault.every is not None and fault.every < 1:
        raise UserError(f"--fault {text!r}: every must be at least 1")
    if fault.probability is not None and not 0 <= fault.probability <= 1:
        raise UserError(f"--fault {text!r}: probability must be between 0 and 1")
    return fault


def _nearest(word: str, words: list[str]) -> str:
    near = get_close_matches(word, words, 1)
    return f"did you mean {near[0]!r}?" if near else "choose from " + ", ".join(words)


class FaultPlan:
    """Decides; changes nothing. Request numbers count generation requests from 1."""

    def __init__(self, faults: tuple[Fault, ...], seed: int) -> None:
        self._faults = tuple(enumerate(faults))
        self._seed = seed

    @property
    def oom_at_start(self) -> bool:
        return any(fault.kind == "oom_start" for _, fault in self._faults)

    @property
    def slow_start(self) -> Fault | None:
        return next((fault for _, fault in self._faults if fault.kind == "slow_start"), None)

    @property
    def idle_close(self) -> bool:
        """Could `closing` ever say yes?"""
        return any(fault.kind == "close" for _, fault in self._faults)

    def ends(self) -> list[Fault]:
        """Faults that end the process at a moment (`after` s), whatever is asked of it."""
        return [f for _, f in self._faults if f.kind in _ENDS_PROCESS and f.running is None and not f.on_requests]

    def for_request(self, number: int, elapsed_s: float, running: int) -> Fault | None:
        """What strikes this generation request, if anything."""
        for index, fault in self._faults:
            if fault.kind not in _OF_REQUESTS:
                continue
            if fault.running is not None:
                if running < fault.running:
                    continue
            elif fault.kind in _ENDS_PROCESS and not fault.on_requests:
                continue
            if self._strikes(index, fault, number, elapsed_s):
                return fault
        return None

    def for_health(self, number: int, elapsed_s: float) -> tuple[float, int]:
        """(delay in s, status) of the `number`-th health probe."""
        delay, status = 0.0, 200
        for index, fault in self._faults:
            if fault.kind == "slow_health" and self._strikes(index, fault, number, elapsed_s):
                delay = max(delay, 10.0 if fault.delay is None else fault.delay)
            if fault.kind == "fail_health" and self._strikes(index, fault, number, elapsed_s):
                status = 503 if fault.status is None else fault.status
        return delay, status

    def closing(self, number: int, elapsed_s: float) -> float | None:
        """Seconds of idleness after which the connection of the `number`-th response is closed without a word; None: it is kept."""
        for index, fault in self._faults:
            if fault.kind == "close" and self._strikes(index, fault, number, elapsed_s):
                return fault.delay or 0.0
        return None

    def _strikes(self, index: int, fault: Fault, number: int, elapsed_s: float) -> bool:
        if elapsed_s < (fault.after or 0.0) or (fault.until is not None and elapsed_s >= fault.until):
            return False
        past = number - (fault.after_requests or 0)
        if past < 1 or past % (fault.every or 1):
            return False
        return fault.probability is None or stream(self._seed, "fault", index, number).random() < fault.probability
