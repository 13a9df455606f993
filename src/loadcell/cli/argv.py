"""Words of a command line as vLLM's and the seed client's users write them -> words that typer reads. Pure.

`--num_prompts` is `--num-prompts`; a list after one flag is that flag again and again (`--goodput ttft:200 tpot:50`).
"""

from collections.abc import Iterable, Iterator, Sequence


def normal(words: Sequence[str], lists: Iterable[str]) -> list[str]:
    """`lists`: flags (as spelled) that take several values after one mention. Words after `--` are left alone."""
    taking = frozenset(lists)
    return list(_spread(words, taking))


def _spread(words: Sequence[str], lists: frozenset[str]) -> Iterator[str]:
    current: str | None = None  # the list flag whose values follow
    for at, word in enumerate(words):
        if word == "--":
            yield from words[at:]
            return
        if word.startswith("--"):
            current = None
            name, equals, value = word.partition("=")
            name = name.replace("_", "-")
            if name in lists and not equals:
                current = name
                if _is_last_or_flag(words, at):
                    yield name  # typer says that a value is missing
            else:
                yield name + equals + value
        elif current is not None:
            yield from (current, word)
        else:
            yield word


def _is_last_or_flag(words: Sequence[str], at: int) -> bool:
    return at + 1 >= len(words) or words[at + 1].startswith("--")
