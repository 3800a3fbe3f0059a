"""Sessions over HTTP with the real store: what a provider may do to an agent, in each format."""

import dataclasses
import functools
from uuid import UUID

import pytest

from agentrt import tool
from agentrt.core.journal import AssistantMessage, Entry, ModelRetried, StopReason, ToolResult
from agentrt.core.session import Status
from agentrt.testing import LocalWorker
from tests.models.adapters import in_every_format, served, worker_at
from tests.models.direct import MODELS
from tests.models.llmock_server import LlmockServer
from tests.strictprovider.conversation import AssistantMessage as AssistantShown
from tests.strictprovider.conversation import Message, WireFormat
from tests.strictprovider.conversation import Thinking as ThinkingShown
from tests.strictprovider.script import (
    Answer,
    Call,
    Fault,
    ModelRequest,
    Refuse,
    Reply,
    Say,
    Stop,
    StreamError,
    Think,
    by_turn,
    call,
    first_fails,
    html,
    http_error,
    out_of_credit,
    refuse,
    say,
)
from tests.strictprovider.server import StrictProvider

pytestmark = pytest.mark.one_server
OTHER_MODELS = {
    WireFormat.OPENAI_CHAT: "openai-chat:gpt-5",
    WireFormat.OPENAI_RESPONSES: "openai:gpt-5",
    WireFormat.ANTHROPIC: "anthropic:claude-opus-5-5",
}


@tool(effect="read")
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


async def entries(worker: LocalWorker, session_id: UUID) -> list[Entry]:
    return [entry async for entry in worker.client.read(session_id)]


async def answers(worker: LocalWorker, session_id: UUID) -> list[AssistantMessage]:
    return [entry.data for entry in await entries(worker, session_id) if isinstance(entry.data, AssistantMessage)]


async def retries(worker: LocalWorker, session_id: UUID) -> list[str]:
    """The class of each retry."""
    data = [entry.data for entry in await entries(worker, session_id)]
    return [retry.error_class for retry in data if isinstance(retry, ModelRetried)]


async def ends(worker: LocalWorker, message: str = "weather in Oslo?") -> tuple[UUID, str, dict[str, object]]:
    """Run a session to its end: its id, status, and outcome or suspension."""
    session_id = await worker.ask("assistant", message)
    session = await worker.client.get(session_id)
    return session_id, session.status, dict(session.outcome or session.suspension or {})


def number_in(request: ModelRequest) -> int:
    """The case that a session is about, which its first message begins with."""
    return int(request.first_text[0])


def about_oslo(request: ModelRequest) -> Reply:
    if request.tool_results:
        return say(f"There is {request.tool_results[0].text}.")
    return call("weather", city="Oslo")


@in_every_format
async def test_an_agent_with_tools_completes(wire_format: WireFormat, database_url: str) -> None:
    async with served(about_oslo, wire_format, database_url, tools=[weather]) as (provider, worker):
        session_id, status, outcome = await ends(worker)
        assert (status, outcome) == (Status.COMPLETED, {"text": "There is rain in Oslo."})
        await worker.client.send(session_id, "thanks")
        await worker.run()
        assert (await worker.client.get(session_id)).status == Status.COMPLETED
        given = await answers(worker, session_id)
        assert [answer.stop_reason for answer in given] == ["tool_calls", "stop", "tool_calls", "stop"]
        assert all(answer.cost for answer in given)
    assert all(request.finished for request in provider.requests)


@in_every_format
async def test_an_agent_with_tools_completes_against_another_server(wire_format: WireFormat, database_url: str) -> None:
    with LlmockServer(seed=1) as provider:
        async with worker_at(provider, wire_format, database_url, tools=[weather]) as worker:
            session_id, status, _ = await ends(worker)
            given = await answers(worker, session_id)
    assert status == Status.COMPLETED
    assert [answer.stop_reason for answer in given] == [StopReason.TOOL_CALLS, StopReason.STOP]


