"""What may stand in a file: a scenario without header values, keys and passwords; a server's words without those that we sent it."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:  # a worker hides secrets too, and has no use for all that a scenario is made of
    from loadcell.scenario import Scenario

HIDDEN: Final = "[redacted]"
_SHORTEST_SECRET: Final = 8  # a shorter value, such as a version, is more often a word of the language than a secret
_SECRET: Final = re.compile(r"key|token|secret|passw|auth|credential", re.IGNORECASE)
_NOT_SECRET: Final = re.compile(
    r"^(max_|min_|stop_)?(completion_)?tokens?(_ids)?$|^(.*_)?(max|min|num|batched|total)_.*tokens$|^(skip_)?tokenizer(_|$)", re.IGNORECASE
)
_USERINFO: Final = re.compile(r"(?<=://)[^/@\s]+@")


class Secrets:
    """The values of our own headers. Servers like to repeat them: `Incorrect API key provided: …`."""

    def __init__(self, headers: Iterable[tuple[str, str]]) -> None:
        words = {part for _, value in headers for part in (value, *value.split()) if len(part) >= _SHORTEST_SECRET}
        self._words = sorted(words, key=len, reverse=True)

    def hidden_in(self, text: str | None) -> str | None:
        """`text` without them."""
        if text:
            for word in self._words:
                text = text.replace(word, HIDDEN)
        return text


def redacted(scenario: "Scenario") -> dict[str, Any]:
    """The scenario as plain data. A trace is left out: it is the data set's, and may be long."""
    spec: dict[str, Any] = msgspec.to_builtins(scenario)
    spec["target"]["headers"] = [[name, HIDDEN] for name, _ in scenario.target.headers]
    if scenario.target.proxy:
        spec["target"]["proxy"] = _USERINFO.sub("", scenario.target.proxy)
    spec["sampling"]["extra_body"] = hidden(scenario.sampling.extra_body)
    spec["schedule"]["trace_s"] = []
    return spec


def names_a_secret(name: str) -> bool:
    """Whether a key or a flag of this name holds something that no file may hold: `api_key` does, `max_tokens` does not."""
    plain = name.lstrip("-").replace("-", "_")
    return bool(_SECRET.search(plain)) and not _NOT_SECRET.match(plain)


def hidden(value: Any) -> Any:
    """Plain data without the values of keys that name a secret."""
    if isinstance(value, dict):
        return {key: HIDDEN if names_a_secret(key) else hidden(inner) for key, inner in value.items()}
    return [hidden(inner) for inner in value] if isinstance(value, list) else value
