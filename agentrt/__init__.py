"""Durable LLM agent sessions in Postgres."""

TYPE_CHECKING = False  # `typing` is imported by others, later: a signal may come while this is imported
if TYPE_CHECKING:  # at run time each name is imported when it is first used, so that the command line starts fast
    from agentrt.agents import (
        Agent,
        Done,
        Limits,
        NotDone,
        NotExecuted,
        ToolContext,
        ToolError,
        Unknown,
        tool,
    )
    from agentrt.app import connect
    from agentrt.client import Client
    from agentrt.core import errors
    from agentrt.models.provider import ProviderModel

__all__ = [
    "Agent",
    "Client",
    "Done",
    "Limits",
    "NotDone",
    "NotExecuted",
    "ProviderModel",
    "ToolContext",
    "ToolError",
    "Unknown",
    "connect",
    "errors",
    "tool",
]

_PLACES = {
    "Client": "agentrt.client",
    "ProviderModel": "agentrt.models.provider",
    "connect": "agentrt.app",
    "errors": "agentrt.core.errors",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("agentrt")
    if name not in __all__:
        raise AttributeError(f"module 'agentrt' has no attribute {name!r}")
    from importlib import import_module

    place = import_module(_PLACES.get(name, "agentrt.agents"))
    value: object = place if name == "errors" else getattr(place, name)
    globals()[name] = value
    return value
