"""A question to the user: the session waits without a slot, and goes on with the answer."""

from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from agentrt.agents import Agent, tool
from agentrt.testing import Call, Conversation, ScriptedModel, local_worker
from agentrt.tools.ask_user import ask_user
from tests.worker.scenes import head, kill, results, types

pytestmark = pytest.mark.one_server

QUESTION = Call("ask_user", {"question": "Which?", "options": ["x", "y"]})


@tool(effect="read")
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def agent_that(script: Callable[[Conversation], Any]) -> Agent:
    return Agent("a", model=ScriptedModel(script), tools=[add, ask_user])


async def test_a_question_frees_its_slot_and_its_answer_queues_the_session(database_url: str) -> None:
    """Case 42."""
    agent = agent_that(lambda c: QUESTION if c.turn == 0 else f"chosen: {c.last_user_text}")
    async with local_worker(database_url, agent) as worker:
        session_id = await worker.client.create("a", "begin")
        [holding] = await worker.claim()
        await worker.run_one(holding)
        session = await head(worker, session_id)
        assert (session.status, session.lease_owner) == ("suspended", None)
        assert session.suspension is not None
        assert session.suspension["reason"] == "input"
        assert "Which?" in (await results(worker, session_id))[0][1]
        assert await worker.claim() == []

        await worker.client.send(session_id, "y")
        assert (await head(worker, session_id)).status == "queued"
        assert await worker.run() == 1
        assert (await head(worker, session_id)).outcome == {"text": "chosen: y"}


async def test_both_results_of_a_batch_are_committed_before_a_question_suspends(database_url: str) -> None:
    """Case 43: and the model is not asked to answer its own question."""
    asked: list[int] = []

    def script(conversation: Conversation) -> Any:
        asked.append(conversation.turn)
        return [QUESTION, Call("add", {"a": 1, "b": 1})] if conversation.turn == 0 else "thanks"

    async with local_worker(database_url, agent_that(script)) as worker:
        session_id = await worker.ask("a", "begin")
        kinds = [kind for kind in await types(worker, session_id) if kind != "tool_started"]
        assert kinds[3:] == ["assistant_message", "tool_result", "tool_result", "session_suspended"]
        assert [outcome for outcome, _ in await results(worker, session_id)] == ["ok", "ok"]
        assert asked == [0]


async def test_a_question_that_was_answered_stops_neither_a_takeover_nor_a_later_run(
    database_url: str, connection: asyncpg.Connection
) -> None:
    """Case 44."""

    def script(conversation: Conversation) -> Any:
        match conversation.turn:
            case 0:
                return QUESTION
            case 1 | 3:
                return Call("add", {"a": 1, "b": 1})
            case _:
                return f"heard: {conversation.last_user_text}"

    agent = agent_that(script)
    async with local_worker(database_url, agent) as a, local_worker(database_url, agent) as b:
        session_id = await a.ask("a", "begin")
        await a.client.send(session_id, "y")
        [lost] = await a.claim()
        assert lost.session.status == "running"
        await kill(a, connection, b)
        await b.run()
        assert (await head(b, session_id)).outcome == {"text": "heard: y"}

        await b.client.send(session_id, "more")
        await b.run()
        assert (await head(b, session_id)).outcome == {"text": "heard: more"}
        assert (await types(b, session_id)).count("session_suspended") == 1
