"""Durable LLM agent sessions in Postgres."""

from importlib.metadata import version as _version


def __getattr__(name: str) -> str:
    if name == "__version__":
        return _version("agentrt")
    raise AttributeError(f"module 'agentrt' has no attribute {name!r}")
