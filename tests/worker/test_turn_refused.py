"""Model calls that are refused on the real store: rejected, no quota, no key; and what a session may override."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from agentrt.agents import Agent, tool
from agentrt.core import events
from agentrt.core.content import Thinking
from agentrt.core.errors import ConfigurationError
from agentrt.core.journal import CALL_POSITIONS, ModelRetried, SessionReleased, Usage
from agentrt.core.messages import ModelOutput
from agentrt.ports import ModelError, ModelErrorClass
from agentrt.settings import Settings
from agentrt.testing import Call, Conversation, Reply, ScriptedModel, local_worker
from agentrt.worker.gates import ModelGates
from tests.worker.models import at_once, failing, suspension, transient, unreadable
from tests.worker.scenes import found, head, types

pytestmark = pytest.mark.one_server

# --- other errors -----------------------------------------------------------------------------------------------------


async def test_the_same_rejected_request_is_never_sent_twice(database_url):
    """F10: slot free, the provider's words, no loop."""
    requests = []

    def script(conversation: Conversation):
        requests.append(conversation.messages)
        raise ModelError(ModelErrorClass.REJECTED, "400: tools.0 is wrong", status=400)

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script))) as worker:
        session_id = await worker.ask("a", "begin")
        assert len(requests) == 1
        reason, message = await suspension(worker, session_id)
        assert reason == "blocked"
        assert "400: tools.0 is wrong" in message
        assert await worker.run() == 0


async def test_a_rejected_request_with_thinking_is_tried_once_without(database_url):
    """F10: one changed try."""
    requests = []

    def script(conversation: Conversation):
        if conversation.turn == 0:
            return Reply(text="hello", thinking="hm", provider={"signature": "s"})
        requests.append(conversation.messages)
        raise ModelError(ModelErrorClass.REJECTED, "400: bad signature")

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script))) as worker:
        session_id = await worker.ask("a", "one")
        await worker.client.send(session_id, "two")
        await worker.run()
        assert len(requests) == 2
        first, second = (next(m for m in request if isinstance(m, ModelOutput)) for request in requests)
        assert (Thinking("hm") in first.content, first.provider is None) == (True, False)
        assert (Thinking("hm") in second.content, second.provider is None) == (False, True)
        assert (await suspension(worker, session_id))[0] == "blocked"


async def test_thinking_that_was_rejected_is_not_sent_again_by_whoever_comes_next(database_url):
    """F10: one rejected request for one bad signature, in the next turns too, and in another worker."""
    requests: list[list[bool]] = []

    def script(conversation: Conversation):
        outputs = [message for message in conversation.messages if isinstance(message, ModelOutput)]
        requests.append([output.provider is not None for output in outputs])
        if requests[-1][:1] == [True]:
            raise ModelError(ModelErrorClass.REJECTED, "400: bad signature")
        return Reply(text=f"answer {len(outputs)}", thinking="hm", provider={"signature": "s"})

    agent = Agent("a", model=ScriptedModel(script))
    async with local_worker(database_url, agent) as worker, local_worker(database_url, agent) as other:
        session_id = await worker.ask("a", "one")
        for owner in (worker, worker, other):
            await owner.client.send(session_id, "go on")
            await owner.run()
        assert requests == [[], [True], [False], [False, True], [False, True, True]]
        assert (await head(worker, session_id)).outcome == {"text": "answer 3"}


async def test_answers_that_nobody_can_read_block_the_session_when_they_are_all_alike(database_url):
    """F13: the sixth request would bring no other answer; hours of back-off would only hide the words."""
    model = failing(*[unreadable("'list' object has no attribute 'choices' \ud800")] * 5)
    async with local_worker(database_url, Agent("a", model=model)) as worker:
        session_id = await at_once(worker).ask("a", "begin")
        reason, message = await suspension(worker, session_id)
        assert (reason, "5 times in a row: 'list' object has no attribute" in message) == ("blocked", True)
        assert len(await found(worker, session_id, ModelRetried)) == 4
        await worker.client.resume(session_id)
        await worker.run()
        assert (await head(worker, session_id)).outcome == {"text": "ok"}


async def test_other_words_or_an_overloaded_provider_are_waited_for(database_url):
    """F13: five in a row and of one kind, or the hours of back-off decide."""
    errors = [*[unreadable("x")] * 4, transient(), *[unreadable("x")] * 4, unreadable("y"), *[transient()] * 6]
    async with local_worker(database_url, Agent("a", model=failing(*errors))) as worker:
        session_id = await at_once(worker).ask("a", "begin")
        assert (await head(worker, session_id)).outcome == {"text": "ok"}
        assert len(await found(worker, session_id, ModelRetried)) == len(errors)


