"""One flag: its name, kind, default and words. A value as given (text, or a Python value) -> a value of the flag's kind."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from loadcell.errors import UserError

Kind = Literal["int", "float", "text", "switch", "texts", "object"]
_MOST: Final = 1_000_000_000  # counts, lengths, and seconds (31 years): stamps are 63 bits of ns, and deadlines are sums of several
_MOST_SEED: Final = (1 << 63) - 1
_SECRET: Final = ("header", "proxy")  # never repeated


class Flag(Struct, frozen=True):
    """`name` is the keyword of the Python API; the command line writes it with hyphens.

    `default` holds when the flag is absent; `shown` is what texts print for it where it depends on other flags. `words` are texts with
    a value of their own. `check` returns what is wrong with a value, or null. `alias_of`: another name for the same thing, kept for
    scripts that use it. `dataset`: the only data set that the flag speaks of. `off`: the negative spellings of a switch.
    """

    name: str
    kind: Kind
    help: str
    panel: str = ""
    default: Any = None
    shown: str | None = None
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    words: dict[str, Any] = {}
    check: Callable[[Any], str | None] | None = None
    alias_of: str | None = None
    dataset: str | None = None
    off: tuple[str, ...] = ()

    @property
    def spelling(self) -> str:
        return spelling(self.name)

    def parse(self, given: Any) -> Any:
        """The value that `given` means. UserError names the flag, the value and what to do."""
        if isinstance(given, str) and given in self.words:
            return self.words[given]
        try:
            value = _READERS[self.kind](given)
        except (TypeError, ValueError) as wrong:
            also = "".join(f", or {word!r}" for word in self.words)
            raise self.refusal(given, f"{wrong}{also}") from None
        if self.choices and value not in self.choices:
            raise self.refusal(given, f"choose one of {', '.join(self.choices)}")
        complaint = (self.check(value) if self.check else None) or self._too_much(value)
        if complaint:
            raise self.refusal(given, complaint)
        return value

    def _too_much(self, value: Any) -> str | None:
        """What is finite and still more than clocks and counters carry. Rates are judged with their schedule."""
        most = _MOST_SEED if self.name == "seed" else _MOST
        counted = self.kind == "int" or (self.kind == "float" and self.metavar == "SECONDS")
        return f"must be {most} at most" if counted and most < abs(value) < math.inf else None

    def refusal(self, given: Any, complaint: str) -> UserError:
        shown = "" if self.name in _SECRET else f" {str(given).encode(errors='backslashreplace').decode()}"
        return UserError(f"{self.spelling}{shown}: {complaint}")


def spelling(name: str) -> str:
    """`num_prompts` -> `--num-prompts`"""
    return "--" + name.replace("_", "-")


def _int(given: Any) -> int:
    if isinstance(given, bool) or (isinstance(given, float) and not given.is_integer()):
        raise ValueError("expected a whole number")
    try:
        return int(given)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("expected a whole number") from None


def _float(given: Any) -> float:
    try:
        value = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError):
        value = math.nan
    if math.isnan(value):
        raise ValueError("expected a number")
    return value


def _text(given: Any) -> str:
    if isinstance(given, (list, tuple, dict, bool)):
        raise ValueError("expected one text")
    text = str(given)
    if not text or "\0" in text:
        raise ValueError("expected a text that is not empty")
    return _encodable(text)


def _switch(given: Any) -> bool:
    if not isinstance(given, bool):
        raise ValueError("expected true or false")
    return given


def _texts(given: Any) -> list[str]:
    """A mapping reads as KEY=VALUE pairs, one text as a list of one."""
    if isinstance(given, Mapping):
        given = [f"{key}={value}" for key, value in given.items()]
    return [_encodable(item) for item in ([given] if isinstance(given, str) else map(str, given))]


def _object(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        try:
            given = json.loads(given, parse_constant=_no_constant)
        except ValueError as wrong:
            raise ValueError(f"not JSON ({wrong})") from None
    if not isinstance(given, Mapping):
        raise ValueError("expected a JSON object such as '{\"top_k\": 20}'")
    if not _is_finite(given):
        raise ValueError("JSON knows neither NaN nor Infinity")
    _encodable(json.dumps(given, ensure_ascii=False, default=str))
    return dict(given)


def _encodable(text: str) -> str:
    """A lone surrogate, which is how Python shows a byte that is no UTF-8, fits into no file and no request."""
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("holds bytes that are no UTF-8, or half a surrogate pair")
    return text


def _is_finite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


_READERS: Final[dict[Kind, Callable[[Any], Any]]] = {
    "int": _int,
    "float": _float,
    "text": _text,
    "switch": _switch,
    "texts": _texts,
    "object": _object,
}


def finite(value: float) -> str | None:
    return None if math.isfinite(value) else "must be finite"


def positive(value: float) -> str | None:
    return None if 0 < value < math.inf else "must be more than 0"


def not_negative(value: float) -> str | None:
    return None if 0 <= value < math.inf else "must be 0 or more"


def rate(value: float) -> str | None:
    return None if value > 0 else "must be more than 0, or inf for all at once"


def workers(value: int) -> str | None:
    return None if 1 <= value <= 1024 else "must lie in 1..1024"


def port(value: int) -> str | None:
    return None if 1 <= value <= 65535 else "must lie in 1..65535"
