"""Any program that serves an OpenAI-compatible API: `fleet.command` is its argv, with placeholders; nothing is known of it.

`{port} {host} {address} {model} {devices} {name} {index} {rank} {folder}` are replaced in every word; another `{word}` is refused, `{{word}}` is
a literal one. What stands in `fleet.args` follows the command. No shell: `~`, `$X` and `|` are characters.
"""

from typing import Literal

from loadcell.errors import UserError
from loadcell.fleet.command_line import fill, fill_args, words
from loadcell.fleet.engines.words import ARGPARSE, DRIVER, MODEL_HUB, PORT_TAKEN, PYDANTIC, TORCH_OUT_OF_MEMORY
from loadcell.fleet.naming import local_path, placeholders
from loadcell.fleet.spec import FleetSpec, Launch, LogPattern, Replica, Tunable


class Command:
    name = "command"
    health_path = "/health"
    patterns: tuple[LogPattern, ...] = (*TORCH_OUT_OF_MEMORY, *PORT_TAKEN, *MODEL_HUB, *ARGPARSE, *PYDANTIC, *DRIVER)
    devices_by: Literal["variable", "config", "none"] = "variable"
    reads: tuple[str, ...] = ()

    def model_path(self, spec: FleetSpec) -> str | None:
        return local_path(spec.model)

    def check(self, spec: FleetSpec) -> None:
        if not spec.command:
            raise UserError('fleet.command is missing: the program and its words, as in command = ["./serve", "--port", "{port}"]')
        if spec.executable is not None:
            raise UserError('fleet.executable is not for engine "command": the program is the first word of fleet.command')
        if spec.config or spec.config_file:
            raise UserError('fleet.config and config_file are for engine "mindie"')
        if not any("{port}" in word for word in (*spec.command, *map(str, _texts(spec.args)), *spec.env.values())):
            raise UserError("fleet.command does not say {port}: every replica needs a port of its own, and would not get it")

    def devices_needed(self, spec: FleetSpec) -> int | None:  # noqa: ARG002 - nothing is known of the program
        return None

    def launch(self, spec: FleetSpec, replica: Replica) -> Launch:
        values = placeholders(spec, replica)
        command = tuple(fill(word, values, f"fleet.command[{index}]") for index, word in enumerate(spec.command))
        return Launch((*command, *words(fill_args(spec.args, values, "fleet.args"))))

    def tunables(self) -> tuple[Tunable, ...]:
        return ()


def _texts(args: object) -> list[object]:
    return list(args.values()) if isinstance(args, dict) else list(args) if isinstance(args, list | tuple) else []
