"""Answers that are not of the form of an answer: each is mapped to an error of ours, whatever the layer makes of it."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from agentrt import tool
from agentrt.core.content import File, Text, ToolCall
from agentrt.core.journal import Usage
from agentrt.ports import ModelAnswer, ModelError, ModelErrorClass
from tests.models.adapters import asking, in_every_format, one_answer, one_error, served, user
from tests.strictprovider.conversation import WireFormat
from tests.strictprovider.script import HttpReply, ModelRequest
from tests.strictprovider.server import StrictProvider

pytestmark = [  # what the layer says of odd figures
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings"),
    pytest.mark.filterwarnings("ignore:Failed to extract usage"),
]

CHAT, ANTHROPIC = WireFormat.OPENAI_CHAT, WireFormat.ANTHROPIC
DEEP = "[" * 100_000 + "]" * 100_000
NO_TEXTS: list[Any] = [None, 5, 1.5, True, [], ["a"], {"a": 1}]


def events(*data: Any) -> HttpReply:
    """A stream of these events; a text is sent as it is."""
    texts = [one if isinstance(one, str) else json.dumps(one) for one in data]
    return HttpReply(200, body="".join(f"data: {text}\n\n" for text in texts), content_type="text/event-stream")


def chunk(delta: Mapping[str, Any] | None = None, finish: Any = None, **fields: Any) -> dict[str, Any]:
    """One event of a chat stream."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **fields}


def chat(*between: Any, **fields: Any) -> HttpReply:
    """A chat answer that says "hi", with these events in it, and these fields in each of its own."""
    return events(chunk({"content": "hi"}, **fields), *between, chunk(finish="stop", **fields), "[DONE]")


def named(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


def anthropic(
    *, block: Any = None, delta: Any = None, message: Mapping[str, Any] | None = None, usage: Any = None
) -> HttpReply:
    """An answer of Anthropic's with one block; ``message`` are fields of its beginning."""
    begin = {
        "id": "m", "type": "message", "role": "assistant", "content": [], "model": "claude-sonnet-4-5",
        "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 5, "output_tokens": 1}, **(message or {}),
    }  # fmt: skip
    body = (
        named("message_start", message=begin)
        + named("content_block_start", index=0, content_block=block or {"type": "text", "text": ""})
        + named("content_block_delta", index=0, delta=delta or {"type": "text_delta", "text": "hi"})
        + named("content_block_stop", index=0)
        + named("message_delta", delta={"stop_reason": "end_turn"}, usage=usage or {"output_tokens": 3})
        + named("message_stop")
    )
    return HttpReply(200, body=body, content_type="text/event-stream")


async def assert_typed(wire_format: WireFormat, *replies: HttpReply) -> None:
    """Each is a whole answer with texts where texts belong, or an error after which the model is asked again."""
    left = iter(replies)
    async with StrictProvider(lambda _: next(left)) as provider, asking(provider, wire_format) as asked:
        for _ in replies:
            answer: ModelAnswer | ModelError
            try:
                answer = await asked.ask()
            except ModelError as error:
                answer = error
            if isinstance(answer, ModelError):
                assert answer.error_class is ModelErrorClass.TRANSIENT, answer.message
                continue
            for block in answer.content:
                parts = (block.tool, block.arguments) if isinstance(block, ToolCall) else (getattr(block, "text", ""),)
                assert all(isinstance(part, str) for part in parts)
        assert all(isinstance(text, str) for text in asked.heard)


@pytest.mark.parametrize("value", NO_TEXTS, ids=repr)
async def test_what_should_be_a_text_and_is_none_does_not_get_out_of_the_adapter(value: Any) -> None:
    """Anthropic: in a delta, at a block's beginning, in thinking, in a call, and in the name of the model."""
    call = {"type": "tool_use", "id": "t", "name": "weather", "input": {}}
    await assert_typed(
        ANTHROPIC,
        anthropic(delta={"type": "text_delta", "text": value}),
        anthropic(block={"type": "text", "text": value}),
        anthropic(block={"type": "thinking", "thinking": value, "signature": value}),
        anthropic(block={**call, "name": value}, delta={"type": "input_json_delta", "partial_json": "{}"}),
        anthropic(block={**call, "id": value}, delta={"type": "input_json_delta", "partial_json": "{}"}),
        anthropic(block=call, delta={"type": "input_json_delta", "partial_json": value}),
        anthropic(message={"model": value}),
        anthropic(message={"id": value}),
        anthropic(message={"usage": value}),
        anthropic(usage={"output_tokens": value}),
    )


@pytest.mark.parametrize("value", NO_TEXTS, ids=repr)
async def test_no_chat_stream_has_another_type_in_a_field_either(value: Any) -> None:
    function = {"name": "weather", "arguments": "{}"}
    deltas: list[Any] = [
        {"content": value},
        {"refusal": value},
        {"reasoning_content": value},
        {"tool_calls": value},
        {"tool_calls": [value]},
        {"tool_calls": [{"index": 0, "id": value, "type": "function", "function": function}]},
        {"tool_calls": [{"index": 0, "id": "t", "type": "function", "function": {**function, "name": value}}]},
        {"tool_calls": [{"index": 0, "id": "t", "type": "function", "function": {**function, "arguments": value}}]},
    ]
    await assert_typed(
        CHAT,
        *(events(chunk(delta), chunk(finish="stop"), "[DONE]") for delta in deltas),
        *(chat(**{field: value}) for field in ("id", "model", "created", "choices", "usage", "service_tier")),
        events(chunk({"content": "hi"}), chunk(finish=value), "[DONE]"),
    )


async def test_an_answer_with_a_strange_name_of_its_model_is_an_answer_without_a_cost() -> None:
    answer = await one_answer(ANTHROPIC, anthropic(message={"model": 5}))
    assert (answer.content, answer.cost) == ((Text("hi"),), None)


@pytest.mark.parametrize(
    "reply",
    [
        chat("[1]"),
        chat(DEEP),
        chat({**chunk(), "choices": [None]}),
        chat(chunk({"tool_calls": [None]})),
        chat(created=10**18),
        chat({**chunk(), "choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": "bad"}}]}),
        chat(usage="x"),
    ],
    ids=["list", "deep", "choice", "call", "created", "logprobs", "usage"],
)
async def test_a_stream_that_stumbles_over_its_form_is_asked_for_again(reply: HttpReply) -> None:
    """F13: the request was taken, so that it cannot have been what was wrong."""
    error = await one_error(CHAT, reply)
    assert (error.error_class, error.unreadable) == (ModelErrorClass.TRANSIENT, True)
    assert error.message.startswith("the provider's answer cannot be read: ")