async def test_an_answer_with_more_calls_than_there_are_ids_runs_none_of_them_and_is_asked_again(database_url):
    """F13, for a model that repeats itself without end; what it burnt counts."""
    ran: list[str] = []

    @tool(effect="read")
    def look(place: str) -> str:
        ran.append(place)
        return "nothing"

    def calls(number: int) -> Reply:
        return Reply(calls=tuple(Call("look", {"place": str(n)}) for n in range(number)), usage=Usage(5, 7))

    model = failing(calls(CALL_POSITIONS + 1), calls(2))
    async with local_worker(database_url, Agent("a", model=model, tools=[look])) as worker:
        session_id = await at_once(worker).ask("a", "begin")
        [retried] = await found(worker, session_id, ModelRetried)
        assert "tools behind its first 4096 blocks" in retried.message
        assert (retried.error_class, retried.usage) == ("transient", Usage(5, 7))
        assert sorted(ran) == ["0", "1"]
        assert (await head(worker, session_id)).outcome == {"text": "ok"}


async def test_no_quota_blocks_at_once(database_url):
    """F31."""
    model = failing(ModelError(ModelErrorClass.QUOTA, "insufficient_quota"))
    async with local_worker(database_url, Agent("a", model=model)) as worker:
        session_id = await worker.ask("a", "begin")
        reason, message = await suspension(worker, session_id)
        assert (reason, "insufficient_quota" in message) == ("blocked", True)
        assert await found(worker, session_id, ModelRetried) == []
        await worker.client.resume(session_id)
        await worker.run()
        assert (await head(worker, session_id)).outcome == {"text": "ok"}


WORDS = "401 Bearer abcdef0123456789"
CANNOT_BE_USED: dict[str, Any] = {
    "error of the call": failing(*[ModelError(ModelErrorClass.CONFIGURATION, WORDS)] * 100),
    "raised by the call": failing(*[ConfigurationError(WORDS)] * 100),
    "no such model": "nobody:Bearer-abcdef0123456789",
}


@pytest.mark.parametrize("where", CANNOT_BE_USED)
async def test_a_model_that_cannot_be_used_here_gives_the_session_back_uncharged_to_another_worker(database_url, where):
    """F30: the worker is told not to offer the agent for a while; nothing fails."""
    heard: list[tuple[str, str]] = []
    agent, able = (Agent("a", model=model) for model in (CANNOT_BE_USED[where], failing()))
    async with local_worker(database_url, agent) as worker, local_worker(database_url, able) as other:
        worker.deps = replace(worker.deps, agent_unavailable=lambda agent, error: heard.append((agent, error)))
        session_id = await worker.client.create("a", "begin")
        [holding] = await worker.claim()
        await worker.run_one(holding)
        session = await head(worker, session_id)
        assert (session.status, session.attempt) == ("queued", 1)
        [(name, error)] = heard
        assert name == "a"
        [released] = [event for event in worker.events if isinstance(event, events.SessionReleased)]
        assert (released.reason, released.error) == ("model unavailable", error), "a label of few values, and words"
        [entry] = await found(worker, session_id, SessionReleased)
        assert (entry.reason, entry.message) == ("model unavailable", error)
        if where != "no such model":
            assert "abcdef0123456789" not in error
            assert "abcdef0123456789" not in repr(await types(worker, session_id))
        await other.run()
        assert (await head(worker, session_id)).outcome == {"text": "ok"}


@pytest.mark.parametrize("where", CANNOT_BE_USED)
async def test_a_model_that_no_living_worker_can_use_blocks_the_session_with_the_words(database_url, where):
    """F30: blocked only if no other live worker offers it, and not asked for ever."""
    async with local_worker(database_url, Agent("a", model=CANNOT_BE_USED[where])) as worker:
        session_id = await worker.ask("a", "begin")
        reason, message = await suspension(worker, session_id)
        assert reason == "blocked"
        assert "no living worker" in message
        assert "nobody" in message if where == "no such model" else "401" in message
        assert (await types(worker, session_id)).count("session_claimed") == 1


