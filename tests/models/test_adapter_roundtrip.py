"""Our blocks on the way out and back, in each format, past a provider that refuses what real ones refuse."""

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai.messages import (
    ModelResponse,
    ModelResponsePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    TextPart,
    ToolCallPart,
)

from agentrt.core.codec import decode, encode
from agentrt.core.content import File, Image, Text, Thinking, ToolCall
from agentrt.core.journal import AssistantMessage, ToolOutcome
from agentrt.core.session import CallId
from agentrt.core.storable import storable
from agentrt.core.transcript import ModelIdentity, ModelOutput, Result, ToolResults
from agentrt.models.opaque import restored, taken_apart
from agentrt.ports import ModelAnswer
from tests.models.adapters import USER, asking, committed, in_every_format, results, user
from tests.strictprovider.conversation import AssistantMessage as AskedAssistant
from tests.strictprovider.conversation import Media, ToolMessage, WireFormat
from tests.strictprovider.conversation import UserMessage as AskedByUser
from tests.strictprovider.script import Answer, Call, ModelRequest, Reply, Say, ServerTool, Stop, Think, say
from tests.strictprovider.server import StrictProvider

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n not quite an image").decode()
PAGE = base64.b64encode(b"%PDF-1.4 not quite a page").decode()
TWO_CALLS = (Call("weather", {"city": "Oslo"}), Call("weather", {"city": "Rome"}))


def weather(*before: Say | Think) -> Any:
    """Two calls, then a sentence made of their results."""

    def script(request: ModelRequest) -> Reply:
        if request.tool_results:
            return say("; ".join(f"{result.call_id}={result.text}" for result in request.tool_results))
        return Answer((*before, *TWO_CALLS))

    return script


def journaled(answer: ModelAnswer) -> ModelAnswer:
    """The answer as it comes back out of the database: through our JSON, with keys in another order."""
    entry = AssistantMessage(content=answer.content, model=answer.model, provider=answer.provider)
    stored = json.loads(json.dumps(storable(encode(entry)), sort_keys=True))
    read = decode("assistant_message", stored, seq=4)
    assert isinstance(read, AssistantMessage)
    return replace(answer, content=read.content, provider=read.provider)


@in_every_format
async def test_a_conversation_with_thinking_text_and_calls_is_accepted_turn_after_turn(
    wire_format: WireFormat,
) -> None:
    script = weather(Think("They want the weather."), Say("Let me see."))
    async with StrictProvider(script) as provider, asking(provider, wire_format) as asked:
        first = journaled(await asked.ask())
        assert [type(block) for block in first.content] == [Thinking, Text, ToolCall, ToolCall]
        output = committed(first, 4)
        second = await asked.ask(USER, output, results(output, "rain", "sun"))
        last = committed(journaled(second), 7)
        await asked.ask(USER, output, results(output, "rain", "sun"), last, user("and tomorrow?", seq=8))
    assert second.content == (Text("000004002=rain; 000004003=sun"),)
    assert provider.violations == []


@in_every_format
async def test_each_request_begins_with_the_bytes_of_the_one_before_and_is_cached(wire_format: WireFormat) -> None:
    question = user("weather? " * 60)
    async with StrictProvider(weather()) as provider, asking(provider, wire_format) as asked:
        first = await asked.ask(question)
        output = committed(first, 4)
        second = await asked.ask(question, output, results(output, "rain", "sun"))
    assert first.usage.cache_read_tokens == 0
    assert second.usage.cache_read_tokens > 100
    assert second.usage.input_tokens > second.usage.cache_read_tokens


@in_every_format
async def test_repeating_a_request_sends_the_same_bytes(wire_format: WireFormat) -> None:
    async with StrictProvider(weather(Think("Hm."))) as provider, asking(provider, wire_format) as asked:
        output = committed(await asked.ask(), 4)
        for _ in range(2):
            await asked.ask(USER, output, results(output, "rain", "sun"))
    bodies = [json.dumps(request.raw) for request in provider.requests]
    assert bodies[1] == bodies[2]
    assert bodies[0] != bodies[1]


