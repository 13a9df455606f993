"""Engines under test, one small file each: from a specification to the words that start a replica. Pure."""

from typing import Final

from loadcell.fleet.engines.command import Command
from loadcell.fleet.engines.engine import Engine
from loadcell.fleet.engines.mindie import Mindie
from loadcell.fleet.engines.sglang import Sglang
from loadcell.fleet.engines.simulated import Simulated
from loadcell.fleet.engines.vllm import Vllm
from loadcell.fleet.spec import EngineName

ENGINES: Final[dict[EngineName, Engine]] = {
    "vllm": Vllm(),
    "sglang": Sglang(),
    "mindie": Mindie(),
    "simulated": Simulated(),
    "command": Command(),
}
