"""From a name to an adapter: the one place that knows how the providers' layer makes models."""

from __future__ import annotations

from typing import Any

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, create_async_httpx2_client, infer_model
from pydantic_ai.providers import Provider, infer_provider_class

from agentrt.core.errors import ConfigurationError
from agentrt.models.adapter import Adapter
from agentrt.models.exchange import look_at
from agentrt.models.names import Access, ModelName, missing_extra


def build(name: ModelName, access: Access) -> Adapter:
    """The adapter for one model.

    Raises:
        ConfigurationError: unknown provider or model, or a missing package or key.
    """
    client = create_async_httpx2_client() if name.api is not None else None
    if client is not None:
        client.event_hooks["response"] = [look_at]

    def provider(provider_name: str) -> Provider[Any]:
        given = {"api_key": access.key, "base_url": access.url, "http_client": client}
        provider_class: Any = infer_provider_class(provider_name)
        made: Provider[Any] = provider_class(**{key: value for key, value in given.items() if value is not None})
        return made

    return Adapter(_model(name, provider), name, client)


def _model(name: ModelName, provider: Any) -> Model[Any]:
    try:
        return infer_model(str(name), provider_factory=provider)
    except ImportError as error:
        raise missing_extra(name, _missing_module(error)) from error
    except (UserError, ValueError, TypeError) as error:
        words = str(error).split("\n", 1)[0]
        raise ConfigurationError(
            f"model '{name}' cannot be used: {words}; agentrt is tested with the providers openai, openai-chat and "
            "anthropic, and takes the others that pydantic-ai names (https://ai.pydantic.dev/models/overview/)"
        ) from error


def _missing_module(error: ImportError) -> str:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__
    return (cause.name if isinstance(cause, ModuleNotFoundError) else None) or ""
