"""run_session against the real store, with models that are functions."""

import asyncio
import itertools

import pytest

from agentrt.agents import Agent, tool
from agentrt.core import events
from agentrt.core.budget import Limits
from agentrt.core.content import Text
from agentrt.core.journal import AssistantMessage, SessionSuspended
from agentrt.core.messages import ModelOutput, ToolResults, UserInput
from agentrt.testing import Call, Conversation, ScriptedModel, local_worker
from agentrt.tools.ask_user import ask_user
from tests.worker.scenes import add, adding, echo, found, head, results, running, soon, told, types


async def test_a_session_of_three_turns_with_parallel_calls_completes(database_url):
    agent = Agent("adder", model=ScriptedModel(adding), tools=[add])
    async with local_worker(database_url, agent) as worker:
        session_id = await worker.ask("adder", "add them")
        session = await head(worker, session_id)
        assert await types(worker, session_id) == [
            "session_created",
            "user_message",
            "session_claimed",
            "assistant_message",
            "tool_result",
            "tool_result",
            "assistant_message",
            "tool_result",
            "assistant_message",
            "session_completed",
        ]
        assert session.status == "completed"
        assert session.outcome == {"text": "The sum is 10."}
        assert (session.turns, session.attempt) == (3, 1)
        assert [event.outcome for event in told(worker, events.ToolFinished)] == ["ok"] * 3
        assert len(told(worker, events.TurnFinished)) == 3
        [ended] = told(worker, events.SessionEnded)
        assert (ended.status, ended.session_id, ended.agent) == ("completed", session_id, "adder")


@pytest.mark.one_server
async def test_a_second_run_sees_the_first(database_url):
    agent = Agent("echo", model=ScriptedModel(echo))
    async with local_worker(database_url, agent) as worker:
        session_id = await worker.ask("echo", "one")
        await worker.client.send(session_id, "two")
        await worker.run()
        session = await head(worker, session_id)
        assert (session.run, session.outcome) == (2, {"text": "You said: two"})
        assert [answer.content for answer in await found(worker, session_id, AssistantMessage)] == [
            (Text("You said: one"),),
            (Text("You said: two"),),
        ]


# --- messages while it runs -------------------------------------------------------------------------------------------


@pytest.mark.one_server
async def test_a_message_during_a_tool_is_seen_at_the_next_turn(database_url):
    """Case 83: it stands after the results of the tool, and no request ends with an answer."""
    requests = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def slow() -> str:
        """Take long."""
        begun.set()
        await go_on.wait()
        return "done"

    def script(conversation: Conversation):
        requests.append(conversation.messages)
        return Call("slow") if conversation.turn == 0 else f"ok: {conversation.last_user_text}"

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script), tools=[slow])) as worker:
        session_id = await worker.client.create("a", "begin")
        async with running(worker) as holding:
            await soon(begun.wait())
            steered = await worker.client.send(session_id, "steered")
            holding.ahead.set()
            go_on.set()
        assert (await head(worker, session_id)).outcome == {"text": "ok: steered"}
        assert [type(message) for message in requests[1]] == [UserInput, ModelOutput, ToolResults, UserInput]
        answers = await found(worker, session_id, AssistantMessage)
        assert [answer.seen_seq for answer in answers] == [2, steered]


@pytest.mark.one_server
@pytest.mark.parametrize("hint", [True, False], ids=["with a notification", "without a notification"])
async def test_a_message_while_the_model_speaks_is_answered_once_and_not_finished_over(database_url, hint):
    """Case 30: the ending planned before the message is stale, written nowhere, and planned again."""
    requests = []

    async with local_worker(database_url) as outside:

        async def script(conversation: Conversation):
            requests.append(conversation.messages)
            if conversation.turn == 0:
                await outside.client.send(session_id, "late")
                if hint:
                    holding.ahead.set()
            return f"{conversation.turn}: {conversation.last_user_text}"

        async with local_worker(database_url, Agent("a", model=ScriptedModel(script))) as worker:
            session_id = await worker.client.create("a", "early")
            async with running(worker) as holding:
                pass
            assert (await types(worker, session_id))[3:] == [
                "user_message",
                "assistant_message",
                "assistant_message",
                "session_completed",
            ]
            assert (await head(worker, session_id)).outcome == {"text": "1: late"}
            assert [type(message) for message in requests[1]] == [UserInput, ModelOutput, UserInput]


@pytest.mark.one_server
async def test_each_request_begins_with_the_request_before_it(database_url):
    """Case 84, along a real run with steering."""
    requests = []

    def script(conversation: Conversation):
        requests.append(conversation.messages)
        return adding(conversation)

    async with local_worker(database_url, Agent("a", model=ScriptedModel(script), tools=[add])) as worker:
        session_id = await worker.ask("a", "begin")
        await worker.client.send(session_id, "again")
        await worker.run()
        assert len(requests) == 4
        for before, after in itertools.pairwise(requests):
            assert after[: len(before)] == before


