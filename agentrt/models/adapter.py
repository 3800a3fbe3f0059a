"""One model of the providers' layer behind our port: a streamed call, its answer, or the error in our classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import httpx2
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from agentrt.core.journal import Usage
from agentrt.models.exchange import UNDER_WAY, Exchange
from agentrt.models.faults import model_error
from agentrt.models.incoming import answer_of, cost_of, usage_of
from agentrt.models.names import ModelName
from agentrt.models.outgoing import layer_messages
from agentrt.ports import ModelAnswer, ModelError, ModelRequest, ToolSpec


class Adapter:
    """Asks one model. ``client`` is the HTTP client that was made for it, if one was."""

    def __init__(self, model: Model[Any], name: ModelName, client: httpx2.AsyncClient | None) -> None:
        self._model = model
        self._identity = name.identity
        self._client = client

    @property
    def context_window(self) -> int | None:
        """In tokens; None when unknown."""
        return self._model.context_window

    async def request(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelAnswer:
        """Stream one answer, and give each piece of its text to ``on_text``.

        Raises:
            ModelError: there was no whole answer.
        """
        stream: StreamedResponse | None = None
        exchange = Exchange()
        under_way = UNDER_WAY.set(exchange)
        try:
            async with model_request_stream(
                self._model,
                layer_messages(request.messages, self._identity, instructions=request.instructions),
                model_settings=self._settings(request),
                model_request_parameters=ModelRequestParameters(function_tools=[_definition(t) for t in request.tools]),
            ) as stream:
                async for event in stream:
                    if text := _text_of(event):
                        on_text(text)
            return answer_of(stream.get(), self._identity)
        except ModelError:
            raise
        except Exception as error:  # the providers' layer, and whatever a provider makes it stumble over
            usage, cost = _burnt(stream)
            answering = exchange.answering or stream is not None
            raise model_error(error, answering=answering, usage=usage, cost=cost) from error
        finally:
            UNDER_WAY.reset(under_way)

    async def close(self) -> None:
        """Close the HTTP client that was made for this model."""
        if self._client is not None:
            await self._client.aclose()

    def _settings(self, request: ModelRequest) -> ModelSettings:
        """Our limits and no retries but ours; a setting that the provider's SDK has no place for is left out."""
        wanted: dict[str, Any] = {
            "max_retries": 0,
            "timeout": request.limits.idle_seconds,
            "first_event_timeout": request.limits.first_event_seconds,
            "request_timeout": request.limits.call_seconds,
            "cache": True,
            **request.settings,
        }
        unsupported = self._model.unsupported_settings
        return cast(ModelSettings, {name: value for name, value in wanted.items() if name not in unsupported})


def _definition(tool: ToolSpec) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name, description=tool.description or None, parameters_json_schema=dict(tool.parameters)
    )


def _text_of(event: ModelResponseStreamEvent) -> str:
    match event:
        case PartStartEvent(part=TextPart(content=str(text))):
            return text
        case PartDeltaEvent(delta=TextPartDelta(content_delta=str(text))):
            return text
        case _:
            return ""


def _burnt(stream: StreamedResponse | None) -> tuple[Usage | None, float | None]:
    """The tokens and the cost of a call that failed, as far as the provider told them before."""
    if stream is None:
        return None, None
    try:
        response: ModelResponse = stream.get()
        usage = usage_of(response.usage)
    except Exception:  # noqa: BLE001 - the same layer, on what it has just stumbled over
        return None, None
    return (usage, cost_of(response)) if usage != Usage() else (None, None)
