"""The strict provider's own behaviour on the wire: faults exactly where the script puts them, log, gates, process."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tests.strictprovider.conversation import WireFormat
from tests.strictprovider.process import StrictProviderProcess
from tests.strictprovider.rules import Rule
from tests.strictprovider.script import (
    Answer,
    Call,
    Fault,
    HttpReply,
    ModelRequest,
    Reply,
    Say,
    Stop,
    Think,
    Wait,
    by_turn,
    call,
    echo,
    fault_after,
    first_fails,
    html,
    http_error,
    say,
)
from tests.strictprovider.server import Policy, StrictProvider

in_every_format = pytest.mark.parametrize("wire_format", list(WireFormat))
PATHS = {
    WireFormat.OPENAI_CHAT: "/v1/chat/completions",
    WireFormat.OPENAI_RESPONSES: "/v1/responses",
    WireFormat.ANTHROPIC: "/v1/messages",
}


def body(wire_format: WireFormat, text: str = "hi", *, stream: bool = True, **more: Any) -> dict[str, Any]:
    said = {"role": "user", "content": text}
    if wire_format is WireFormat.OPENAI_RESPONSES:
        return {"model": "m", "input": [said], "stream": stream, **more}
    return {"model": "m", "max_tokens": 100, "messages": [said], "stream": stream, **more}


async def post(provider: StrictProvider, wire_format: WireFormat, **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=provider.url, timeout=60) as client:
        return await client.post(PATHS[wire_format], json=body(wire_format, **more), headers={"x-api-key": "key"})


def names(answer: httpx.Response) -> list[str]:
    """The types of the events of a stream."""
    datas = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(data).get("type", "chunk") if data.startswith("{") else data for data in datas]


async def test_each_format_streams_its_events_from_first_to_last() -> None:
    async with StrictProvider() as provider:
        chat = await post(provider, WireFormat.OPENAI_CHAT)
        responses = await post(provider, WireFormat.OPENAI_RESPONSES)
        anthropic = await post(provider, WireFormat.ANTHROPIC)
    assert chat.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert names(chat) == ["chunk"] * 4 + ["[DONE]"]
    assert names(responses) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 2,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert names(anthropic) == [
        "message_start",
        "ping",
        "content_block_start",
        *["content_block_delta"] * 2,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [recorded.finished for recorded in provider.requests] == [True, True, True]


@in_every_format
async def test_an_answer_that_is_not_streamed_is_one_body(wire_format: WireFormat) -> None:
    async with StrictProvider(lambda _: Answer((Think("hm"), Say("Look: "), Call("look", {"at": "x"})))) as provider:
        answer = (await post(provider, wire_format, stream=False)).json()
    text = json.dumps(answer)
    assert "Look: " in text
    assert "look" in text
    assert answer["model"] == "m"
    assert answer["usage"]


@in_every_format
@pytest.mark.parametrize("fault", [Fault.RESET, Fault.CLOSE])
async def test_a_cut_comes_exactly_after_the_chunks_before_it(wire_format: WireFormat, fault: Fault) -> None:
    script = fault_after(say("one__two__three", pieces=3), 2, fault)
    received = b""
    cut: type[Exception] | None = None
    async with (
        StrictProvider(lambda _: script) as provider,
        httpx.AsyncClient(base_url=provider.url, timeout=60) as client,
    ):
        try:
            async with client.stream("POST", PATHS[wire_format], json=body(wire_format)) as answer:
                async for data in answer.aiter_bytes():
                    received += data
        except (httpx.ReadError, httpx.RemoteProtocolError) as error:
            cut = type(error)
        await provider.until(lambda: provider.requests[0].client_left)
    assert cut is (httpx.ReadError if fault is Fault.RESET else httpx.RemoteProtocolError)
    assert b"three" not in received
    if fault is Fault.CLOSE:  # a reset may overtake what was sent before it
        assert b"two" in received
    assert not provider.requests[0].finished


@in_every_format
async def test_a_clean_end_without_marker_is_a_complete_http_body(wire_format: WireFormat) -> None:
    """F12."""
    async with StrictProvider(lambda _: Answer((Say("Hello"), Fault.END))) as provider:
        answer = await post(provider, wire_format)
    assert {"[DONE]", "response.completed", "message_delta", "message_stop"}.isdisjoint(names(answer))
    assert not provider.requests[0].finished


async def read_until_silent(lines: AsyncIterator[str], *, behind: str) -> None:
    """Fails if the stream ends."""
    shown = ""
    with suppress(TimeoutError):
        while True:
            async with asyncio.timeout(0.2 if behind in shown else None):
                shown += await anext(lines)


@in_every_format
async def test_silence_keeps_the_socket_open_until_the_client_leaves(wire_format: WireFormat) -> None:
    """F11."""
    async with StrictProvider(lambda _: Answer((Say("done"), Fault.SILENCE))) as provider:
        async with (
            httpx.AsyncClient(base_url=provider.url, timeout=60) as client,
            client.stream("POST", PATHS[wire_format], json=body(wire_format)) as answer,
        ):
            await read_until_silent(answer.aiter_lines(), behind='"ne"')  # the last of two pieces
        await provider.until(lambda: provider.requests[0].client_left)
    assert provider.requests[0].chunks > 1


async def test_a_gate_holds_an_answer_until_it_is_opened() -> None:
    script = Answer((Say("before"), Wait("gate"), Say("after", pieces=1)))
    async with StrictProvider(lambda _: script) as provider:
        asked = asyncio.create_task(post(provider, WireFormat.OPENAI_CHAT))
        await provider.gate_reached("gate")
        assert not asked.done()
        sent = provider.requests[0].chunks
        provider.open_gate("gate")
        assert "after" in (await asked).text
    assert provider.requests[0].chunks > sent


async def test_an_event_of_the_same_loop_holds_an_answer_too() -> None:
    happened = asyncio.Event()
    async with StrictProvider(lambda _: Answer((Wait(happened), Wait(0.001), Say("after", pieces=1)))) as provider:
        asked = asyncio.create_task(post(provider, WireFormat.ANTHROPIC))
        await provider.until(lambda: bool(provider.requests) and provider.requests[0].chunks > 0)
        happened.set()
        assert "after" in (await asked).text


@in_every_format
async def test_a_violation_is_answered_with_400_in_the_providers_shape(wire_format: WireFormat) -> None:
    async with StrictProvider() as provider:
        answer = await post(provider, wire_format, text=" ")
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert Rule.BLANK_TEXT in answer.json()["error"]["message"]
    assert not provider.requests[0].accepted
    assert [violation.rule for violation in provider.violations] == [Rule.BLANK_TEXT]


@in_every_format
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"messages": 7, "input": 7}',
        b'{"model": "m"}',
        b'{"messages": ["x"], "input": ["x"]}',
    ],
)
async def test_any_body_gets_an_answer(wire_format: WireFormat, content: bytes) -> None:
    async with StrictProvider() as provider, httpx.AsyncClient(base_url=provider.url, timeout=60) as client:
        answer = await client.post(PATHS[wire_format], content=content)
    assert answer.status_code == 400
    assert provider.violations


@in_every_format
@pytest.mark.parametrize("text", ["a\\u0000b", "a\\ud800b"])
async def test_characters_that_no_provider_takes_are_found_behind_their_escapes(
    wire_format: WireFormat, text: str
) -> None:
    """F1."""
    content = json.dumps(body(wire_format, "TEXT")).replace("TEXT", text)
    async with StrictProvider() as provider, httpx.AsyncClient(base_url=provider.url, timeout=60) as client:
        assert (await client.post(PATHS[wire_format], content=content)).status_code == 400
    assert {violation.rule for violation in provider.violations} == {Rule.BAD_CHARACTER}


async def test_bad_characters_are_found_in_instructions_and_tools_too() -> None:
    tool = {"name": "look", "description": "a\x00b", "input_schema": {"type": "object"}}
    async with StrictProvider() as provider:
        assert (await post(provider, WireFormat.ANTHROPIC, tools=[tool])).status_code == 400


async def test_a_key_or_a_model_that_is_not_known_is_turned_away() -> None:
    async with StrictProvider(policy=Policy(keys={"key"}, models={"m"})) as provider:
        assert (await post(provider, WireFormat.ANTHROPIC)).status_code == 200
        assert (await post(provider, WireFormat.ANTHROPIC, model="other")).status_code == 404
        provider.policy = Policy(keys={"another key"})
        assert (await post(provider, WireFormat.ANTHROPIC)).status_code == 401
    assert provider.violations == []


async def test_errors_html_and_headers_arrive_as_scripted() -> None:
    replies: list[HttpReply] = [http_error(429, retry_after="7"), http_error(529), html(502)]
    async with StrictProvider(lambda request: replies[request.number - 1]) as provider:
        limited, overloaded, gateway = [await post(provider, WireFormat.ANTHROPIC) for _ in replies]
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "7")
    assert overloaded.json()["error"]["type"] == "overloaded_error"
    assert (gateway.status_code, gateway.text[:9]) == (502, "<!doctype")


async def test_a_script_sees_the_conversation_the_turn_and_the_try() -> None:
    seen: list[ModelRequest] = []

    def script(request: ModelRequest) -> Reply:
        seen.append(request)
        return first_fails(http_error(503), by_turn(call("look"), say("done")))(request)

    conversation = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "AAAAAAAA1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "AAAAAAAA1", "content": "a cat"},
    ]
    async with StrictProvider(script) as provider:
        statuses = [(await post(provider, WireFormat.OPENAI_CHAT)).status_code for _ in range(2)]
        await post(provider, WireFormat.OPENAI_CHAT, messages=conversation)
        last = await post(provider, WireFormat.OPENAI_CHAT, messages=conversation)
    assert statuses == [503, 200]
    assert [request.tries for request in seen] == [1, 2, 1, 2]
    assert [len(request.answers) for request in seen] == [0, 0, 1, 1]
    assert [result.text for result in seen[-1].tool_results] == ["a cat"]
    assert (seen[-1].first_text, seen[-1].last_text) == ("hi", "hi")
    assert '"do"' in last.text  # "done" in two pieces


async def test_a_script_that_raises_is_reported_at_the_end() -> None:
    def script(request: ModelRequest) -> Reply:
        raise LookupError("no answer for this")

    provider = StrictProvider(script)
    await provider.__aenter__()
    assert (await post(provider, WireFormat.ANTHROPIC)).status_code == 500
    with pytest.raises(ExceptionGroup) as reported:
        await provider.__aexit__(None, None, None)
    assert reported.group_contains(LookupError, match="no answer for this")


async def test_a_pause_in_a_format_that_has_none_is_the_scripts_error() -> None:
    provider = StrictProvider(lambda _: say("searching", stop=Stop.PAUSED))
    await provider.__aenter__()
    with pytest.raises(httpx.TransportError):
        await post(provider, WireFormat.OPENAI_CHAT)
    with pytest.raises(ExceptionGroup):
        await provider.__aexit__(None, None, None)


async def test_a_hundred_answers_stream_at_once() -> None:
    async with StrictProvider(echo) as provider, httpx.AsyncClient(base_url=provider.url, timeout=60) as client:
        asked = [client.post("/v1/messages", json=body(WireFormat.ANTHROPIC, f"number {n}")) for n in range(100)]
        answers = await asyncio.gather(*asked)
    assert {answer.status_code for answer in answers} == {200}
    assert len(provider.requests) == 100


def gated(request: ModelRequest) -> Reply:
    return Answer((Say("before"), Wait("gate"), Say("after", pieces=1)))


def test_in_its_own_process_it_serves_a_script_by_path_and_shows_its_log_and_gates() -> None:
    script = "tests.models.test_strict_provider_server:gated"
    with StrictProviderProcess(script) as provider, httpx.Client(base_url=provider.url, timeout=60) as client:
        with client.stream("POST", "/v1/messages", json=body(WireFormat.ANTHROPIC)):
            while not provider.waiting().get("gate"):
                pass
        client.post("/v1/messages", json=body(WireFormat.ANTHROPIC, " "))
        first, second = provider.requests()
        assert (first["accepted"], first["status"], first["format"]) == (True, 200, "anthropic")
        assert first["messages"] == [
            {"kind": "UserMessage", "blocks": [{"text": "hi", "item_id": None, "requires": None}]}
        ]
        assert not second["accepted"]
        assert len(provider.violations()) == 1
        provider.open_gate("gate")
        assert "after" in client.post("/v1/messages", json=body(WireFormat.ANTHROPIC)).text


def test_a_script_that_does_not_exist_is_named() -> None:
    with pytest.raises(RuntimeError, match="ended with 2"), StrictProviderProcess("nothing"):
        pass
