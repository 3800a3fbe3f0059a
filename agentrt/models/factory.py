"""One model object for each (id, base URL, key), since each has an HTTP client of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress

from agentrt.core.errors import ConfigurationError
from agentrt.models.names import Access, access, parse
from agentrt.models.provider import ProviderModel


class ProviderModels:
    """The port ``ModelFactory``: gives the model for ``"provider:name"``, checked, and always the same one."""

    def __init__(self) -> None:
        self._models: dict[tuple[str, Access], ProviderModel] = {}
        self._given: list[ProviderModel] = []

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

    def check(self, model: object) -> None:
        """See whether an agent's model, a name or an object, can be used here, and keep it for ``warm``.

        Raises:
            ConfigurationError: it cannot; the message says what is missing.
        """
        if isinstance(model, str):
            self(model)
        elif isinstance(model, ProviderModel):
            model.check()
            self._given.append(model)

    def warm(self) -> None:
        """Import and build in a thread what the first requests would wait for; nothing without models of providers."""
        models = [*self._models.values(), *self._given]
        if models:
            threading.Thread(target=_warm, args=(models,), name="agentrt-models", daemon=True).start()

    async def close(self) -> None:
        """Close the connections to all providers."""
        for model in (*self._models.values(), *self._given):
            await model.close()


def _warm(models: Sequence[ProviderModel]) -> None:
    for model in models:
        with suppress(ConfigurationError):  # whoever asks the model is told
            model.warm()