async def test_a_model_that_only_the_session_names_says_nothing_about_its_agent(database_url):
    heard: list[tuple[str, str]] = []
    agent = Agent("a", model=failing(), allow_overrides=["model"])
    async with local_worker(database_url, agent) as worker, local_worker(database_url, agent):
        worker.deps = replace(worker.deps, agent_unavailable=lambda agent, error: heard.append((agent, error)))
        session_id = await worker.client.create("a", "begin", config={"model": "nobody:nothing"})
        await worker.run()
        reason, message = await suspension(worker, session_id)
        assert (reason, "nobody:nothing" in message, heard) == ("blocked", True, [])
        sound = await worker.ask("a", "begin")
        assert (await head(worker, sound)).outcome == {"text": "ok"}


async def test_events_tell_turns_and_retries_without_contents(database_url):
    model = failing(transient(), Reply(text="secret words", usage=Usage(3, 2)))
    async with local_worker(database_url, Agent("a", model=model)) as worker:
        await at_once(worker).ask("a", "begin")
        [retried] = [event for event in worker.events if isinstance(event, events.ModelRetried)]
        [finished] = [event for event in worker.events if isinstance(event, events.TurnFinished)]
        assert (retried.error_class, retried.model) == ("transient", "scripted:scripted")
        assert (finished.model, finished.input_tokens, finished.stop_reason) == ("scripted:scripted", 3, "stop")
        assert "secret words" not in repr(worker.events)


async def test_no_secret_gets_out_through_a_models_error(database_url):
    """F33, for the provider's words: a retry, and a suspension."""
    words = "see postgresql://admin:hunter22@db/x, Bearer abcdef0123456789, geheimnis-42"
    model = failing(ModelError(ModelErrorClass.TRANSIENT, words), ModelError(ModelErrorClass.QUOTA, words))
    async with local_worker(database_url, Agent("a", model=model)) as worker:
        worker.deps = replace(worker.deps, secrets=("geheimnis-42",))
        session_id = await at_once(worker).ask("a", "begin")
        _, message = await suspension(worker, session_id)
        [retried] = await found(worker, session_id, ModelRetried)
        for place in (message, retried.message, repr(worker.events)):
            assert not any(secret in place for secret in ("hunter22", "abcdef0123456789", "geheimnis-42"))


async def test_no_more_calls_than_allowed_are_made_to_a_provider_at_once(database_url):
    arrived: list[str] = []
    all_there = asyncio.Event()

    class Counted(ModelGates):
        @asynccontextmanager
        async def passing(self, provider: str, *, at_once: int) -> AsyncIterator[None]:
            arrived.append(provider)
            if len(arrived) == 6:
                all_there.set()
            async with super().passing(provider, at_once=at_once):
                yield

    at_once: list[int] = []
    calls = 0

    async def script(conversation: Conversation):
        nonlocal calls
        calls += 1
        at_once.append(calls)
        await all_there.wait()
        await asyncio.sleep(0)
        calls -= 1
        return "ok"

    settings = Settings(database_url=database_url, model_concurrency=2)
    async with local_worker(database_url, Agent("a", model=ScriptedModel(script)), settings=settings) as worker:
        worker.deps = replace(worker.deps, gates=Counted())
        for _ in range(6):
            await worker.client.create("a", "begin")
        holdings = await worker.claim(6)
        await asyncio.gather(*map(worker.run_one, holdings))
        assert (len(at_once), max(at_once)) == (6, 2)


async def test_a_models_seconds_are_those_of_the_call_without_the_wait_for_it(database_url):
    now = 0.0

    class Crowded(ModelGates):
        @asynccontextmanager
        async def passing(self, provider: str, *, at_once: int) -> AsyncIterator[None]:
            nonlocal now
            now += 100.0
            yield

    def script(conversation: Conversation):
        nonlocal now
        now += 2.0
        return "ok"

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script))) as worker:
        worker.deps = replace(worker.deps, gates=Crowded(), clock=lambda: now)
        await worker.ask("a", "begin")
        [finished] = [event for event in worker.events if isinstance(event, events.TurnFinished)]
        assert finished.seconds == 2.0


# --- overrides --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("allowed", "text"), [(["model", "instructions"], "B: be brief"), ([], "A: be kind")])
async def test_a_session_overrides_model_and_instructions_only_where_the_agent_names_them(database_url, allowed, text):
    def named(name: str) -> ScriptedModel:
        return ScriptedModel(lambda conversation: f"{name}: {conversation.request.instructions}")

    agent = Agent("a", model="x:a", instructions="be kind", allow_overrides=allowed)
    models: Any = {"x:a": named("A"), "x:b": named("B")}
    async with local_worker(database_url, agent, models=models) as worker:
        session_id = await worker.client.create("a", "begin", config={"model": "x:b", "instructions": "be brief"})
        await worker.run()
        assert (await head(worker, session_id)).outcome == {"text": text}