@in_every_format
async def test_a_call_of_a_broken_answer_is_neither_run_nor_answered(
    wire_format: WireFormat, database_url: str
) -> None:
    """F6."""
    ran = []

    @tool(effect="read", name="weather")
    def counted(city: str) -> str:
        """Counts."""
        ran.append(city)
        return f"rain in {city}"

    endings: list[StreamError | Fault] = [StreamError(), Fault.RESET, Fault.END, Fault.MALFORMED]
    half = (Say("Let me see."), Call("weather", {"city": "Rome"}), Call("weather", {}, half=True))

    def script(request: ModelRequest) -> Reply:
        broken = Answer((*half, endings[number_in(request)]))
        return first_fails(broken, about_oslo)(request)

    async with served(script, wire_format, database_url, tools=[counted]) as (_, worker):
        for number in range(len(endings)):
            session_id, status, outcome = await ends(worker, str(number))
            assert (status, outcome["text"]) == (Status.COMPLETED, "There is rain in Oslo.")
            assert await retries(worker, session_id) == ["transient", "transient"]
            results = [entry for entry in await entries(worker, session_id) if isinstance(entry.data, ToolResult)]
            assert len(results) == 1
    assert ran == ["Oslo"] * len(endings)


EMPTY = [Answer(), say(" \n"), Answer((Think("Hm."),)), Answer((), Stop.LENGTH), Answer((Think("Hm."),), Stop.LENGTH)]


@in_every_format
async def test_an_empty_answer_is_asked_again_twice_and_then_ends_the_run(
    wire_format: WireFormat, database_url: str
) -> None:
    """F7."""
    async with served(lambda request: EMPTY[number_in(request)], wire_format, database_url) as (provider, worker):
        for number in range(len(EMPTY)):
            session_id, status, outcome = await ends(worker, str(number))
            assert (status, outcome["code"]) == (Status.FAILED, "empty_answer")
            assert await retries(worker, session_id) == ["empty"] * 3
            assert await answers(worker, session_id) == []
    assert len(provider.requests) == 3 * len(EMPTY)
    assert all(len(request.messages) == 1 for request in provider.requests)


@in_every_format
async def test_an_empty_answer_that_is_made_good_leaves_no_trace_in_the_view(
    wire_format: WireFormat, database_url: str
) -> None:
    """F7."""
    script = first_fails(Answer((Think("Hm."),)), about_oslo)
    async with served(script, wire_format, database_url, tools=[weather]) as (_, worker):
        _, status, outcome = await ends(worker)
    assert (status, outcome["text"]) == (Status.COMPLETED, "There is rain in Oslo.")


@in_every_format
async def test_a_stream_that_just_ends_is_asked_again(wire_format: WireFormat, database_url: str) -> None:
    """F12."""
    cuts: list[tuple[Say | Think, ...]] = [(), (Say("There is "),), (Think("Hm."), Say("There is "))]

    def script(request: ModelRequest) -> Reply:
        return first_fails(Answer((*cuts[number_in(request)], Fault.END)), about_oslo)(request)

    async with served(script, wire_format, database_url, tools=[weather]) as (_, worker):
        for number in range(len(cuts)):
            session_id, status, outcome = await ends(worker, str(number))
            assert (status, outcome["text"]) == (Status.COMPLETED, "There is rain in Oslo.")
            assert await retries(worker, session_id) == ["transient", "transient"]
            assert len(await answers(worker, session_id)) == 2


REFUSALS = [
    (refuse("I will not help."), "I will not help.", ""),
    (refuse("I will not help.", after="Well, "), "I will not help.", "Well, "),
    (Answer((Call("weather", {"city": "Oslo"}), Refuse("I will not help."))), "I will not help.", ""),
    (Answer((), Stop.REFUSED), "the provider's content filter stopped the answer", ""),
    (Answer((Say("Well, "),), Stop.REFUSED), "the provider's content filter stopped the answer", "Well, "),
]


@in_every_format
async def test_a_refusal_ends_the_run_in_the_providers_words_and_spoils_no_later_turn(
    wire_format: WireFormat, database_url: str
) -> None:
    """F28."""

    def script(request: ModelRequest) -> Reply:
        return say("hello again") if request.last_text.endswith("and now?") else REFUSALS[number_in(request)][0]

    async with served(script, wire_format, database_url, tools=[weather]) as (provider, worker):
        for number, (_, words, text) in enumerate(REFUSALS):
            session_id, status, outcome = await ends(worker, str(number))
            assert (status, outcome) == (Status.COMPLETED, {"text": text, "refused": words})
            assert len(provider.requests) == 2 * number + 1
            await worker.client.send(session_id, "and now?")
            await worker.run()
            session = await worker.client.get(session_id)
            assert (session.status, session.outcome) == (Status.COMPLETED, {"text": "hello again"})


