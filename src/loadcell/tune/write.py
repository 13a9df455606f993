"""StudySpec -> the TOML text that reads as the same study. Pure. What has its default is left out; so is what the engine adds by itself."""

from collections.abc import Mapping
from typing import Any

import msgspec
import tomli_w
from msgspec import Struct

from loadcell.tune.parameters import Parameter
from loadcell.tune.spec import StudySpec

_ORDER = ("study", "fleet", "bench", "load", "slo", "objective", "parameter", "constraint", "warmup", "trial", "benchmark", "fitness")


def to_toml(spec: StudySpec, head: str = "") -> str:
    """`head`: lines that come first, as comments. Parameters that an engine offered stand as they are: the text needs no adapter to read it."""
    study = msgspec.structs.replace(spec.study, parameters=None, leave=())
    tree: dict[str, Any] = {}
    for key in _ORDER:
        value = study if key == "study" else getattr(spec, key)
        if key == "parameter":
            made: Any = [_parameter(one) for one in spec.parameter]
        else:
            made = plain(value)
        if made or (made == {} and key in ("fleet", "fitness")):
            tree[key] = made
    comment = "".join(f"# {line}".rstrip() + "\n" for line in head.splitlines())
    return comment + ("\n" if comment else "") + tomli_w.dumps(tree)


def _parameter(one: Parameter) -> dict[str, Any]:
    """A row: the place's keys stand beside the others."""
    row = plain(one)
    row.pop("place", None)
    where = plain(one.place)
    return {"name": row.pop("name"), "kind": row.pop("kind"), **where, **{key: _whole(value) for key, value in row.items()}}


def _whole(value: Any) -> Any:
    """4096 and not 4096.0, wherever a number is one."""
    if isinstance(value, float) and value == int(value) and abs(value) < 2**53:
        return int(value)
    return [_whole(item) for item in value] if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """Structs as tables without what has its default, tuples as lists; nothing that is null."""
    if isinstance(value, Struct):
        out = {}
        for field in msgspec.structs.fields(type(value)):
            here = getattr(value, field.name)
            default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
            if here is None or (default is not msgspec.NODEFAULT and here == default and type(here) is type(default)):
                continue
            out[field.name] = plain(here)
        return out
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items() if item is not None}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
