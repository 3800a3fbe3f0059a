"""The SDK layer without our adapter: what pydantic-ai itself sends to and makes of a provider."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.providers import Provider, infer_provider_class
from pydantic_ai.tools import ToolDefinition

from tests.strictprovider.conversation import WireFormat

MODELS = {
    WireFormat.OPENAI_CHAT: "openai-chat:gpt-5-mini",
    WireFormat.OPENAI_RESPONSES: "openai:gpt-5-mini",
    WireFormat.ANTHROPIC: "anthropic:claude-sonnet-5-5",
}
WEATHER = ToolDefinition(
    name="weather",
    description="The weather in a city.",
    parameters_json_schema={"type": "object", "properties": {"city": {"type": "string"}}},
)


@dataclass(frozen=True, slots=True)
class Direct:
    """Asks one model of a provider."""

    model: Model

    async def ask(self, *messages: ModelMessage, **settings: Any) -> ModelResponse:
        wanted: Any = {"max_retries": 0, **settings}
        async with model_request_stream(
            self.model,
            list(messages),
            model_settings=wanted,
            model_request_parameters=ModelRequestParameters(function_tools=[WEATHER]),
        ) as stream:
            async for _ in stream:
                pass
            return stream.get()


class Endpoint(Protocol):
    """A provider by its base URLs: ours, in this process or another, or llmock."""

    @property
    def openai_url(self) -> str: ...

    @property
    def anthropic_url(self) -> str: ...


@asynccontextmanager
async def direct(provider: Endpoint, wire_format: WireFormat, *, name: str | None = None) -> AsyncIterator[Direct]:
    url = provider.anthropic_url if wire_format is WireFormat.ANTHROPIC else provider.openai_url

    def at_the_fake(provider_name: str) -> Provider[Any]:
        provider_class: Any = infer_provider_class(provider_name)
        made: Provider[Any] = provider_class(api_key="key", base_url=url)
        return made

    model: Any = infer_model(name or MODELS[wire_format], provider_factory=at_the_fake)
    try:
        yield Direct(model)
    finally:
        await model.client.close()


def user(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)])


def renamed(answer: ModelResponse, *call_ids: str) -> ModelResponse:
    """The answer with our wire ids in the place of the provider's."""
    left = iter(call_ids)
    return replace(
        answer,
        parts=[
            replace(part, tool_call_id=next(left)) if isinstance(part, ToolCallPart) else part for part in answer.parts
        ],
    )


def results(answer: ModelResponse, texts: Sequence[str]) -> ModelRequest:
    """One result for each call of the answer."""
    return ModelRequest(
        parts=[
            ToolReturnPart(call.tool_name, text, call.tool_call_id)
            for call, text in zip(answer.tool_calls, texts, strict=True)
        ]
    )