@in_every_format
async def test_images_and_files_arrive_by_url_and_as_bytes(wire_format: WireFormat) -> None:
    message = user(
        "Look:",
        Image(url="https://example.com/a.png"),
        Image(media_type="image/png", base64=PIXEL),
        File(media_type="application/pdf", base64=PAGE),
    )
    async with StrictProvider() as provider, asking(provider, wire_format) as asked:
        await asked.ask(message)
    [request] = provider.requests
    [sent] = request.messages
    assert isinstance(sent, AskedByUser)
    sources = [block.source for block in sent.blocks if isinstance(block, Media)]
    assert sent.text == "Look:"
    assert [source.rpartition(",")[2] for source in sources] == ["https://example.com/a.png", PIXEL, PAGE]


async def test_files_by_url_are_left_to_the_provider_where_it_takes_them() -> None:
    message = user("Read:", File(media_type="application/pdf", url="https://example.com/a.pdf"))
    async with StrictProvider() as provider, asking(provider, WireFormat.ANTHROPIC) as asked:
        await asked.ask(message)
    [request] = provider.requests
    assert "https://example.com/a.pdf" in json.dumps(request.raw)


@in_every_format
async def test_a_file_whose_base64_is_broken_is_shown_as_such(wire_format: WireFormat) -> None:
    async with StrictProvider() as provider, asking(provider, wire_format) as asked:
        answer = await asked.ask(user("Look:", Image(base64="%%%")))
    assert answer.content == (Text("You said: Look:(A file that cannot be read: its base64 is broken.)"),)


@in_every_format
async def test_results_and_the_messages_behind_them_arrive_in_order(wire_format: WireFormat) -> None:
    async with StrictProvider(weather()) as provider, asking(provider, wire_format) as asked:
        output = committed(await asked.ask(), 4)
        await asked.ask(USER, output, results(output, "rain", "sun"), user("hurry", seq=5), user("please", seq=6))
    sent = provider.requests[-1].messages
    batch = sent[2]
    assert isinstance(batch, ToolMessage)
    assert [(result.call_id, result.text) for result in batch.results] == [
        ("000004000", "rain"),
        ("000004001", "sun"),
    ]
    assert "".join(message.text for message in sent[3:] if isinstance(message, AskedByUser)) == "hurryplease"
    assert provider.violations == []


async def test_anthropic_is_told_which_results_are_errors() -> None:
    async with StrictProvider(weather()) as provider, asking(provider, WireFormat.ANTHROPIC) as asked:
        output = committed(await asked.ask(), 4)
        calls = [block.call_id for block in output.content if isinstance(block, ToolCall)]
        outcomes = zip(calls, (ToolOutcome.OK, ToolOutcome.TIMEOUT), strict=True)
        batch = ToolResults(tuple(Result(call, "weather", "words", outcome) for call, outcome in outcomes))
        await asked.ask(USER, output, batch)
    sent = provider.requests[-1].messages[2]
    assert isinstance(sent, ToolMessage)
    assert [result.is_error for result in sent.results] == [False, True]


async def test_a_paused_answer_goes_back_whole_as_the_last_message() -> None:
    def script(request: ModelRequest) -> Reply:
        if request.answers:
            return say("found it")
        return Answer((Think("Search."), Say("Searching."), ServerTool("oslo", finished=False)), Stop.PAUSED)

    async with StrictProvider(script) as provider, asking(provider, WireFormat.ANTHROPIC) as asked:
        paused = committed(journaled(await asked.ask()), 4)
        answer = await asked.ask(USER, paused)
        await asked.ask(USER, paused, committed(answer, 5), user("thanks", seq=6))
    assert answer.content == (Text("found it"),)
    assert provider.violations == []


async def test_a_result_of_a_tool_that_nobody_asked_the_provider_to_run_is_left_out() -> None:
    def script(request: ModelRequest) -> Reply:
        return say("ok") if request.answers else Answer((Say("Searching."), ServerTool("oslo"), Say("Found.")))

    async with StrictProvider(script) as provider, asking(provider, WireFormat.ANTHROPIC) as asked:
        answer = journaled(await asked.ask())
        assert answer.content == (Text("Searching."), Text("Found."))
        await asked.ask(USER, committed(answer, 4), user("thanks", seq=5))
    sent = provider.requests[-1].messages[1]
    assert isinstance(sent, AskedAssistant)
    assert [type(block).__name__ for block in sent.blocks] == ["Text", "Text"]
    assert provider.violations == []