@pytest.mark.one_server
async def test_a_queued_message_begins_the_next_run(database_url):
    """Case 86, the part of the owner: a steered message is seen in this run, a queued one begins the next."""

    async with local_worker(database_url) as outside:

        async def script(conversation: Conversation):
            if conversation.turn == 0:
                await outside.client.send(session_id, "queued", when_running="queue")
                await outside.client.send(session_id, "steered")
            return f"ok: {conversation.last_user_text}"

        async with local_worker(database_url, Agent("a", model=ScriptedModel(script))) as worker:
            session_id = await worker.client.create("a", "begin")
            await worker.run()
            session = await head(worker, session_id)
            answers = [text for answer in await found(worker, session_id, AssistantMessage) for text in answer.content]
            assert answers == [Text("ok: begin"), Text("ok: steered"), Text("ok: queued")]
            assert (session.run, session.status) == (2, "completed")


# --- questions --------------------------------------------------------------------------------------------------------


def asking(conversation: Conversation):
    match conversation.turn:
        case 0:
            return [Call("add", {"a": 1, "b": 1}), Call("ask_user", {"question": "Which?", "options": ["x", "y"]})]
        case 1:
            return Call("add", {"a": 2, "b": 2})
        case _:
            return f"chosen: {conversation.last_user_text}"


@pytest.mark.one_server
async def test_a_question_suspends_and_the_answer_is_seen_next(database_url):
    """Cases 42, 43, 44: the other call of the batch is committed first; later work does not stop at the question."""
    agent = Agent("a", model=ScriptedModel(asking), tools=[add, ask_user])
    async with local_worker(database_url, agent) as worker:
        session_id = await worker.ask("a", "begin")
        session = await head(worker, session_id)
        assert session.status == "suspended"
        assert session.suspension is not None
        assert session.suspension["reason"] == "input"
        outcomes = await results(worker, session_id)
        assert [outcome for outcome, _ in outcomes] == ["ok", "ok"]
        assert "- x" in outcomes[1][1]

        await worker.client.send(session_id, "y")
        await worker.run()
        assert (await head(worker, session_id)).outcome == {"text": "chosen: y"}
        assert len(await found(worker, session_id, SessionSuspended)) == 1


@pytest.mark.one_server
async def test_a_message_that_arrives_with_the_question_is_its_answer(database_url):
    """Case 85: suspend(input) planned before a message arrived is stale, the run goes on."""

    async with local_worker(database_url) as outside:

        @tool(effect="read", pauses=True)
        async def ask() -> str:
            """Ask."""
            await outside.client.send(session_id, "answered already")
            return "asked"

        def script(conversation: Conversation):
            return Call("ask") if conversation.turn == 0 else conversation.last_user_text

        async with local_worker(database_url, Agent("a", model=ScriptedModel(script), tools=[ask])) as worker:
            session_id = await worker.client.create("a", "begin")
            await worker.run()
            assert (await head(worker, session_id)).outcome == {"text": "answered already"}
            assert await found(worker, session_id, SessionSuspended) == []


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.one_server
async def test_over_the_limit_it_waits_with_the_figures_and_goes_on_with_a_higher_one(database_url):
    agent = Agent("a", model=ScriptedModel(adding), tools=[add], limits=Limits(turns=2))
    async with local_worker(database_url, agent) as worker:
        session_id = await worker.ask("a", "begin")
        session = await head(worker, session_id)
        assert session.suspension is not None
        assert session.suspension["reason"] == "budget"
        assert "2 turns of 2" in session.suspension["message"]
        await worker.client.resume(session_id, limits={"turns": 3})
        await worker.run()
        assert (await head(worker, session_id)).outcome == {"text": "The sum is 10."}


@pytest.mark.one_server
@pytest.mark.parametrize(("allowed", "status"), [(["limits"], "suspended"), ([], "completed")])
async def test_a_session_overrides_the_limits_as_far_as_the_agent_allows(database_url, allowed, status):
    agent = Agent("a", model=ScriptedModel(adding), tools=[add], allow_overrides=allowed)
    async with local_worker(database_url, agent) as worker:
        session_id = await worker.client.create("a", "begin", config={"limits": {"turns": 1}})
        await worker.run()
        assert (await head(worker, session_id)).status == status


@pytest.mark.one_server
@pytest.mark.parametrize("limits", ['{"turns": "many"}', "5", "[]"])
async def test_limits_that_were_put_there_by_force_fail_the_run(database_url, connection, limits):
    async with local_worker(database_url, Agent("a", model=ScriptedModel(adding), tools=[add])) as worker:
        session_id = await worker.client.create("a", "begin")
        await connection.execute("update agentrt.sessions set config = jsonb_build_object('limits', $1::jsonb)", limits)
        await worker.run()
        session = await head(worker, session_id)
        assert session.outcome is not None
        assert session.outcome["code"] == "agent_error"
        assert "config.limits" in session.outcome["message"]
