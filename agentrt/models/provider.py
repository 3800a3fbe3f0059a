"""A provider's model by name. Nothing of the provider is imported before a model is checked, warmed or asked."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentrt.core.transcript import ModelIdentity
from agentrt.models import names
from agentrt.ports import ModelAnswer, ModelRequest

if TYPE_CHECKING:
    from agentrt.models.adapter import Adapter


class ProviderModel:
    """A model such as ``"openai:gpt-5"`` (Responses), ``"openai-chat:gpt-5"`` or ``"anthropic:claude-opus-5-5"``.

    Any other provider that pydantic-ai names works too, untested. Belongs to the event loop that first uses it.

    Args:
        name: ``"provider:name"``.
        api_key: in place of the provider's usual environment variable.
        base_url: in place of the provider's usual environment variable, or its usual address.

    Raises:
        ConfigurationError: ``name`` is not of that form.
    """

    def __init__(self, name: str, *, api_key: str | None = None, base_url: str | None = None) -> None:
        self._name = names.parse(name)
        self._api_key = api_key
        self._base_url = base_url
        self._adapter: Adapter | None = None
        self._building = threading.Lock()

    def __repr__(self) -> str:
        return f"ProviderModel('{self._name}')"

    @property
    def identity(self) -> ModelIdentity:
        return self._name.identity

    @property
    def context_window(self) -> int | None:
        return self._built().context_window

    def check(self) -> None:
        """See whether the model can be used here; cheap for the providers that agentrt is tested with.

        Raises:
            ConfigurationError: unknown provider, or an extra, a key or a sound base URL is missing.
        """
        self._access()
        if self._name.api is None:
            self._built()

    def warm(self) -> None:
        """Import and build what the first request would; may run in any thread."""
        self._built()

    async def request(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelAnswer:
        adapter = self._adapter
        if adapter is None:
            adapter = await asyncio.to_thread(self._built)
        return await adapter.request(request, on_text)

    async def close(self) -> None:
        """Close the connections to the provider."""
        if self._adapter is not None:
            await self._adapter.close()

    def _built(self) -> Adapter:
        with self._building:
            if self._adapter is None:
                access = self._access()
                from agentrt.models.building import build

                self._adapter = build(self._name, access)
            return self._adapter

    def _access(self) -> names.Access:
        return names.access(self._name, os.environ, key=self._api_key, url=self._base_url)
