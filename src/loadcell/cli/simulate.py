"""`loadcell simulate`: SimSpec's fields as a typer command."""

import inspect
from typing import Annotated, Any

import typer

from loadcell.sim.flags import described_fields, flag, spec_from_values

LISTS = tuple(flag(name) for name, plain, _, _ in described_fields() if plain == tuple[str, ...])


def simulate(**values: Any) -> None:
    """Serve a simulated inference engine with an OpenAI-compatible API, where no accelerator is.

    Flags that vLLM has keep its names. With --ttft-ms and --itl-ms the timing is fixed; else a model of continuous batching on the
    chosen --profile decides. See docs/simulate.md.
    """
    from loadcell.sim.process import run

    raise typer.Exit(run(spec_from_values(values)))


def _option(name: str, plain: Any, default: Any, text: str) -> inspect.Parameter:
    shown = text.replace("%%", "%")
    names = [f"{flag(name)}/{flag('no_' + name)}"] if plain is bool else [flag(name)]
    kind: Any = plain
    if plain == tuple[str, ...]:
        kind, default = list[str], []
    option = typer.Option(*names, help=shown, show_default=default not in (None, []))
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


_PARAMETERS = [_option(*described) for described in described_fields()]
simulate.__signature__ = inspect.Signature(_PARAMETERS)  # type: ignore[attr-defined]
simulate.__annotations__ = {parameter.name: parameter.annotation for parameter in _PARAMETERS}
