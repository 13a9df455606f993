"""An engine's options, as a person writes them in TOML -> words of a command line. Pure; no shell is ever involved.

A table (`[fleet.args]`):
  key                 kebab or snake case: `tensor_parallel_size` -> `--tensor-parallel-size`. Only what stands before a dot is changed, so that
                      `speculative-config.num_speculative_tokens` stays what vLLM wants. A key that begins with a dash is taken as it is: `-tp`.
  true                the flag alone. false: no word; but `--no-flag` where the engine is known to have it, or where the key says so:
                      `"enable-x/no-enable-x" = false` -> `--no-enable-x` (and `true` -> `--enable-x`).
  number, text        `--flag value`; a text that begins with a dash as `--flag=-value`, or a parser would take it for a flag.
  list                `--flag a b c`; a list of lists: the flag once for each, `[["a"], ["b"]]` -> `--flag a --flag b`. An empty list: no word.
  table               JSON, in one word: `{method = "mtp", n = 3}` -> `--flag '{"method": "mtp", "n": 3}'` without the quotes; also inside lists.
A list of words (`args = ["--enable-x", "--n", "3"]`) is passed as it is.

Knows no engine: what a flag means is the engine's.
"""

import json
import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from loadcell.errors import UserError
from loadcell.fleet.spec import Launch

Args = Mapping[str, Any] | Sequence[str]
_NAMED: Final = re.compile(r"\{\{(\w+)\}\}|\{(\w+)\}")


def words(args: Args, *, negatable: Collection[str] = (), key: str = "fleet.args") -> tuple[str, ...]:
    """The words of `args`. `negatable`: flags (as `--enable-x`) whose false is `--no-enable-x`. Raises UserError, naming `key`."""
    if not isinstance(args, Mapping):
        return tuple(_word(item, f"{key}[{index}]") for index, item in enumerate(args))
    out: list[str] = []
    seen: dict[str, str] = {}
    for name, value in args.items():
        flag, negative = _flags(name, negatable)
        if flag in seen:
            raise UserError(f"{key}: {seen[flag]} and {name} are the same option {flag}: give one of them")
        seen[flag] = name
        out += _option(flag, negative, value, f"{key}.{name}")
    return tuple(out)


def _flags(name: str, negatable: Collection[str]) -> tuple[str, str | None]:
    on, _, off = name.partition("/")
    flag = flag_of(on)
    return flag, flag_of(off) if off else "--no-" + flag.removeprefix("--") if flag in negatable else None


def flag_of(name: str) -> str:
    """`tensor_parallel_size` -> `--tensor-parallel-size`; what begins with a dash stays."""
    if name.startswith("-"):
        return name
    head, dot, rest = name.partition(".")
    return "--" + head.replace("_", "-") + dot + rest


def _option(flag: str, negative: str | None, value: Any, key: str) -> list[str]:
    if value is True:
        return [flag]
    if value is False:
        return [negative] if negative else []
    if not isinstance(value, list | tuple):
        word = _word(value, key)
        return [f"{flag}={word}"] if word.startswith("-") and isinstance(value, str) else [flag, word]
    if any(isinstance(item, list | tuple) for item in value):
        if not all(isinstance(item, list | tuple) for item in value):
            raise UserError(f"{key} = {value!r}: a list of lists repeats the flag; put every value into a list of its own")
        return [word for item in value for word in _option(flag, negative, item, key)]
    return [flag, *(_word(item, key) for item in value)] if value else []


def _word(value: Any, key: str) -> str:
    if isinstance(value, bool | Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{key} = {value!r}: not a number that an option can have")
    text = str(value)
    if "\0" in text:
        raise UserError(f"{key} = {text!r}: a word of a command line cannot hold a NUL byte")
    return text


def option(args: Args, *names: str) -> Any:
    """What `args` gives for one option under any of its `names` (`tensor-parallel-size`, `-tp`); null: not given.

    Of a list of words the last one counts, as text; a flag alone is true.
    """
    flags = {flag_of(name) for name in names}
    if isinstance(args, Mapping):
        return next((value for name, value in args.items() if flag_of(name.partition("/")[0]) in flags), None)
    found: Any = None
    for index, word in enumerate(args):
        head, equals, rest = word.partition("=")
        if _dashed(head) not in flags:
            continue
        following = args[index + 1] if index + 1 < len(args) else "-"
        found = rest if equals else True if following.startswith("--") or following == "-" else following
    return found


def without(args: Args, *names: str) -> Args:
    """`args` less these options, each with its value; other words keep their order."""
    flags = {flag_of(name) for name in names}
    if isinstance(args, Mapping):
        return {name: value for name, value in args.items() if flag_of(name.partition("/")[0]) not in flags}
    out: list[str] = []
    drop_value = False
    for word in args:
        head, equals, _ = word.partition("=")
        if _dashed(head) in flags:
            drop_value = not equals
        elif drop_value and not word.startswith("-"):
            drop_value = False
        else:
            drop_value = False
            out.append(word)
    return tuple(out)


def _dashed(head: str) -> str:
    return head.replace("_", "-") if head.startswith("--") else head


def number(args: Args, *names: str) -> int | None:
    """An option that counts something, at least 1; null: not given. Raises UserError."""
    value = option(args, *names)
    if value is None:
        return None
    try:
        count = int(value) if not isinstance(value, bool) else 0
    except (TypeError, ValueError):
        count = 0
    if count < 1:
        raise UserError(f"fleet.args.{names[0]} = {value!r}: a whole number of at least 1 is expected")
    return count


def fill(text: str, values: Mapping[str, str], key: str | None = None) -> str:
    """`{port}` -> its value; `{{port}}` -> `{port}` literally. With `key`, an unknown `{name}` is a UserError that names it, and `{{name}}` is
    `{name}`; else both stay.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name in values or (key is not None and found[1]):
            return "{" + name + "}" if found[1] else values[name]
        if key is not None:
            raise UserError(
                f"{key}: {found[0]} is not known; there are {', '.join('{' + name + '}' for name in values)} ({{{{x}}}} for a literal)"
            )
        return found[0]

    return _NAMED.sub(value, text)


def fill_args(args: Args, values: Mapping[str, str], key: str | None = None) -> Args:
    """`fill` for every text of `args`, at any depth."""

    def deep(value: Any) -> Any:
        if isinstance(value, str):
            return fill(value, values, key)
        if isinstance(value, Mapping):
            return {name: deep(item) for name, item in value.items()}
        return type(value)(deep(item) for item in value) if isinstance(value, list | tuple) else value

    out: Args = deep(args)
    return out


def shell_line(launch: Launch, cwd: str | None = None) -> str:
    """The launch as one line for sh: folder, variables, words. It starts the same words when pasted; files of the launch are not in it."""
    where = cwd or launch.cwd
    variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(launch.env.items())]
    line = " ".join([*variables, shlex.join(launch.argv)])
    return f"cd {shlex.quote(where)} && {line}" if where else line
