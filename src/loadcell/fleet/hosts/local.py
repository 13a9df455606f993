"""This machine: the agent's functions called directly."""

from typing import Any

from loadcell.errors import LoadcellError
from loadcell.fleet.hosts import agent
from loadcell.fleet.hosts.agent_host import AgentHost, AgentRefusal


class InProcess:
    """`agent_host.Connection` to the agent in this process; what it does ends by its own limits."""

    def call(self, name: str, values: dict[str, Any], timeout_s: float) -> Any:  # noqa: ARG002
        try:
            return agent.CALLS[name](**values)
        except LoadcellError:
            raise
        except agent.Refusal as error:
            raise AgentRefusal(str(error)) from None
        except OSError as error:
            raise AgentRefusal(f"{name}: {error}") from error

    def close(self) -> None:
        """There is nothing to let go of."""


class LocalHost(AgentHost):
    """The machine that loadcell runs on."""

    def __init__(self, name: str = "local", address: str = "127.0.0.1") -> None:
        super().__init__(name, address, InProcess())
