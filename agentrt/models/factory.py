"""One model object for each (id, base URL, key), since each has an HTTP client of its own."""

from __future__ import annotations

import os

from agentrt.models.names import Access, access, parse
from agentrt.models.provider import ProviderModel


class ProviderModels:
    """The port ``ModelFactory``: gives the model for ``"provider:name"``, checked, and always the same one."""

    def __init__(self) -> None:
        self._models: dict[tuple[str, Access], ProviderModel] = {}

    def __call__(self, name: str) -> ProviderModel:
        """The model for ``name``; its key and base URL are those of the environment just now.

        Raises:
            ConfigurationError: it cannot be used here; the message says what is missing.
        """
        parsed = parse(name)
        found = access(parsed, os.environ, key=None, url=None)
        known = self._models.get((name, found))
        if known is not None:
            return known
        model = ProviderModel(name, api_key=found.key, base_url=found.url)
        model.check()
        return self._models.setdefault((name, found), model)

    async def close(self) -> None:
        """Close the connections to all providers."""
        for model in self._models.values():
            await model.close()


def model_factory() -> ProviderModels:
    """The models of the providers."""
    return ProviderModels()
