"""SimSpec <-> command line, field by field: `--max-num-seqs 64`, `--no-enable-prefix-caching`, `--fault crash,after=5`."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from loadcell.errors import UserError
from loadcell.sim.spec import SimSpec


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UserError(message)


def flag(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def described_fields() -> list[tuple[str, Any, Any, str]]:
    """(name, type, default, help) of each field, in order."""
    out = []
    hints = get_type_hints(SimSpec, include_extras=True)
    for field in msgspec.structs.fields(SimSpec):
        plain, meta = get_args(hints[field.name])[:2]
        out.append((field.name, plain, field.default, str(meta.description)))
    return out


def parser() -> argparse.ArgumentParser:
    out = _Parser(
        prog="loadcell simulate", description="A simulated LLM inference engine with an OpenAI-compatible API.", allow_abbrev=False
    )
    for name, plain, default, text in described_fields():
        options: dict[str, Any] = {"default": default, "help": f"{text} (default: {default})" if default not in (None, ()) else text}
        if plain is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif plain == tuple[str, ...]:
            options |= {"action": "extend", "nargs": "+", "default": None}
        elif get_origin(plain) is Literal:
            options["choices"] = get_args(plain)
        else:
            options["type"] = next(kind for kind in (plain, *get_args(plain)) if kind in (int, float, str))
        out.add_argument(flag(name), **options)
    return out


def spec_from_argv(argv: Sequence[str]) -> SimSpec:
    """Raises UserError for what cannot be used; `--help` prints and leaves."""
    return spec_from_values(vars(parser().parse_args(argv)))


def spec_from_values(values: Mapping[str, Any]) -> SimSpec:
    """Field name -> value as a command line gives it (lists for what repeats)."""
    fields = {name: tuple(values[name] or ()) if plain == tuple[str, ...] else values[name] for name, plain, _, _ in described_fields()}
    return msgspec.convert(fields, SimSpec)


def argv_from_spec(spec: SimSpec) -> list[str]:
    """The flags that make `spec`: those that differ from the defaults."""
    argv: list[str] = []
    for name, plain, default, _ in described_fields():
        value = getattr(spec, name)
        if value == default:
            continue
        if plain is bool:
            argv.append(flag(name) if value else flag("no_" + name))
        else:
            argv += [f"{flag(name)}={item}" for item in (value if isinstance(value, tuple) else (value,))]
    return argv
