"""Our adapter against a provider of the tests: requests without a worker, and workers without a process."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentrt.agents import Agent
from agentrt.core.content import Content, Text
from agentrt.core.journal import call_id
from agentrt.core.session import Seq
from agentrt.core.transcript import Message, ModelOutput, Result, ToolResults, UserInput
from agentrt.models.provider import ProviderModel
from agentrt.ports import ModelAnswer, ModelError, ModelLimits, ModelRequest, ToolSpec
from agentrt.settings import Settings
from agentrt.testing import LocalWorker, local_worker
from tests.models.direct import MODELS, Endpoint
from tests.strictprovider.conversation import WireFormat
from tests.strictprovider.script import Reply, Script
from tests.strictprovider.server import StrictProvider

in_every_format = pytest.mark.parametrize("wire_format", list(WireFormat))
WEATHER = ToolSpec(
    name="weather",
    description="The weather in a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
USER = UserInput((Text("weather?"),), Seq(2))


def model_at(provider: Endpoint, wire_format: WireFormat, name: str | None = None) -> ProviderModel:
    """A model of one format at a provider of the tests."""
    url = provider.anthropic_url if wire_format is WireFormat.ANTHROPIC else provider.openai_url
    return ProviderModel(name or MODELS[wire_format], api_key="key", base_url=url)


@dataclass(slots=True)
class Asked:
    """A model, and the text that it streamed."""

    model: ProviderModel
    heard: list[str] = field(default_factory=list)

    async def ask(self, *messages: Message, limits: ModelLimits | None = None, **settings: Any) -> ModelAnswer:
        """One request; without messages it is the question for the weather."""
        request = ModelRequest(
            instructions="Be brief.",
            messages=messages or (USER,),
            tools=(WEATHER,),
            limits=limits or ModelLimits(),
            settings=settings,
        )
        return await self.model.request(request, self.heard.append)


@asynccontextmanager
async def asking(provider: Endpoint, wire_format: WireFormat, name: str | None = None) -> AsyncIterator[Asked]:
    model = model_at(provider, wire_format, name)
    try:
        yield Asked(model)
    finally:
        await model.close()


async def one_answer(wire_format: WireFormat, reply: Reply) -> ModelAnswer:
    async with StrictProvider(lambda _: reply) as provider, asking(provider, wire_format) as asked:
        return await asked.ask()


async def one_error(wire_format: WireFormat, reply: Reply, *, limits: ModelLimits | None = None) -> ModelError:
    """What a reply that is no answer is mapped to."""
    async with StrictProvider(lambda _: reply) as provider, asking(provider, wire_format) as asked:
        with pytest.raises(ModelError) as raised:
            await asked.ask(limits=limits)
    return raised.value


def committed(answer: ModelAnswer, seq: int) -> ModelOutput:
    """The answer as the view shows it once it is in the journal: calls under our ids."""
    content = tuple(
        replace(block, call_id=call_id(seq, position)) if block.type == "tool_call" else block
        for position, block in enumerate(answer.content)
    )
    return ModelOutput(content, Seq(seq), answer.stop_reason, answer.provider, tuple(range(len(content))))


def results(output: ModelOutput, *texts: str) -> ToolResults:
    """One result for each call of the answer."""
    calls = [block for block in output.content if block.type == "tool_call"]
    given = [Result(call.call_id, call.tool, text) for call, text in zip(calls, texts, strict=True)]
    return ToolResults(tuple(given))


def user(*content: Any, seq: int = 2) -> UserInput:
    """A user message of texts and blocks."""
    blocks: Content = tuple(Text(block) if isinstance(block, str) else block for block in content)
    return UserInput(blocks, Seq(seq))


@asynccontextmanager
async def worker_at(
    provider: Endpoint,
    wire_format: WireFormat,
    database_url: str,
    *,
    tools: Iterable[Any] = (),
    name: str | None = None,
    **settings: Any,
) -> AsyncIterator[LocalWorker]:
    """A worker that serves the agent "assistant" with a model at the provider, and never waits between tries."""
    model = model_at(provider, wire_format, name)
    agent = Agent("assistant", model=model, instructions="Be brief.", tools=tools)
    chosen = Settings(database_url=database_url, **settings)
    try:
        async with local_worker(database_url, agent, settings=chosen) as worker:
            worker.deps = replace(worker.deps, random=lambda: 0.0)
            yield worker
    finally:
        await model.close()


@asynccontextmanager
async def served(
    script: Script, wire_format: WireFormat, database_url: str, **options: Any
) -> AsyncIterator[tuple[StrictProvider, LocalWorker]]:
    """A strict provider and a worker that asks it; the provider must have accepted every request in the end."""
    async with StrictProvider(script) as provider:
        async with worker_at(provider, wire_format, database_url, **options) as worker:
            yield provider, worker
        assert provider.violations == []
        assert provider.script_errors == []