def test_what_the_provider_ran_itself_keeps_its_place() -> None:
    identity = ModelIdentity("anthropic", "anthropic", "claude")
    parts: list[ModelResponsePart] = [
        TextPart("Searching."),
        NativeToolCallPart("web_search", {"query": "oslo"}, "srvtoolu_1", provider_name="anthropic"),
        NativeToolReturnPart("web_search", [{"url": "https://example.com"}], "srvtoolu_1", provider_name="anthropic"),
        TextPart("Found."),
        ToolCallPart("weather", "{}", "toolu_1"),
    ]
    content, opaque = taken_apart(ModelResponse(parts=parts), identity)
    assert content == (Text("Searching."), Text("Found."), ToolCall("weather", "{}"))
    view = ModelOutput((content[0], content[1], ToolCall("weather", "{}", CallId("000004002"))), provider=opaque)
    back = restored(view, identity).parts
    assert [part.part_kind for part in back] == [part.part_kind for part in parts]
    assert isinstance(back[1], NativeToolCallPart)
    assert back[1].args == {"query": "oslo"}
    assert isinstance(back[2], NativeToolReturnPart)
    assert back[2].content == [{"url": "https://example.com"}]
    assert isinstance(back[4], ToolCallPart)
    assert back[4].tool_call_id == "000004002"


@in_every_format
async def test_text_behind_a_call_is_accepted_on_the_way_back(wire_format: WireFormat) -> None:
    def script(request: ModelRequest) -> Reply:
        return say("ok") if request.answers else Answer((*TWO_CALLS, Say("One moment.")))

    async with StrictProvider(script) as provider, asking(provider, wire_format) as asked:
        output = committed(await asked.ask(), 4)
        await asked.ask(USER, output, results(output, "rain", "sun"))
    assert provider.violations == []


@in_every_format
async def test_repeated_and_empty_call_ids_of_the_provider_do_no_harm(wire_format: WireFormat) -> None:
    def script(request: ModelRequest) -> Reply:
        if len(request.answers) == 2:
            return say("ok")
        return Answer(tuple(replace(call, call_id="same") for call in TWO_CALLS))

    async with StrictProvider(script) as provider, asking(provider, wire_format) as asked:
        first = committed(await asked.ask(), 4)
        second = committed(await asked.ask(USER, first, results(first, "rain", "sun")), 7)
        before = (USER, first, results(first, "rain", "sun"), second, results(second, "rain", "sun"))
        answer = await asked.ask(*before)
    assert [block.call_id for block in (*first.content, *second.content) if isinstance(block, ToolCall)] == [
        CallId(wire_id) for wire_id in ("000004000", "000004001", "000007000", "000007001")
    ]
    assert answer.content == (Text("ok"),)
    assert provider.violations == []


@in_every_format
async def test_thinking_that_came_without_a_signature_is_left_out_with_the_ids_it_belongs_to(
    wire_format: WireFormat,
) -> None:
    """F34."""

    def script(request: ModelRequest) -> Reply:
        return say("ok") if request.answers else Answer((Think("Hm.", signed=False), *TWO_CALLS))

    async with StrictProvider(script) as provider, asking(provider, wire_format) as asked:
        output = committed(journaled(await asked.ask()), 4)
        assert isinstance(output.content[0], Thinking)
        await asked.ask(USER, output, results(output, "rain", "sun"))
    assert provider.violations == []


@in_every_format
@pytest.mark.parametrize("opaque", [{"parts": "nonsense"}, {"parts": ["{", "[1]", 7], "response": "}"}, {}])
async def test_an_opaque_object_that_cannot_be_read_costs_no_text_and_no_call(
    wire_format: WireFormat, opaque: dict[str, Any]
) -> None:
    async with StrictProvider(weather(Say("Let me see."))) as provider, asking(provider, wire_format) as asked:
        output = replace(committed(await asked.ask(), 4), provider=opaque)
        await asked.ask(USER, output, results(output, "rain", "sun"))
    assert provider.violations == []


@in_every_format
async def test_text_is_told_while_it_streams(wire_format: WireFormat) -> None:
    async with (
        StrictProvider(lambda _: say("one two three", pieces=3)) as provider,
        asking(provider, wire_format) as asked,
    ):
        await asked.ask()
    assert len(asked.heard) >= 3
    assert "".join(asked.heard) == "one two three"
