"""Service level objectives: text -> frozen limits. `ttft p95 <= 200ms`, and vLLM's `ttft:200`."""

import difflib
import re
from collections.abc import Sequence
from typing import Final, Literal, get_args

from msgspec import Struct

from loadcell.errors import UserError

SloMetric = Literal[
    "ttft", "ttfa", "tpot", "itl", "icl", "e2e", "max_stall", "scheduled_ttft", "scheduled_e2e", "queue_delay", "success_rate"
]

METRICS: Final[tuple[str, ...]] = get_args(SloMetric)
_ALIASES: Final = {"e2el": "e2e", "e2e_latency": "e2e", "latency": "e2e", "stall": "max_stall", "success": "success_rate"}
_MS: Final = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "m": 6e4, "min": 6e4}
_STATISTICS: Final = {"mean": "mean", "avg": "mean", "average": "mean", "min": "min", "max": "max", "median": "p50"}
_LIMIT: Final = re.compile(
    r"\s*(?P<what>[a-z][a-z0-9_. ]*?)\s*(?P<sign><=|<|≤|>=|>|≥|==|=)\s*(?P<number>[0-9.]+(?:e-?[0-9]+)?)\s*(?P<unit>[a-zµμ%]*)\s*",
    re.IGNORECASE,
)
_PERCENTILE: Final = re.compile(r"p([0-9]+(?:[._][0-9]+)?)")
_FORM: Final = "write it like 'ttft p95 <= 200ms' or 'success_rate >= 99%'"


class Slo(Struct, frozen=True, forbid_unknown_fields=True):
    """`limit` in ms for times and as a fraction for rates. `statistic`: mean, min, max, p50, p99.9, … or "each" (goodput only)."""

    metric: SloMetric
    statistic: str
    limit: float
    text: str


def parse_slo(text: str, flag: str = "--slo") -> Slo:
    """`METRIC STATISTIC <= TIME` (also `METRIC_STATISTIC`, `STATISTIC METRIC`) or `success_rate >= SHARE`. A time needs its unit.

    Raises UserError naming flag, value and what is wrong.
    """
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise UserError(f"{flag} {text!r} is not a limit: {_FORM}")
    metric, statistic = _split(found["what"].lower(), text, flag)
    number = _number(found["number"], text, flag)
    upper = found["sign"] in ("<=", "<", "≤")
    if metric == "success_rate":
        return Slo(
            metric=metric, statistic="mean", limit=_share(number, found["unit"], found["sign"], statistic, text, flag), text=text.strip()
        )
    if not upper:
        raise UserError(f"{flag} {text!r}: {metric} is a time, so its limit is an upper one: use <=")
    if statistic is None:
        raise UserError(f"{flag} {text!r} names no statistic: {metric} mean, p50, p95, p99, max, …; {_FORM}")
    return Slo(metric=metric, statistic=statistic, limit=_time_ms(number, found["unit"], text, flag), text=text.strip())


def parse_goodput(items: Sequence[str], flag: str = "--goodput") -> tuple[Slo, ...]:
    """Each item as vLLM writes it, `ttft:200` or `e2el:1000`: milliseconds that every request must meet. Raises UserError naming the item."""
    slos: list[Slo] = []
    for item in (word for text in items for word in text.split()):
        name, colon, value = item.partition(":")
        if not colon:
            raise UserError(f"{flag} {item!r} is not METRIC:MILLISECONDS: write it like ttft:200")
        metric = _metric(name.strip().lower(), item, flag)
        if metric == "success_rate":
            raise UserError(f"{flag} {item!r}: a single request has no success rate; use --slo 'success_rate >= 99%'")
        if any(slo.metric == metric for slo in slos):
            raise UserError(f"{flag} {item!r}: {metric} is limited twice; keep one")
        slos.append(Slo(metric=metric, statistic="each", limit=_positive(_number(value, item, flag), item, flag), text=item))
    return tuple(slos)


def percentile_of(statistic: str) -> float | None:
    """95.0 of "p95"; null when the statistic is no percentile."""
    found = _PERCENTILE.fullmatch(statistic)
    return float(found[1].replace("_", ".")) if found else None


def _split(what: str, text: str, flag: str) -> tuple[SloMetric, str | None]:
    """The metric and the statistic, whichever comes first, apart or joined by an underscore."""
    words = what.split()
    if len(words) == 1 and words[0] not in METRICS and words[0] not in _ALIASES:
        head, _, tail = words[0].partition("_")
        front, _, back = words[0].rpartition("_")
        if _statistic(head) is not None and tail:
            words = [tail, head]
        elif _statistic(back) is not None and front:
            words = [front, back]
    if len(words) == 1:
        return _metric(words[0], text, flag), None
    if len(words) != 2:
        raise UserError(f"{flag} {text!r} is not a limit: {_FORM}")
    if _statistic(words[0]) is not None:
        words.reverse()
    statistic = _statistic(words[1])
    if statistic is None:
        known = difflib.get_close_matches(words[1], [*_STATISTICS, "p50", "p90", "p95", "p99"], n=1)
        raise UserError(f"{flag} {text!r}: {words[1]!r} is no statistic; use {known[0] if known else 'mean, max, p50, p95 or p99'}")
    return _metric(words[0], text, flag), statistic


def _statistic(word: str) -> str | None:
    percent = percentile_of(word)
    if percent is None:
        return _STATISTICS.get(word)
    if percent == 100:
        return "max"
    return f"p{percent:g}" if 0 < percent < 100 else None


def _metric(word: str, text: str, flag: str) -> SloMetric:
    name = _ALIASES.get(word, word)
    for metric in get_args(SloMetric):
        if metric == name:
            known: SloMetric = metric
            return known
    near = difflib.get_close_matches(word, [*METRICS, *_ALIASES], n=1, cutoff=0.4)
    hint = f"did you mean {_ALIASES.get(near[0], near[0])!r}?" if near else f"known are {', '.join(METRICS)}"
    raise UserError(f"{flag} {text!r}: {word!r} is no metric; {hint}")


def _number(digits: str, text: str, flag: str) -> float:
    try:
        return float(digits)
    except ValueError:
        raise UserError(f"{flag} {text!r}: {digits!r} is not a number") from None


def _positive(value: float, text: str, flag: str) -> float:
    if not 0 < value < float("inf"):
        raise UserError(f"{flag} {text!r}: the limit must be above 0 and finite")
    return value


def _time_ms(number: float, unit: str, text: str, flag: str) -> float:
    factor = _MS.get(unit.lower())
    if factor is None:
        raise UserError(f"{flag} {text!r}: {'no unit' if not unit else f'{unit!r} is no unit of time'}; use us, ms, s or min")
    return _positive(number * factor, text, flag)


def _share(number: float, unit: str, sign: str, statistic: str | None, text: str, flag: str) -> float:
    if sign not in (">=", ">", "≥"):
        raise UserError(f"{flag} {text!r}: a success rate has a lower limit: use >=")
    if statistic is not None:
        raise UserError(f"{flag} {text!r}: a success rate has no {statistic}: write 'success_rate >= 99%'")
    if unit not in ("%", ""):
        raise UserError(f"{flag} {text!r}: {unit!r} is no unit of a share; use 99% or 0.99")
    share = number / 100 if unit else number
    if not 0 < share <= 1:
        raise UserError(f"{flag} {text!r}: a success rate lies above 0 and at most at 1 (100%); use 99% or 0.99")
    return share
