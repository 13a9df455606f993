"""Summary -> the exit code of the command: interrupted, then failed or invalid, then a gate that was missed."""

from typing import Final

from loadcell.metrics.summary import Summary

FAILED: Final = 1
GATE_MISSED: Final = 3
_SIGNAL_BASE: Final = 128
_SIGNALS: Final = {"interrupt": 2, "terminated": 15}
_FAILED_STOPS: Final = frozenset({"max_failures", "patience", "fatal", "worker_lost"})


def exit_code(summary: Summary, strict: bool = False, gate: bool = False, interrupted_signal: int | None = None) -> int:
    """130 or 143 after a signal; 1 for a failed or invalid run (a suspect one too when `strict`); 3 when `gate` and a limit was not met; else 0.

    A limit that could not be judged is not met. Wrong use (2) never gets as far as a summary.
    """
    signal = interrupted_signal or summary.stop_signal or _SIGNALS.get(summary.stop_reason or "")
    if signal:
        return _SIGNAL_BASE + signal
    if (
        summary.verdict == "invalid"
        or summary.stop_reason in _FAILED_STOPS
        or summary.lost_workers
        or (strict and summary.verdict == "suspect")
    ):
        return FAILED
    if gate and any(slo.met is not True for slo in summary.slos):
        return GATE_MISSED
    return 0