async def test_so_is_a_stream_without_a_beginning() -> None:
    """F13, in Anthropic's form."""
    whole = anthropic()
    assert whole.body is not None
    for reply in (
        HttpReply(200, body=whole.body.partition("\n\n")[2], content_type=whole.content_type),
        anthropic(message={"usage": None}),
    ):
        error = await one_error(ANTHROPIC, reply)
        assert (error.error_class, error.unreadable) == (ModelErrorClass.TRANSIENT, True)


async def test_a_damaged_stream_says_what_it_burnt_all_the_same() -> None:
    error = await one_error(ANTHROPIC, anthropic(delta={"type": "text_delta", "text": None}))
    assert error.usage is not None
    assert error.usage.input_tokens == 5


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        ({"prompt_tokens": 12.0, "completion_tokens": 3.0, "total_tokens": 15.0}, (12, 3)),
        ({"prompt_tokens": 12, "completion_tokens": 3.5, "total_tokens": 15.5}, (12, 3)),
        ({"prompt_tokens": float("nan"), "completion_tokens": 3, "total_tokens": 15}, (0, 0)),  # none of it is read
    ],
)
async def test_fractions_of_tokens_cost_no_answer(told: Any, counted: tuple[int, int]) -> None:
    answer = await one_answer(CHAT, chat({**chunk(), "choices": [], "usage": told}))
    assert answer.content == (Text("hi"),)
    assert answer.usage == Usage(*counted)
    assert all(type(count) is int for count in (answer.usage.input_tokens, answer.usage.output_tokens))


@in_every_format
@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308])
async def test_a_redirect_says_that_the_configuration_is_wrong_and_where_it_leads(
    wire_format: WireFormat, status: int
) -> None:
    reply = HttpReply(status, headers={"location": "https://u:secret@elsewhere.example:444/v2?key=secret"})
    error = await one_error(wire_format, reply)
    assert error.error_class is ModelErrorClass.CONFIGURATION
    assert "http://127.0.0.1" in error.message
    assert (
        f"answered with a redirect ({status}) to https://elsewhere.example:444: the base URL is wrong" in error.message
    )
    assert "secret" not in error.message


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({}, "to nowhere (it has no Location)"),
        ({"location": "/v2/other"}, "to http://127.0.0.1"),
        ({"location": "http://elsewhere:port"}, "to a Location that is no URL"),
    ],
)
async def test_a_redirect_may_lead_anywhere(headers: dict[str, str], words: str) -> None:
    error = await one_error(CHAT, HttpReply(301, headers=headers))
    assert (error.error_class, words in error.message) == (ModelErrorClass.CONFIGURATION, True), error.message


async def test_one_answer_says_nothing_of_another_request_of_the_same_model() -> None:
    """Whether the provider has answered is known of each call by itself."""
    async with StrictProvider(lambda _: chat()) as provider, asking(provider, CHAT) as asked:
        await asked.ask()
        with pytest.raises(ModelError) as raised:
            await asked.ask(user("Look:", File(media_type="video/mp4", url="https://example.com/a.mp4")))
    assert raised.value.error_class is ModelErrorClass.REJECTED


@pytest.mark.one_server
async def test_a_character_that_is_cut_in_two_arrives_whole(database_url: str) -> None:
    """F1: each half in an event of its own, in text and in arguments; a lone half is replaced."""

    @tool(effect="read")
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"rain in {city}"

    def script(request: ModelRequest) -> HttpReply:
        if request.tool_results:
            said = request.tool_results[0].text
            return events(
                *(chunk({"content": text}) for text in (said, "\ud83d", "\ude00\ud83d")), chunk(finish="stop")
            )
        pieces = ('{"city": "', "\ud83d", "\ude00", '"}')
        first: Any = {"id": "t", "type": "function", "function": {"name": "weather", "arguments": ""}}
        functions = [first, *({"function": {"arguments": piece}} for piece in pieces)]
        return events(*(chunk({"tool_calls": [{"index": 0, **one}]}) for one in functions), chunk(finish="tool_calls"))

    async with served(script, CHAT, database_url, tools=[weather]) as (_, worker):
        session_id = await worker.ask("assistant", "weather?")
        assert (await worker.client.get(session_id)).outcome == {"text": "rain in 😀😀\ufffd"}