@in_every_format
async def test_an_answer_cut_by_length_goes_on_twice_and_then_says_that_it_is_cut(
    wire_format: WireFormat, database_url: str
) -> None:
    """F29."""
    async with served(lambda _: say("Once upon", stop=Stop.LENGTH), wire_format, database_url) as (provider, worker):
        _, status, outcome = await ends(worker, "tell me a story")
        assert (status, outcome["truncated"]) == (Status.COMPLETED, True)
    assert len(provider.requests) == 3


@in_every_format
async def test_an_answer_cut_by_length_is_whole_once_it_has_gone_on(wire_format: WireFormat, database_url: str) -> None:
    """F29."""
    script = by_turn(say("Once upon", stop=Stop.LENGTH), say(" a time."))
    async with served(script, wire_format, database_url) as (_, worker):
        _, status, outcome = await ends(worker, "tell me a story")
    assert status == Status.COMPLETED
    assert "truncated" not in outcome


def with_thinking(request: ModelRequest) -> Reply:
    if request.tool_results:
        return Answer((Think("Rain."), Say("There is rain.")))
    return Answer((Think("They want the weather."), Say("Let me see."), Call("weather", {"city": "Oslo"})))


@in_every_format
async def test_a_session_goes_on_with_another_model_without_the_first_ones_thinking(
    wire_format: WireFormat, database_url: str
) -> None:
    """F34."""
    async with StrictProvider(with_thinking) as provider:
        for then, name in [*OTHER_MODELS.items(), (wire_format, MODELS[wire_format])]:
            async with worker_at(provider, wire_format, database_url, tools=[weather]) as worker:
                session_id, status, _ = await ends(worker)
                assert status == Status.COMPLETED
            before = len(provider.requests)
            async with worker_at(provider, then, database_url, tools=[weather], name=name) as worker:
                await worker.client.send(session_id, "and tomorrow?")
                await worker.run()
                assert (await worker.client.get(session_id)).status == Status.COMPLETED
            assert provider.violations == []
            shown = [block for message in provider.requests[before].messages for block in strings_of_thinking(message)]
            assert bool(shown) == (name == MODELS[wire_format])


def strings_of_thinking(message: Message) -> list[str]:
    """The texts of the thinking that an answer shows."""
    blocks = message.blocks if isinstance(message, AssistantShown) else ()
    return [block.text for block in blocks if isinstance(block, ThinkingShown)]


# --- what cannot be helped by asking again --------------------------------------------------------------------------


@in_every_format
async def test_a_rejected_request_blocks_the_session_in_the_providers_words(
    wire_format: WireFormat, database_url: str
) -> None:
    """F10."""
    reply = http_error(400, message="this model does not like you")
    async with served(lambda _: reply, wire_format, database_url) as (provider, worker):
        _, status, suspension = await ends(worker)
        assert (status, suspension["reason"]) == (Status.SUSPENDED, "blocked")
        assert "this model does not like you" in str(suspension["message"])
    assert len(provider.requests) == 1


@in_every_format
async def test_an_account_without_credit_blocks_the_session_at_once(wire_format: WireFormat, database_url: str) -> None:
    """F31."""
    async with served(lambda _: out_of_credit(wire_format), wire_format, database_url) as (provider, worker):
        _, status, suspension = await ends(worker)
        assert (status, suspension["reason"]) == (Status.SUSPENDED, "blocked")
    assert len(provider.requests) == 1


@in_every_format
async def test_a_model_that_cannot_be_used_as_configured_is_no_longer_offered_and_says_why(
    wire_format: WireFormat, database_url: str
) -> None:
    replies = [html(), http_error(401, message="bad key"), http_error(404, message="no model")]
    async with served(lambda request: replies[number_in(request)], wire_format, database_url) as (provider, worker):
        for number, words in enumerate(["answered with a web page", "bad key", "no model"]):
            told: list[tuple[str, str]] = []
            unavailable = functools.partial(lambda told, *words: told.append(words), told)
            worker.deps = dataclasses.replace(worker.deps, agent_unavailable=unavailable)
            session_id = await worker.client.create("assistant", str(number))
            [holding] = await worker.claim()
            await worker.run_one(holding)
            session = await worker.client.get(session_id)
            assert session.suspension is not None, "no other worker offers the agent"
            assert (session.suspension["reason"], words in session.suspension["message"]) == ("blocked", True)
            assert len(provider.requests) == number + 1
            [(agent, why)] = told
            assert agent == "assistant"
            assert words in why
            assert "\n" not in why
            await worker.client.cancel(session_id)
